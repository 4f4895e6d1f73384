//! Names of the pod's networks, as files in the container tell them.

mod device_metadata;
mod network_status;

use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::Path;

use crate::rail::Rail;

/// Files that have the pod's network-status unless another is named: the annotation alone, or all
/// annotations, as the network resources injector of SR-IOV mounts them.
///
/// ```
/// assert_eq!(multinet_rails::DEFAULT_NETWORK_STATUS[0], "/etc/podnetinfo/network-status");
/// ```
pub const DEFAULT_NETWORK_STATUS: [&str; 2] =
    ["/etc/podnetinfo/network-status", "/etc/podnetinfo/annotations"];

/// Network that the pod is attached to, as a file tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// Name of the NetworkAttachmentDefinition without its namespace, or of the ResourceClaim: that
    /// in the pod, if it is made from a template.
    pub(crate) network: String,
    interface: Option<String>,
    addresses: Vec<IpAddr>,
    /// PCI address of the device, if told.
    pub(crate) pci: Option<String>,
}

impl Attachment {
    /// Returns whether the file speaks of a rail: by its interface, or else by an address of it or
    /// by its NIC, as of a port of InfiniBand without an interface.
    pub(crate) fn is_of(&self, rail: &Rail) -> bool {
        match (&self.interface, &rail.interface) {
            (Some(named), Some(own)) => named == own,
            _ => {
                rail.addresses.iter().any(|own| self.addresses.contains(&own.addr()))
                    || self.pci.is_some() && self.pci == rail.pci
            }
        }
    }
}

/// Reads the networks of the pod from its network-status, and then from the metadata of its
/// devices.
pub(crate) fn read(root: &Path, network_status: Option<&Path>) -> io::Result<Vec<Attachment>> {
    let mut found = match network_status {
        Some(file) => named(file)?,
        // It may have other annotations only.
        None => network_status::parse(&by_default(root)?).unwrap_or_default(),
    };
    found.extend(device_metadata::read(root));
    Ok(found)
}

/// Reads the networks from a file that the caller names.
fn named(file: &Path) -> io::Result<Vec<Attachment>> {
    let text = fs::read_to_string(file).map_err(|error| in_file(file, error))?;
    let other =
        || io::Error::new(ErrorKind::InvalidData, "it has no network-status, which is a list in JSON");
    network_status::parse(&text).ok_or_else(other).map_err(|error| in_file(file, error))
}

/// Returns the text of the first default file that exists; nothing if none does.
fn by_default(root: &Path) -> io::Result<String> {
    for file in DEFAULT_NETWORK_STATUS {
        match fs::read_to_string(root.join(file.trim_start_matches('/'))) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(in_file(Path::new(file), error)),
            Ok(text) => return Ok(text),
        }
    }
    Ok(String::new())
}

fn in_file(file: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {}: {error}", file.display()))
}

/// Parses an address with or without a prefix length.
fn ip(text: &str) -> Option<IpAddr> {
    text.split_once('/').map_or(text, |(ip, _)| ip).parse().ok()
}
