//! The PCI tree, as far as it decides the path between a GPU and a NIC: the positions of functions,
//! and their distance.
//!
//! Only [`Function::read`] and [`Function::at`] access the machine.

use std::fmt;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

/// The position of a function in the PCI tree.
///
/// # Examples
///
/// ```
/// use multinet_rails::pci::PciPath;
///
/// // The link below /sys/bus/pci/devices leads there.
/// let path = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
/// let gpu = PciPath::parse(path).ok_or("no function")?;
/// assert_eq!((gpu.bridges.len(), &*gpu.address), (1, "0000:01:00.0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciPath {
    /// The path of the host bridge above the function, such as `/sys/devices/pci0000:00`.
    pub root: String,
    /// The addresses of the bridges from the root port down to the function.
    pub bridges: Vec<String>,
    /// The PCI address of the function, such as `0000:19:00.0`.
    pub address: String,
}

/// A PCI function, such as a GPU or a NIC.
///
/// # Examples
///
/// ```
/// use multinet_rails::pci::{Distance, Function, PciPath};
///
/// let at = |path, numa| Some(Function { path: PciPath::parse(path)?, numa: Some(numa) });
/// let gpu = at("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", 0).ok_or("no function")?;
/// let nic = at("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0", 1).ok_or("no function")?;
/// assert_eq!(gpu.distance(&nic), Distance::Sys);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The position of the function in the PCI tree.
    pub path: PciPath,
    /// The NUMA node that the function is attached to; `None` if the machine has only one.
    pub numa: Option<u32>,
}

/// The distance between two functions, in the terms of `nvidia-smi topo -m`. Nearer is less.
///
/// # Examples
///
/// ```
/// use multinet_rails::pci::Distance;
///
/// // Only switches are between a GPU and the NIC that it should send by.
/// let is_near = |distance| distance <= Distance::Pxb;
/// assert!(is_near(Distance::Pix) && !is_near(Distance::Node));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// At most one PCIe switch is between the two functions.
    Pix,
    /// Several PCIe switches are between the two functions, but no host bridge.
    Pxb,
    /// One host bridge is between the two functions, as they share no switch.
    Phb,
    /// Two host bridges of one NUMA node are between the two functions.
    Node,
    /// The interconnect of NUMA nodes is between the two functions.
    Sys,
}

impl PciPath {
    /// Parses the path of a function in `/sys/devices`. Folders below the function, such as a
    /// virtio device's, are ignored. Returns `None` if the path contains no function.
    ///
    /// ```
    /// use multinet_rails::pci::PciPath;
    ///
    /// // The device of a virtual machine lies below its function.
    /// let path = "/sys/devices/pci0000:00/0000:00:03.0/virtio2";
    /// let nic = PciPath::parse(path).ok_or("no function")?;
    /// assert_eq!(nic.address, "0000:00:03.0");
    /// assert_eq!(PciPath::parse("/sys/devices/virtual/net/lo"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').collect();
        // A host bridge may itself be below a function of another one (VMD).
        let root = parts.iter().rposition(|part| is_host_bridge(part))?;
        let (above, below) = parts.split_at(root + 1);
        let below = below.iter().take_while(|part| is_address(part));
        let mut bridges: Vec<String> = below.map(|&part| part.to_owned()).collect();
        let address = bridges.pop()?;
        Some(Self { root: above.join("/"), bridges, address })
    }

    /// Returns the number of bridges above both functions, from the root port down.
    ///
    /// ```
    /// use multinet_rails::pci::PciPath;
    ///
    /// let whole = |path: &str| format!("/sys/devices/pci0000:00/{path}");
    /// let at = |path: &str| PciPath::parse(&whole(path)).ok_or("no function");
    /// let gpu = at("0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0")?;
    /// let nic = at("0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0")?;
    /// assert_eq!(gpu.shared_bridges(&nic), 2, "the root port and the switch's upstream port");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shared_bridges(&self, other: &Self) -> usize {
        if self.root != other.root {
            return 0;
        }
        self.bridges.iter().zip(&other.bridges).take_while(|(one, two)| one == two).count()
    }
}

impl Function {
    /// Reads a function from its folder in `/sys`, from a link to it, or from a folder below it
    /// (Linux, `Documentation/ABI/testing/sysfs-bus-pci`). Returns `None` for other devices, such
    /// as virtual ones.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::path::Path;
    ///
    /// use multinet_rails::pci::Function;
    ///
    /// // The NIC that an RDMA device is one of.
    /// match Function::read(Path::new("/sys/class/infiniband/mlx5_2/device")) {
    ///     Some(nic) => println!("{} on NUMA node {:?}", nic.path.address, nic.numa),
    ///     None => println!("not on the PCI bus, as soft-RoCE"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn read(folder: &Path) -> Option<Self> {
        let folder = fs::canonicalize(folder).ok()?;
        let path = PciPath::parse(folder.to_str()?)?;
        let own = folder
            .ancestors()
            .find(|folder| folder.file_name().is_some_and(|name| *name == *path.address))?;
        let numa = fs::read_to_string(own.join("numa_node")).ok();
        // The kernel reports -1 for "none".
        Some(Self { numa: numa.and_then(|number| number.trim_end().parse().ok()), path })
    }

    /// Returns the function with this address, such as `0000:19:00.0`, on this machine.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_rails::pci::Function;
    ///
    /// // To run the threads that fill a GPU's memory near to it.
    /// let numa = Function::at("0000:19:00.0").and_then(|gpu| gpu.numa);
    /// # Ok(()) }
    /// ```
    pub fn at(address: &str) -> Option<Self> {
        Self::at_in(Path::new("/"), address)
    }

    /// Returns the same below another root than `/`.
    pub(crate) fn at_in(root: &Path, address: &str) -> Option<Self> {
        Self::read(&root.join("sys/bus/pci/devices").join(address))
    }

    /// Returns the distance to another function.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_rails::pci::Function;
    ///
    /// let gpu = Function::at("0000:19:00.0").ok_or("no such GPU")?;
    /// let nics = ["0000:18:00.0", "0000:3a:00.0"].into_iter().filter_map(Function::at);
    /// let nearest = nics.min_by_key(|nic| gpu.distance(nic));
    /// # Ok(()) }
    /// ```
    pub fn distance(&self, other: &Self) -> Distance {
        if self.path.root != other.path.root {
            return if self.numa == other.numa { Distance::Node } else { Distance::Sys };
        }
        let shared = self.path.shared_bridges(&other.path);
        let most = self.path.bridges.len().max(other.path.bridges.len());
        match (shared, most - shared) {
            (0, _) => Distance::Phb,
            // One of them is the switch port above each function.
            (_, 0..=1) => Distance::Pix,
            _ => Distance::Pxb,
        }
    }
}

/// Returns whether a part of a path is a host bridge, such as `pci0000:00`.
fn is_host_bridge(part: &str) -> bool {
    let numbers = part.strip_prefix("pci").and_then(|numbers| numbers.split_once(':'));
    numbers.is_some_and(|(domain, bus)| is_hex(domain, 4..=8) && is_hex(bus, 2..=2))
}

/// Returns whether a text is the address of a function, such as `0000:19:00.0`. The domain may have
/// up to eight digits.
#[doc(hidden)]
pub fn is_address(part: &str) -> bool {
    let mut numbers = part.splitn(3, ':');
    let (Some(domain), Some(bus), Some(rest)) = (numbers.next(), numbers.next(), numbers.next()) else {
        return false;
    };
    let rest = rest.split_once('.');
    is_hex(domain, 4..=8)
        && is_hex(bus, 2..=2)
        && rest.is_some_and(|(device, function)| is_hex(device, 2..=2) && is_hex(function, 1..=1))
}

/// Returns whether a text consists of so many hexadecimal digits.
#[doc(hidden)]
pub fn is_hex(text: &str, length: RangeInclusive<usize>) -> bool {
    length.contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_uppercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(path: &str, numa: Option<u32>) -> Function {
        Function { path: PciPath::parse(path).unwrap(), numa }
    }

    #[test]
    fn paths_are_parsed_into_positions() {
        let path = PciPath::parse("/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/virtio3/net").unwrap();
        assert_eq!(path.root, "/sys/devices/pci0000:16");
        assert_eq!((path.bridges, &*path.address), (vec!["0000:16:01.0".to_owned()], "0000:17:00.0"));
        let nested = "/sys/devices/pci0000:5d/0000:5d:00.5/pci10000:00/10000:00:02.0/10000:01:00.0";
        let path = PciPath::parse(nested).unwrap();
        assert_eq!((path.bridges.len(), &*path.address), (1, "10000:01:00.0"));
        for none in [
            "",
            "/",
            "/sys/devices/virtual/net/eth0",
            "/sys/devices/pci0000:00",
            "/sys/devices/pci0000:00/0000:00:1.0",
            "/sys/devices/pci0000:00/0000:0g:01.0",
            "/sys/devices/pciä:00/0000:00:01.0",
        ] {
            assert_eq!(PciPath::parse(none), None, "{none}");
        }
    }

    #[test]
    fn distances_agree_with_nvidia_smi() {
        let at = |path: &str, numa| function(&format!("/sys/devices/{path}"), numa);
        let gpu = at("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", Some(0));
        let cases = [
            // Another port of the same switch.
            ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", Some(0), Distance::Pix),
            // Another function on the same bus.
            ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.1", Some(0), Distance::Pix),
            // A switch below that switch.
            (
                "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0/0000:05:00.0/0000:06:00.0",
                Some(0),
                Distance::Pxb,
            ),
            ("pci0000:00/0000:00:02.0/0000:10:00.0", Some(0), Distance::Phb),
            ("pci0000:00/0000:00:1f.0", Some(0), Distance::Phb),
            ("pci0000:40/0000:40:01.0/0000:41:00.0", Some(0), Distance::Node),
            ("pci0000:80/0000:80:01.0/0000:81:00.0", Some(1), Distance::Sys),
            ("pci0000:80/0000:80:01.0/0000:81:00.0", None, Distance::Sys),
        ];
        for (path, numa, distance) in cases {
            let nic = at(path, numa);
            assert_eq!((gpu.distance(&nic), nic.distance(&gpu)), (distance, distance), "{path}");
        }
        // A machine with a single NUMA node does not report it.
        let (one, two) = (at("pci0000:00/0000:00:01.0", None), at("pci0000:40/0000:40:01.0", None));
        assert_eq!(one.distance(&two), Distance::Node);
    }

    #[test]
    fn functions_are_read_from_their_folders() -> std::io::Result<()> {
        let machine = tempfile::tempdir()?;
        let folder = machine.path().join("sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0");
        let device = folder.join("virtio3/net/net1");
        fs::create_dir_all(&device)?;
        let link = machine.path().join("link");
        std::os::unix::fs::symlink(&device, &link)?;
        for (said, numa) in [("1\n", Some(1)), ("-1\n", None), ("", None)] {
            fs::write(folder.join("numa_node"), said)?;
            for path in [&folder, &device, &link] {
                let read = Function::read(path).unwrap();
                assert_eq!((&*read.path.address, read.numa), ("0000:01:00.0", numa), "{path:?} {said:?}");
            }
        }
        assert_eq!(Function::read(machine.path()), None);
        assert_eq!(Function::read(&machine.path().join("nothing")), None);
        Ok(())
    }
}
