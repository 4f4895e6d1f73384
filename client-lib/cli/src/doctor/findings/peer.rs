//! Findings about the way to a peer.

use multinet_client::nic::{LinkState, Obstacle};

use super::super::facts::{Mtu, NoConnection, NoRoute, Peer, Route};
use super::super::report::Level::Note;
use super::super::report::{Finding, PEER};
use super::milliseconds;

/// Adds the findings about route, connection and size of packets, each only if the one before is
/// good.
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
    let Route { source, interface, mtu, is_default_network, is_refused, down, .. } = route;
    let attach = match &peer.network {
        Some(network) => format!("attach this pod to {network}"),
        None => "attach this pod to the peer's network".to_owned(),
    };
    if *is_default_network {
        let way = format!("{who}: the way is by {interface} ({source}), the default network");
        let (way, instead) = match down {
            Some(down) => {
                (format!("{way}, since {down}"), "bring that NIC up (`ip link` says more)".to_owned())
            }
            None => (way, attach),
        };
        let fix = format!("{instead}, or allow it with --allow-default-network");
        findings.push(match (is_refused, allows_default_network) {
            (true, _) => PEER.problem(way, fix),
            (false, true) => PEER.finding(Note, way, fix),
            (false, false) => PEER.note(format!("{way}, which the service names")),
        });
        if *is_refused {
            return;
        }
    }
    if *source == peer.address.ip() && !source.is_loopback() {
        findings.push(PEER.note(format!("{who}: this is the pod itself")));
    }
    let from = match mtu {
        Some(mtu) => format!("from {source} on {interface}, MTU {mtu}"),
        None => format!("from {source} on {interface}"),
    };
    match &peer.connected {
        Some(Ok(time)) => {
            findings.push(PEER.good(format!("{who}: connected in {} {from}", milliseconds(*time))));
        }
        Some(Err(error)) => {
            let (what, fix) = failed(error);
            findings.push(PEER.problem(format!("{who}: {what} ({from})"), fix));
        }
        None => {}
    }
    if peer.offers_payloads {
        findings.push(PEER.good(format!("{who}: it offers payloads to fetch")));
    }
    if let Some(found) = peer.mtu {
        findings.extend(size(&who, route, found));
    }
}

fn no_route(who: &str, peer: &Peer, error: &NoRoute) -> Finding {
    let ip = peer.address.ip();
    match error {
        NoRoute::Unreachable { reason, down: Some(down) } => PEER.problem(
            format!("{who}: no route ({reason}), since {down}"),
            "bring that NIC up (`ip link` says more)",
        ),
        NoRoute::Unreachable { reason, down: None } => PEER.problem(
            format!("{who}: no route ({reason})"),
            format!("attach this pod to the peer's network, and see that no route or rule of the pod forbids it; `ip route get {ip}` says more"),
        ),
        NoRoute::Other(reason) => PEER.problem(format!("{who}: {reason}"), "try again"),
    }
}

/// Returns the cause of a failure to connect to a peer, and the fix, as texts of a finding.
fn failed(NoConnection { error, obstacle }: &NoConnection) -> (String, &'static str) {
    match obstacle {
        Some(Obstacle::NotListening) => (
            "the pod is there, but nothing listens on this port".to_owned(),
            "see whether the pod's program has started, and listens on this port and NIC (`ss -ltn` in the pod), and whether a firewall or \
             NetworkPolicy rejects it",
        ),
        Some(Obstacle::Silence) => (
            "nothing comes back".to_owned(),
            "see whether the two NICs are on one network (VLAN, switch, subnet), and whether a firewall or NetworkPolicy drops TCP",
        ),
        Some(Obstacle::Rejected) => (
            format!("rejected ({error})"),
            "see whether a firewall or NetworkPolicy rejects TCP to this port, and, if there is a router on the way, whether the pod is gone",
        ),
        Some(Obstacle::NoHost { interface }) => (
            format!("no host on {interface} has this address"),
            "see whether the pod is gone, and whether its NIC is on the same network as ours (`ip neigh` shows FAILED)",
        ),
        Some(Obstacle::Link { interface, state: LinkState::Down }) => {
            (format!("{interface} is down"), "bring it up (`ip link` says more)")
        }
        Some(Obstacle::Link { interface, state }) => (
            format!("{interface} {state}"),
            "see whether its cable, and the port at the other end, have a link",
        ),
        _ => (error.clone(), "see the routes of this pod (`ip route`), and whether a firewall refuses"),
    }
}

fn size(who: &str, route: &Route, found: Mtu) -> Option<Finding> {
    let lower = |mtu: u32| {
        PEER.finding(
            Note,
            format!(
                "{who}: packets of at most {mtu} bytes pass, where {} would take {}",
                route.interface,
                route.interface_mtu.unwrap_or(mtu)
            ),
            "give all NICs and switch ports of the network the same MTU",
        )
    };
    match found {
        Mtu::Passes(mtu)
            if route.interface_mtu.is_some_and(|most| most > mtu && most <= super::super::probe::MOST) =>
        {
            Some(lower(mtu))
        }
        Mtu::Passes(mtu) => Some(PEER.good(format!("{who}: packets of {mtu} bytes pass"))),
        Mtu::Smaller(mtu) => Some(lower(mtu)),
        Mtu::Lost(mtu) => Some(PEER.problem(
            format!(
                "{who}: small packets pass, but those of {mtu} bytes, the MTU of {}, are lost",
                route.interface
            ),
            "lower this NIC's MTU, or raise that of the peer's NIC and of the switch ports between, to be the same",
        )),
        // Many firewalls drop the ICMP messages that the probe relies on, but let connections pass.
        Mtu::Silent(mtu) if matches!(route.mtu, Some(known) if known < mtu) => None,
        Mtu::Silent(mtu) => Some(PEER.finding(
            Note,
            format!("{who}: whether packets of {mtu} bytes pass cannot be known, the peer answers no probes (UDP)"),
            "`ping -M do -s SIZE` may say it; or let UDP to its ports 33434 and 33435 pass, and what ICMP answers",
        )),
    }
}
