//! What is found on the way to a peer.

use std::io::ErrorKind;

use super::super::facts::{Mtu, NoRoute, Peer, Route};
use super::super::report::Finding;
use super::super::report::Level::{Note, Ok as Good, Problem};
use super::milliseconds;

/// Route, connection, size of packets; each only if the one before is good.
pub(super) fn peer(peer: &Peer, allows_default_network: bool, findings: &mut Vec<Finding>) {
    let who = match &peer.network {
        Some(network) => format!("{} at {} on {network}", peer.host, peer.address),
        None => format!("{} at {}", peer.host, peer.address),
    };
    let route = match &peer.route {
        Ok(route) => route,
        Err(error) => {
            findings.push(no_route(&who, peer, error));
            return;
        }
    };
    let Route { source, interface, mtu, is_default_network, .. } = route;
    let attach = match &peer.network {
        Some(network) => format!("attach this pod to {network}"),
        None => "attach this pod to the peer's network".to_owned(),
    };
    if *is_default_network {
        let level = if allows_default_network { Note } else { Problem };
        let message = format!("{who}: the way is by {interface} ({source}), the default network");
        findings.push(
            Finding::new(level, "peer", message)
                .fix(format!("{attach}, or allow it with --allow-default-network")),
        );
        if !allows_default_network {
            return;
        }
    }
    if *source == peer.address.ip() && !source.is_loopback() {
        findings.push(Finding::new(Note, "peer", format!("{who}: this is the pod itself")));
    }
    let from = match mtu {
        Some(mtu) => format!("from {source} on {interface}, MTU {mtu}"),
        None => format!("from {source} on {interface}"),
    };
    match &peer.connected {
        Some(Ok(time)) => findings.push(Finding::new(
            Good,
            "peer",
            format!("{who}: connected in {} {from}", milliseconds(*time)),
        )),
        Some(Err(error)) => {
            let (what, fix) = failed(error.kind());
            let what = what.map_or_else(|| error.to_string(), str::to_owned);
            findings.push(Finding::new(Problem, "peer", format!("{who}: {what} ({from})")).fix(fix));
        }
        None => {}
    }
    if let Some(found) = peer.mtu {
        findings.extend(size(&who, route, found));
    }
}

fn no_route(who: &str, peer: &Peer, error: &NoRoute) -> Finding {
    let ip = peer.address.ip();
    match error {
        NoRoute::Unreachable(reason) => Finding::new(Problem, "peer", format!("{who}: no route ({reason})")).fix(
            format!("attach this pod to the peer's network, and see that the interface is up; `ip route get {ip}` says more"),
        ),
        NoRoute::Other(reason) => Finding::new(Problem, "peer", format!("{who}: {reason}")).fix("try again"),
    }
}

/// What went wrong, if the system's words for it are not the best, and what to do.
fn failed(kind: ErrorKind) -> (Option<&'static str>, &'static str) {
    match kind {
        ErrorKind::ConnectionRefused => (
            Some("the pod is there, but nothing listens on this port"),
            "see whether the pod's program has started, and listens on this port and NIC (`ss -ltn` in the pod)",
        ),
        ErrorKind::TimedOut => (
            Some("nothing comes back"),
            "see whether the two NICs are on one network (VLAN, switch, subnet), and whether a firewall drops TCP",
        ),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => (
            None,
            "see whether the pod is gone, and whether its NIC is on the same network as ours (`ip neigh` shows FAILED)",
        ),
        _ => (None, "see the routes of this pod (`ip route`), and whether a firewall refuses"),
    }
}

fn size(who: &str, route: &Route, found: Mtu) -> Option<Finding> {
    let lower = |mtu: u32| {
        Finding::new(
            Note,
            "peer",
            format!(
                "{who}: packets of at most {mtu} octets pass, where {} would take {}",
                route.interface,
                route.interface_mtu.unwrap_or(mtu)
            ),
        )
        .fix("give all NICs and switch ports of the network the same MTU")
    };
    match found {
        Mtu::Passes(mtu) if route.interface_mtu.is_some_and(|most| most > mtu && most <= super::super::probe::MOST) => Some(lower(mtu)),
        Mtu::Passes(mtu) => Some(Finding::new(Good, "peer", format!("{who}: packets of {mtu} octets pass"))),
        Mtu::Smaller(mtu) => Some(lower(mtu)),
        Mtu::Lost(mtu) => Some(
            Finding::new(Problem, "peer", format!(
                "{who}: small packets pass, but those of {mtu} octets, the MTU of {}, are lost", route.interface
            ))
            .fix("lower this NIC's MTU, or raise that of the peer's NIC and of the switch ports between, to be the same"),
        ),
        // Many firewalls drop what the probe relies on, and connections work all the same.
        Mtu::Silent(mtu) if matches!(route.mtu, Some(known) if known < mtu) => None,
        Mtu::Silent(mtu) => Some(
            Finding::new(Note, "peer", format!(
                "{who}: whether packets of {mtu} octets pass cannot be known, the peer answers no probes (UDP)"
            ))
            .fix("`ping -M do -s SIZE` may say it; or let UDP to its ports 33434 and 33435 pass, and what ICMP answers"),
        ),
    }
}
