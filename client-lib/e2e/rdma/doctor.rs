//! The findings of `multinet doctor` on a machine with an RDMA device.

use anyhow::{Result, ensure};
use multinet_testing::guest;
use multinet_testing::process::workspace_binary;

use super::{BOUND, LINK};

/// Starts a program in a network namespace of its own.
const ELSEWHERE: &str = "unshare --net --mount sh -c 'mount -t sysfs sysfs /sys && exec \"$@\"' sh";

/// Changes to the machine, each with the way in which doctor is started and its findings about
/// RDMA. All run in one guest, one after the other.
const CASES: &[(&str, &str, &[&str])] = &[
    (
        "true",
        "",
        &[
            "ok       rdma      devices rxe0; /dev/infiniband has ",
            "ok       rdma      rdma0 10.9.0.1: rxe0 port 1 GID ",
            "(::ffff:10.9.0.1), writes to itself, path MTU 4096",
            "(fd09::2), writes to itself, path MTU 4096",
            "ok       rdma      namespace mode shared: all devices of the node are seen",
            "note     gpu       rxe0: memory of GPUs cannot be registered, it is copied: its driver takes no dma-buf",
            "ok       memory    this process may lock any amount of memory (CAP_IPC_LOCK)",
        ],
    ),
    (
        // First, since it requires that no other network namespace exists.
        "rdma system set netns exclusive",
        "",
        &[
            "ok       rdma      namespace mode exclusive: only devices that have been moved to this pod are seen",
            "(::ffff:10.9.0.1), writes to itself",
        ],
    ),
    (
        "true",
        ELSEWHERE,
        &[
            "note     rdma      no RDMA device has been moved to this pod's network namespace (mode exclusive): frames go over TCP",
        ],
    ),
    (
        // A GID index that changes, a smaller MTU, and an interface of another namespace.
        "wait_for rdma system set netns shared 2>/dev/null
         ip address del 10.9.0.1/24 dev rdma0; ip address add 10.9.0.7/24 dev rdma0; ip address add 10.9.0.1/24 dev rdma0
         { wait_for gid_row 10.9.0.7; wait_for gid_row 10.9.0.1; } >/dev/null
         ip link set rdma0 mtu 1500
         ip link add rdma1 type dummy; ip link set rdma1 up; ip address add 10.9.5.1/24 dev rdma1",
        "",
        &[
            "ok       rdma      namespace mode shared: all devices of the node are seen",
            "(::ffff:10.9.0.1), writes to itself, path MTU 1024",
            "(::ffff:10.9.0.7), writes to itself",
            "note     rdma      rdma0: path MTU 1024 of 4096, for its MTU is 1500",
            "warning  rdma      rdma1 10.9.5.1: no RDMA device has a GID of this address, frames go over TCP",
        ],
    ),
    (
        "true",
        "setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock prlimit --memlock=8192:8192",
        &[
            "warning  rdma      rdma0 10.9.0.1: rxe0 port 1 GID ",
            "cannot be used, frames go over TCP: rxe0: cannot register memory: Cannot allocate memory",
            "fix: too little memory may be locked: raise memlock",
            "may lock 8 KiB only (memlock), as root without CAP_IPC_LOCK",
        ],
    ),
    (
        "ip link set rdma0 down; wait_for grep -q DOWN $gids/../state",
        "",
        &["port 1 GID", "is on a port that is DOWN"],
    ),
    (
        "ip link set rdma0 up; wait_for grep -q ACTIVE $gids/../state; wait_for gid_row 10.9.0.1 >/dev/null; mv /usr/lib/*/libibverbs /usr/lib/providers",
        "",
        &["libibverbs does not show rxe0", "fix: install the provider of this device"],
    ),
    (
        "rm /usr/lib/*/libibverbs.so.1",
        "",
        &[
            "warning  rdma      libibverbs cannot be loaded (libibverbs.so.1: ",
            "fix: install libibverbs1 and ibverbs-providers",
            "(::ffff:10.9.0.1)\n",
        ],
    ),
    (
        // All namespaces share one /dev.
        "mount -t tmpfs tmpfs /dev/infiniband",
        "",
        &["warning  rdma      this node has rxe0, but /dev/infiniband has no uverbs device"],
    ),
];

#[tokio::test]
async fn each_fault_is_found_with_its_reason() -> Result<()> {
    let doctor = workspace_binary("multinet", "MULTINET_BIN")?;
    let mut script = LINK.to_owned();
    for (number, (change, prefix, _)) in CASES.iter().enumerate() {
        script.push_str(&format!(
            "{change}\necho '=== {number}'\n{prefix} {} doctor || [ $? -eq 1 ]\n",
            doctor.display()
        ));
    }
    let said = guest::run(&script, BOUND).await?;
    ensure!(said.status == 0, "{said:?}");
    let parts: Vec<&str> = said.output.split("=== ").skip(1).collect();
    ensure!(parts.len() == CASES.len(), "{said:?}");
    for ((change, prefix, expected), found) in CASES.iter().zip(parts) {
        for text in *expected {
            ensure!(found.contains(text), "{change}; {prefix} doctor: no {text:?} in\n{found}");
        }
    }
    Ok(())
}
