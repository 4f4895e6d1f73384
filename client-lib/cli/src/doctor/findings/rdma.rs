//! Findings about RDMA: devices, the pods that see them, and the GIDs that are this pod's.

use std::collections::BTreeSet;

use multinet_client::gid::LinkLayer;

use super::super::facts::{Entry, FailedCall, Gid, Machine, Namespaces};
use super::super::report::Level::Note;
use super::super::report::{Finding, RDMA};

/// Fix in the findings about failures of RDMA for which no better one is known.
pub(super) const SAYS_MORE: &str = "`ibv_devinfo -v` here and the kernel's log on the node say more";

/// The largest path MTU of RDMA, in bytes (InfiniBand Architecture, 9.4.3).
const MOST: u32 = 4096;
/// Bytes around the payload of a write: IPv6, UDP, BTH, RETH, immediate and checksum (annex A17).
const HEADERS: u32 = 40 + 8 + 12 + 16 + 4 + 4;
/// MTU of an interface that allows the largest path MTU. The kernel keeps room for the longest
/// headers; this is the usual round number.
const FOR_MOST: u32 = 4200;

/// Most entries of GID tables with other addresses that a finding lists.
const SHOWN: usize = 16;

/// Adds the findings about RDMA. Without devices, frames go over TCP, which is a note only.
pub(super) fn rdma(machine: &Machine, findings: &mut Vec<Finding>) {
    let Machine { rdma_devices: devices, rdma_files: files, .. } = machine;
    let has_verbs = Machine::has_uverbs(files);
    match (devices.is_empty(), has_verbs) {
        (true, _) => findings.push(no_device(machine)),
        (false, false) => findings.push(RDMA.warning(
            format!(
                "this node has {}, but /dev/infiniband has no uverbs device for this pod",
                devices.join(", ")
            ),
            "request the device plugin's resource for it, or a resource claim, in the pod's container",
        )),
        (false, true) => findings.push(RDMA.good(format!(
            "devices {}; /dev/infiniband has {}",
            devices.join(", "),
            files.join(", ")
        ))),
    }
    if !devices.is_empty() {
        findings.extend(machine.namespaces.as_ref().map(namespaces));
    }
    if has_verbs && !devices.is_empty() {
        match &machine.verbs {
            Some(Ok(())) => {}
            Some(Err(FailedCall { what, fix })) => {
                let found = format!("{what}: frames go over TCP");
                findings.push(RDMA.warning(found, fix.unwrap_or(SAYS_MORE)));
            }
            None => findings.push(RDMA.finding(
                Note,
                "this build of multinet has no RDMA: its own frames go over TCP, and it does not try the devices",
                "use the multinet that is not static to try them",
            )),
        }
        findings.extend(machine.gids.iter().map(gid_finding));
        mtus(machine, findings);
    }
}

fn no_device(machine: &Machine) -> Finding {
    match machine.namespaces {
        Some(Ok(Namespaces::Exclusive)) => RDMA.finding(
            Note,
            "no RDMA device has been moved to this pod's network namespace (mode exclusive): frames go over TCP",
            "if it is to have one, request it by the resource claim, or the SR-IOV resource, that moves it",
        ),
        _ => RDMA.note("no RDMA device (/sys/class/infiniband is empty or absent): frames go over TCP"),
    }
}

/// Returns the finding about the mode in which network namespaces share RDMA devices.
fn namespaces(mode: &Result<Namespaces, String>) -> Finding {
    match mode {
        Ok(Namespaces::Shared) => {
            RDMA.good("namespace mode shared: all devices of the node are seen, those with an interface of this pod can be used")
        }
        Ok(Namespaces::Exclusive) => {
            RDMA.good("namespace mode exclusive: only devices that have been moved to this pod are seen")
        }
        Err(error) => RDMA.finding(
            Note,
            format!("the namespace mode cannot be read: {error}"),
            "`rdma system` on the node says it",
        ),
    }
}

/// Adds findings about the path MTU, once for each interface and device. They are about RoCE only:
/// InfiniBand's path MTU does not depend on the interface's MTU.
fn mtus(machine: &Machine, findings: &mut Vec<Finding>) {
    let nics = machine.interfaces.as_deref().unwrap_or_default();
    let mut said = BTreeSet::new();
    for Gid { interface, entry, .. } in &machine.gids {
        let Some(Entry { device, link: LinkLayer::Ethernet, writes: Some(Ok(path)), .. }) = entry else {
            continue;
        };
        let mtu = nics.iter().find(|nic| nic.name == *interface).and_then(|nic| nic.mtu);
        if let Some(mtu) = mtu
            && said.insert((interface, device))
        {
            findings.extend(mtu_of(interface, device, *path, mtu));
        }
    }
}

fn mtu_of(interface: &str, device: &str, path: u32, mtu: u32) -> Option<Finding> {
    // The longest packet that the device sends.
    let needed = path.saturating_add(HEADERS);
    if mtu < needed {
        return Some(RDMA.finding(
            Note,
            format!("{interface}: {device} sends packets of up to {needed} bytes (path MTU {path}), {interface} has MTU {mtu}"),
            format!(
                "if the network takes no more than {mtu}, lower the MTU of the node's interface that {device} belongs to; else raise that of \
                 {interface} (mtu in the NetworkAttachmentDefinition)"
            ),
        ));
    }
    if path >= MOST {
        return None;
    }
    let finding = if mtu < FOR_MOST {
        RDMA.finding(
            Note,
            format!("{interface}: path MTU {path} of {MOST}, for its MTU is {mtu}"),
            format!(
                "give NICs and switches an MTU of {FOR_MOST} or more (mtu in the NetworkAttachmentDefinition, `ip link set` on the node): \
                 the path MTU is then {MOST}"
            ),
        )
    } else {
        RDMA.finding(
            Note,
            format!("{interface}: path MTU {path} of {MOST}, although its MTU is {mtu}"),
            format!(
                "`ibv_devinfo -d {device}` shows the port's max_mtu and active_mtu; give the node's interface that it belongs to an MTU of \
                 {FOR_MOST} or more"
            ),
        )
    };
    Some(finding)
}

/// Lists the entries of other addresses, as many as fit in a line: they show a user who expected a
/// GID what the table has instead.
fn some_of(others: &[String]) -> String {
    match others {
        [] => String::new(),
        entries if entries.len() <= SHOWN => format!("; of other addresses are {}", entries.join(", ")),
        entries => {
            let rest = entries.len() - SHOWN;
            format!("; of other addresses are {}, and {rest} more", entries[..SHOWN].join(", "))
        }
    }
}

fn gid_finding(gid: &Gid) -> Finding {
    let Gid { interface, address, entry, rejected, others } = gid;
    let passed_over = match &rejected[..] {
        [] => String::new(),
        entries => format!("; passed over: {}", entries.join("; ")),
    };
    match entry {
        Some(Entry { place, writes: None, .. }) => {
            return RDMA.good(format!("{interface} {address}: {place}{passed_over}"));
        }
        Some(Entry { place, writes: Some(Ok(mtu)), .. }) => {
            let found =
                format!("{interface} {address}: {place}, writes to itself, path MTU {mtu}{passed_over}");
            return RDMA.good(found);
        }
        Some(Entry { place, writes: Some(Err(FailedCall { what, fix })), .. }) => {
            let found = format!("{interface} {address}: {place} cannot be used, frames go over TCP: {what}");
            return RDMA.warning(found, fix.unwrap_or(SAYS_MORE));
        }
        None => {}
    }
    match &rejected[..] {
        [] => RDMA.warning(
            format!(
                "{interface} {address}: no RDMA device has a GID of this address, frames go over TCP{}",
                some_of(others)
            ),
            "attach the pod to a network on the RDMA device itself (host-device, SR-IOV, or macvlan on its interface)",
        ),
        entries => RDMA.warning(
            format!("{interface} {address}: no usable GID, frames go over TCP: {}", entries.join("; ")),
            "`rdma system` and `rdma link` say more: of another interface, the device belongs to another network namespace; down, the port \
             has no link; not RoCE v2, the device's RoCE mode wants changing",
        ),
    }
}
