//! Tries RDMA devices: which entries of their GID tables are this pod's, and what the devices can
//! do.

use std::net::IpAddr;
use std::time::Duration;

use multinet_client::{gid, verbs};

use super::super::facts::{DmaBuf, Entry, FailedCall, Gid, Nic};
use super::with_time_limit;

/// Time that a device may take. It gives up by itself within half of that, unless its driver hangs.
const PATIENCE: Duration = Duration::from_secs(10);

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
            writes: if can_try { Some(writes(place).await) } else { None },
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

/// Lets an RDMA device write to itself by a GID, and returns the path MTU in bytes.
async fn writes(place: gid::DeviceGid) -> Result<u32, FailedCall> {
    // Verbs have one byte for each.
    let (Ok(port), Ok(gid_index)) = (u8::try_from(place.port), u8::try_from(place.index)) else {
        return Err(FailedCall { what: format!("verbs cannot name {place}"), fix: None });
    };
    let source = verbs::SourceGid { port, gid_index, gid: place.gid };
    let probed = with_time_limit(PATIENCE, move || verbs::probe(&place.device, source)).await?;
    let failed = |error: verbs::ProbeError| FailedCall { what: error.to_string(), fix: error.hint() };
    probed.map(|probed| probed.mtu).map_err(failed)
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
        let name = device.clone();
        let said = with_time_limit(PATIENCE, move || dma_buf(&name)).await;
        (device, said.flatten())
    });
    futures::future::join_all(asked).await
}

fn dma_buf(device: &str) -> Result<DmaBuf, FailedCall> {
    let failed = |error: verbs::Error| FailedCall { what: error.to_string(), fix: error.hint() };
    let library = verbs::Library::load()
        .map_err(|error| FailedCall { what: error.to_string(), fix: Some(error.hint()) })?;
    if !library.has_dma_buf() {
        return Ok(DmaBuf::NoCall);
    }
    let devices = library.devices().map_err(failed)?;
    let found = devices.iter().find(|found| found.name() == device);
    let gone = || FailedCall { what: format!("libibverbs does not show {device} any more"), fix: None };
    let context = found.ok_or_else(gone)?.open().map_err(failed)?;
    let takes = verbs::ProtectionDomain::new(&context)
        .and_then(|domain| domain.supports_dma_buf())
        .map_err(failed)?;
    Ok(if takes { DmaBuf::Taken } else { DmaBuf::Refused })
}
