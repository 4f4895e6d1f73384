//! The store under a scheduler that chooses the order of all steps of its writer and readers.
//!
//! One service changes twice and is then deleted. Readers query all of its names and see its
//! versions in that order: no name goes back to an older version, and none disappears before the
//! service does.

use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RData;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_dns::store::state::State;
use multinet_runtime::{Index, ObjectKey};
use serde_json::{from_value, json, to_value};
use shuttle::{check_pct, check_random, thread};

use crate::ask::{Asker, Reader, ZONE};
use crate::events::{self, Endpoint, Service, Slice, commit, service_object, slice_object};

/// Number of versions of the service; after them it is deleted.
const VERSIONS: usize = 3;

/// Number of schedules to try.
const ORDERS: usize = 2_000;

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "red".to_owned(), name: name.to_owned() }
}

/// Publishes the host `h<version>`, always at the same address. After the last version, deletes the
/// service.
fn publish(state: &State, version: usize) {
    if version < VERSIONS {
        let address = IpAddr::from([10, 0, 0, 1]);
        let endpoints = vec![Endpoint { address, host: None, ready: None }];
        let ports = vec![("http", "TCP", 80)];
        let slice = Slice { service: Some("one"), vertex: None, network: "rail0", ports, endpoints };
        let mut object = to_value(slice_object(&key("s0"), &slice)).expect("a slice as JSON");
        object["spec"]["endpoints"][0]["hostname"] = json!(format!("h{version}"));
        state.apply(from_value::<MultiNetworkEndpointSlice>(object).expect("a slice from JSON"));
    } else {
        Index::<MultiNetworkService>::delete(state, &key("one"));
    }
    commit(state);
}

/// Returns the version of an answer: that of the host in it, or [`VERSIONS`] if it is empty.
fn version(reader: &Reader, name: &str, qtype: &str) -> usize {
    let answers = reader.message(name, qtype).answers;
    let Some(record) = answers.first() else { return VERSIONS };
    assert_eq!(answers.len(), 1, "{name} {qtype} is a mixture");
    let target = match &record.data {
        RData::SRV(srv) => &srv.target,
        RData::PTR(target) => &target.0,
        other => panic!("{name} {qtype} {other}"),
    };
    let host = target.to_ascii();
    host[1..2].parse().expect("a host's version")
}

fn serial(reader: &Reader) -> u32 {
    match &reader.message(ZONE, "SOA").answers[0].data {
        RData::SOA(soa) => soa.serial,
        other => panic!("{other} for an SOA record"),
    }
}

/// Queries every name, beginning with another one in each reader. Returns the versions seen, each
/// with the serial before it.
fn read(reader: &Reader, first: usize) -> Vec<(u32, usize)> {
    let base = format!("one.red.svc.{ZONE}");
    let names = [
        (format!("_http._tcp.{base}"), "SRV"),
        ("1.0.0.10.in-addr.arpa".to_owned(), "PTR"),
        (format!("_http._tcp.rail0._net.{base}"), "SRV"),
    ];
    let mut last = 0;
    let mut seen = Vec::new();
    for (name, qtype) in names.iter().cycle().skip(first).take(names.len()) {
        let serial = serial(reader);
        let found = version(reader, name, qtype);
        assert!(found >= last, "{name} {qtype}: version {found} after {last}");
        if found < VERSIONS && reader.message(&format!("h{found}.{base}"), "A").answers.is_empty() {
            assert!(version(reader, name, qtype) > found, "{name} still names h{found}, which is gone");
        }
        let parent = reader.message(&format!("red.svc.{ZONE}"), "A").metadata.response_code;
        if parent == ResponseCode::NXDomain {
            assert_eq!(version(reader, name, qtype), VERSIONS, "{name} is there and its namespace is not");
        }
        seen.push((serial, found));
        last = found;
    }
    seen
}

fn model() {
    let Asker { state, reader } = Asker::new();
    events::World::default().sync_one(&state, false);
    state.apply(service_object(&key("one"), &Service { ttl: None }));
    let live = [key("one")].into();
    Index::<MultiNetworkService>::reset(&state, &live);
    publish(&state, 0);
    let mut serials = vec![serial(&reader)];

    let readers: Vec<_> = (0..2)
        .map(|first| {
            let reader = reader.clone();
            thread::spawn(move || read(&reader, first))
        })
        .collect();
    for version in 1..=VERSIONS {
        publish(&state, version);
        serials.push(serial(&reader));
    }
    for reader in readers {
        for (serial, found) in reader.join().expect("a reader") {
            // A secondary asks for the serial first, and for changes only if it has risen.
            let told = serials.iter().position(|&known| known == serial).expect("a serial of a commit");
            assert!(found >= told, "version {found} at the serial of {told}");
        }
    }
}

#[test]
fn all_names_change_in_one_order() {
    check_random(model, ORDERS);
    check_pct(model, ORDERS, 3);
}
