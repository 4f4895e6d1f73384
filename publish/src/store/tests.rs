use std::collections::BTreeMap;

use multinet_runtime::ObjectKey;
use proptest::prelude::*;

use super::*;
use crate::index::Settings;
use crate::objects::{Endpoint, Port, Service, Slice, address_label};

fn settings() -> Settings {
    Settings {
        prefix: "/skydns".into(),
        zones: vec!["z.test".into(), "y.test".into()],
        vertex_zones: vec!["v.test".into()],
        ttl: 5,
        reverse_ranges: vec!["10.0.0.0/8".parse().unwrap()],
        reverse_excludes: vec!["10.0.9.0/24".parse().unwrap()],
    }
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { namespace: namespace.into(), name: name.into() }
}

/// A change of one object.
#[derive(Clone, Debug)]
enum Event {
    Service(ObjectKey, Option<Service>),
    Slice(ObjectKey, Option<Slice>),
    /// Another program writes this key, or deletes it.
    Foreign(usize),
    /// The publisher starts again, and lists all keys.
    Restart,
}

/// Keys of other programs: one elsewhere, and two where keys of services belong.
const FOREIGN: [&str; 3] =
    ["/skydns/other/x", "/skydns/test/z/svc/red/one/a/10-0-0-1-7", "/skydns/arpa/in-addr/10/0/0/1"];

/// A stand-in for etcd: keys with values and revisions.
#[derive(Default)]
struct Etcd {
    keys: BTreeMap<String, (String, i64)>,
    revision: i64,
}

impl Etcd {
    /// Applies a transaction, if no key has changed since it was planned.
    fn apply(&mut self, changes: &[Change]) -> Option<i64> {
        let current = |key: &str| self.keys.get(key).map_or(0, |(_, revision)| *revision);
        if changes.iter().any(|change| current(&change.key) != change.revision) {
            return None;
        }
        self.revision += 1;
        for change in changes {
            let value = change.value.clone().map(|value| (value, self.revision));
            match value {
                Some(value) => self.keys.insert(change.key.clone(), value),
                None => self.keys.remove(&change.key),
            };
        }
        Some(self.revision)
    }

    fn list(&self) -> Store {
        let mut store = Store::default();
        for (key, (value, revision)) in &self.keys {
            store.add(key.clone(), value.clone().into(), *revision);
        }
        store
    }
}

fn event() -> impl Strategy<Value = Event> {
    let named = |names: &'static [&'static str]| {
        (prop::sample::select(vec!["red", "blue"]), prop::sample::select(names))
            .prop_map(|(namespace, name)| key(namespace, name))
    };
    let service = (prop::option::of(1u32..3), 0i64..3).prop_map(|(ttl, created)| Service { ttl, created });
    let address = prop::sample::select(vec!["10.0.0.1", "10.0.0.2", "10.0.9.1", "fd00::1"]);
    let endpoint = (address, prop::option::of(prop::sample::select(vec!["a", "b"]))).prop_map(
        |(address, host): (&str, Option<&str>)| {
            let address = address.parse().unwrap();
            Endpoint {
                host: host.map_or_else(|| address_label(address), ToOwned::to_owned),
                is_named: host.is_some(),
                address,
                text: format!("addr={address}"),
            }
        },
    );
    let port = (prop::sample::select(vec!["p", "q"]), 7u16..9).prop_map(|(name, number)| Port {
        name: name.into(),
        protocol: "_tcp",
        number,
    });
    let slice = (
        prop::sample::select(vec!["one", "two"]),
        prop::option::of(prop::sample::select(vec!["in", "out"])),
        prop::sample::select(vec!["r", "s"]),
        prop::collection::vec(port, 0..3),
        prop::collection::vec(endpoint, 0..4),
    )
        .prop_map(|(service, vertex, alias, ports, endpoints)| Slice {
            service: service.into(),
            vertex: vertex.map(|vertex| (vertex.into(), "pl".into())),
            alias: alias.into(),
            ports,
            endpoints,
        });
    prop_oneof![
        4 => (named(&["one", "two"]), prop::option::weighted(0.8, service))
            .prop_map(|(key, service)| Event::Service(key, service)),
        8 => (named(&["s0", "s1", "s2"]), prop::option::weighted(0.8, slice))
            .prop_map(|(key, slice)| Event::Slice(key, slice)),
        1 => (0..FOREIGN.len()).prop_map(Event::Foreign),
        1 => Just(Event::Restart),
    ]
}

/// Writes changes in batches, as the writer does. After a conflict it lists all keys again.
fn write(etcd: &mut Etcd, store: &mut Store, objects: &Objects, mut changes: Vec<Change>) {
    while !changes.is_empty() {
        let rest = changes.split_off(changes.len().min(5));
        match etcd.apply(&changes) {
            Some(revision) => {
                store.written(changes, revision);
                changes = rest;
            }
            None => {
                *store = etcd.list();
                changes = store.plan_all(objects);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, max_shrink_iters: 500, ..ProptestConfig::default() })]

    /// After any changes, restarts and meddling of others, the keys are exactly those of the
    /// objects, and a second plan is empty.
    #[test]
    fn the_keys_follow_the_objects(events in prop::collection::vec(event(), 1..100)) {
        let mut objects = Objects::new(settings());
        let (mut services, mut slices) = (BTreeMap::new(), BTreeMap::new());
        let mut etcd = Etcd::default();
        let mut store = Store::default();
        let first = store.plan_all(&objects);
        write(&mut etcd, &mut store, &objects, first);
        for event in events {
            match event {
                Event::Service(key, Some(service)) => {
                    services.insert(key.clone(), service.clone());
                    objects.apply_service(key, service);
                }
                Event::Service(key, None) => {
                    services.remove(&key);
                    objects.delete_service(&key);
                }
                Event::Slice(key, Some(slice)) => {
                    slices.insert(key.clone(), slice.clone());
                    objects.apply_slice(&key, slice);
                }
                Event::Slice(key, None) => {
                    slices.remove(&key);
                    objects.delete_slice(&key);
                }
                Event::Foreign(number) => {
                    let key = FOREIGN[number].to_owned();
                    let is_foreign = |(value, _): &(String, i64)| !keys::is_ours(value.as_bytes());
                    etcd.revision += 1;
                    match etcd.keys.get(&key).filter(|known| is_foreign(known)) {
                        Some(_) => etcd.keys.remove(&key),
                        None => etcd.keys.insert(key, ("{\"host\":\"192.0.2.1\"}".to_owned(), etcd.revision)),
                    };
                    // The writer finds out at its next list.
                    store = etcd.list();
                    let changes = store.plan_all(&objects);
                    write(&mut etcd, &mut store, &objects, changes);
                }
                Event::Restart => {
                    store = etcd.list();
                    let changes = store.plan_all(&objects);
                    write(&mut etcd, &mut store, &objects, changes);
                }
            }
            objects.settle();
            let mut changes = Vec::new();
            for slot in objects.take_changed() {
                store.plan(&objects, &slot, &mut changes);
            }
            for change in &changes {
                let known = etcd.keys.get(&change.key).map(|(value, _)| value);
                prop_assert!(known != change.value.as_ref(), "needless: {:?}", change);
            }
            write(&mut etcd, &mut store, &objects, changes);

            // The same objects in another order.
            let mut fresh = Objects::new(settings());
            slices.iter().rev().for_each(|(key, slice): (&ObjectKey, &Slice)| fresh.apply_slice(key, slice.clone()));
            services.iter().for_each(|(key, service): (&ObjectKey, &Service)| {
                fresh.apply_service(key.clone(), service.clone());
            });
            fresh.settle();
            let is_foreign = |value: &str| !keys::is_ours(value.as_bytes());
            let foreign: BTreeSet<&String> =
                etcd.keys.iter().filter(|(_, (value, _))| is_foreign(value)).map(|(key, _)| key).collect();
            let mut expected = Keys::new();
            for slot in fresh.all() {
                expected.extend(fresh.keys(&slot));
            }
            expected.retain(|key, _| !foreign.contains(key));
            let ours = etcd.keys.iter().filter(|(key, _)| !foreign.contains(key));
            let found: Keys = ours.map(|(key, (value, _))| (key.clone(), value.clone())).collect();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(etcd.list().plan_all(&objects), []);
        }
    }
}

#[test]
fn puts_come_before_deletes() {
    let mut objects = Objects::new(settings());
    objects.apply_service(key("red", "one"), Service { ttl: None, created: 1 });
    let slice = |host: &str| Slice {
        service: "one".into(),
        vertex: None,
        alias: "r".into(),
        ports: Vec::new(),
        endpoints: vec![Endpoint {
            host: host.into(),
            is_named: true,
            address: "10.0.0.1".parse().unwrap(),
            text: "addr=10.0.0.1".into(),
        }],
    };
    objects.apply_slice(&key("red", "s"), slice("b"));
    objects.settle();
    let mut store = Store::default();
    let changes = store.plan_all(&objects);
    store.written(changes, 1);
    objects.apply_slice(&key("red", "s"), slice("a"));
    objects.settle();
    let mut changes = Vec::new();
    store.plan(&objects, &Slot::Service(key("red", "one")), &mut changes);
    let are_puts: Vec<bool> = changes.iter().map(|change| change.value.is_some()).collect();
    assert_eq!(are_puts.len(), 16, "two zones, two trees, address and text of both hosts");
    assert!(are_puts.is_sorted_by(|one, two| one >= two), "{are_puts:?}");
}

#[test]
fn a_key_of_another_program_is_left_alone_and_counted() {
    let mut objects = Objects::new(settings());
    objects.apply_service(key("red", "one"), Service { ttl: None, created: 1 });
    let mut store = Store::default();
    let apex = "/skydns/test/z/dns/apex";
    store.add(apex.to_owned(), b"{\"host\":\"192.0.2.1\"}".to_vec(), 7);
    store.add("/skydns/elsewhere".to_owned(), b"no JSON".to_vec(), 8);
    let changes = store.plan_all(&objects);
    assert!(!changes.is_empty() && changes.iter().all(|change| change.key != apex));
    assert_eq!(store.blocked().iter().collect::<Vec<_>>(), [apex]);
    assert!(store.is_empty());
}
