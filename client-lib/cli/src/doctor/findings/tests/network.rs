//! Tests of findings about this pod's interfaces.

use super::*;

/// Returns two NICs in one subnet, where packets of `net2` leave by the interface `by`.
fn in_one_subnet(by: &str, answers_for_all: bool) -> SharedSubnet {
    let nic = |interface: &str, address: &str, by: &str| InSubnet {
        interface: interface.to_owned(),
        address: address.parse().unwrap(),
        leaves_by: Some(by.to_owned()),
        answers_for_all,
    };
    let nics = vec![nic("net1", "192.168.111.4", "net1"), nic("net2", "192.168.111.9", by)];
    SharedSubnet { network: "192.168.111.0/24".to_owned(), nics }
}

#[test]
fn each_fault_of_an_interface_has_its_finding_and_fix() {
    check([
        (
            with_machine(|machine| machine.interfaces = Ok(vec![nic("eth0", "10.244.0.9")])),
            "warning network this pod has no second NIC with an address",
            "attach the pod to a network",
        ),
        (
            with_machine(|machine| {
                machine.interfaces = Ok(vec![Nic { link: LinkState::Down, ..nic("net1", "192.168.111.4") }]);
            }),
            "warning network net1 (192.168.111.4) is down",
            "`ip link set net1 up`",
        ),
        (
            with_machine(|machine| {
                machine.interfaces =
                    Ok(vec![Nic { link: LinkState::NoCarrier, ..nic("net1", "192.168.111.4") }]);
            }),
            "warning network net1 (192.168.111.4) has no carrier",
            "see whether its cable",
        ),
        (
            with_machine(|machine| {
                let unusable = vec![("fd00:111::4".parse().unwrap(), AddressState::Duplicate)];
                machine.interfaces = Ok(vec![Nic { unusable, ..nic("net1", "192.168.111.4") }]);
            }),
            "warning network net1: fd00:111::4 cannot be used: another host has it",
            "give every pod of the network an address of its own",
        ),
        (
            with_machine(|machine| {
                let unusable = vec![("fd00:111::4".parse().unwrap(), AddressState::Tentative)];
                machine.interfaces = Ok(vec![Nic { unusable, ..nic("net1", "192.168.111.4") }]);
            }),
            "note network net1: fd00:111::4 cannot be used yet",
            "wait a second",
        ),
        (
            with_machine(|machine| machine.shared = vec![in_one_subnet("net1", true)]),
            "warning network net1 (192.168.111.4) and net2 (192.168.111.9) are in one subnet, 192.168.111.0/24: packets from 192.168.111.9 leave by \
             net1, never by net2; each NIC answers for the addresses of all (ARP), so that packets to one arrive by any",
            "give each network a subnet of its own",
        ),
        (
            with_machine(|machine| machine.shared = vec![in_one_subnet("net2", true)]),
            "warning network net1 (192.168.111.4) and net2 (192.168.111.9) are in one subnet, 192.168.111.0/24: each NIC answers",
            "give each network a subnet of its own",
        ),
        (
            with_machine(|machine| machine.interfaces = Err("no /proc".to_owned())),
            "problem network cannot read this pod's interfaces: no /proc",
            "/proc has to be mounted",
        ),
    ]);
}

#[test]
fn nics_in_one_subnet_may_keep_their_traffic_apart() {
    let mut facts = good();
    facts.machine.shared = vec![in_one_subnet("net2", false)];
    assert!(bad(&facts).is_empty(), "{:?}", bad(&facts));
}
