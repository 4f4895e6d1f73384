//! What is found on this machine itself: its second NICs, and the memory that it may lock.

use super::super::facts::{Machine, Nic};
use super::super::report::Finding;
use super::super::report::Level::{Note, Ok as Good, Problem, Warning};

/// What a limit of locked memory looks like that is none (`RLIM_INFINITY`).
const UNLIMITED: u64 = u64::MAX;

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

/// Whether RDMA may register its memory: the limit, and who is exempt from it.
pub(super) fn memory(machine: &Machine, findings: &mut Vec<Finding>) {
    let Some((soft, hard)) = machine.memlock else { return };
    let process = machine.process;
    if process.is_exempt() {
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
        let level = if machine.rdma_devices.is_empty() { Note } else { Warning };
        let (why, also) = process.why_not();
        findings.push(
            Finding::new(
                level,
                "memory",
                format!("may lock {} only (memlock), {why}: RDMA registers all its buffers", size(soft)),
            )
            .fix(format!(
                "set LimitMEMLOCK=infinity in containerd's systemd unit on the node, and restart it and the pod; {also}"
            )),
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
