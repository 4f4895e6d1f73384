//! Tables of records and their endpoints; and the order of records never matters.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn service(target: &str, port: u16) -> SrvTarget {
    SrvTarget { target: target.to_owned(), port }
}

fn facts(text: &str) -> Facts {
    Facts::parse(&text.split(' ').collect::<Vec<_>>()).unwrap()
}

fn owned(addresses: &[&str], texts: &[&str]) -> TargetRecords {
    TargetRecords {
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        facts: texts.iter().map(|text| facts(text)).collect(),
    }
}

/// Returns the endpoints of one target, `h.s:1`, that has these records.
fn of(addresses: &[&str], texts: &[&str]) -> Vec<Endpoint> {
    endpoints(&[service("h.s", 1)], &BTreeMap::from([("h.s".to_owned(), owned(addresses, texts))])).unwrap()
}

fn ips(endpoint: &Endpoint) -> Vec<String> {
    endpoint.addresses.iter().map(|address| address.ip.to_string()).collect()
}

#[test]
fn an_endpoint_has_all_that_its_texts_say() {
    let found = of(
        &["10.0.0.1", "fd00::1"],
        &[
            "addr=10.0.0.1 net=rail1 if=net2 mac=02:00:00:00:00:01 rdma=mlx5_0 pci=0000:18:00.2 numa=1 node=n zone=z \
             pod=vision/infer-0 uid=u",
            "addr=fd00::1 net=rail0 pod=vision/infer-0 uid=u",
        ],
    );
    let expected = Endpoint {
        host: "h".to_owned(),
        target: "h.s".to_owned(),
        port: 1,
        addresses: vec![
            EndpointAddress { network: Some("rail0".to_owned()), ..EndpointAddress::new(ip("fd00::1")) },
            EndpointAddress {
                ip: ip("10.0.0.1"),
                network: Some("rail1".to_owned()),
                interface: Some("net2".to_owned()),
                mac: Some("02:00:00:00:00:01".to_owned()),
                rdma_devices: vec!["mlx5_0".to_owned()],
                pci: Some("0000:18:00.2".to_owned()),
                numa: Some(1),
            },
        ],
        node: Some("n".to_owned()),
        zone: Some("z".to_owned()),
        pod: Some(PodRef {
            namespace: Some("vision".to_owned()),
            name: Some("infer-0".to_owned()),
            uid: Some("u".to_owned()),
        }),
    };
    assert_eq!(found, [expected]);
}

#[test]
fn an_address_without_text_is_an_endpoint() {
    let found = of(&["10.0.0.1"], &[]);
    assert_eq!((found.len(), ips(&found[0]), &found[0].pod), (1, vec!["10.0.0.1".to_owned()], &None));
}

#[test]
fn pods_that_share_a_hostname_are_told_apart_by_uid() {
    let found = of(
        &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"],
        &["addr=10.0.0.1 net=b uid=one", "addr=10.0.0.2 net=a uid=two", "addr=10.0.0.3 net=a uid=one"],
    );
    let summary: Vec<_> = found.iter().map(|endpoint| (endpoint.uid(), ips(endpoint).join(" "))).collect();
    assert_eq!(
        summary,
        [
            (Some("two"), "10.0.0.2".to_owned()),
            (Some("one"), "10.0.0.3 10.0.0.1".to_owned()),
            (None, "10.0.0.4".to_owned()),
        ]
    );
}

#[test]
fn a_text_counts_only_for_an_address_that_exists() {
    let found = of(&["10.0.0.1"], &["addr=10.0.0.2 uid=stranger"]);
    assert_eq!((found.len(), ips(&found[0]).len(), found[0].uid()), (1, 1, None));
    assert_eq!(of(&[], &["addr=10.0.0.2 uid=stranger"]), []);
}

#[test]
fn addresses_that_cannot_be_connected_to_are_dropped() {
    for address in ["::ffff:10.0.0.1", "0.0.0.0", "::", "224.0.0.1", "ff02::1"] {
        assert_eq!(of(&[address], &[]), [], "{address}");
        assert_eq!(endpoints_by_address(&[ip(address)], 1, "s"), [], "{address}");
    }
    assert_eq!(ips(&of(&["10.0.0.1", "10.0.0.1"], &[])[0]), ["10.0.0.1"]);
}

#[test]
fn contradicting_texts_give_the_same_endpoint_in_any_order() {
    let (one, two) = ("addr=10.0.0.1 uid=a node=x", "addr=10.0.0.1 uid=b node=w");
    assert_eq!(of(&["10.0.0.1"], &[one, two]), of(&["10.0.0.1"], &[two, one]));
    assert_eq!(of(&["10.0.0.1"], &[one, two])[0].uid(), Some("a"));
}

#[test]
fn each_distinct_target_and_port_is_an_endpoint() {
    let all = BTreeMap::from([
        ("a.s".to_owned(), owned(&["10.0.0.1"], &[])),
        ("b.s".to_owned(), owned(&["10.0.0.2"], &[])),
        ("c.s".to_owned(), owned(&[], &[])),
    ]);
    let asked = [
        service("b.s", 2),
        service("b.s", 1),
        service("a.s", 1),
        service("a.s", 1), // twice
        service("a.s", 0), // no port
        service("c.s", 1), // no address
        service("d.s", 1), // no such name
    ];
    let found: Vec<String> = endpoints(&asked, &all).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(found, ["a:1", "b:1", "b:2"]);
}

#[test]
fn records_that_multiply_beyond_the_limits_are_refused() {
    let pods = |count: u32| {
        let facts: Vec<Facts> = (1..=count)
            .map(|n| {
                let pod = PodRef { uid: Some(n.to_string()), ..PodRef::default() };
                Facts { pod, ..Facts::unknown(std::net::Ipv4Addr::from(n).into()) }
            })
            .collect();
        TargetRecords { addresses: facts.iter().map(|facts| facts.address.ip).collect(), facts }
    };
    let found = |ports: u16, owned: TargetRecords| {
        let services: Vec<SrvTarget> = (1..=ports).map(|port| service("h.s", port)).collect();
        let found = endpoints(&services, &BTreeMap::from([("h.s".to_owned(), owned)]));
        found.map(|endpoints| endpoints.len())
    };
    // 10,000 endpoints, and one more.
    assert_eq!((found(1, pods(10_000)), found(1, pods(10_001))), (Ok(10_000), Err(TooMany)));
    // One endpoint for each port, each with all addresses: 65,536 in all, and more.
    let one_pod = || TargetRecords { facts: Vec::new(), ..pods(32) };
    assert_eq!((found(2048, one_pod()), found(2049, one_pod())), (Ok(2048), Err(TooMany)));
    // Texts count, too, even if only one of them has an effect.
    let texts = |count| TargetRecords { addresses: vec![ip("0.0.0.1")], ..pods(count) };
    assert_eq!((found(2048, texts(32)), found(2048, texts(33))), (Ok(2048), Err(TooMany)));
}

#[test]
fn every_address_is_an_endpoint_where_the_port_is_a_number() {
    let found =
        endpoints_by_address(&[ip("fd00::"), ip("10.0.0.9"), ip("10.0.0.9"), ip("::1")], 7, "s.n.svc.z");
    let summary: Vec<_> =
        found.iter().map(|endpoint| (endpoint.target.as_str(), ips(endpoint).join(" "))).collect();
    assert_eq!(
        summary,
        [
            ("0--1.s.n.svc.z", "::1".to_owned()),
            ("10-0-0-9.s.n.svc.z", "10.0.0.9".to_owned()),
            ("fd00--0.s.n.svc.z", "fd00::".to_owned()),
        ]
    );
    assert_eq!(found[1].host, "10-0-0-9");
}

#[test]
fn records_are_complete_if_texts_and_addresses_agree() {
    let cases = [
        (owned(&["10.0.0.1", "10.0.0.1"], &["addr=10.0.0.1"]), true),
        (owned(&["10.0.0.1", "::"], &["addr=10.0.0.1"]), true),
        (owned(&["10.0.0.1"], &[]), false),
        (owned(&[], &[]), false),
        (owned(&[], &["addr=10.0.0.1"]), false),
        (owned(&["10.0.0.1"], &["addr=10.0.0.1", "addr=fd00::1"]), false),
        (owned(&["10.0.0.1", "fd00::1"], &["addr=10.0.0.1"]), false),
    ];
    for (owned, expected) in cases {
        assert_eq!(is_complete(&owned), expected, "{owned:?}");
    }
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        6 => select(vec!["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2", "::ffff:10.0.0.1", "::", "127.0.0.1"]).prop_map(ip),
        1 => any::<IpAddr>(),
    ]
}

prop_compose! {
    fn any_facts()(
        ip in any_ip(),
        uid in prop::option::of("[ab]"),
        name in prop::option::of("[ab]"),
        network in prop::option::of("rail[01]"),
        node in prop::option::of("[mn]"),
    ) -> Facts {
        let address = EndpointAddress { network, ..EndpointAddress::new(ip) };
        Facts { pod: PodRef { namespace: None, name, uid }, address, node, zone: None }
    }
}

prop_compose! {
    fn any_owned()(addresses in vec(any_ip(), 0..5), facts in vec(any_facts(), 0..5)) -> TargetRecords {
        TargetRecords { addresses, facts }
    }
}

prop_compose! {
    fn any_service()(target in "[a-c](\\.s)?|", port in 0_u16..3) -> SrvTarget {
        SrvTarget { target, port }
    }
}

proptest! {
    #[test]
    fn any_records_give_sorted_endpoints_whatever_their_order(
        services in vec(any_service(), 0..6),
        owned in btree_map("[a-c](\\.s)?|", any_owned(), 0..4),
    ) {
        let found = endpoints(&services, &owned).unwrap();

        let mut sorted = found.clone();
        sorted.sort();
        sorted.dedup();
        prop_assert_eq!(&found, &sorted, "sorted, and each once");

        for endpoint in &found {
            prop_assert!(endpoint.port != 0 && !endpoint.addresses.is_empty());
            let answered = &owned[&endpoint.target].addresses;
            for address in &endpoint.addresses {
                prop_assert!(answered.contains(&address.ip) && is_usable(&address.ip));
            }
        }

        // Each usable address appears once for each target and port.
        let distinct: BTreeSet<&SrvTarget> = services.iter().filter(|service| service.port != 0).collect();
        for service in distinct {
            let mut given: Vec<IpAddr> = found
                .iter()
                .filter(|endpoint| (&endpoint.target, endpoint.port) == (&service.target, service.port))
                .flat_map(|endpoint| endpoint.addresses.iter().map(|address| address.ip))
                .collect();
            given.sort();
            let answered = owned.get(&service.target).map_or(&[][..], |owned| &owned.addresses);
            let expected: BTreeSet<IpAddr> = answered.iter().copied().filter(is_usable).collect();
            prop_assert_eq!(given, expected.into_iter().collect::<Vec<_>>());
        }

        let mut services = services;
        services.reverse();
        let reversed = owned.into_iter().map(|(target, mut owned)| {
            owned.addresses.reverse();
            owned.facts.reverse();
            (target, owned)
        });
        prop_assert_eq!(endpoints(&services, &reversed.collect()), Ok(found));
    }

    #[test]
    fn any_addresses_give_endpoints_whose_hosts_are_dns_labels(addresses in vec(any_ip(), 0..6)) {
        for endpoint in endpoints_by_address(&addresses, 1, "s") {
            prop_assert!(endpoint.host.len() <= 63);
            prop_assert!(!endpoint.host.starts_with('-') && !endpoint.host.ends_with('-'));
            prop_assert_eq!(endpoint.target, format!("{}.s", endpoint.host));
        }
    }
}
