//! Checks of parsed values from any source.

use std::collections::HashSet;
use std::net::IpAddr;

use multinet_controller::model::Unreadable;
use multinet_crds::Device;
use multinet_crds::syntax::{INTERFACE, MAC, PCI_ADDRESS, RDMA_DEVICE, TextKind};

/// Checks that addresses are valid for the API server and for clients, within the limit, and
/// without repetitions.
pub(crate) fn addresses(addresses: &[IpAddr]) {
    assert!((1..=16).contains(&addresses.len()));
    assert_eq!(addresses.iter().collect::<HashSet<_>>().len(), addresses.len());
    for address in addresses {
        assert!(!address.is_unspecified() && !address.is_loopback() && !address.is_multicast(), "{address}");
        if let IpAddr::V6(address) = address {
            assert!(address.to_ipv4_mapped().is_none() && !address.is_unicast_link_local(), "{address}");
        }
    }
}

/// Checks that all details are valid in a slice.
pub(crate) fn device(device: &Device) {
    let text = |field: &Option<String>, kind: &TextKind| {
        assert!(field.as_ref().is_none_or(|text| kind.accepts(text)), "{device:?}");
    };
    text(&device.interface, &INTERFACE);
    text(&device.mac, &MAC);
    text(&device.rdma_device, &RDMA_DEVICE);
    text(&device.pci_address, &PCI_ADDRESS);
    assert!(device.numa_node.is_none_or(|node| node <= 1023), "{device:?}");
}

/// Checks that a message is one line, and short enough for an event and a log.
pub(crate) fn line(line: &Unreadable) {
    assert!(!line.0.is_empty() && line.0.len() < 4096 && !line.0.contains(char::is_control), "{line}");
}
