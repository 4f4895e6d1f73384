use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::sysfs::{hardware_gid, ports};
use super::*;

const ADDRESS: &str = "192.168.100.7";

fn entry(index: u32, gid: &str, kind: &str, interface: &str) -> GidEntry {
    let named = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let gid = gid.parse().map_or_else(|_| gid.parse().unwrap(), gid_of);
    GidEntry { index, gid, kind: named(kind), interface: named(interface) }
}

fn port(device: &str, gids: Vec<GidEntry>) -> Port {
    Port { device: device.to_owned(), number: 1, link: LinkLayer::Ethernet, state: Ok(()), gids }
}

fn local() -> SourceAddress<'static> {
    SourceAddress { address: ADDRESS.parse().unwrap(), interface: "net1", port_gid: None }
}

/// Returns the chosen GID as `device/index`, and the reasons against the others.
fn chosen(ports: &[Port], local: SourceAddress<'_>) -> (Option<String>, Vec<String>) {
    let GidChoice { chosen, rejected } = choose(ports, local);
    let reasons = rejected.iter().map(|(place, reason)| format!("{}/{} {reason}", place.device, place.index));
    (chosen.map(|place| format!("{}/{}", place.device, place.index)), reasons.collect())
}

#[test]
fn a_gid_is_chosen_by_address_type_and_interface_and_not_by_index() {
    let table = vec![
        entry(0, "fe80::1", "RoCE v2", "net1"),
        entry(1, "fe80::1", "IB/RoCE v1", "net1"),
        entry(4, "192.168.100.8", "RoCE v2", "net1"),
        entry(6, ADDRESS, "IB/RoCE v1", "net1"),
        entry(7, ADDRESS, "RoCE v2", "net1"),
    ];
    let (chosen, reasons) = chosen(&[port("mlx5_2", table)], local());
    assert_eq!(chosen.as_deref(), Some("mlx5_2/7"));
    assert_eq!(
        reasons,
        [
            "mlx5_2/0 is of another address",
            "mlx5_2/1 is of another address",
            "mlx5_2/4 is of another address",
            "mlx5_2/6 is IB/RoCE v1, not RoCE v2",
        ]
    );
}

#[test]
fn a_gid_of_another_pod_is_not_chosen() {
    let ports = [
        port("mlx5_0", vec![entry(3, ADDRESS, "RoCE v2", "net7")]),
        port("mlx5_1", vec![entry(3, ADDRESS, "RoCE v2", "")]),
        port("mlx5_2", vec![entry(3, ADDRESS, "", "net1")]),
    ];
    let (chosen, reasons) = chosen(&ports, local());
    assert_eq!(chosen, None);
    assert_eq!(
        reasons,
        [
            "mlx5_0/3 belongs to the interface net7",
            "mlx5_1/3 belongs to no interface of this network namespace",
            "mlx5_2/3 is of no type that the kernel tells",
        ]
    );
}

#[test]
fn a_gid_of_a_port_that_is_down_is_rejected_with_the_state() {
    let down = Port {
        state: Err("DOWN".to_owned()),
        ..port("mlx5_0", vec![entry(0, "fe80::1", "RoCE v2", "net1"), entry(2, ADDRESS, "RoCE v2", "net1")])
    };
    let up = port("mlx5_1", vec![entry(5, ADDRESS, "RoCE v2", "net1"), entry(9, ADDRESS, "RoCE v2", "net1")]);
    let (chosen, reasons) = chosen(&[down, up], local());
    assert_eq!(chosen.as_deref(), Some("mlx5_1/5"));
    assert_eq!(
        reasons,
        ["mlx5_0/0 is of another address", "mlx5_0/2 is on a port that is DOWN", "mlx5_1/9 would do as well"]
    );
}

#[test]
fn usable_gids_are_returned_in_order() {
    let gids = || vec![entry(2, ADDRESS, "IB/RoCE v1", "net1"), entry(5, ADDRESS, "RoCE v2", "net1")];
    let ports = [
        port("mlx5_0", gids()),
        Port { state: Err("DOWN".to_owned()), ..port("mlx5_1", gids()) },
        port("mlx5_2", [gids(), vec![entry(9, ADDRESS, "RoCE v2", "net1")]].concat()),
    ];
    let choice = choose(&ports, local());
    let usable: Vec<_> = choice.usable().map(|place| (place.device.as_str(), place.index)).collect();
    assert_eq!(usable, [("mlx5_0", 5), ("mlx5_2", 5), ("mlx5_2", 9)]);
    assert_eq!(choose(&[], local()).usable().count(), 0);
}

#[test]
fn ipv6_addresses_are_gids_unchanged() {
    let table = vec![entry(0, "::ffff:10.0.0.1", "RoCE v2", "net1"), entry(1, "fd00::7", "RoCE v2", "net1")];
    let local = SourceAddress { address: "fd00::7".parse().unwrap(), ..local() };
    assert_eq!(chosen(&[port("rxe0", table)], local).0.as_deref(), Some("rxe0/1"));
}

#[test]
fn an_infiniband_gid_is_found_by_the_hardware_address() {
    let gids = vec![entry(0, "fe80::2:c903:a2:b3c1", "IB/RoCE v1", "")];
    let port = Port { link: LinkLayer::InfiniBand, ..port("mlx5_0", gids) };
    let gid = hardware_gid("80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:a2:b3:c1\n");
    let local = SourceAddress { port_gid: gid, interface: "ib0", ..local() };
    assert_eq!(chosen(std::slice::from_ref(&port), local).0.as_deref(), Some("mlx5_0/0"));
    assert_eq!(chosen(&[port], SourceAddress { port_gid: None, ..local }).0, None);
    for other in ["", "02:42:ac:11:00:02\n", "80:00:02:zz"] {
        assert_eq!(hardware_gid(other), None, "{other:?}");
    }
}

fn write(folder: &Path, file: &str, text: &str) {
    let file = folder.join(file);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// The files are as Linux has them: entries without a type are holes, devices of others are empty
/// folders, and 10 comes after 9.
#[test]
fn ports_are_read_as_the_kernel_writes_them() {
    let folder = TempDir::new().unwrap();
    let port = |file: &str, text: &str| write(folder.path(), &format!("mlx5_2/ports/1/{file}"), text);
    port("link_layer", "Ethernet\n");
    port("state", "4: ACTIVE\n");
    for index in 0..12 {
        port(&format!("gids/{index}"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
    }
    for index in [2, 10] {
        port(&format!("gids/{index}"), "0000:0000:0000:0000:0000:ffff:c0a8:6407\n");
        port(&format!("gid_attrs/types/{index}"), "RoCE v2\n");
        port(&format!("gid_attrs/ndevs/{index}"), "net1\n");
    }
    port("gids/5", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
    write(folder.path(), "mlx5_3/ports/2/link_layer", "InfiniBand\n");
    write(folder.path(), "mlx5_3/ports/2/state", "1: DOWN\n");
    fs::create_dir_all(folder.path().join("mlx5_9/ports/1")).unwrap();

    let found = ports(folder.path()).unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    let gids = [
        entry(2, ADDRESS, "RoCE v2", "net1"),
        entry(5, "fe80::1", "", ""),
        entry(10, ADDRESS, "RoCE v2", "net1"),
    ];
    assert_eq!(found[0], self::port("mlx5_2", gids.to_vec()));
    assert_eq!((found[1].link, found[1].number), (LinkLayer::InfiniBand, 2));
    assert_eq!(found[1].state, Err("DOWN".to_owned()));
    assert_eq!(choose(&found, local()).chosen.map(|place| place.index), Some(2));

    assert_eq!(ports(&folder.path().join("absent")).unwrap(), []);
}
