use super::*;

const CAPS: Caps = Caps { pod: 2, service: 8, namespace: 10 };

fn key(name: &str) -> ObjectKey {
    let (namespace, name) = name.split_once('/').unwrap_or(("vision", name));
    ObjectKey { namespace: namespace.into(), name: name.into() }
}

/// Gives a service as many of its `wanted` addresses as there is room for. Returns that number, and
/// the service to queue next.
fn give(counts: &mut Counts, name: &str, wanted: usize) -> (usize, Option<ObjectKey>) {
    let (room, reason) = counts.room(&key(name)).most();
    let waits = wanted > room && reason == CappedReason::AddressesPerNamespace;
    let given = wanted.min(room);
    (given, counts.set_given(&key(name), given, waits))
}

#[test]
fn choose_prefers_published_things_and_then_the_first() {
    let chosen = |room| {
        let mut chosen: Vec<u8> = choose(room, 0..6, |thing| [1, 4].contains(thing)).into_iter().collect();
        chosen.sort_unstable();
        chosen
    };
    assert!(chosen(0).is_empty());
    assert_eq!(chosen(1), [1]);
    assert_eq!(chosen(3), [0, 1, 4]);
    assert_eq!(chosen(9), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_service_gets_the_rest_of_its_namespace() {
    let mut counts = Counts::new(CAPS);
    assert_eq!(give(&mut counts, "a", 9), (8, None), "the limit of a service");
    assert_eq!(give(&mut counts, "b", 5), (2, None));
    assert_eq!(give(&mut counts, "c", 1), (0, None));
    assert_eq!(give(&mut counts, "other/a", 8), (8, None));
    assert_eq!(give(&mut counts, "b", 5), (2, None), "as before");
}

#[test]
fn waiting_services_get_room_one_after_the_other() {
    let mut counts = Counts::new(CAPS);
    give(&mut counts, "a", 8);
    give(&mut counts, "b", 5);
    give(&mut counts, "c", 5);
    assert_eq!(give(&mut counts, "a", 4), (4, Some(key("b"))));
    assert_eq!(give(&mut counts, "b", 5), (5, Some(key("c"))), "one address fits");
    assert_eq!(give(&mut counts, "c", 5), (1, None));
    assert_eq!(counts.set_given(&key("b"), 0, false), Some(key("c")), "the service is deleted");
    assert_eq!(give(&mut counts, "c", 5), (5, None));
}

#[test]
fn addresses_in_slices_count_until_the_slices_are_written() {
    let mut counts = Counts::new(CAPS);
    counts.set_written(&key("a"), 6);
    assert_eq!(give(&mut counts, "b", 6), (4, None), "of another process, or of the time before");
    assert_eq!(give(&mut counts, "a", 6), (6, None), "its own is no obstacle");
    assert_eq!(give(&mut counts, "a", 1), (1, None), "the slices are still there");
    assert_eq!(counts.set_written(&key("a"), 1), Some(key("b")));
    assert_eq!(give(&mut counts, "b", 6), (6, None));
}

#[test]
fn endpoints_that_move_between_slices_take_no_room_from_another_service() {
    let mut counts = Counts::new(CAPS);
    for name in ["a", "b"] {
        assert_eq!(give(&mut counts, name, 5), (5, None));
        counts.set_written(&key(name), 5);
    }
    counts.set_written(&key("a"), 8);
    assert_eq!(give(&mut counts, "b", 5), (5, None));
    assert_eq!(give(&mut counts, "c", 1), (0, None));
}

#[test]
fn a_new_term_counts_the_addresses_in_slices() {
    let mut counts = Counts::new(CAPS);
    give(&mut counts, "a", 7);
    give(&mut counts, "b", 5);
    counts.set_written(&key("a"), 2);
    counts.forget_given();
    assert_eq!(give(&mut counts, "b", 8), (8, None));
}

#[test]
fn addresses_in_slices_of_others_count() {
    let mut counts = Counts::new(CAPS);
    counts.set_foreign(&key("a"), 3);
    assert_eq!(counts.room(&key("a")), Room { caps: CAPS, service: 5, namespace: 7 });
    assert_eq!(give(&mut counts, "b", 8), (7, None));
    counts.set_foreign(&key("a"), 30);
    assert_eq!(counts.room(&key("b")).most(), (0, CappedReason::AddressesPerNamespace));
}

#[test]
fn counts_of_deleted_services_are_removed() {
    let mut counts = Counts::new(CAPS);
    for name in ["a", "b", "other/a"] {
        give(&mut counts, name, 8);
        counts.set_written(&key(name), 8);
        counts.set_foreign(&key(name), 1);
    }
    for name in ["a", "b", "other/a"] {
        counts.set_given(&key(name), 0, false);
        counts.set_written(&key(name), 0);
        counts.set_foreign(&key(name), 0);
    }
    assert!(counts.services.is_empty() && counts.namespaces.is_empty(), "{counts:?}");
}

#[test]
fn the_message_tells_what_is_left_out_and_what_to_do() {
    let some = ["a", "b"].into_iter().collect();
    let all = Capped {
        pods: some,
        beyond_pods: 7,
        beyond: Some((CappedReason::AddressesPerNamespace, 9)),
        caps: Caps::default(),
    };
    assert_eq!(all.reason(), Some(CappedReason::AddressesPerNamespace));
    for text in ["9 addresses", "200000 of a namespace", "7 addresses", "64 of a pod", "(a, b)"] {
        assert!(all.message().contains(text), "{}", all.message());
    }
    let service = Capped { beyond: Some((CappedReason::AddressesPerService, 1)), ..Capped::default() };
    assert!(service.message().contains("--max-addresses-per-service"), "{}", service.message());
    let pods = Capped { beyond: None, ..all };
    assert_eq!(pods.reason(), Some(CappedReason::AddressesPerPod));
    assert!(pods.message().contains("--max-addresses-per-pod"), "{}", pods.message());
    assert_eq!(Capped::default().reason(), None);
}
