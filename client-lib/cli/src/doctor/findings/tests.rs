//! Facts and what they mean, as a table.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use multinet_client::gid::LinkLayer;
use multinet_client::nic::{AddressState, LinkState, Obstacle};
use multinet_client::{Endpoint, EndpointAddress, ResolveError, Resolved, Resolver};

use super::super::facts::{
    DmaBuf, Dns, Facts, Failure, Gid, Gpus, InSubnet, Machine, Mtu, Namespaces, Nic, NoConnection, NoRoute,
    Peer, Process, Route, Row, Server, Service, SharedSubnet, ZoneAnswer,
};
use super::super::pci::Acs;
use super::super::report::{Level, json, text, worst};
use super::findings;
use machine::function;

mod dns;
mod machine;

fn server() -> SocketAddr {
    "10.96.0.10:53".parse().unwrap()
}

fn timeout() -> ResolveError {
    ResolveError::Timeout { name: "svc.multinet".to_owned(), servers: vec![server()] }
}

fn nic(name: &str, ip: &str) -> Nic {
    Nic {
        name: name.to_owned(),
        addresses: vec![ip.parse().unwrap()],
        unusable: Vec::new(),
        mtu: Some(9000),
        link: LinkState::Up,
        is_default_network: name == "eth0",
    }
}

fn asked(says: Vec<ZoneAnswer>) -> Dns {
    let took = Duration::from_micros(420);
    Dns {
        search: vec!["vision.svc.cluster.local".to_owned(), "cluster.local".to_owned()],
        ndots: 5,
        probe: "svc.multinet".to_owned(),
        servers: says
            .into_iter()
            .map(|says| Server { address: server(), says, took, no_tcp: None })
            .collect(),
    }
}

fn zone() -> ZoneAnswer {
    ZoneAnswer::Zone("svc.multinet.cluster.local".to_owned())
}

/// A pod that lacks nothing.
fn good() -> Facts {
    Facts {
        dns: Ok(asked(vec![zone()])),
        service: None,
        machine: Machine {
            interfaces: Ok(vec![nic("eth0", "10.244.0.9"), nic("net1", "192.168.111.4")]),
            shared: Vec::new(),
            memlock: Some((u64::MAX, u64::MAX)),
            process: Process::default(),
            rdma_devices: vec!["mlx5_2".to_owned()],
            rdma_files: vec!["rdma_cm".to_owned(), "uverbs2".to_owned()],
            verbs: Ok(()),
            gids: vec![Gid {
                interface: "net1".to_owned(),
                address: [192, 168, 111, 4].into(),
                row: Some(Row {
                    place: "mlx5_2 port 1 GID 3 (::ffff:192.168.111.4)".to_owned(),
                    device: "mlx5_2".to_owned(),
                    link: LinkLayer::Ethernet,
                    writes: Some(Ok(4096)),
                }),
                rejected: vec![
                    "mlx5_2 port 1 GID 2 (::ffff:192.168.111.4) is IB/RoCE v1, not RoCE v2".to_owned(),
                ],
                others: vec!["mlx5_2 port 1 GID 0 (fe80::1)".to_owned()],
            }],
            namespaces: Some(Ok(Namespaces::Shared)),
            dma_bufs: vec![("mlx5_2".to_owned(), Ok(DmaBuf::Taken))],
            peermem: None,
            gpus: Gpus::default(),
            cuda: None,
            functions: vec![(
                "mlx5_2".to_owned(),
                function("0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", Acs::Hidden),
            )],
        },
        allows_default_network: false,
    }
}

fn route() -> Route {
    Route {
        source: "192.168.111.4".parse().unwrap(),
        interface: "net1".to_owned(),
        mtu: Some(9000),
        interface_mtu: Some(9000),
        is_default_network: false,
        is_refused: false,
        down: None,
    }
}

fn peer() -> Peer {
    Peer {
        host: "infer-0".to_owned(),
        address: "192.168.111.5:18515".parse().unwrap(),
        network: Some("rail0".to_owned()),
        route: Ok(route()),
        connected: Some(Ok(Duration::from_micros(87))),
        mtu: Some(Mtu::Passes(9000)),
    }
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

fn to(peer: Peer) -> Facts {
    let service = Service {
        name: "192.168.111.5".to_owned(),
        port: Some("18515".to_owned()),
        records: None,
        wanted: None,
        network: None,
        peers: vec![peer],
    };
    Facts { service: Some(service), ..good() }
}

/// Endpoints come from a resolver only, which knows those of an address without asking.
async fn resolved(change: impl FnOnce(&mut Endpoint)) -> Resolved {
    let resolver = Resolver::builder().servers([server()]).build().unwrap();
    let mut resolved = resolver.resolve("192.168.111.5", "18515").await.unwrap();
    let endpoint = &mut resolved.endpoints[0];
    endpoint.host = "infer-0".to_owned();
    endpoint.node = Some("gpu-1".to_owned());
    endpoint.zone = Some("a".to_owned());
    let address = &mut endpoint.addresses[0];
    address.network = Some("rail0".to_owned());
    address.rdma_devices = vec!["mlx5_2".to_owned()];
    change(endpoint);
    resolved.name = "infer.vision.svc.multinet.cluster.local".to_owned();
    resolved.ttl = Duration::from_secs(5);
    resolved
}

fn named(records: Result<Resolved, ResolveError>, port: Option<&str>) -> Facts {
    let service = Service {
        name: "infer.vision.svc.multinet".to_owned(),
        port: port.map(str::to_owned),
        records: Some(records),
        wanted: None,
        network: None,
        peers: Vec::new(),
    };
    Facts { service: Some(service), ..good() }
}

/// The findings that are not good, each as `level about message`, with its fix cut to its beginning.
fn bad(facts: &Facts) -> Vec<(String, String)> {
    findings(facts)
        .into_iter()
        .filter(|finding| finding.level > Level::Ok)
        .map(|finding| {
            assert!(!finding.message.contains('\n'), "{finding:?}");
            assert!(finding.level == Level::Note || finding.fix.is_some(), "{finding:?}");
            (
                format!("{} {} {}", finding.level, finding.about, finding.message),
                finding.fix.unwrap_or_default(),
            )
        })
        .collect()
}

#[test]
fn a_pod_that_lacks_nothing() {
    let found = findings(&to(peer()));
    assert_eq!(
        text(&found),
        "\
ok       dns       search path: vision.svc.cluster.local cluster.local; ndots: 5
ok       dns       10.96.0.10:53 answers in 0.42 ms, and knows the zone multinet.cluster.local
ok       network   second NIC net1: 192.168.111.4, MTU 9000
ok       peer      infer-0 at 192.168.111.5:18515 on rail0: connected in 0.09 ms from 192.168.111.4 on net1, MTU 9000
ok       peer      infer-0 at 192.168.111.5:18515 on rail0: packets of 9000 octets pass
ok       rdma      devices mlx5_2; /dev/infiniband has rdma_cm, uverbs2
ok       rdma      namespace mode shared: all devices of the node are seen, those with an interface of this pod can be used
ok       rdma      net1 192.168.111.4: mlx5_2 port 1 GID 3 (::ffff:192.168.111.4), writes to itself, path MTU 4096; passed over: mlx5_2 port 1 GID 2 (::ffff:192.168.111.4) is IB/RoCE v1, not RoCE v2
ok       gpu       mlx5_2: memory of GPUs can be registered, as dma-buf
ok       memory    may lock any amount of memory (memlock is unlimited)
no problems, no warnings
"
    );
}

/// One thing is wrong: what is found, and how the fix begins.
#[test]
fn one_thing_is_wrong() {
    let with_dns = |says: Vec<ZoneAnswer>| Facts { dns: Ok(asked(says)), ..good() };
    let with_machine = |change: fn(&mut Machine)| {
        let mut facts = good();
        change(&mut facts.machine);
        facts
    };
    let with_peer = |change: fn(&mut Peer)| {
        let mut peer = peer();
        change(&mut peer);
        to(peer)
    };
    let refused = || ResolveError::Refused { name: "svc.multinet".to_owned(), server: server() };
    let cases: Vec<(Facts, &str, &str)> = vec![
        (
            Facts { dns: Err(ResolveError::NoServers { path: "/etc/resolv.conf".into() }), ..good() },
            "problem dns /etc/resolv.conf names no DNS server",
            "look at /etc/resolv.conf",
        ),
        (
            with_dns(vec![ZoneAnswer::NoZone]),
            "problem dns 10.96.0.10:53 answers in 0.42 ms, but knows no svc.multinet",
            "have the cluster's DNS forward the zone",
        ),
        (
            with_dns(vec![zone(), ZoneAnswer::NoZone]),
            "warning dns 10.96.0.10:53 answers",
            "have the cluster's DNS",
        ),
        (
            with_dns(vec![ZoneAnswer::Fails(refused())]),
            "problem dns 10.96.0.10:53 refuses",
            "see the log of 10.96.0.10:53",
        ),
        (
            with_dns(vec![ZoneAnswer::Silent(timeout())]),
            "problem dns no answer for svc.multinet",
            "see whether the server runs",
        ),
        (
            with_dns(vec![ZoneAnswer::Silent(timeout()), zone()]),
            "warning dns no answer",
            "see whether the server runs",
        ),
        (
            with_dns(vec![ZoneAnswer::FullNameOnly("svc.multinet.cluster.local".to_owned())]),
            "note dns 10.96.0.10:53 answers in 0.42 ms, and knows the zone multinet.cluster.local, to which the search",
            "end names with multinet.cluster.local",
        ),
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
            "warning network net1 (192.168.111.4) and net2 (192.168.111.9) are in one subnet, 192.168.111.0/24: what is sent from 192.168.111.9 leaves by \
             net1, never by net2; each answers for the addresses of all (ARP), so that what is for one comes by any",
            "give each network a subnet of its own",
        ),
        (
            with_machine(|machine| machine.shared = vec![in_one_subnet("net2", true)]),
            "warning network net1 (192.168.111.4) and net2 (192.168.111.9) are in one subnet, 192.168.111.0/24: each answers",
            "give each network a subnet of its own",
        ),
        (
            with_machine(|machine| machine.interfaces = Err("no /proc".to_owned())),
            "problem network cannot read this pod's interfaces: no /proc",
            "/proc has to be mounted",
        ),
        (
            with_machine(|machine| machine.memlock = Some((8 << 20, 8 << 20))),
            "warning memory may lock 8 MiB only (memlock)",
            "set LimitMEMLOCK=infinity in containerd's",
        ),
        (
            with_machine(|machine| machine.memlock = Some((64 << 10, u64::MAX))),
            "warning memory may lock 64 KiB only (memlock), but may raise that itself",
            "`ulimit -l unlimited`",
        ),
        (
            with_machine(|machine| machine.rdma_files.clear()),
            "warning rdma mlx5_2: on this node, but /dev/infiniband has no uverbs device",
            "request the device plugin's resource",
        ),
        (
            with_machine(|machine| {
                machine.gids[0].row = None;
                machine.gids[0].rejected.clear();
            }),
            "warning rdma net1 192.168.111.4: no RDMA device has a GID of this address, frames go over TCP; of other addresses are mlx5_2 port 1 \
             GID 0 (fe80::1)",
            "attach the pod to a network on the RDMA device",
        ),
        (
            with_machine(|machine| {
                let gid = &mut machine.gids[0];
                gid.row = None;
                gid.rejected.clear();
                gid.others = (0..18).map(|row| format!("row {row}")).collect();
            }),
            "warning rdma net1 192.168.111.4: no RDMA device has a GID of this address, frames go over TCP; of other addresses are row 0, row 1, row 2, \
             row 3, row 4, row 5, row 6, row 7, row 8, row 9, row 10, row 11, row 12, row 13, row 14, row 15, and 2 more",
            "attach the pod to a network on the RDMA device",
        ),
        (
            with_machine(|machine| {
                let row = machine.gids[0].row.as_mut().unwrap();
                let what = "mlx5_2: cannot register memory: Cannot allocate memory".to_owned();
                row.writes = Some(Err(Failure { what, fix: Some("raise memlock") }));
            }),
            "warning rdma net1 192.168.111.4: mlx5_2 port 1 GID 3 (::ffff:192.168.111.4) cannot be used, frames go over TCP: \
             mlx5_2: cannot register memory: Cannot allocate memory",
            "raise memlock",
        ),
        (
            with_machine(|machine| {
                let row = machine.gids[0].row.as_mut().unwrap();
                row.writes = Some(Err(Failure { what: "it hangs".to_owned(), fix: None }));
            }),
            "warning rdma net1 192.168.111.4: mlx5_2 port 1 GID 3 (::ffff:192.168.111.4) cannot be used, frames go over TCP: it hangs",
            "`ibv_devinfo -v` here and the kernel's log",
        ),
        (
            with_machine(|machine| {
                let what = "libibverbs cannot be loaded (no such file)".to_owned();
                machine.verbs = Err(Failure { what, fix: Some("install libibverbs1") });
                machine.gids[0].row.as_mut().unwrap().writes = None;
            }),
            "warning rdma libibverbs cannot be loaded (no such file): frames go over TCP",
            "install libibverbs1",
        ),
        (
            with_machine(|machine| machine.gids[0].row = None),
            "warning rdma net1 192.168.111.4: no usable GID, frames go over TCP: mlx5_2 port 1 GID 2 \
             (::ffff:192.168.111.4) is IB/RoCE v1, not RoCE v2",
            "`rdma system` and `rdma link`",
        ),
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
            "problem peer infer-0 at 192.168.111.5:18515 on rail0: small packets pass, but those of 9000 octets",
            "lower this NIC's MTU",
        ),
        (
            with_peer(|peer| peer.mtu = Some(Mtu::Smaller(1500))),
            "note peer infer-0 at 192.168.111.5:18515 on rail0: packets of at most 1500 octets pass, where net1 would take 9000",
            "give all NICs",
        ),
        (
            with_peer(|peer| peer.mtu = Some(Mtu::Passes(1500))),
            "note peer infer-0 at 192.168.111.5:18515 on rail0: packets of at most 1500 octets pass",
            "give all NICs",
        ),
        (
            with_peer(|peer| peer.mtu = Some(Mtu::Silent(9000))),
            "note peer infer-0 at 192.168.111.5:18515 on rail0: whether packets of 9000 octets pass cannot be known",
            "`ping -M do -s SIZE` may say it",
        ),
    ];
    for (facts, message, fix) in cases {
        let found = bad(&facts);
        assert_eq!(found.len(), 1, "{message}: {found:?}");
        assert!(found[0].0.starts_with(message), "{found:?}\nis not\n{message}");
        assert!(
            found[0].1.starts_with(fix) && found[0].1.is_empty() == fix.is_empty(),
            "{found:?}\nis not\n{fix}"
        );
    }
}

#[test]
fn nics_in_one_subnet_may_keep_their_traffic_apart() {
    let mut facts = good();
    facts.machine.shared = vec![in_one_subnet("net2", false)];
    assert!(bad(&facts).is_empty(), "{:?}", bad(&facts));
}

#[test]
fn what_is_allowed_is_no_problem() {
    let mut peer = peer();
    let ip: IpAddr = "10.244.0.9".parse().unwrap();
    peer.route = Ok(Route { source: ip, interface: "eth0".to_owned(), is_default_network: true, ..route() });
    let facts = Facts { allows_default_network: true, ..to(peer) };
    let found = findings(&facts);
    assert_eq!(worst(&found), Level::Note, "{found:?}");
    assert!(found.iter().any(|finding| finding.message.contains("connected in")), "{found:?}");
}

#[tokio::test]
async fn what_records_lack() {
    let whole = named(Ok(resolved(|_| ()).await), None);
    assert_eq!(
        bad(&whole).iter().map(|(message, _)| message.as_str()).collect::<Vec<_>>(),
        [
            "warning endpoint infer-0:18515: its pod's uid is not known: a pod that takes over the address looks the same"
        ]
    );
    let facts = named(
        Ok(resolved(|endpoint| {
            endpoint.addresses = vec![EndpointAddress::new("192.168.111.5".parse().unwrap())];
            endpoint.node = None;
        })
        .await),
        None,
    );
    assert_eq!(
        bad(&facts).iter().map(|(message, _)| message.as_str()).collect::<Vec<_>>(),
        [
            "warning endpoint infer-0:18515: no TXT record names the network of 192.168.111.5: it cannot be chosen by \
             network, nor its device"
        ]
    );
    let facts = named(Ok(resolved(|endpoint| endpoint.addresses[0].rdma_devices.clear()).await), None);
    let said = |facts: &Facts, what: &str, fix: &str| {
        let found = bad(facts);
        let is_it = |(message, how): &(String, String)| message == what && how.starts_with(fix);
        assert!(found.iter().any(is_it), "{found:?}\nhas no\n{what}");
    };
    let no_device = "note endpoint infer-0:18515: 192.168.111.5 has no RDMA device: TCP only";
    said(&facts, no_device, "if it is to have one, attach its pod to a network on an RDMA device");
    let facts = named(Ok(resolved(|endpoint| endpoint.zone = None).await), None);
    let no_zone =
        "note endpoint infer-0:18515: its zone is not known: from other nodes it is no nearer than any";
    said(&facts, no_zone, "if there are zones, give its node the label topology.kubernetes.io/zone");
    // Where not even the node is known, that is enough.
    let facts = named(Ok(resolved(|endpoint| (endpoint.node, endpoint.zone) = (None, None)).await), None);
    assert!(!bad(&facts).iter().any(|(message, _)| message.contains("its zone is not known")));
}

#[tokio::test]
async fn names_and_ports_that_are_not_there() {
    let name = || "infer.vision.svc.multinet.cluster.local".to_owned();
    let nowhere = || ResolveError::NoSuchName {
        name: name(),
        tried: vec![name()],
        unanswered: Vec::new(),
        wildcard: None,
    };
    let mut facts = named(Err(nowhere()), Some("rdma"));
    facts.service.as_mut().unwrap().wanted = Some(Err(nowhere()));
    let found = bad(&facts);
    assert_eq!(found.len(), 1, "said once: {found:?}");
    assert!(found[0].1.contains("`kubectl get mnsvc -n vision`"), "{found:?}");

    let no_port =
        |port: &str| ResolveError::NoSuchPort { name: name(), port: port.to_owned(), ports: vec![18515] };
    let found = bad(&named(Err(no_port("*")), None));
    assert_eq!(
        found[0].0,
        "warning service infer.vision.svc.multinet.cluster.local has no SRV records: clients have to know the port's number"
    );

    let mut facts = named(Ok(resolved(|_| ()).await), Some("metrics"));
    facts.service.as_mut().unwrap().wanted = Some(Err(no_port("metrics")));
    assert!(
        bad(&facts)
            .iter()
            .any(|(message, fix)| message.contains("has no port metrics") && fix.contains("spec.ports"))
    );

    let mut facts = named(Ok(resolved(|_| ()).await), Some("9"));
    facts.service.as_mut().unwrap().wanted = Some(Ok(resolved(|_| ()).await));
    assert!(
        bad(&facts).iter().any(|(message, _)| message.ends_with("has no port 9, only 18515")),
        "{:?}",
        bad(&facts)
    );

    let mut facts = named(Ok(resolved(|_| ()).await), None);
    facts.service.as_mut().unwrap().network = Some("rail7".to_owned());
    assert!(
        bad(&facts)
            .iter()
            .any(|(message, _)| message.ends_with("has no address on network rail7, only on rail0"))
    );
}

#[test]
fn json_has_every_field() {
    let report: serde_json::Value = serde_json::from_str(&json(&findings(&good())).unwrap()).unwrap();
    assert_eq!(report["worst"], "ok");
    assert_eq!(
        report["findings"][0],
        serde_json::json!({
            "level": "ok", "about": "dns", "fix": null,
            "message": "search path: vision.svc.cluster.local cluster.local; ndots: 5",
        })
    );
}
