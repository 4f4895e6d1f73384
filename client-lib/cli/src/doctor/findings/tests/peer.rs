//! Tests of findings about the way to a peer.

use super::*;

fn with_peer(change: fn(&mut Peer)) -> Facts {
    let mut peer = peer();
    change(&mut peer);
    to(peer)
}

fn by_default_network() -> Route {
    Route { interface: "eth0".to_owned(), is_default_network: true, ..route() }
}

fn unreachable(down: Option<&str>) -> Result<Route, NoRoute> {
    Err(NoRoute::Unreachable { reason: "Network is unreachable".to_owned(), down: down.map(str::to_owned) })
}

fn not_connected(obstacle: Option<Obstacle>) -> Option<Result<Duration, NoConnection>> {
    Some(Err(NoConnection { error: "No route to host".to_owned(), obstacle }))
}

#[test]
fn each_fault_on_the_way_has_its_finding_and_fix() {
    check([
        (
            with_peer(|peer| peer.route = unreachable(None)),
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: no route (Network is unreachable)",
            "attach this pod to the peer's network",
        ),
        (
            with_peer(|peer| peer.route = unreachable(Some("net1 is down"))),
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: no route (Network is unreachable), since net1 is down",
            "bring that NIC up",
        ),
        (
            with_peer(|peer| {
                let eth0 = Route { is_refused: true, ..by_default_network() };
                (peer.route, peer.connected, peer.mtu) = (Ok(eth0), None, None);
            }),
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: the way is by eth0 (192.168.111.4), the default",
            "attach this pod to rail0, or allow it with --allow-default-network",
        ),
        (
            with_peer(|peer| {
                let eth0 =
                    Route { is_refused: true, down: Some("net1 is down".to_owned()), ..by_default_network() };
                (peer.route, peer.connected, peer.mtu) = (Ok(eth0), None, None);
            }),
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: the way is by eth0 (192.168.111.4), the default network, since net1 is down",
            "bring that NIC up (`ip link` says more), or allow it with --allow-default-network",
        ),
        (
            with_peer(|peer| peer.route = Ok(by_default_network())),
            "note peer infer-0 at 192.168.111.5:18515 on rail0: the way is by eth0 (192.168.111.4), the default network, which the service names",
            "",
        ),
        (
            with_peer(|peer| peer.address = "192.168.111.4:18515".parse().unwrap()),
            "note peer infer-0 at 192.168.111.4:18515 on rail0: this is the pod itself",
            "",
        ),
        (
            with_peer(|peer| peer.connected = not_connected(Some(Obstacle::NotListening))),
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: the pod is there, but nothing listens on this port (from",
            "see whether the pod's program has started",
        ),
        (
            with_peer(|peer| (peer.connected, peer.mtu) = (not_connected(Some(Obstacle::Silence)), None)),
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: nothing comes back (from",
            "see whether the two NICs are on one network",
        ),
        (
            with_peer(|peer| {
                let gone = Obstacle::NoHost { interface: "net1".to_owned() };
                (peer.connected, peer.mtu) = (not_connected(Some(gone)), None);
            }),
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: no host on net1 has this address (from",
            "see whether the pod is gone",
        ),
        (
            with_peer(|peer| (peer.connected, peer.mtu) = (not_connected(Some(Obstacle::Rejected)), None)),
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: rejected (No route to host) (from",
            "see whether a firewall or NetworkPolicy rejects",
        ),
        (
            with_peer(|peer| {
                let link = Obstacle::Link { interface: "net1".to_owned(), state: LinkState::NoCarrier };
                (peer.connected, peer.mtu) = (not_connected(Some(link)), None);
            }),
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: net1 has no carrier (from",
            "see whether its cable",
        ),
        (
            with_peer(|peer| (peer.connected, peer.mtu) = (not_connected(None), None)),
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: No route to host (from",
            "see the routes of this pod",
        ),
        (
            with_peer(|peer| peer.mtu = Some(Mtu::Lost(9000))),
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: small packets pass, but those of 9000 bytes",
            "lower this NIC's MTU",
        ),
        (
            with_peer(|peer| peer.mtu = Some(Mtu::Smaller(1500))),
            "note peer infer-0 at 192.168.111.5:18515 on rail0: packets of at most 1500 bytes pass, where net1 would take 9000",
            "give all NICs",
        ),
        (
            with_peer(|peer| peer.mtu = Some(Mtu::Passes(1500))),
            "note peer infer-0 at 192.168.111.5:18515 on rail0: packets of at most 1500 bytes pass",
            "give all NICs",
        ),
        (
            with_peer(|peer| peer.mtu = Some(Mtu::Silent(9000))),
            "note peer infer-0 at 192.168.111.5:18515 on rail0: whether packets of 9000 bytes pass cannot be known",
            "`ping -M do -s SIZE` may say it",
        ),
    ]);
}

#[test]
fn a_peer_that_offers_payloads_is_no_fault() {
    let found = findings(&with_peer(|peer| peer.offers_payloads = true));
    assert_eq!(worst(&found), Level::Ok, "{found:?}");
    let said = "infer-0 at 192.168.111.5:18515 on rail0: it offers payloads to fetch";
    assert!(found.iter().any(|finding| finding.message == said), "{found:?}");
}

#[test]
fn the_default_network_is_noted_where_it_is_allowed() {
    let mut peer = peer();
    let ip: IpAddr = "10.244.0.9".parse().unwrap();
    peer.route = Ok(Route { source: ip, interface: "eth0".to_owned(), is_default_network: true, ..route() });
    let facts = Facts { allows_default_network: true, ..to(peer) };
    let found = findings(&facts);
    assert_eq!(worst(&found), Level::Note, "{found:?}");
    assert!(found.iter().any(|finding| finding.message.contains("connected in")), "{found:?}");
}
