use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::store::rrset::rtype;

fn key(name: u16) -> QueryKey {
    QueryKey { name: wire(name), qtype: rtype::A, rcode: 0 }
}

fn wire(name: u16) -> Box<[u8]> {
    let label = name.to_string();
    [&[label.len() as u8][..], label.as_bytes(), &[0]].concat().into()
}

fn sketch_of(names: &[u16], capacity: u16) -> Sketch {
    let mut sketch = Sketch::new(capacity);
    for &name in names {
        sketch.count(&wire(name), rtype::A, Rcode::NoError);
    }
    sketch
}

fn truth(names: &[u16]) -> BTreeMap<QueryKey, u64> {
    let mut counts = BTreeMap::new();
    for &name in names {
        *counts.entry(key(name)).or_insert(0) += 1;
    }
    counts
}

/// Names of which a few are frequent.
fn names() -> impl Strategy<Value = Vec<u16>> {
    let name = prop_oneof![3 => 0u16..4, 2 => 0u16..20, 2 => 0u16..2000];
    prop::collection::vec(name, 0..400)
}

/// Checks that no frequent query is missing, and that each count is within its error.
fn check(counts: &[(QueryKey, Estimate)], total: u64, truth: &BTreeMap<QueryKey, u64>, capacity: u16) {
    for (key, Estimate { count, error }) in counts {
        let real = truth[key];
        assert!(real <= *count && count - error <= real, "{key:?}: {real}, not {count} - {error}");
    }
    for (frequent, real) in truth.iter().filter(|(_, real)| **real > total / u64::from(capacity)) {
        assert!(counts.iter().any(|(key, _)| key == frequent), "{frequent:?}, {real} times, is not there");
    }
    assert!(counts.is_sorted_by(|(_, a), (_, b)| a.count >= b.count));
}

proptest! {
    #[test]
    fn what_is_frequent_is_there(names in names(), capacity in 1u16..40) {
        let seen = sketch_of(&names, capacity).snapshot();
        prop_assert_eq!(seen.total, names.len() as u64);
        prop_assert!(seen.counts.len() <= usize::from(capacity));
        prop_assert_eq!(seen.counts.iter().map(|(_, count)| count.count).sum::<u64>(), seen.total);
        let real = truth(&names);
        check(&seen.counts, seen.total, &real, capacity);
        for (key, real) in real {
            prop_assert!(real <= seen.rest || seen.counts.iter().any(|(seen, _)| *seen == key));
        }
    }

    #[test]
    fn and_of_all_workers_together(
        workers in prop::collection::vec(names(), 0..4),
        capacity in 1u16..40,
    ) {
        let sketches: Vec<SketchSnapshot> = workers.iter().map(|names| sketch_of(names, capacity).snapshot()).collect();
        let all = workers.concat();
        let top = merge(&sketches, capacity);
        prop_assert_eq!(top.total, all.len() as u64);
        check(&top.counts, top.total, &truth(&all), capacity);
    }
}

#[test]
fn names_that_fit_are_counted_exactly() {
    let top = merge(&[sketch_of(&[1, 2, 1], 3).snapshot(), sketch_of(&[3, 1], 3).snapshot()], 3);
    let of = |name, count| (key(name), Estimate { count, error: 0 });
    assert_eq!(top, merge::Top { total: 5, counts: vec![of(1, 3), of(2, 1), of(3, 1)] });
}

#[test]
fn queries_differ_by_type_and_code_and_show_their_names() {
    let mut sketch = Sketch::new(10);
    for (qtype, rcode, times) in [
        (rtype::A, Rcode::NoError, 4),
        (rtype::A, Rcode::NxDomain, 3),
        (rtype::SRV, Rcode::NoError, 2),
        (65280, Rcode::BadVers, 1),
    ] {
        for _ in 0..times {
            sketch.count(b"\x03a b\x03svc\0", qtype, rcode);
        }
    }
    sketch.count(&[1; MAX_NAME + 1], rtype::A, Rcode::NoError);
    let entry = |kind: &str, rcode: &str, count: u64| json!({"name": "a\\032b.svc.", "type": kind, "rcode": rcode, "count": count, "error": 0});
    let expected = json!({
        "queries": 10,
        "names": [
            entry("A", "NOERROR", 4),
            entry("A", "NXDOMAIN", 3),
            entry("SRV", "NOERROR", 2),
            entry("TYPE65280", "BADVERS", 1),
        ],
    });
    assert_eq!(merge(&[sketch.snapshot()], 10).describe(), expected);
}

/// Each name occurs once, so every query replaces a counter.
#[test]
fn a_flood_of_names_takes_no_memory() {
    let mut sketch = Sketch::new(100);
    let rooms =
        |sketch: &Sketch| (sketch.counters.capacity(), sketch.order.capacity(), sketch.index.capacity());
    let before = rooms(&sketch);
    for number in 0..300_000u32 {
        let mut name = [0; MAX_NAME];
        name[..4].copy_from_slice(&number.to_be_bytes());
        sketch.count(&name, rtype::A, Rcode::NxDomain);
    }
    let after = rooms(&sketch);
    // A map's capacity excludes the room of removed keys until it cleans up.
    assert!((after.0, after.1) == (before.0, before.1) && after.2 <= before.2, "{after:?}");
    assert_eq!(sketch.index.len(), 100);
    assert!(size_of::<Counter>() <= 288);
}
