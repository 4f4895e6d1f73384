use std::net::Ipv4Addr;

use super::*;
use crate::store::endpoints::Endpoint;
use crate::store::group::{Group, GroupView};

/// Makes a slice with these ports, and with hosts of one address each.
fn slice(ports: &[(&str, u16)], hosts: &[(&str, u8)]) -> Arc<Slice> {
    let endpoints = hosts.iter().map(|&(host, number)| Endpoint {
        address: Ipv4Addr::new(10, 0, 0, number).into(),
        host,
        named: true,
        txt: b"",
    });
    let port = |&(name, number): &(&str, u16)| Port { name: name.into(), protocol: Protocol::Tcp, number };
    Arc::new(Slice {
        ports: ports.iter().map(port).collect(),
        endpoints: endpoints.collect(),
        ..Slice::default()
    })
}

/// Returns the SRV records of a port as sorted lines `host:number weight`; `*` stands for all ports
/// together.
fn records(slices: &[Arc<Slice>], name: &str) -> Vec<String> {
    let group = Group::new(5, slices, None);
    let group = GroupView::new(&group, slices);
    let label = port_label(name);
    let records = match name {
        "*" => group.all_srv(),
        _ => match group.port(&label, Protocol::Tcp) {
            Some(port) => group.srv(port),
            None => return Vec::new(),
        },
    };
    let text = |record: SrvRecord| {
        let host = String::from_utf8_lossy(&group.label_at(record.host())[1..]).into_owned();
        format!("{host}:{} {}", record.port, record.weight)
    };
    let by_slot = (0..records.slots()).filter_map(|slot| records.get(slot));
    assert!(by_slot.eq(records.iter()));
    assert_eq!(records.first_from(0).map(|(_, record)| record), records.iter().next());
    assert!(records.get(records.slots()).is_none());
    let mut texts: Vec<String> = records.iter().map(text).collect();
    let hosts: Vec<u32> = records.iter().map(|record| record.host()).collect();
    assert!(hosts.is_sorted(), "the records of a target are not adjacent");
    texts.sort();
    texts
}

#[test]
fn every_target_has_every_port_if_the_slices_agree() {
    let ports = [("a", 1), ("b", 2), ("c", 2), ("", 9)];
    let slices = [slice(&ports, &[("x", 1), ("y", 2)]), slice(&ports, &[("z", 3)])];
    assert_eq!(records(&slices, "a"), ["x:1 33", "y:1 33", "z:1 33"]);
    assert_eq!(records(&slices, "c"), ["x:2 33", "y:2 33", "z:2 33"]);
    assert_eq!(records(&slices, "*"), ["x:1 33", "x:2 33", "y:1 33", "y:2 33", "z:1 33", "z:2 33"]);
    let group = Group::new(5, &slices, None);
    assert_eq!(group.ports.sets().len(), 3);
    assert!(group.ports.columns.is_empty() && group.ports.offered.is_empty());
    assert_eq!(group.ports.table.offers.len(), 1, "lists that are equal are one");
}

#[test]
fn targets_have_only_the_ports_of_their_own_slices() {
    let slices = [
        slice(&[("a", 1), ("b", 2)], &[("x", 1)]),
        slice(&[("b", 3)], &[("y", 2)]),
        slice(&[("b", 2), ("c", 4)], &[("x", 1), ("z", 3)]),
        slice(&[], &[("w", 4)]),
    ];
    assert_eq!(records(&slices, "a"), ["x:1 100"]);
    assert_eq!(records(&slices, "b"), ["x:2 33", "y:3 33", "z:2 33"]);
    assert_eq!(records(&slices, "c"), ["x:4 50", "z:4 50"]);
    assert_eq!(records(&slices, "*"), ["x:1 100", "x:2 33", "x:4 50", "y:3 33", "z:2 33", "z:4 50"]);
}

#[test]
fn a_port_with_two_numbers_has_a_record_for_each() {
    let slices = [slice(&[("a", 1)], &[("x", 1)]), slice(&[("a", 2)], &[("x", 1), ("x", 2), ("y", 3)])];
    assert_eq!(records(&slices, "a"), ["x:1 33", "x:2 33", "y:2 33"]);
    assert_eq!(records(&slices, "*"), records(&slices, "a"));
}

#[test]
fn ports_do_not_depend_on_the_order_of_slices() {
    let of = |number: usize| match number {
        0 => slice(&[("a", 1), ("b", 2)], &[("x", 1), ("w", 4)]),
        1 => slice(&[("b", 3)], &[("y", 2)]),
        _ => slice(&[("b", 2), ("c", 4)], &[("x", 1), ("z", 3)]),
    };
    let (one, two) = ([0, 1, 2].map(of), [2, 0, 1].map(of));
    assert_eq!(Group::new(5, &one, None).ports, Group::new(5, &two, None).ports);
}

#[test]
fn a_target_takes_four_bytes_regardless_of_its_ports() {
    let names: Vec<String> = (0..100).map(|number| format!("p{number}")).collect();
    let ports: Vec<(&str, u16)> = names.iter().map(String::as_str).zip(1..).collect();
    let hosts: Vec<String> = (0..200).map(|number| format!("h{number}")).collect();
    let hosts: Vec<(&str, u8)> = hosts.iter().map(String::as_str).zip(0..).collect();
    let group = Group::new(5, &[slice(&ports, &hosts)], None);
    let ports = &group.ports;
    assert_eq!(ports.all().iter().count(), 20_000);
    let several = (ports.offered.len(), ports.columns.len(), ports.subsets.len(), ports.all_ports.len());
    assert_eq!((ports.targets.len(), several), (200, (0, 0, 0, 1)));
}
