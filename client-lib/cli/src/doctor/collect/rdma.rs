//! Tries RDMA devices: which entries of their GID tables are this pod's, and what the devices can
//! do.

use std::net::IpAddr;

use multinet_client::gid;

use super::super::facts::{DmaBuf, Entry, FailedCall, Gid, Nic};
use super::libraries;

/// Returns the GID of each address of a second NIC, and tries the devices if `can_try`.
pub(super) async fn gids(interfaces: &[Nic], can_try: bool) -> Vec<Gid> {
    let ports = gid::local_ports().unwrap_or_default();
    if ports.is_empty() {
        return Vec::new();
    }
    let second = interfaces.iter().filter(|nic| !nic.is_default_network);
    let addresses = second.flat_map(|nic| nic.addresses.iter().map(|&address| (nic.name.as_str(), address)));
    let found = addresses.map(|(interface, address)| gid_of(&ports, interface, address, can_try));
    futures::future::join_all(found).await
}

async fn gid_of(ports: &[gid::Port], interface: &str, address: IpAddr, can_try: bool) -> Gid {
    let local = gid::SourceAddress { address, interface, port_gid: gid::port_gid(interface) };
    let gid::GidChoice { chosen, rejected, .. } = gid::choose(ports, local);
    let is_other = |(_, reason): &(gid::DeviceGid, _)| *reason == gid::Rejection::OtherAddress;
    let (others, of_this): (Vec<_>, Vec<_>) = rejected.into_iter().partition(is_other);
    let entry = match chosen {
        Some(place) => Some(Entry {
            place: place.to_string(),
            device: place.device.clone(),
            link: place.link,
            writes: if can_try { Some(libraries::writes(place).await) } else { None },
        }),
        None => None,
    };
    Gid {
        interface: interface.to_owned(),
        address,
        rejected: of_this.iter().map(|(place, reason)| format!("{place} {reason}")).collect(),
        others: others.iter().map(|(place, _)| place.to_string()).collect(),
        entry,
    }
}

/// Returns the devices of the entries for which `is_wanted` is true, each once.
pub(super) fn devices(gids: &[Gid], is_wanted: impl Fn(&Entry) -> bool) -> Vec<String> {
    let entries = gids.iter().filter_map(|gid| gid.entry.as_ref()).filter(|entry| is_wanted(entry));
    let mut devices: Vec<String> = entries.map(|entry| entry.device.clone()).collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// Returns whether devices take dma-bufs. Devices that cannot write to themselves are left out.
pub(super) async fn dma_bufs(gids: &[Gid]) -> Vec<(String, Result<DmaBuf, FailedCall>)> {
    let devices = devices(gids, |entry| matches!(entry.writes, Some(Ok(_))));
    let asked = devices.into_iter().map(async |device| {
        let said = libraries::dma_buf(device.clone()).await;
        (device, said)
    });
    futures::future::join_all(asked).await
}
