//! Tests of all findings, by their subjects. This file has what the tests share.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use multinet_client::gid::LinkLayer;
use multinet_client::nic::{AddressState, LinkState, Obstacle};
use multinet_client::{Endpoint, EndpointAddress, ResolveError, Resolved, Resolver};

use super::super::facts::{
    DmaBuf, Dns, DnsServer, Entry, Facts, FailedCall, Gid, Gpus, InSubnet, Machine, Mtu, Namespaces, Nic,
    NoConnection, NoRoute, Peer, Process, Route, Service, SharedSubnet, ZoneAnswer,
};
use super::super::pci::Acs;
use super::super::report::{Level, json, text, worst};
use super::findings;
use machine::function;

mod dns;
mod machine;
mod network;
mod peer;
mod service;

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
            .map(|says| DnsServer { address: server(), says, took, no_tcp: None })
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
            verbs: Some(Ok(())),
            gids: vec![Gid {
                interface: "net1".to_owned(),
                address: [192, 168, 111, 4].into(),
                entry: Some(Entry {
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
        offers_payloads: false,
        mtu: Some(Mtu::Passes(9000)),
    }
}

fn with_machine(change: impl FnOnce(&mut Machine)) -> Facts {
    let mut facts = good();
    change(&mut facts.machine);
    facts
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

/// Returns the findings that are not good, each as `level about message`, and its fix.
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

/// Checks cases in which one thing is wrong: facts, how the message begins, and how the fix begins.
fn check<const N: usize>(cases: [(Facts, &str, &str); N]) {
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
fn a_pod_that_lacks_nothing_has_good_findings_only() {
    let found = findings(&to(peer()));
    assert_eq!(
        text(&found),
        "\
ok       dns       search path: vision.svc.cluster.local cluster.local; ndots: 5
ok       dns       10.96.0.10:53 answers in 0.42 ms, and knows the zone multinet.cluster.local
ok       network   second NIC net1: 192.168.111.4, MTU 9000
ok       peer      infer-0 at 192.168.111.5:18515 on rail0: connected in 0.09 ms from 192.168.111.4 on net1, MTU 9000
ok       peer      infer-0 at 192.168.111.5:18515 on rail0: packets of 9000 bytes pass
ok       rdma      devices mlx5_2; /dev/infiniband has rdma_cm, uverbs2
ok       rdma      namespace mode shared: all devices of the node are seen, those with an interface of this pod can be used
ok       rdma      net1 192.168.111.4: mlx5_2 port 1 GID 3 (::ffff:192.168.111.4), writes to itself, path MTU 4096; passed over: mlx5_2 port 1 GID 2 (::ffff:192.168.111.4) is IB/RoCE v1, not RoCE v2
ok       gpu       mlx5_2: memory of GPUs can be registered, as dma-buf
ok       memory    this process may lock any amount of memory (memlock is unlimited)
no problems, no warnings
"
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
