//! The choice of a local GID, and so of the device, for a connection.

use std::net::{IpAddr, Ipv6Addr};

use multinet_verbs::SourceGid;
use nix::net::if_::if_nametoindex;

use super::unusable::Unusable;
use crate::gid::{self, DeviceGid, LinkLayer, SourceAddress};
use crate::nic;
use crate::transport::Rdma;

/// The GIDs that stand for a local address, from which one is chosen for a connection.
pub(super) struct LocalGids {
    /// The GIDs that can be used, in the order in which they are tried; at least one.
    pub(super) candidates: Vec<DeviceGid>,
    /// The index of the interface that has the address. If several have it, the one that leads to
    /// the peer.
    pub(super) interface: Option<u32>,
}

impl LocalGids {
    /// Finds the GIDs for a local address, within the devices and GIDs that the options allow.
    pub(super) fn find(address: IpAddr, peer: IpAddr, options: &Rdma) -> Result<Self, Unusable> {
        let mut ports = gid::local_ports().map_err(Unusable::Devices)?;
        if ports.is_empty() {
            return Err(if gid::kernel_has_rdma() { Unusable::NoDevice } else { Unusable::NoKernel });
        }
        options.retain(&mut ports);
        let interface = nic::interface_for(address, peer).map_err(Unusable::Devices)?.unwrap_or_default();
        let port_gid = gid::port_gid(&interface);
        let choice = gid::choose(&ports, SourceAddress { address, interface: &interface, port_gid });
        let candidates: Vec<_> = choice.usable().cloned().collect();
        if candidates.is_empty() {
            let device = options.device.as_ref().map(|device| format!(" named {device}"));
            let index = options.gid_index.map(|index| format!(" at GID index {index}"));
            let wanted = [device, index].into_iter().flatten().collect();
            return Err(Unusable::NoGid { address, wanted, rejected: choice.rejected });
        }
        Ok(Self { candidates, interface: if_nametoindex(interface.as_str()).ok() })
    }

    /// Returns what `make` returns for the first GID that can be used. Calls `skip` for those
    /// before it, with the reason.
    pub(super) fn first_usable<T>(
        candidates: Vec<DeviceGid>,
        mut make: impl FnMut(&DeviceGid) -> Result<T, Unusable>,
        skip: impl Fn(&DeviceGid, &Unusable),
    ) -> Result<T, Unusable> {
        let mut failures = Vec::new();
        for gid in candidates {
            match make(&gid) {
                Err(error) if error.may_try_next_gid() => failures.push((gid, error)),
                made => {
                    failures.iter().for_each(|(gid, error)| skip(gid, error));
                    return made;
                }
            }
        }
        match failures.pop() {
            Some((_, error)) if failures.is_empty() => Err(error),
            Some(last) => Err(Unusable::All(failures.into_iter().chain([last]).collect())),
            None => Err(Unusable::NoDevice),
        }
    }
}

/// Returns a GID with its numbers as verbs have them, which are bytes.
pub(super) fn source_gid(gid: &DeviceGid) -> Result<SourceGid, Unusable> {
    match (u8::try_from(gid.port), u8::try_from(gid.index)) {
        (Ok(port), Ok(gid_index)) => Ok(SourceGid { port, gid_index, gid: gid.gid }),
        _ => Err(Unusable::Numbers(gid.clone())),
    }
}

/// Returns whether a GID belongs to another interface than ours, by their indexes. An unknown index
/// speaks neither for nor against it.
pub(super) fn is_of_other_interface(link: LinkLayer, ours: Option<u32>, of_gid: Option<u32>) -> bool {
    link == LinkLayer::Ethernet && ours.zip(of_gid).is_some_and(|(ours, of_gid)| ours != of_gid)
}

/// Returns whether a peer's GID belongs to another host than its address: no peer may direct our
/// writes to a third party. The GID of an InfiniBand port does not contain an address.
pub(super) fn is_third_party(link: LinkLayer, gid: Ipv6Addr, address: IpAddr) -> bool {
    link == LinkLayer::Ethernet && gid != gid::gid_of(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::Ipv4Addr;

    use super::*;

    fn gid_of_device(device: &str) -> DeviceGid {
        let (link, gid) = (LinkLayer::Ethernet, Ipv6Addr::LOCALHOST);
        DeviceGid { device: device.to_owned(), port: 1, link, index: 3, gid }
    }

    /// Tries the GIDs of these devices. Returns the outcome, and the devices that were skipped.
    fn try_devices(
        devices: &[&str],
        error: impl Fn(&DeviceGid) -> Option<Unusable>,
    ) -> (Result<String, Unusable>, String) {
        let skipped = RefCell::new(String::new());
        let make = |gid: &DeviceGid| error(gid).map_or_else(|| Ok(gid.device.clone()), Err);
        let skip = |gid: &DeviceGid, error: &Unusable| {
            *skipped.borrow_mut() += &format!("{}: {error}\n", gid.device);
        };
        let candidates = devices.iter().map(|device| gid_of_device(device)).collect();
        let made = LocalGids::first_usable(candidates, make, skip);
        (made, skipped.into_inner())
    }

    #[test]
    fn an_unusable_device_is_skipped_with_the_reason() {
        let bad =
            |gid: &DeviceGid| gid.device.starts_with("bad").then(|| Unusable::NotShown(gid.device.clone()));
        let (made, skipped) = try_devices(&["bad_0", "bad_1", "good_0", "bad_2"], bad);
        assert_eq!(made.unwrap(), "good_0");
        assert_eq!(skipped, "bad_0: libibverbs does not show bad_0\nbad_1: libibverbs does not show bad_1\n");
        // One device has its own error. Several have all of theirs.
        let (made, skipped) = try_devices(&["bad_0"], bad);
        assert!(matches!(made, Err(Unusable::NotShown(name)) if name == "bad_0"));
        assert_eq!(skipped, "");
        let error = try_devices(&["bad_0", "bad_1"], bad).0.unwrap_err();
        let message = error.reason();
        assert!(error.is_lasting());
        for device in ["bad_0", "bad_1"] {
            let reason = format!("{device} port 1 GID 3 (::1): libibverbs does not show {device}; `multinet");
            assert!(message.contains(&reason), "{message}");
        }
    }

    #[test]
    fn an_error_that_other_devices_share_ends_the_search() {
        let too_large = |gid: &DeviceGid| (gid.device == "one").then_some(Unusable::TooLarge(1));
        let (made, skipped) = try_devices(&["one", "other"], too_large);
        assert!(matches!(made, Err(Unusable::TooLarge(1))));
        assert_eq!(skipped, "");
    }

    #[test]
    fn an_ethernet_gid_of_another_interface_index_is_not_ours() {
        let (roce, infiniband) = (LinkLayer::Ethernet, LinkLayer::InfiniBand);
        assert!(is_of_other_interface(roce, Some(3), Some(4)));
        assert!(!is_of_other_interface(roce, Some(3), Some(3)));
        assert!(!is_of_other_interface(infiniband, Some(3), Some(4)));
        assert!(!is_of_other_interface(roce, None, Some(4)) && !is_of_other_interface(roce, Some(3), None));
    }

    #[test]
    fn an_ethernet_gid_must_be_that_of_the_peers_address() {
        let own = IpAddr::from([10, 9, 0, 1]);
        let mapped = Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped();
        let other = Ipv4Addr::new(10, 9, 0, 77).to_ipv6_mapped();
        let cases = [
            (LinkLayer::Ethernet, mapped, own, false),
            (LinkLayer::Ethernet, mapped, mapped.into(), false),
            (LinkLayer::Ethernet, other, own, true),
            (LinkLayer::InfiniBand, other, own, false),
        ];
        for (link, gid, address, expected) in cases {
            assert_eq!(is_third_party(link, gid, address), expected, "{link:?} {gid} {address}");
        }
    }
}
