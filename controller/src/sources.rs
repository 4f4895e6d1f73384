//! Where the addresses of a pod's secondary interfaces are reported: one source per file, one row per source.
//!
//! Each source says the same thing in its own words: an interface, the networks that it is on, its addresses, and what is known
//! of the device. Code that uses interfaces does not know which source reported them.
//!
//! A source that cannot be read, or an entry of it, takes nothing else with it.

pub mod dra;
pub mod multus;
pub mod ovn_kubernetes;
mod requests;

use std::collections::BTreeMap;

use multinet_crds::Device;

use crate::model::{Claim, DeviceId, Interfaces, Pod, PodClaim, Report};

/// The sources. Where two report the same address, the earlier one describes its device.
pub const SOURCES: [&dyn Source; 3] = [&multus::Multus, &dra::Dra, &ovn_kubernetes::OvnKubernetes];

/// A place where addresses of pods' secondary interfaces are reported.
pub trait Source: Sync {
    /// Returns the keys of the pod annotations that [`read`](Self::read) looks at.
    fn annotations(&self) -> &'static [&'static str] {
        &[]
    }

    /// Reads a pod's annotations.
    fn read(&self, _pod: &PodAnnotations<'_>, _report: &mut Report) {}

    /// Reads the claims that a pod uses.
    fn read_claims(&self, _pod: &Pod, _claims: &PodClaims<'_>, _interfaces: &mut Interfaces) {}
}

/// A pod's annotations.
#[derive(Clone, Copy, Debug)]
pub struct PodAnnotations<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// Its annotations by key.
    pub annotations: &'a BTreeMap<String, String>,
}

impl<'a> PodAnnotations<'a> {
    /// Returns the text of an annotation.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.annotations.get(key).map(String::as_str)
    }
}

/// The claims of a pod.
pub struct PodClaims<'a> {
    /// The claims, as the pod speaks of them and as they are.
    pub claims: Vec<(&'a PodClaim, &'a Claim)>,
    /// Returns what is known of a device.
    pub facts: &'a dyn Fn(&DeviceId) -> Device,
}

/// Returns whether any source reads this pod annotation.
pub fn is_read(key: &str) -> bool {
    SOURCES.iter().any(|source| source.annotations().contains(&key))
}

/// Reads a pod's annotations.
pub fn report(pod: &PodAnnotations<'_>) -> Report {
    let mut report = Report::default();
    SOURCES.iter().for_each(|source| source.read(pod, &mut report));
    report
}
