//! Reads the ports of RDMA devices from `/sys/class/infiniband` (Linux,
//! `Documentation/ABI/stable/sysfs-class-infiniband`).

use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::path::Path;

use tracing::debug;

use super::{GidEntry, LinkLayer, Port};
use crate::sys::text;

const DEVICES: &str = "sys/class/infiniband";

/// Lists the ports of all RDMA devices that this process sees, by device and number. Ports whose
/// files cannot be read are left out: a pod sees devices of others, into which it may not look.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_rails::gid::local_ports;
///
/// if local_ports()?.iter().all(|port| port.state.is_err()) {
///     println!("no RDMA device here has an active port: frames go by TCP");
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// If the devices cannot be listed. The absence of devices is no error.
pub fn local_ports() -> io::Result<Vec<Port>> {
    ports_in(Path::new("/"))
}

/// Lists the same below another root than `/`.
pub(crate) fn ports_in(root: &Path) -> io::Result<Vec<Port>> {
    ports(&root.join(DEVICES))
}

/// Returns whether `/sys/class/infiniband` shows this process any RDMA device.
#[doc(hidden)]
pub fn has_devices() -> bool {
    fs::read_dir(Path::new("/").join(DEVICES)).is_ok_and(|mut devices| devices.next().is_some())
}

/// Returns whether the kernel supports RDMA, that is, has `/sys/class/infiniband`.
#[doc(hidden)]
pub fn kernel_has_rdma() -> bool {
    Path::new("/").join(DEVICES).exists()
}

/// Returns the GID in the hardware address of an InfiniBand interface (RFC 4391, section 9.1.1):
/// the last 16 of its 20 bytes. Returns `None` for other interfaces.
///
/// ```
/// use multinet_rails::gid::port_gid;
///
/// // The hardware address of Ethernet, and of the loopback interface, is too short for one.
/// assert_eq!(port_gid("lo"), None);
/// ```
pub fn port_gid(interface: &str) -> Option<Ipv6Addr> {
    port_gid_in(Path::new("/"), interface)
}

/// Returns the same below another root than `/`.
pub(crate) fn port_gid_in(root: &Path, interface: &str) -> Option<Ipv6Addr> {
    hardware_gid(&text(&root.join("sys/class/net").join(interface).join("address"))?)
}

pub(super) fn ports(devices: &Path) -> io::Result<Vec<Port>> {
    let names = match names(devices) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    let mut ports = Vec::new();
    for device in names {
        let folder = devices.join(&device).join("ports");
        let numbers = names_of_numbers(&folder);
        ports.extend(numbers.into_iter().filter_map(|number| port(&folder, &device, number)));
    }
    Ok(ports)
}

fn port(folder: &Path, device: &str, number: u32) -> Option<Port> {
    let folder = folder.join(number.to_string());
    let known = |file: &str| {
        let file = folder.join(file);
        let text = text(&file);
        if text.is_none() {
            debug!("{device} port {number} is passed over: {} cannot be read", file.display());
        }
        text
    };
    let link = match known("link_layer")?.as_str() {
        "InfiniBand" => LinkLayer::InfiniBand,
        _ => LinkLayer::Ethernet,
    };
    // The file contains a number and a name, such as "4: ACTIVE".
    let state = known("state")?;
    let name = state.split_once(": ").map_or(state.as_str(), |(_, name)| name);
    let gids =
        names_of_numbers(&folder.join("gids")).into_iter().filter_map(|index| read_entry(&folder, index));
    Some(Port {
        device: device.to_owned(),
        number,
        link,
        state: if name == "ACTIVE" { Ok(()) } else { Err(name.to_owned()) },
        gids: gids.collect(),
    })
}

/// Reads an entry of the table. Unused entries have a zero GID, or a type that cannot be read
/// (EINVAL).
fn read_entry(folder: &Path, index: u32) -> Option<GidEntry> {
    let gid = text(&folder.join(format!("gids/{index}")))?.parse().ok()?;
    if gid == Ipv6Addr::UNSPECIFIED {
        return None;
    }
    let attribute = |name: &str| text(&folder.join(format!("gid_attrs/{name}/{index}")));
    Some(GidEntry { index, gid, kind: attribute("types"), interface: attribute("ndevs") })
}

pub(super) fn hardware_gid(address: &str) -> Option<Ipv6Addr> {
    let bytes: Result<Vec<u8>, _> =
        address.trim_end().split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    let (_, gid) =
        bytes.ok().filter(|bytes| bytes.len() == 20)?.split_last_chunk::<16>().map(|(a, b)| (a.len(), *b))?;
    Some(Ipv6Addr::from(gid))
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

fn names_of_numbers(folder: &Path) -> Vec<u32> {
    let names = names(folder).unwrap_or_default();
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}
