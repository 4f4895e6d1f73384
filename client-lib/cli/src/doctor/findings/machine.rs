//! Findings about this machine's second NICs.

use std::net::IpAddr;

use multinet_client::nic::{AddressState, LinkState};

use super::super::facts::{InSubnet, Machine, Nic, SharedSubnet};
use super::super::report::Level::Note;
use super::super::report::{Finding, NETWORK};

/// Adds the findings about this pod's second NICs.
pub(super) fn network(machine: &Machine, findings: &mut Vec<Finding>) {
    let nics = match &machine.interfaces {
        Ok(nics) => nics,
        Err(error) => {
            let found = format!("cannot read this pod's interfaces: {error}");
            return findings.push(NETWORK.problem(found, "/proc has to be mounted"));
        }
    };
    let second = || nics.iter().filter(|nic| !nic.is_default_network);
    for nic in second().filter(|nic| nic.link != LinkState::Up && !nic.addresses.is_empty()) {
        let fix = match nic.link {
            LinkState::Down => {
                format!("`ip link set {} up`; see whether its CNI plugin has failed", nic.name)
            }
            _ => "see whether its cable, and the port at the other end, have a link".to_owned(),
        };
        findings.push(NETWORK.warning(format!("{} ({}) {}", nic.name, list(nic), nic.link), fix));
    }
    for nic in second().filter(|nic| nic.link == LinkState::Up && !nic.addresses.is_empty()) {
        let mtu = nic.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
        findings.push(NETWORK.good(format!("second NIC {}: {}{mtu}", nic.name, list(nic))));
    }
    for (nic, (address, state)) in second().flat_map(|nic| nic.unusable.iter().map(move |it| (nic, it))) {
        findings.push(unusable(&nic.name, *address, *state));
    }
    findings.extend(machine.shared.iter().filter_map(shared));
    if second().all(|nic| nic.addresses.is_empty()) {
        findings.push(NETWORK.warning(
            "this pod has no second NIC with an address",
            "attach the pod to a network: the annotation k8s.v1.cni.cncf.io/networks, or a resource claim",
        ));
    }
}

fn unusable(name: &str, address: IpAddr, state: AddressState) -> Finding {
    match state {
        AddressState::Duplicate => NETWORK.warning(
            format!("{name}: {address} cannot be used: another host has it (duplicate address detection has failed)"),
            "give every pod of the network an address of its own: see its IPAM, which may know of one node only",
        ),
        _ => NETWORK.finding(
            Note,
            format!("{name}: {address} cannot be used yet: the kernel looks whether another host has it (tentative)"),
            "wait a second; a NIC without a carrier waits for that",
        ),
    }
}

/// Returns a warning if NICs share a subnet and their traffic mixes: it leaves by one of them, and
/// comes by any, unless routes by source address and ARP settings prevent it.
fn shared(SharedSubnet { network, nics }: &SharedSubnet) -> Option<Finding> {
    let all: Vec<String> = nics.iter().map(|nic| format!("{} ({})", nic.interface, nic.address)).collect();
    let stray = |nic: &InSubnet| {
        let by = nic.leaves_by.as_ref().filter(|by| **by != nic.interface)?;
        let InSubnet { interface, address, .. } = nic;
        Some(format!("packets from {address} leave by {by}, never by {interface}"))
    };
    let mut consequences: Vec<String> = nics.iter().filter_map(stray).collect();
    if nics.iter().any(|nic| nic.answers_for_all) {
        consequences.push(
            "each NIC answers for the addresses of all (ARP), so that packets to one arrive by any"
                .to_owned(),
        );
    }
    if consequences.is_empty() {
        return None;
    }
    let message = format!("{} are in one subnet, {network}: {}", all.join(" and "), consequences.join("; "));
    Some(NETWORK.warning(
        message,
        "give each network a subnet of its own; or routes by source (the CNI plugin sbr), and the sysctls arp_ignore=1 and \
         arp_announce=2 of each NIC (the CNI plugin tuning)",
    ))
}

fn list(nic: &Nic) -> String {
    let addresses: Vec<String> = nic.addresses.iter().map(ToString::to_string).collect();
    addresses.join(", ")
}
