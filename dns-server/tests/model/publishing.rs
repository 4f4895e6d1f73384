//! Answers while they change: a name in one answer exists for the next query.
//!
//! Every change uses new host names. So when a host no longer exists, every record that pointed to
//! it must be missing from the next answer, too.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RData;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_dns::store::state::State;
use multinet_runtime::{Index, ObjectKey};
use serde_json::{from_value, json, to_value};

use crate::ask::{Asker, Reader, ZONE};
use crate::events::{self, Service, Slice, commit, service_object, slice_object};

/// Number of changes.
const CHANGES: usize = 3_000;

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "red".to_owned(), name: name.to_owned() }
}

/// Publishes hosts `h<round>-0` and so on, always at the same addresses.
fn publish(state: &State, round: usize) {
    let endpoint = |n: u8| events::Endpoint { address: IpAddr::from([10, 0, 0, n]), host: None, ready: None };
    let slice = Slice {
        service: Some("one"),
        vertex: None,
        network: "rail0",
        ports: vec![("http", "TCP", 80)],
        endpoints: (0..3).map(endpoint).collect(),
    };
    let mut object = to_value(slice_object(&key("s0"), &slice)).expect("a slice as JSON");
    for (number, endpoint) in object["spec"]["endpoints"].as_array_mut().into_iter().flatten().enumerate() {
        endpoint["hostname"] = json!(format!("h{round}-{number}"));
    }
    let object: MultiNetworkEndpointSlice = from_value(object).expect("a slice from JSON");
    state.apply(object);
    commit(state);
}

/// Returns the targets of SRV and PTR records in the answer.
fn targets(message: &Message) -> BTreeSet<String> {
    let target = |data: &RData| match data {
        RData::SRV(srv) => Some(srv.target.to_ascii()),
        RData::PTR(name) => Some(name.0.to_ascii()),
        _ => None,
    };
    let targets = message.answers.iter().filter_map(|record| target(&record.data));
    targets.map(|name| name.trim_end_matches('.').to_owned()).collect()
}

/// Returns whether the name has addresses.
fn has_addresses(asker: &Reader, name: &str) -> bool {
    !asker.message(name, "A").answers.is_empty()
}

/// A list in progress is incomplete: an endpoint may have moved to a slice that comes later in it.
#[test]
fn a_list_changes_nothing_before_it_is_complete() {
    let asker = Asker::new();
    let (state, owner) = (&asker.state, format!("one.red.svc.{ZONE}"));
    let slice = |name: &str, numbers: &[u8]| {
        let endpoint =
            |&n: &u8| events::Endpoint { address: IpAddr::from([10, 0, 0, n]), host: None, ready: None };
        let endpoints = numbers.iter().map(endpoint).collect();
        state.apply(slice_object(
            &key(name),
            &Slice { service: Some("one"), vertex: None, network: "rail0", ports: Vec::new(), endpoints },
        ));
    };
    let service = |ttl| state.apply(service_object(&key("one"), &Service { ttl: Some(ttl) }));
    let slices_end = |names: &[&str]| {
        let live = names.iter().map(|name| key(name)).collect();
        Index::<MultiNetworkEndpointSlice>::reset(state, &live);
        commit(state);
    };
    let records = || asker.ask(&owner, "A").records;
    service(7);
    Index::<MultiNetworkService>::reset(state, &[key("one")].into());
    slice("s0", &[1, 2]);
    slices_end(&["s0"]);
    let before = records();
    assert_eq!(before.len(), 2);

    Index::<MultiNetworkEndpointSlice>::start(state);
    slice("s0", &[1]);
    service(9);
    commit(state);
    assert_eq!(records(), before);
    assert_eq!(state.objects(), None, "a snapshot would be incomplete, too");
    // The list breaks off, and another one begins.
    Index::<MultiNetworkEndpointSlice>::start(state);
    commit(state);
    assert_eq!(records(), before);
    slice("s1", &[2, 3]);
    slices_end(&["s0", "s1"]);
    let after = records();
    assert!(after.len() == 3 && after.iter().all(|record| record.starts_with("9 ")), "{after:?}");
    assert!(state.objects().is_some());
}

#[test]
fn a_name_in_an_answer_exists() {
    let asker = Asker::new();
    asker.state.apply(service_object(&key("one"), &Service { ttl: None }));
    let no_services = events::World::default();
    no_services.sync_one(&asker.state, false);
    // The list of services contains the one that was applied.
    let live = [key("one")].into();
    Index::<MultiNetworkService>::reset(&asker.state, &live);
    publish(&asker.state, 0);

    let Asker { state, reader } = &asker;
    let done = AtomicBool::new(false);
    let checked = AtomicUsize::new(0);
    let base = format!("one.red.svc.{ZONE}");
    // All threads begin together.
    let start = Barrier::new(5);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            (1..=CHANGES).for_each(|round| publish(state, round));
            done.store(true, Ordering::Release);
        });
        for owner in [
            format!("_http._tcp.{base}"),
            base.clone(),
            format!("_http._tcp.rail0._net.{base}"),
            "1.0.0.10.in-addr.arpa".to_owned(),
        ] {
            let (asker, start, done, checked, base) = (reader.clone(), &start, &done, &checked, &base);
            scope.spawn(move || {
                start.wait();
                let qtype = if owner.ends_with("arpa") { "PTR" } else { "SRV" };
                while !done.load(Ordering::Acquire) {
                    let named = targets(&asker.message(&owner, qtype));
                    // The service always has endpoints, so none of its names ever disappears.
                    assert!(!named.is_empty(), "{owner} {qtype} did not exist for a moment");
                    let rounds: BTreeSet<_> =
                        named.iter().filter_map(|name| name.split('-').next()).collect();
                    assert_eq!(rounds.len(), 1, "{owner} {qtype} is a mixture: {named:?}");
                    for name in named {
                        if !has_addresses(&asker, &name) {
                            let again = targets(&asker.message(&owner, qtype));
                            assert!(
                                !again.contains(&name),
                                "{owner} still names {name}, which no longer exists"
                            );
                        }
                        checked.fetch_add(1, Ordering::Relaxed);
                    }
                    for parent in [format!("_tcp.{base}"), format!("red.svc.{ZONE}"), format!("_net.{base}")]
                    {
                        let rcode = asker.message(&parent, "A").metadata.response_code;
                        assert_eq!(rcode, ResponseCode::NoError, "{parent} did not exist for a moment");
                    }
                    let addresses = asker.message(base, "A").answers.len();
                    assert_eq!(addresses, 3, "{base} lacked addresses for a moment");
                }
            });
        }
    });
    assert!(checked.into_inner() > 100, "too few queries during the changes");
}
