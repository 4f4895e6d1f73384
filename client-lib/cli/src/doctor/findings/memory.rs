//! Findings about the memory that this process may lock.

use super::super::facts::Machine;
use super::super::report::Level::{Note, Warning};
use super::super::report::{Finding, MEMORY};

/// Value of a resource limit that stands for none (`RLIM_INFINITY`).
const UNLIMITED: u64 = u64::MAX;

/// Adds the finding about locked memory, which RDMA needs: the limit, or the exemption from it.
pub(super) fn memory(machine: &Machine, findings: &mut Vec<Finding>) {
    let Some((soft, hard)) = machine.memlock else { return };
    let process = machine.process;
    if process.is_exempt() {
        findings.push(MEMORY.good("this process may lock any amount of memory (CAP_IPC_LOCK)"));
    } else if soft == UNLIMITED {
        findings.push(MEMORY.good("this process may lock any amount of memory (memlock is unlimited)"));
    } else if hard == UNLIMITED {
        findings.push(MEMORY.warning(
            format!("this process may lock {} only (memlock), but may raise that itself", size(soft)),
            "`ulimit -l unlimited` before the program starts",
        ));
    } else {
        let level = if machine.rdma_devices.is_empty() { Note } else { Warning };
        let (why, also) = process.why_not();
        findings.push(MEMORY.finding(
            level,
            format!(
                "this process may lock {} only (memlock), {why}: RDMA registers all its buffers",
                size(soft)
            ),
            format!("set LimitMEMLOCK=infinity in containerd's systemd unit on the node, and restart it and the pod; {also}"),
        ));
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
