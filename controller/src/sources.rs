//! Sources of addresses of pods' secondary interfaces. Each source has its own file, and one entry
//! in [`SOURCES`].
//!
//! Sources report the same things in different formats: an interface, its networks, its addresses,
//! and details of the device. Code that uses interfaces does not depend on the source.
//!
//! An unreadable source or entry does not affect the others.

pub mod dra;
pub mod multus;
pub mod ovn_kubernetes;
mod requests;

use std::collections::BTreeMap;

use multinet_crds::Device;

use crate::model::{Claim, DeviceId, Interfaces, Pod, PodClaim, Report};

/// All sources. If two report the same address, the earlier one describes its device.
pub const SOURCES: [&dyn Source; 3] = [&multus::Multus, &dra::Dra, &ovn_kubernetes::OvnKubernetes];

/// A place where addresses of pods' secondary interfaces are reported.
pub trait Source: Sync {
    /// Adds the contents of a pod's annotations to the report.
    fn read(&self, _pod: &PodAnnotations<'_>, _report: &mut Report) {}

    /// Adds the interfaces from the claims that a pod uses.
    fn read_claims(&self, _pod: &Pod, _claims: &PodClaims<'_>, _interfaces: &mut Interfaces) {}
}

/// Annotations of a pod, with the pod's namespace.
#[derive(Clone, Copy, Debug)]
pub struct PodAnnotations<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Annotations by key.
    pub annotations: &'a BTreeMap<String, String>,
}

impl<'a> PodAnnotations<'a> {
    /// Returns the value of the annotation `key`; `None` if the pod lacks that annotation.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.annotations.get(key).map(String::as_str)
    }
}

/// ResourceClaims that a pod uses, with what is known about their devices.
pub struct PodClaims<'a> {
    /// Each claim as the pod refers to it, and the claim itself.
    pub claims: Vec<(&'a PodClaim, &'a Claim)>,
    /// Function that returns the details of a device that ResourceSlices publish.
    pub facts: &'a dyn Fn(&DeviceId) -> Device,
}

/// Reads a pod's annotations with all sources.
pub fn report(pod: &PodAnnotations<'_>) -> Report {
    let mut report = Report::default();
    SOURCES.iter().for_each(|source| source.read(pod, &mut report));
    report
}
