use std::collections::BTreeSet;

use multinet_crds::Protocol;
use proptest::prelude::*;

use super::*;
use crate::store::answers::is_after;
use crate::store::build;
use crate::store::endpoints::Endpoint;
use crate::store::index::{Created, ServiceView};
use crate::store::journal;
use crate::store::name::Name;
use crate::store::schema::Owner;
use crate::store::slice::{Port, Slice, VertexName};
use crate::store::zone::{ZoneSettings, Zones};

fn publisher() -> Publisher {
    publisher_of(&["z"], &["in-addr.arpa"])
}

fn publisher_of(forward: &[&str], reverse: &[&str]) -> Publisher {
    let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
    let names = |zones: &[&str]| zones.iter().map(|zone| zone.parse().unwrap()).collect::<Vec<Name>>();
    let zones = Zones::new(names(forward), &names(reverse), &settings).unwrap();
    let zones = zones.with_vertices(names(&["v"]));
    Publisher::new(Arc::new(Answers::new(zones, 1)))
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "n".into(), name: name.into() }
}

fn built(addresses: &[&str]) -> Option<ServiceAnswers> {
    let address = |text: &&str| text.parse().unwrap();
    let endpoints = addresses.iter().map(address).map(|address| Endpoint {
        address,
        host: "h",
        named: true,
        txt: b"\x01x",
    });
    let slice = Slice { network: "r".into(), endpoints: endpoints.collect(), ..Slice::default() };
    build::build(&ServiceView { ttl: 5, slices: vec![&Arc::new(slice)], ..ServiceView::default() })
}

fn publish(publisher: &mut Publisher, service: &str, addresses: &[&str]) {
    publisher.publish([(key(service), built(addresses))]);
}

/// Returns the kind of a name in a word.
fn found(publisher: &Publisher, name: &str) -> &'static str {
    let name: Name = name.parse().unwrap();
    let answers = &publisher.answers;
    name.with_labels(|labels| {
        answers.look_up(answers.zone_of(labels).unwrap(), labels, usize::MAX, |found| match found {
            LookupResult::Nothing => "nothing",
            LookupResult::Empty => "empty",
            LookupResult::Node(node) if node.rrsets.is_empty() => "empty",
            LookupResult::Node(_) => "own",
            LookupResult::Service { owner: Owner::Base(_), labels: 0, .. } => "base",
            LookupResult::Service { owner: Owner::Base(_), .. } => "zone",
            LookupResult::Service { owner: Owner::Host(_), .. } => "host",
            LookupResult::Service { owner: Owner::Port(..), .. } => "port",
            LookupResult::Pointers(_, targets) => ["", "pointer", "two pointers"][targets.len()],
        })
    })
}

#[test]
fn a_zone_has_its_own_names_from_the_start() {
    let publisher = publisher();
    for (name, is) in [
        ("z", "own"),
        ("svc.z", "empty"),
        ("dns.z", "empty"),
        ("ns.dns.z", "empty"),
        ("dns-version.z", "own"),
        ("in-addr.arpa", "own"),
        ("n.svc.z", "nothing"),
        ("x.z", "nothing"),
        ("10.in-addr.arpa", "nothing"),
    ] {
        assert_eq!(found(&publisher, name), is, "{name}");
    }
}

#[test]
fn names_above_and_below_a_service_exist_as_long_as_it_does() {
    let mut publisher = publisher();
    publish(&mut publisher, "s", &["10.0.0.1"]);
    publish(&mut publisher, "t", &["10.0.0.2"]);
    assert_eq!(found(&publisher, "n.svc.z"), "empty");
    assert_eq!(found(&publisher, "s.n.svc.z"), "base");
    assert_eq!(found(&publisher, "_net.s.n.svc.z"), "empty");
    assert_eq!(found(&publisher, "h.r._net.s.n.svc.z"), "host");
    assert_eq!(found(&publisher, "_tcp.s.n.svc.z"), "nothing");
    assert_eq!(found(&publisher, "x.h.s.n.svc.z"), "nothing");
    assert_eq!(found(&publisher, "0.0.10.in-addr.arpa"), "empty");
    assert_eq!(found(&publisher, "1.0.0.10.in-addr.arpa"), "pointer");
    publish(&mut publisher, "s", &[]);
    assert_eq!(found(&publisher, "s.n.svc.z"), "nothing");
    assert_eq!(found(&publisher, "h.s.n.svc.z"), "nothing");
    assert_eq!(found(&publisher, "1.0.0.10.in-addr.arpa"), "nothing");
    assert_eq!(found(&publisher, "n.svc.z"), "empty");
    publish(&mut publisher, "t", &[]);
    assert_eq!(found(&publisher, "n.svc.z"), "nothing");
    assert_eq!(found(&publisher, "10.in-addr.arpa"), "nothing");
    assert_eq!(found(&publisher, "svc.z"), "empty");
}

#[test]
fn a_withdrawn_service_leaves_nothing_behind() {
    let mut publisher = publisher();
    for round in 0..3 {
        publish(&mut publisher, "s", &[&format!("10.0.{round}.1"), "10.9.9.9"]);
    }
    publish(&mut publisher, "s", &[]);
    assert!(publisher.answers.services.is_empty() && publisher.answers.addresses.pairs().is_empty());
}

#[test]
fn addresses_outside_the_reverse_zones_are_not_indexed() {
    let mut publisher = publisher();
    publish(&mut publisher, "s", &["fd00::1"]);
    assert!(publisher.answers.addresses.pairs().is_empty());
    assert_eq!(publisher.services(ZoneKind::Services).len(), 1);
}

#[test]
fn names_between_nested_zones_exist() {
    let publisher = publisher_of(&["z", "a.b.z"], &["in-addr.arpa", "168.192.in-addr.arpa"]);
    assert_eq!(found(&publisher, "b.z"), "empty");
    assert_eq!(found(&publisher, "192.in-addr.arpa"), "empty");
    assert_eq!(found(&publisher, "c.z"), "nothing");
}

/// The journal returns a difference only if it is no larger than the zone.
#[test]
fn delegations_count_for_the_size_of_a_zone() {
    for (below, is_given) in [(0, false), (50, true)] {
        let forward: Vec<String> =
            ["z".to_owned()].into_iter().chain((0..below).map(|number| format!("zone-{number}.z"))).collect();
        let forward: Vec<&str> = forward.iter().map(String::as_str).collect();
        let mut publisher = publisher_of(&forward, &["in-addr.arpa"]);
        publisher.enable_journal(JournalLimits::default());
        let serial = publisher.answers.serial();
        publisher.journal().unwrap().start(serial);
        publish(&mut publisher, "s", &["10.0.0.1"]);
        let steps = publisher.journal().unwrap().since(&"z".parse().unwrap(), serial, 0, usize::MAX);
        assert_eq!(steps.is_some(), is_given, "{below}");
    }
}

#[test]
fn an_address_of_two_services_has_a_ptr_record_for_each() {
    let mut publisher = publisher();
    publish(&mut publisher, "s", &["10.0.0.1"]);
    publish(&mut publisher, "t", &["10.0.0.1"]);
    assert_eq!(found(&publisher, "1.0.0.10.in-addr.arpa"), "two pointers");
    publish(&mut publisher, "s", &[]);
    assert_eq!(found(&publisher, "1.0.0.10.in-addr.arpa"), "pointer");
}

#[test]
fn the_serial_rises_only_if_an_answer_changes() {
    let mut publisher = publisher();
    let first = publisher.answers.serial();
    publish(&mut publisher, "s", &["10.0.0.1"]);
    let second = publisher.answers.serial();
    assert!(is_after(second, first));
    publish(&mut publisher, "s", &["10.0.0.1"]);
    publish(&mut publisher, "t", &[]);
    assert_eq!(publisher.answers.serial(), second);
    publish(&mut publisher, "s", &["10.0.0.2"]);
    assert!(is_after(publisher.answers.serial(), second));
}

#[test]
fn an_address_whose_ptr_target_is_too_long_has_no_names() {
    let long = "x".repeat(63);
    let mut publisher = publisher_of(&[&format!("{long}.{long}.z")], &["in-addr.arpa"]);
    let endpoint = |host| (host, "10.0.0.1");
    for (hosts, is) in [
        (vec![endpoint(&*long)], "nothing"),
        (vec![endpoint("h")], "pointer"),
        (vec![endpoint(&*long)], "nothing"),
    ] {
        let hosts = hosts.into_iter().map(|(host, address)| (host.to_owned(), address.parse().unwrap()));
        publisher.publish([(key(&long), service(5, &[network("r", &[], hosts.collect())]))]);
        assert_eq!(found(&publisher, "1.0.0.10.in-addr.arpa"), is);
        assert_eq!(found(&publisher, "0.0.10.in-addr.arpa") == "empty", is == "pointer");
    }
}

#[test]
fn pointer_changes_are_the_addresses_whose_ptr_records_differ() {
    let publisher = publisher_of(&["z"], &["in-addr.arpa"]);
    let host = |host: &str, address: &str| (host.to_owned(), address.parse::<IpAddr>().unwrap());
    let of = |ttl, hosts: &[(&str, &str)]| {
        let hosts = hosts.iter().map(|(name, address)| host(name, address)).collect();
        service(ttl, &[network("r", &[], hosts)])
    };
    let before = of(5, &[("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3"), ("d", "fd00::1")]);
    let now = of(5, &[("a", "10.0.0.1"), ("x", "10.0.0.2"), ("c", "10.0.0.4"), ("e", "fd00::1")]);
    let addresses =
        |text: &str| -> Vec<IpAddr> { text.split(' ').map(|text| text.parse().unwrap()).collect() };
    let expected = PointerChanges {
        gone: addresses("10.0.0.3"),
        come: addresses("10.0.0.4"),
        changed: addresses("10.0.0.2"),
    };
    assert_eq!(publisher.pointers(b"\x01s\x01n", before.as_ref(), now.as_ref()), expected);
    // A new time to live changes all addresses.
    let later = of(6, &[("a", "10.0.0.1"), ("x", "10.0.0.2"), ("c", "10.0.0.4")]);
    let changed = addresses("10.0.0.1 10.0.0.2 10.0.0.4");
    let expected = PointerChanges { changed, ..PointerChanges::default() };
    assert_eq!(publisher.pointers(b"\x01s\x01n", now.as_ref(), later.as_ref()), expected);
}

/// Makes a slice of these hosts, each with TXT data of its own.
fn network(alias: &str, ports: &[(&str, u16)], hosts: Vec<(String, IpAddr)>) -> Arc<Slice> {
    let texts: Vec<Vec<u8>> = hosts
        .iter()
        .map(|(_, address)| {
            let text = format!("{alias} {address}");
            [&[text.len() as u8], text.as_bytes()].concat()
        })
        .collect();
    let endpoints = hosts.iter().zip(&texts).map(|((host, address), txt)| Endpoint {
        address: *address,
        host,
        named: host != "b",
        txt,
    });
    let port = |&(name, number): &(&str, u16)| Port { name: name.into(), protocol: Protocol::Tcp, number };
    Arc::new(Slice {
        network: alias.into(),
        ports: ports.iter().map(port).collect(),
        endpoints: endpoints.collect(),
        ..Slice::default()
    })
}

/// Labels a slice with a vertex of the pipeline `p`.
fn of_vertex(mut slice: Arc<Slice>, vertex: Option<&str>) -> Arc<Slice> {
    let name = |vertex: &str| VertexName { vertex: vertex.into(), pipeline: "p".into() };
    Arc::make_mut(&mut slice).vertex = vertex.map(name);
    slice
}

fn service(ttl: u32, slices: &[Arc<Slice>]) -> Option<ServiceAnswers> {
    service_of(Created::default(), ttl, slices)
}

fn service_of(created: Created, ttl: u32, slices: &[Arc<Slice>]) -> Option<ServiceAnswers> {
    let vertex = slices.iter().find_map(|slice| slice.vertex.as_ref());
    build::build(&ServiceView { ttl, created, vertex, slices: slices.iter().collect() })
}

/// Generates versions of a service that differ in all properties.
fn any_service() -> impl Strategy<Value = (Created, u32, Vec<Arc<Slice>>)> {
    let address = prop::sample::select(vec!["10.0.0.1", "10.0.0.2", "10.0.1.1", "fd00::1", "fd00::2"]);
    let host = (prop::sample::select(vec!["a", "b", "c", "d", ""]), address)
        .prop_map(|(host, address)| (host.to_owned(), address.parse().unwrap()));
    let ports = prop::sample::subsequence(vec![("p", 1), ("p", 2), ("long", 2)], 0..=3);
    let vertex = prop::option::of(prop::sample::select(vec!["in", "out"]));
    let slice =
        (prop::sample::select(vec!["r", "q", "net"]), ports, prop::collection::vec(host, 0..6), vertex)
            .prop_map(|(alias, ports, hosts, vertex)| of_vertex(network(alias, &ports, hosts), vertex));
    ((0i64..3).prop_map(Created::at), 5u32..7, prop::collection::vec(slice, 0..4))
}

/// Returns every record of a zone in wire format. Panics if a record occurs twice.
fn records(publisher: &Publisher, apex: &Name) -> BTreeSet<Vec<u8>> {
    let (mut all, mut wire) = (BTreeSet::new(), Vec::new());
    let mut note = |record: Record<'_>| {
        wire.clear();
        records::push(&mut wire, record);
        assert!(all.insert(wire.clone()), "twice: {record:?}");
    };
    let zones = publisher.answers.zones();
    let zone = zones.iter().find(|zone| zone.apex() == apex).unwrap();
    if zone.kind() != ZoneKind::Reverse {
        for (key, service) in publisher.services(zone.kind()) {
            let base = zone.base(&key);
            let mut writer = RecordWriter::new(&base);
            records::items(&service).for_each(|item| writer.records(&item, &mut note));
        }
    }
    let addresses: BTreeSet<IpAddr> =
        publisher.answers.addresses.pairs().into_iter().map(|(address, _)| address).collect();
    for owner in addresses.into_iter().map(reverse_name).filter(|owner| owner.is_within(apex)) {
        owner.with_labels(|labels| {
            publisher.answers.look_up(zone, labels, usize::MAX, |found| {
                let LookupResult::Pointers(ttl, targets) = *found else { panic!("{owner} is {found:?}") };
                for target in targets {
                    let data = &target.concat();
                    note(Record { owner: owner.as_wire(), rtype: rtype::PTR, ttl, data });
                }
            });
        });
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// The journal gets exactly the removed records and the new ones.
    #[test]
    fn the_journal_gets_the_difference_of_two_versions(
        versions in prop::collection::vec((prop::sample::select(vec!["s", "t"]), any_service()), 1..12),
    ) {
        let mut publisher = large();
        for (name, (created, ttl, slices)) in versions {
            publish_and_check(&mut publisher, name, service_of(created, ttl, &slices));
        }
    }
}

/// Makes a publisher with a journal, whose zones are so large that every difference is returned.
fn large() -> Publisher {
    let mut publisher = publisher_of(&["z", "y"], &["in-addr.arpa", "ip6.arpa"]);
    publisher.enable_journal(JournalLimits::default());
    for (number, prefix) in [0x0a01_0000, 0x0a02_0000].into_iter().enumerate() {
        let host = |n: u32| (format!("h{n}"), std::net::Ipv4Addr::from_bits(prefix + n).into());
        let slices = network("r", &[("p", 1)], (0..100).map(host).collect());
        let slices = [of_vertex(slices, Some(["large", "larger"][number]))];
        publisher.publish([(key(&format!("large-{number}")), service(5, &slices))]);
    }
    let serial = publisher.answers.serial();
    publisher.journal().unwrap().start(serial);
    publisher
}

/// Publishes a version of a service, and compares the journal with the difference of the zones.
fn publish_and_check(publisher: &mut Publisher, name: &str, version: Option<ServiceAnswers>) {
    let apexes = ["z", "y", "v", "in-addr.arpa"].map(|apex| apex.parse::<Name>().unwrap());
    let serial = publisher.answers.serial();
    let before = apexes.each_ref().map(|apex| records(publisher, apex));
    publisher.publish([(key(name), version)]);
    for (apex, before) in apexes.iter().zip(before) {
        let now = records(publisher, apex);
        let steps = publisher.journal().unwrap().since(apex, serial, 0, usize::MAX).unwrap();
        assert_eq!(steps.len(), 1);
        let reported = |wire| journal::split_records(wire).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let only = |one: &BTreeSet<Vec<u8>>, two| one.difference(two).cloned().collect::<Vec<_>>();
        assert_eq!(reported(&steps[0].difference.removed), only(&before, &now));
        assert_eq!(reported(&steps[0].difference.added), only(&now, &before));
    }
}

#[test]
fn the_ptr_records_of_an_address_name_its_oldest_services() {
    let mut publisher = large();
    let address: IpAddr = "10.0.0.1".parse().unwrap();
    let slices = [network("r", &[], vec![("h".to_owned(), address)])];
    let of_age = |created| service_of(created, 5, &slices);
    // The numbers in the names of the services that the PTR records name.
    let named = |publisher: &Publisher| -> Vec<u8> {
        publisher.answers.look_up_address(address, usize::MAX, |found| {
            let LookupResult::Pointers(_, targets) = *found else { panic!("{found:?}") };
            targets.iter().map(|[_, service, ..]| service[1] - b'a').collect()
        })
    };
    let name = |number: u8| char::from(b'a' + number).to_string();
    for number in (0..20).rev() {
        publish_and_check(&mut publisher, &name(number), of_age(Created::at(number.into())));
    }
    assert_eq!(named(&publisher), (0..16).collect::<Vec<_>>());
    publish_and_check(&mut publisher, &name(3), None);
    assert_eq!(named(&publisher), [0, 1, 2].into_iter().chain(4..17).collect::<Vec<_>>());
    // Deleted and created again between two commits.
    publish_and_check(&mut publisher, &name(0), of_age(Created::at(99)));
    assert_eq!(named(&publisher), [1, 2].into_iter().chain(4..18).collect::<Vec<_>>());
    // One service of unknown age, and one that is older than all others.
    publish_and_check(&mut publisher, &name(1), of_age(Created::default()));
    publish_and_check(&mut publisher, &name(0), of_age(Created::EARLIEST));
    assert_eq!(named(&publisher), [0, 2].into_iter().chain(4..18).collect::<Vec<_>>());
    assert_eq!(publisher.answers.addresses.with_services(address, |services| services.count()), 19);
}

#[test]
fn the_name_of_a_vertex_is_that_of_the_first_service_with_its_labels() {
    let mut publisher = publisher();
    publisher.enable_journal(JournalLimits::default());
    let of = |created, vertex, address: &str| {
        let slice = network("r", &[("p", 1)], vec![("h".to_owned(), address.parse().unwrap())]);
        service_of(Created::at(created), 5, &[of_vertex(slice, vertex)])
    };
    // The last byte of the vertex's address, if the name has one.
    let address = |publisher: &Publisher| {
        let name: Name = "in.p.n.v".parse().unwrap();
        let answers = &publisher.answers;
        name.with_labels(|labels| {
            answers.look_up(answers.zone_of(labels).unwrap(), labels, usize::MAX, |found| match found {
                LookupResult::Service { owner: Owner::Base(group), .. } => group.a().last().copied(),
                _ => None,
            })
        })
    };
    for (service, version, expected) in [
        ("b", of(7, Some("in"), "10.0.0.1"), Some(1)),
        ("c", of(7, Some("in"), "10.0.0.2"), Some(1)),
        ("a", of(7, Some("in"), "10.0.0.3"), Some(3)), // of the same age, and the first by name
        ("c", of(6, Some("in"), "10.0.0.4"), Some(4)), // the oldest
        ("c", of(6, Some("in"), "10.0.0.5"), Some(5)), // a new version of it
        ("a", of(7, Some("in"), "10.0.0.6"), Some(5)),
        ("c", of(6, Some("out"), "10.0.0.5"), Some(6)),
        ("a", None, Some(1)),
        ("b", of(7, None, "10.0.0.1"), None),
        ("c", of(6, Some("in"), "10.0.0.7"), Some(7)),
        ("c", None, None),
    ] {
        publisher.publish([(key(service), version)]);
        assert_eq!(address(&publisher), expected, "{service}");
    }
    assert!(publisher.answers.vertices.is_empty() && publisher.claims.is_empty());
}

#[test]
fn names_above_and_below_a_vertex_exist_as_long_as_its_service_does() {
    let mut publisher = publisher();
    let slice = network("r", &[("p", 1)], vec![("h".to_owned(), "10.0.0.1".parse().unwrap())]);
    publisher.publish([(key("s"), service(5, &[of_vertex(slice, Some("in"))]))]);
    for (name, is) in [
        ("v", "own"),
        ("n.v", "empty"),
        ("p.n.v", "empty"),
        ("in.p.n.v", "base"),
        ("h.in.p.n.v", "host"),
        ("_p._tcp.in.p.n.v", "port"),
        ("_tcp.in.p.n.v", "empty"),
        ("h.r._net.in.p.n.v", "host"),
        ("out.p.n.v", "nothing"),
        ("q.n.v", "nothing"),
        ("m.v", "nothing"),
        ("svc.v", "nothing"),
        ("ns.dns.v", "nothing"),
        ("dns-version.v", "nothing"),
        ("s.n.svc.z", "base"),
    ] {
        assert_eq!(found(&publisher, name), is, "{name}");
    }
    publisher.publish([(key("s"), None)]);
    for name in ["n.v", "p.n.v", "in.p.n.v", "h.in.p.n.v"] {
        assert_eq!(found(&publisher, name), "nothing", "{name}");
    }
}
