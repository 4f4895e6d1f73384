//! Rules of MultiNetworkEndpointSlice.

use std::net::IpAddr;

use super::check::{Check, quote};
use super::{Validate, common, metadata};
use crate::schema::{ADDRESS_LENGTH, NUMA_NODES};
use crate::syntax::{
    DNS_LABEL, DNS_SUBDOMAIN, INTERFACE, KIND, LABEL_VALUE, MAC, PCI_ADDRESS, RDMA_DEVICE, UID,
};
use crate::{Device, Endpoint, IpFamily, MultiNetworkEndpointSlice, TargetReference};

/// Maximum number of endpoints of a slice.
const MAX_ENDPOINTS: usize = 1000;

impl Validate for MultiNetworkEndpointSlice {
    fn check(&self, check: &mut Check) {
        metadata::check(check, &self.metadata, &DNS_SUBDOMAIN);
        let spec = &self.spec;
        check.field("spec", |check| {
            check.field("network", |check| common::network(check, &spec.network));
            common::ports(check, &spec.ports);
            check.length("endpoints", spec.endpoints.len(), 0..=MAX_ENDPOINTS);
            check.items("endpoints", &spec.endpoints, |check, endpoint| {
                self::endpoint(check, endpoint, spec.address_type);
            });
        });
    }
}

fn endpoint(check: &mut Check, endpoint: &Endpoint, family: IpFamily) {
    check.length("addresses", endpoint.addresses.len(), 1..=1);
    check.items("addresses", &endpoint.addresses, |check, text| {
        address(check, text, family);
    });
    check.optional("hostname", endpoint.hostname.as_ref(), &DNS_LABEL);
    check.optional("nodeName", endpoint.node_name.as_ref(), &DNS_SUBDOMAIN);
    check.optional("zone", endpoint.zone.as_ref(), &LABEL_VALUE);
    if let Some(target) = &endpoint.target_ref {
        check.field("targetRef", |check| target_ref(check, target));
    }
    if let Some(device) = &endpoint.device {
        check.field("device", |check| self::device(check, device));
    }
}

/// Checks an address as CEL's `ip()` does, which is Go's `netip.ParseAddr` without zones and
/// IPv4-mapped addresses.
fn address(check: &mut Check, text: &str, family: IpFamily) {
    let problem = match text.parse::<IpAddr>() {
        _ if text.len() > ADDRESS_LENGTH => "is longer than any address",
        Err(_) if text.contains('%') => "has a zone",
        Err(_) => "is none",
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => "is IPv4-mapped",
        Ok(address) if IpFamily::of(address) != family => "is of the other family",
        Ok(address) if address.is_unspecified() => "is unspecified",
        Ok(_) => return,
    };
    check.fail(format!("must be an {} address; {} {problem}", family.as_str(), quote(text)));
}

fn target_ref(check: &mut Check, target: &TargetReference) {
    check.optional("kind", target.kind.as_ref(), &KIND);
    check.optional("namespace", target.namespace.as_ref(), &DNS_LABEL);
    check.optional("name", target.name.as_ref(), &DNS_SUBDOMAIN);
    check.optional("uid", target.uid.as_ref(), &UID);
}

fn device(check: &mut Check, device: &Device) {
    check.optional("interface", device.interface.as_ref(), &INTERFACE);
    check.optional("mac", device.mac.as_ref(), &MAC);
    check.optional("rdmaDevice", device.rdma_device.as_ref(), &RDMA_DEVICE);
    check.optional("pciAddress", device.pci_address.as_ref(), &PCI_ADDRESS);
    if let Some(node) = device.numa_node {
        check.number("numaNode", node, NUMA_NODES);
    }
}
