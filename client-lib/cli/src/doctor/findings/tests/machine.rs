//! Tests of findings about RDMA devices, GPUs and locked memory.

use multinet_client::pci::{self, PciPath};

use super::super::super::pci::Function;
use super::*;

const NIC: &str = "0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0";
const SAME_SWITCH: &str = "0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0";

/// A function below `pci0000:00`, on NUMA node 0, all of whose bridges have this ACS.
pub(super) fn function(path: &str, acs: Acs) -> Function {
    let path = PciPath::parse(&format!("/sys/devices/pci0000:00/{path}")).unwrap();
    Function { acs: vec![acs; path.bridges.len()], pci: pci::Function { path, numa: Some(0) } }
}

/// A pod with a GPU at this place.
fn with_gpu(path: &str, acs: Acs, change: impl FnOnce(&mut Machine)) -> Facts {
    with_machine(|machine| {
        machine.gpus = Gpus { on_node: 8, of_pod: vec![function(path, acs)] };
        machine.functions = vec![("mlx5_2".to_owned(), function(NIC, acs))];
        change(machine);
    })
}

fn only(facts: &Facts, message: &str, fix: &str) {
    let found = bad(facts);
    assert_eq!(found.len(), 1, "{message}: {found:?}");
    assert!(found[0].0.starts_with(message), "{found:?}\nis not\n{message}");
    assert!(found[0].1.contains(fix) && found[0].1.is_empty() == fix.is_empty(), "{found:?}\nis not\n{fix}");
}

fn says(facts: &Facts, message: &str) {
    let found = findings(facts);
    assert!(found.iter().any(|finding| finding.message.starts_with(message)), "{message}: {found:?}");
}

#[test]
fn the_namespace_mode_is_reported() {
    says(&good(), "namespace mode shared: ");
    let exclusive = with_machine(|machine| machine.namespaces = Some(Ok(Namespaces::Exclusive)));
    says(&exclusive, "namespace mode exclusive: only devices");
    assert!(bad(&exclusive).is_empty());
    only(
        &with_machine(|machine| machine.namespaces = Some(Err("Operation not supported".to_owned()))),
        "note rdma the namespace mode cannot be read: Operation not supported",
        "`rdma system`",
    );
    // A pod that sees no device, of a node that has some, perhaps.
    let without = |mode| {
        with_machine(|machine| {
            machine.namespaces = mode;
            machine.rdma_devices.clear();
            (machine.gids, machine.dma_bufs, machine.functions) = Default::default();
        })
    };
    only(
        &without(Some(Ok(Namespaces::Exclusive))),
        "note rdma no RDMA device has been moved to this pod's network namespace (mode exclusive)",
        "resource claim",
    );
    for mode in [None, Some(Ok(Namespaces::Shared)), Some(Err("no".to_owned()))] {
        only(&without(mode), "note rdma no RDMA device (/sys/class/infiniband is empty", "");
    }
}

#[test]
fn a_path_mtu_that_could_be_larger_is_noted() {
    let with_mtus = |path, mtu, link| {
        with_machine(|machine| {
            machine.interfaces = Ok(vec![Nic { mtu, ..nic("net1", "192.168.111.4") }]);
            let mut other = machine.gids[0].clone();
            other.address = "fd00:111::4".parse().unwrap();
            machine.gids.push(other);
            for gid in &mut machine.gids {
                let entry = gid.entry.as_mut().unwrap();
                (entry.writes, entry.link) = (Some(Ok(path)), link);
            }
        })
    };
    for (path, mtu) in [(4096, Some(9000)), (4096, Some(4200)), (4096, None), (1024, None)] {
        assert!(bad(&with_mtus(path, mtu, LinkLayer::Ethernet)).is_empty(), "{path} {mtu:?}");
    }
    // Once for both addresses.
    let cases = [
        (1024, 1500, "note rdma net1: path MTU 1024 of 4096, for its MTU is 1500", "an MTU of 4200 or more"),
        (
            1024,
            9000,
            "note rdma net1: path MTU 1024 of 4096, although its MTU is 9000",
            "`ibv_devinfo -d mlx5_2`",
        ),
        (
            4096,
            1500,
            "note rdma net1: mlx5_2 sends packets of up to 4180 bytes (path MTU 4096), net1 has MTU 1500",
            "lower the MTU",
        ),
    ];
    for (path, mtu, message, fix) in cases {
        only(&with_mtus(path, Some(mtu), LinkLayer::Ethernet), message, fix);
        assert!(bad(&with_mtus(path, Some(mtu), LinkLayer::InfiniBand)).is_empty(), "IPoIB has its own");
    }
}

#[test]
fn memory_of_gpus_is_registered_or_copied() {
    let refused = |machine: &mut Machine| machine.dma_bufs[0].1 = Ok(DmaBuf::Refused);
    let cannot = "gpu mlx5_2: memory of GPUs cannot be registered, it is copied: ";
    only(&with_machine(refused), &format!("note {cannot}its driver takes no dma-buf"), "");
    let gpu = |change: fn(&mut Machine)| with_gpu(SAME_SWITCH, Acs::Absent, change);
    assert!(bad(&gpu(|_| ())).is_empty());
    only(&gpu(refused), &format!("warning {cannot}its driver takes no dma-buf"), "modprobe nvidia-peermem");
    only(
        &gpu(|machine| machine.dma_bufs[0].1 = Ok(DmaBuf::NoCall)),
        &format!("warning {cannot}this libibverbs takes no dma-buf"),
        "install rdma-core 34",
    );
    only(
        &gpu(|machine| machine.dma_bufs[0].1 = Err(FailedCall { what: "it hangs".to_owned(), fix: None })),
        &format!("warning {cannot}whether it takes dma-bufs is not known (it hangs)"),
        "`ibv_devinfo -v`",
    );
    let facts = with_gpu(SAME_SWITCH, Acs::Absent, |machine| {
        machine.dma_bufs[0].1 = Ok(DmaBuf::Refused);
        machine.peermem = Some("nvidia_peermem");
    });
    says(&facts, "mlx5_2: memory of GPUs can be registered, by nvidia_peermem; its driver takes no dma-buf");
    assert!(bad(&facts).is_empty());
}

#[test]
fn a_cuda_failure_has_its_reason() {
    let cuda = |said| with_gpu(SAME_SWITCH, Acs::Absent, |machine| machine.cuda = Some(said));
    says(&cuda(Ok(2)), "CUDA finds 2 GPUs");
    let reason = "libcuda.so.1 cannot be loaded: request nvidia.com/gpu in the pod's spec";
    let message = "warning gpu CUDA does not work: payloads cannot lie in this pod's GPUs";
    only(&cuda(Err(reason.to_owned())), message, reason);
}

#[test]
fn the_device_nearest_to_a_gpu_is_reported_with_its_distance() {
    says(
        &with_gpu(SAME_SWITCH, Acs::Absent, |machine| {
            let mut far = function("0000:00:03.0", Acs::Absent);
            (far.pci.numa, far.pci.path.root) = (Some(1), "/sys/devices/pci0000:80".to_owned());
            machine.functions.insert(0, ("mlx5_0".to_owned(), far));
        }),
        "GPU 0000:03:00.0: nearest is mlx5_2, behind the same PCIe switch (PIX); mlx5_0: SYS",
    );
    only(
        &with_gpu("0000:00:02.0/0000:10:00.0", Acs::Control(0x1d), |_| ()),
        "note gpu GPU 0000:10:00.0: nearest is mlx5_2, behind the same PCIe host bridge, through the processor (PHB)",
        "resource.kubernetes.io/pcieRoot",
    );
    for (numa, message) in [
        (
            Some(0),
            "note gpu GPU 0000:10:00.0: nearest is mlx5_2, behind another PCIe host bridge of the same",
        ),
        (Some(1), "warning gpu GPU 0000:10:00.0: nearest is mlx5_2, on another NUMA node (SYS)"),
    ] {
        let facts = with_gpu("0000:00:02.0/0000:10:00.0", Acs::Absent, |machine| {
            let gpu = &mut machine.gpus.of_pod[0].pci;
            (gpu.numa, gpu.path.root) = (numa, "/sys/devices/pci0000:80".to_owned());
        });
        only(&facts, message, "Topology Manager");
    }
    only(
        &with_machine(|machine| machine.gpus.on_node = 8),
        "note gpu this node has 8 NVIDIA GPUs, but this pod may use none",
        "nvidia.com/gpu",
    );
}

#[test]
fn acs_between_a_gpu_and_its_device_is_reported() {
    let at = |acs| with_gpu(SAME_SWITCH, acs, |_| ());
    says(&at(Acs::Control(0x01)), "ACS of the PCIe bridges between GPU and NIC redirects nothing");
    only(
        &at(Acs::Control(0x1d)),
        "warning gpu ACS of PCIe bridges sends packets between GPU and NIC through the processor: 0000:02:00.0 0000:02:01.0",
        "`for bridge in 0000:02:00.0 0000:02:01.0; do setpci -s $bridge ECAP_ACS+0x6.w=0000; done`",
    );
    only(
        &at(Acs::Control(0x5d)),
        "note gpu ACS of PCIe bridges lets packets between GPU and NIC go straight only if",
        "ATSCtl",
    );
    only(
        &at(Acs::Hidden),
        "note gpu whether ACS of PCIe bridges sends packets through the processor cannot be seen here: 0000:02:00.0",
        "grep ACSCtl",
    );
}

#[test]
fn a_machine_without_devices_has_no_finding_about_gpus() {
    let facts = with_gpu(SAME_SWITCH, Acs::Control(0x1d), |machine| {
        machine.rdma_devices.clear();
        (machine.gids, machine.dma_bufs, machine.functions) = Default::default();
    });
    assert!(findings(&facts).iter().all(|finding| finding.about != "gpu"), "{:?}", findings(&facts));
}

#[test]
fn a_limit_of_locked_memory_has_the_fix_for_the_process() {
    let limited = |process| {
        with_machine(|machine| {
            machine.memlock = Some((8 << 20, 8 << 20));
            machine.process = process;
        })
    };
    let root = Process { is_root: true, ..Process::default() };
    let cases = [
        (Process::default(), "not as root: RDMA", "only helps containers that run as root"),
        (root, "as root without CAP_IPC_LOCK: RDMA", "securityContext.capabilities.add"),
        (
            Process { was_given_ipc_lock: true, ..Process::default() },
            "not as root, for which IPC_LOCK of the container does nothing: RDMA",
            "or run as root",
        ),
        (
            Process { has_ipc_lock: true, is_in_user_namespace: true, ..root },
            "in a user namespace, where CAP_IPC_LOCK does not count: RDMA",
            "hostUsers: true",
        ),
    ];
    for (process, why, fix) in cases {
        let facts = limited(process);
        only(&facts, &format!("warning memory this process may lock 8 MiB only (memlock), {why}"), fix);
        assert!(bad(&facts)[0].1.starts_with("set LimitMEMLOCK=infinity in containerd's"), "{facts:?}");
    }
    assert!(bad(&limited(Process { has_ipc_lock: true, ..root })).is_empty());
}

#[test]
fn a_machine_without_rdma_lacks_nothing() {
    let mut facts = good();
    facts.machine.rdma_devices.clear();
    facts.machine.memlock = Some((8 << 20, 8 << 20));
    let found = findings(&facts);
    assert_eq!(worst(&found), Level::Note, "{found:?}");
    facts.machine.process.has_ipc_lock = true;
    assert_eq!(bad(&facts).len(), 1, "only that there is no device");
}

#[test]
fn each_fault_of_rdma_or_locked_memory_has_its_finding_and_fix() {
    check([
        (
            with_machine(|machine| machine.memlock = Some((8 << 20, 8 << 20))),
            "warning memory this process may lock 8 MiB only (memlock)",
            "set LimitMEMLOCK=infinity in containerd's",
        ),
        (
            with_machine(|machine| machine.memlock = Some((64 << 10, u64::MAX))),
            "warning memory this process may lock 64 KiB only (memlock), but may raise that itself",
            "`ulimit -l unlimited`",
        ),
        (
            with_machine(|machine| machine.rdma_files.clear()),
            "warning rdma this node has mlx5_2, but /dev/infiniband has no uverbs device",
            "request the device plugin's resource",
        ),
        (
            with_machine(|machine| {
                machine.gids[0].entry = None;
                machine.gids[0].rejected.clear();
            }),
            "warning rdma net1 192.168.111.4: no RDMA device has a GID of this address, frames go over TCP; of other addresses are mlx5_2 port 1 \
             GID 0 (fe80::1)",
            "attach the pod to a network on the RDMA device",
        ),
        (
            with_machine(|machine| {
                let gid = &mut machine.gids[0];
                gid.entry = None;
                gid.rejected.clear();
                gid.others = (0..18).map(|row| format!("row {row}")).collect();
            }),
            "warning rdma net1 192.168.111.4: no RDMA device has a GID of this address, frames go over TCP; of other addresses are row 0, row 1, row 2, \
             row 3, row 4, row 5, row 6, row 7, row 8, row 9, row 10, row 11, row 12, row 13, row 14, row 15, and 2 more",
            "attach the pod to a network on the RDMA device",
        ),
        (
            with_machine(|machine| {
                let entry = machine.gids[0].entry.as_mut().unwrap();
                let what = "mlx5_2: cannot register memory: Cannot allocate memory".to_owned();
                entry.writes = Some(Err(FailedCall { what, fix: Some("raise memlock") }));
            }),
            "warning rdma net1 192.168.111.4: mlx5_2 port 1 GID 3 (::ffff:192.168.111.4) cannot be used, frames go over TCP: \
             mlx5_2: cannot register memory: Cannot allocate memory",
            "raise memlock",
        ),
        (
            with_machine(|machine| {
                let entry = machine.gids[0].entry.as_mut().unwrap();
                entry.writes = Some(Err(FailedCall { what: "it hangs".to_owned(), fix: None }));
            }),
            "warning rdma net1 192.168.111.4: mlx5_2 port 1 GID 3 (::ffff:192.168.111.4) cannot be used, frames go over TCP: it hangs",
            "`ibv_devinfo -v` here and the kernel's log",
        ),
        (
            with_machine(|machine| {
                let what = "libibverbs cannot be loaded (no such file)".to_owned();
                machine.verbs = Some(Err(FailedCall { what, fix: Some("install libibverbs1") }));
                machine.gids[0].entry.as_mut().unwrap().writes = None;
            }),
            "warning rdma libibverbs cannot be loaded (no such file): frames go over TCP",
            "install libibverbs1",
        ),
        (
            with_machine(|machine| {
                machine.verbs = None;
                machine.gids[0].entry.as_mut().unwrap().writes = None;
            }),
            "note rdma this build of multinet has no RDMA: its own frames go over TCP",
            "use the multinet that is not static",
        ),
        (
            with_machine(|machine| machine.gids[0].entry = None),
            "warning rdma net1 192.168.111.4: no usable GID, frames go over TCP: mlx5_2 port 1 GID 2 \
             (::ffff:192.168.111.4) is IB/RoCE v1, not RoCE v2",
            "`rdma system` and `rdma link`",
        ),
    ]);
}
