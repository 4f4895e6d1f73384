//! Reads the PCI functions of GPUs and NICs from `/sys` (Linux,
//! `Documentation/ABI/testing/sysfs-bus-pci`).

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use multinet_client::{gpu, pci};

use super::super::facts::Gpus;
use super::super::pci::{Acs, CONFIGURATION, Function};

/// Returns the NVIDIA GPUs of the node and of this pod. `all` is the folder that has `sys`, `proc`
/// and `dev`.
pub(super) fn gpus(all: &Path) -> Gpus {
    let folder = all.join("sys/bus/pci/devices");
    let gpu::Gpus { on_node, of_pod, .. } = gpu::Gpus::read(all);
    let with_acs = |gpu: &gpu::Gpu| function(&folder.join(&gpu.function.path.address));
    Gpus { of_pod: of_pod.iter().filter_map(with_acs).collect(), on_node }
}

/// Returns the PCI function of an RDMA device. A virtual one, such as soft-RoCE's, has none.
pub(super) fn nic(all: &Path, device: &str) -> Option<Function> {
    function(&all.join("sys/class/infiniband").join(device).join("device"))
}

fn function(folder: &Path) -> Option<Function> {
    let folder = fs::canonicalize(folder).ok()?;
    let pci = pci::Function::read(&folder)?;
    let folder_of = |address: &str| {
        folder.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == address))
    };
    let acs = pci.path.bridges.iter().map(|bridge| folder_of(bridge).map_or(Acs::Hidden, acs)).collect();
    Some(Function { pci, acs })
}

fn acs(bridge: &Path) -> Acs {
    let mut configuration = Vec::new();
    let file = File::open(bridge.join("config"));
    let read = file.and_then(|file| file.take(CONFIGURATION as u64).read_to_end(&mut configuration));
    read.map_or(Acs::Hidden, |_| Acs::parse(&configuration))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::fs::symlink;

    use multinet_client::pci::Distance;
    use tempfile::TempDir;

    use super::*;

    const SWITCH: &str = "pci0000:00/0000:00:01.0/0000:01:00.0";

    /// A temporary folder with the files of a machine.
    struct Machine(TempDir);

    impl Machine {
        fn new() -> io::Result<Self> {
            let machine = Self(TempDir::new()?);
            for folder in ["sys/bus/pci/devices", "sys/class/infiniband", "proc/driver/nvidia/gpus", "dev"] {
                fs::create_dir_all(machine.0.path().join(folder))?;
            }
            Ok(machine)
        }

        fn write(&self, file: &str, text: impl AsRef<[u8]>) -> io::Result<()> {
            let file = self.0.path().join(file);
            file.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(file, text)
        }

        fn function(&self, path: &str, vendor: &str, class: &str) -> io::Result<()> {
            let folder = format!("sys/devices/{path}");
            self.write(&format!("{folder}/vendor"), format!("{vendor}\n"))?;
            self.write(&format!("{folder}/class"), format!("{class}\n"))?;
            self.write(&format!("{folder}/numa_node"), "1\n")?;
            let address = path.rsplit('/').next().unwrap_or(path);
            symlink(self.0.path().join(folder), self.0.path().join("sys/bus/pci/devices").join(address))
        }

        fn nic(&self, device: &str, path: &str) -> io::Result<()> {
            self.function(path, "0x15b3", "0x020700")?;
            fs::create_dir_all(self.0.path().join("sys/class/infiniband").join(device))?;
            let link = self.0.path().join("sys/class/infiniband").join(device).join("device");
            symlink(self.0.path().join("sys/devices").join(path), link)
        }

        fn is_given(&self, address: &str, minor: &str) -> io::Result<()> {
            let text = format!("Model: \t\t NVIDIA H200\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n");
            self.write(&format!("proc/driver/nvidia/gpus/{address}/information"), text)
        }
    }

    #[test]
    fn gpus_and_nics_are_found_with_the_bridges_between() -> io::Result<()> {
        let machine = Machine::new()?;
        machine.function(&format!("{SWITCH}/0000:02:00.0/0000:03:00.0"), "0x10de", "0x030200")?;
        machine.function(&format!("{SWITCH}/0000:02:02.0/0000:05:00.0"), "0x10de", "0x030000")?;
        // A bridge of NVIDIA's, and another vendor's GPU.
        machine.function(&format!("{SWITCH}/0000:02:03.0/0000:06:00.0"), "0x10de", "0x068000")?;
        machine.function("pci0000:00/0000:00:02.0", "0x8086", "0x030000")?;
        machine.nic("mlx5_2", &format!("{SWITCH}/0000:02:01.0/0000:04:00.2"))?;
        machine.is_given("0000:03:00.0", "0")?;
        machine.is_given("0000:05:00.0", "1")?;
        machine.write("dev/nvidia0", "")?;
        let mut configuration = vec![0; CONFIGURATION];
        configuration[0x100] = 0x0d;
        configuration[0x106] = 0x1d;
        machine.write(&format!("sys/devices/{SWITCH}/0000:02:00.0/config"), &configuration)?;
        machine.write(&format!("sys/devices/{SWITCH}/0000:02:01.0/config"), &configuration[..64])?;

        let gpus = gpus(machine.0.path());
        assert_eq!((gpus.on_node, gpus.of_pod.len()), (2, 1), "{gpus:?}");
        let (gpu, nic) = (&gpus.of_pod[0], nic(machine.0.path(), "mlx5_2").unwrap());
        assert_eq!(
            (&*gpu.pci.path.address, &*nic.pci.path.address, gpu.pci.numa),
            ("0000:03:00.0", "0000:04:00.2", Some(1))
        );
        assert_eq!(gpu.pci.distance(&nic.pci), Distance::Pix);
        let between: Vec<_> = gpu.between(&nic).collect();
        assert_eq!(between, [("0000:02:00.0", Acs::Control(0x1d)), ("0000:02:01.0", Acs::Hidden)]);
        Ok(())
    }

    #[test]
    fn files_that_make_no_sense_are_ignored() -> io::Result<()> {
        let machine = Machine::new()?;
        assert_eq!(gpus(machine.0.path()).on_node, 0);
        assert_eq!(gpus(&machine.0.path().join("nowhere")).on_node, 0);
        machine.function(&format!("{SWITCH}/0000:02:00.0/0000:03:00.0"), "0x10de", "0x030200")?;
        machine.function("elsewhere/gpu", "0x10de", "0x030200")?;
        for minor in ["", "x", "-1", "99999999999", "../sda", "0"] {
            machine.is_given("0000:03:00.0", minor)?;
            machine.is_given("gpu", minor)?;
            assert!(gpus(machine.0.path()).of_pod.is_empty(), "{minor}");
        }
        machine.write("dev/nvidia0", "")?;
        machine.write(&format!("sys/devices/{SWITCH}/0000:02:00.0/0000:03:00.0/numa_node"), b"\xff\xfe")?;
        let found = gpus(machine.0.path());
        assert_eq!((found.on_node, found.of_pod.len(), found.of_pod[0].pci.numa), (2, 1, None), "{found:?}");
        // Soft-RoCE.
        fs::create_dir_all(machine.0.path().join("sys/class/infiniband/rxe0"))?;
        assert_eq!(nic(machine.0.path(), "rxe0"), None);
        Ok(())
    }
}
