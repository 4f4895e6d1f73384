//! What is found on this machine itself.

use super::super::facts::{Failure, Gid, Machine, Nic, Row};
use super::super::report::Finding;
use super::super::report::Level::{Note, Ok as Good, Problem, Warning};

/// What a limit of locked memory looks like that is none (`RLIM_INFINITY`).
const UNLIMITED: u64 = u64::MAX;

/// Where nothing better is known.
const SAYS_MORE: &str = "`ibv_devinfo -v` here and the kernel's log on the node say more";

/// The second NICs.
pub(super) fn network(machine: &Machine, findings: &mut Vec<Finding>) {
    let nics = match &machine.interfaces {
        Ok(nics) => nics,
        Err(error) => {
            findings.push(
                Finding::new(Problem, "network", format!("cannot read this pod's interfaces: {error}"))
                    .fix("/proc has to be mounted"),
            );
            return;
        }
    };
    let second = || nics.iter().filter(|nic| !nic.is_default_network);
    for nic in second().filter(|nic| !nic.is_up && !nic.addresses.is_empty()) {
        findings.push(
            Finding::new(
                Warning,
                "network",
                format!("{} ({}) is down, or has no carrier", nic.name, list(nic)),
            )
            .fix(format!("`ip link show {}` says more; see whether the node's port has a link", nic.name)),
        );
    }
    for nic in second().filter(|nic| nic.is_up && !nic.addresses.is_empty()) {
        let mtu = nic.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
        findings.push(Finding::new(Good, "network", format!("second NIC {}: {}{mtu}", nic.name, list(nic))));
    }
    if second().all(|nic| nic.addresses.is_empty()) {
        findings.push(Finding::new(Warning, "network", "this pod has no second NIC with an address").fix(
            "attach the pod to a network: the annotation k8s.v1.cni.cncf.io/networks, or a resource claim",
        ));
    }
}

fn list(nic: &Nic) -> String {
    let addresses: Vec<String> = nic.addresses.iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

/// What RDMA needs. Without devices nothing is missed: frames go over TCP.
pub(super) fn rdma(machine: &Machine, findings: &mut Vec<Finding>) {
    let Machine { rdma_devices: devices, rdma_files: files, .. } = machine;
    let has_verbs = Machine::has_uverbs(files);
    match (devices.is_empty(), has_verbs) {
        (true, _) => findings.push(Finding::new(
            Note,
            "rdma",
            "no RDMA device (/sys/class/infiniband is empty or absent): frames go over TCP",
        )),
        (false, false) => findings.push(
            Finding::new(
                Warning,
                "rdma",
                format!(
                    "{}: on this node, but /dev/infiniband has no uverbs device for this pod",
                    devices.join(", ")
                ),
            )
            .fix("request the device plugin's resource for it, or a resource claim, in the pod's container"),
        ),
        (false, true) => findings.push(Finding::new(
            Good,
            "rdma",
            format!("devices {}; /dev/infiniband has {}", devices.join(", "), files.join(", ")),
        )),
    }
    if has_verbs && !devices.is_empty() {
        if let Err(Failure { what, fix }) = &machine.verbs {
            let found = format!("{what}: frames go over TCP");
            findings.push(Finding::new(Warning, "rdma", found).fix(fix.unwrap_or(SAYS_MORE)));
        }
        findings.extend(machine.gids.iter().map(say));
    }
    memlock(machine, !devices.is_empty(), findings);
}

fn say(gid: &Gid) -> Finding {
    let Gid { interface, address, row, rejected } = gid;
    match row {
        Some(Row { place, writes: None }) => {
            return Finding::new(Good, "rdma", format!("{interface} {address}: {place}"));
        }
        Some(Row { place, writes: Some(Ok(mtu)) }) => {
            let found = format!("{interface} {address}: {place}, writes to itself, path MTU {mtu}");
            return Finding::new(Good, "rdma", found);
        }
        Some(Row { place, writes: Some(Err(Failure { what, fix })) }) => {
            let found = format!("{interface} {address}: {place} cannot be used, frames go over TCP: {what}");
            return Finding::new(Warning, "rdma", found).fix(fix.unwrap_or(SAYS_MORE));
        }
        None => {}
    }
    match &rejected[..] {
        [] => Finding::new(
            Warning,
            "rdma",
            format!("{interface} {address}: no RDMA device has a GID of this address, frames go over TCP"),
        )
        .fix("attach the pod to a network on the RDMA device itself (host-device, SR-IOV, or macvlan on its interface)"),
        rows => Finding::new(
            Warning,
            "rdma",
            format!("{interface} {address}: no usable GID, frames go over TCP: {}", rows.join("; ")),
        )
        .fix(
            "`rdma system` and `rdma link` say more: of another interface, the device belongs to another network namespace; down, \
             the port has no link; not RoCE v2, the device's RoCE mode wants changing",
        ),
    }
}

fn memlock(machine: &Machine, has_device: bool, findings: &mut Vec<Finding>) {
    let Some((soft, hard)) = machine.memlock else { return };
    if machine.may_lock {
        findings.push(Finding::new(Good, "memory", "may lock any amount of memory (CAP_IPC_LOCK)"));
    } else if soft == UNLIMITED {
        findings.push(Finding::new(Good, "memory", "may lock any amount of memory (memlock is unlimited)"));
    } else if hard == UNLIMITED {
        findings.push(
            Finding::new(
                Warning,
                "memory",
                format!("may lock {} only (memlock), but may raise that itself", size(soft)),
            )
            .fix("`ulimit -l unlimited` before the program starts"),
        );
    } else {
        let level = if has_device { Warning } else { Note };
        findings.push(
            Finding::new(level, "memory", format!("may lock {} only (memlock): RDMA registers all its buffers", size(soft)))
                .fix(
                    "set LimitMEMLOCK=infinity in containerd's systemd unit on the node, and restart it; the capability \
                     IPC_LOCK only helps containers that run as root",
                ),
        );
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
