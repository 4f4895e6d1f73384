use proptest::prelude::*;

use super::*;

/// Parses a key such as `b/big`.
fn key(text: &str) -> ObjectKey {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }
}

/// Creates a queue with the given number of items for each service.
fn turns(limits: Limits, waiting: &[(&str, usize)]) -> FairQueue<usize> {
    let mut turns = FairQueue::new(limits);
    for (service, count) in waiting {
        (0..*count).for_each(|number| turns.push(&key(service), number));
    }
    turns
}

/// Begins items until no more may begin. Returns their services.
fn begun(turns: &mut FairQueue<usize>) -> Vec<String> {
    std::iter::from_fn(|| turns.begin()).map(|(service, _)| service.to_string()).collect()
}

#[test]
fn namespaces_take_turns_and_so_do_their_services() {
    let mut turns = turns(Limits::NONE, &[("b/big", 4), ("b/small", 1), ("a/web", 2), ("c/web", 1)]);
    assert_eq!(begun(&mut turns), ["b/big", "a/web", "c/web", "b/small", "a/web", "b/big", "b/big", "b/big"]);
}

#[test]
fn items_of_a_service_keep_their_order() {
    let mut turns = turns(Limits::NONE, &[("b/big", 3)]);
    let numbers: Vec<usize> = std::iter::from_fn(|| turns.begin()).map(|(_, number)| number).collect();
    assert_eq!(numbers, [0, 1, 2]);
}

#[test]
fn items_beyond_the_limits_do_not_begin() {
    let limits = Limits { total: 5, namespace: 3, service: 2 };
    let mut turns = turns(limits, &[("b/big", 9), ("b/small", 9), ("a/web", 9), ("c/web", 9)]);
    assert_eq!(begun(&mut turns), ["b/big", "a/web", "c/web", "b/small", "a/web"]);
    turns.end(&key("a/web"));
    assert_eq!(begun(&mut turns), ["c/web"], "the namespace that has waited longest");
    turns.end(&key("c/web"));
    turns.end(&key("c/web"));
    assert_eq!(begun(&mut turns), ["b/big", "a/web"], "b has three, and a web of a two");
    turns.end(&key("b/small"));
    assert_eq!(begun(&mut turns), ["c/web"]);
}

#[test]
fn a_late_item_is_next_if_only_another_namespace_has_many_waiting() {
    let limits = Limits::of_requests(32);
    let mut turns = turns(limits, &[("b/big", 2000)]);
    assert_eq!(begun(&mut turns), ["b/big", "b/big"]);
    turns.push(&key("a/web"), 0);
    assert_eq!(begun(&mut turns), ["a/web"], "there is room that b must not take");
    turns.push(&key("b/small"), 0);
    turns.end(&key("b/big"));
    assert_eq!(begun(&mut turns), ["b/small"], "before the others that are waiting in its namespace");
}

#[test]
fn clearing_removes_waiting_items_and_keeps_counting_those_under_way() {
    let limits = Limits { total: 2, namespace: 1, service: 1 };
    let mut turns = turns(limits, &[("b/big", 3), ("a/web", 1), ("c/web", 1)]);
    assert_eq!(begun(&mut turns), ["b/big", "a/web"]);
    assert_eq!((turns.waiting(), turns.waiting_of("b"), turns.waiting_of("d")), (3, 2, 0));
    turns.clear();
    assert_eq!(turns.waiting(), 0);
    turns.push(&key("b/big"), 7);
    assert!(turns.begin().is_none());
    turns.end(&key("a/web"));
    assert!(turns.begin().is_none(), "b has its one");
    turns.end(&key("b/big"));
    assert_eq!(turns.begin(), Some((key("b/big"), 7)));
    turns.end(&key("b/big"));
    assert!(turns.namespaces.is_empty(), "finished items leave no entry");
}

#[test]
fn a_namespace_gets_a_sixteenth_of_the_requests_and_at_least_one() {
    assert_eq!([1, 16, 32, 1000].map(|total| Limits::of_requests(total).namespace), [1, 1, 2, 62]);
}

const SERVICES: [&str; 5] = ["a/one", "a/two", "b/one", "b/two", "c/one"];

proptest! {
    /// Compares the queue with plain counts: no item is lost, limits hold, and no item waits while
    /// there is room for it.
    #[test]
    fn any_history_stays_within_the_limits_and_uses_all_room(
        steps in prop::collection::vec((0..3_u8, 0..SERVICES.len()), 0..200),
        total in 1..6_usize, namespace in 1..4_usize, service in 1..3_usize,
    ) {
        let mut turns = FairQueue::new(Limits { total, namespace, service });
        let (mut waiting, mut under_way) = ([0_usize; 5], [0_usize; 5]);
        for (step, place) in steps {
            let key = key(SERVICES[place]);
            match step {
                0 => {
                    turns.push(&key, ());
                    waiting[place] += 1;
                }
                1 if under_way[place] > 0 => {
                    turns.end(&key);
                    under_way[place] -= 1;
                }
                1 => {}
                _ => {
                    let all: usize = under_way.iter().sum();
                    let of_namespace = |place: usize| -> usize {
                        let of = |other: &usize| SERVICES[*other][..1] == SERVICES[place][..1];
                        (0..5).filter(of).map(|other| under_way[other]).sum()
                    };
                    let may = |place: &usize| {
                        waiting[*place] > 0
                            && all < total
                            && of_namespace(*place) < namespace
                            && under_way[*place] < service
                    };
                    match turns.begin() {
                        None => prop_assert_eq!((0..5).find(may), None),
                        Some((key, ())) => {
                            let place = SERVICES.iter().position(|name| *name == key.to_string()).unwrap();
                            prop_assert!(may(&place), "{}", key);
                            waiting[place] -= 1;
                            under_way[place] += 1;
                        }
                    }
                }
            }
            prop_assert_eq!(turns.waiting(), waiting.iter().sum::<usize>());
        }
    }
}
