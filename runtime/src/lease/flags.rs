//! Flags about the Lease, which all programs with leader election have.

use std::fs;
use std::time::Duration;

use multinet_crds::syntax::DNS_LABEL;

use super::{LeaseConfig, MAX_DURATION, MIN_DURATION};
use crate::command_line::{duration, namespace, object_name};
use crate::limits::lease::DEFAULT_DURATION;
use crate::random_number;

/// File in which a pod finds the name of its namespace.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Default namespace of the Lease outside of a pod, which is that of the shipped manifests.
const NAMESPACE: &str = "multinet-system";

/// Maximum length of the identity, which appears in the Lease and in events.
const MAX_IDENTITY: usize = 128;

/// Command-line flags about the Lease.
#[derive(clap::Args, Clone, Debug)]
pub struct LeaseArgs {
    /// Namespace of the Lease [default: that of the pod, else multinet-system]
    #[arg(long, value_name = "NAMESPACE", env = "MULTINET_LEASE_NAMESPACE", value_parser = namespace,
          help_heading = "Leader election")]
    lease_namespace: Option<String>,

    /// Name of the Lease; of the processes with the same Lease, one is the leader [default: the
    /// program's name]
    #[arg(long, value_name = "NAME", env = "MULTINET_LEASE_NAME", value_parser = object_name,
          help_heading = "Leader election")]
    lease_name: Option<String>,

    /// Time after which a silent leader loses the Lease, 1s to 1h
    #[arg(long, value_name = "TIME", env = "MULTINET_LEASE_DURATION", default_value = DEFAULT_DURATION,
          value_parser = lease_duration, help_heading = "Leader election")]
    lease_duration: Duration,

    /// Name of this process, unique among those with the same Lease, such as the pod's name; a
    /// container that restarts under the same name need not wait for the Lease to expire [default:
    /// the host's name and a random number]
    #[arg(long, value_name = "NAME", env = "MULTINET_IDENTITY", value_parser = identity,
          help_heading = "Leader election")]
    identity: Option<String>,
}

impl LeaseArgs {
    /// Returns the configuration for a program. Takes defaults that depend on the environment from
    /// the pod or the host.
    pub fn config(self, program: &str) -> LeaseConfig {
        LeaseConfig {
            namespace: self.lease_namespace.unwrap_or_else(own_namespace),
            name: self.lease_name.unwrap_or_else(|| program.to_owned()),
            identity: self.identity.unwrap_or_else(|| own_identity(program)),
            duration: self.lease_duration,
        }
    }
}

fn own_namespace() -> String {
    let pods = fs::read_to_string(POD_NAMESPACE).unwrap_or_default();
    let pods = pods.trim();
    if DNS_LABEL.accepts(pods) { pods.to_owned() } else { NAMESPACE.to_owned() }
}

/// Returns an identity that no other process has, even on the same host. Two processes with the
/// same identity could lead at the same time.
fn own_identity(program: &str) -> String {
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

fn lease_duration(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    let is_possible = (MIN_DURATION..=MAX_DURATION).contains(&duration);
    is_possible.then_some(duration).ok_or_else(|| "choose from 1s to 1h".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::command_line::one_line;

    #[derive(Debug, Parser)]
    struct Args {
        #[command(flatten)]
        lease: LeaseArgs,
    }

    fn config(flags: &[&str]) -> Result<LeaseConfig, String> {
        let args = Args::try_parse_from(["program"].iter().chain(flags));
        args.map(|args| args.lease.config("program")).map_err(|error| one_line(&error, "program"))
    }

    #[test]
    fn the_lease_has_the_programs_name_and_two_processes_have_different_identities() {
        let (one, other) = (config(&[]).unwrap(), config(&[]).unwrap());
        assert_eq!((one.namespace.as_str(), one.name.as_str()), (NAMESPACE, "program"));
        assert_eq!(one.duration, Duration::from_secs(15));
        assert_ne!(one.identity, other.identity);
        assert!(identity(&one.identity).is_ok(), "{}", one.identity);
        let given =
            config(&["--identity", "pod-0", "--lease-name", "mine", "--lease-namespace", "ours"]).unwrap();
        assert_eq!([given.identity, given.name, given.namespace], ["pod-0", "mine", "ours"]);
    }

    #[test]
    fn invalid_flags_are_refused_with_the_rule_that_they_break() {
        for (flag, value, message) in [
            ("--lease-duration", "500ms", "choose from 1s to 1h"),
            ("--lease-duration", "2h", "choose from 1s to 1h"),
            ("--lease-duration", "15", "write a time as"),
            ("--lease-namespace", "A", "the name of a namespace is a DNS label"),
            ("--lease-name", "a/b", "the name of an object is a DNS name"),
            ("--identity", "a b", "without spaces"),
        ] {
            let error = config(&[flag, value]).unwrap_err();
            assert!(error.contains(message) && !error.contains('\n'), "{flag} {value}: {error}");
        }
    }
}
