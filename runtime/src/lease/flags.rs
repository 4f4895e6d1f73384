//! Values of the flags about the Lease, which all programs with leader election have.

use std::fs;
use std::time::Duration;

use super::{MAX_DURATION, MIN_DURATION};
use crate::command_line::duration;
use crate::random_number;

/// File in which a pod finds the name of its namespace.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Default namespace of the Lease outside of a pod, which is that of the shipped manifests.
pub const NAMESPACE: &str = "multinet-system";

/// Maximum length of the identity, which appears in the Lease and in events.
const MAX_IDENTITY: usize = 128;

/// Returns the namespace of this pod, if `is_one` accepts its name, or else [`NAMESPACE`].
pub fn own_namespace(is_one: impl Fn(&str) -> bool) -> String {
    let pods = fs::read_to_string(POD_NAMESPACE).unwrap_or_default();
    let pods = pods.trim();
    if is_one(pods) { pods.to_owned() } else { NAMESPACE.to_owned() }
}

/// Returns an identity that no other process has, even on the same host. Two processes with the
/// same identity could lead at the same time.
pub fn own_identity(program: &str) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { program } else { &host[..host.floor_char_boundary(64)] };
    format!("{host}_{:016x}", random_number())
}

/// Parses an identity.
///
/// # Errors
///
/// The rule that `text` breaks.
pub fn identity(text: &str) -> Result<String, String> {
    let is_one = (1..=MAX_IDENTITY).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_one
        .then(|| text.to_owned())
        .ok_or_else(|| format!("a name of 1 to {MAX_IDENTITY} printable characters without spaces"))
}

/// Parses the duration of a Lease.
///
/// # Errors
///
/// The times to choose from.
pub fn lease_duration(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    let is_possible = (MIN_DURATION..=MAX_DURATION).contains(&duration);
    is_possible.then_some(duration).ok_or_else(|| "choose from 1s to 1h".to_owned())
}
