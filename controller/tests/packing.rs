//! The plans of slices over random histories: services and pods change, people edit, limits move; a little store takes
//! the plans as the API server would. After each plan the slices say exactly what is wanted, and there is nothing left to write.

#[path = "packing/cost.rs"]
mod cost;
#[path = "packing/edits.rs"]
mod edits;
#[path = "packing/kinds.rs"]
mod kinds;
#[path = "packing/store.rs"]
mod store;
#[path = "packing/world.rs"]
mod world;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use multinet_controller::slices::{self, Owner, Plan};
use multinet_crds::{Endpoint, MultiNetworkEndpointSlice};
use multinet_runtime::ObjectKey;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use self::edits::Edit;
use self::kinds::Kind;
use self::store::Store;
use self::world::{Change, World};

/// Something that happens between two plans.
#[derive(Clone, Debug)]
enum Event {
    Change(Change),
    Edit(Edit),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![3 => world::change().prop_map(Event::Change), 2 => edits::edit().prop_map(Event::Edit)]
}

type Outcome = Result<(), TestCaseError>;

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn slices_come_to_say_what_is_wanted(history in vec(vec(event(), 1..6), 1..10)) {
        run::<MultiNetworkEndpointSlice>(&history)?;
    }

    #[test]
    fn mirrors_come_to_say_what_is_wanted(history in vec(vec(event(), 1..6), 1..10)) {
        run::<EndpointSlice>(&history)?;
    }

    /// Also with half of the writes lost, as when others have been faster.
    #[test]
    fn what_was_written_in_part_is_completed(history in vec((vec(event(), 1..6), any::<u64>()), 1..8)) {
        let mut world = World::default();
        let mut store = Store::<MultiNetworkEndpointSlice>::default();
        for (events, lost) in &history {
            happen(events, &mut world, &mut store);
            let mut plan = planned(&world, &store, 0);
            let mut place = 0;
            let mut kept = || { place += 1; lost >> (place % 64) & 1 == 0 };
            plan.create.retain(|_| kept());
            plan.update.retain(|_| kept());
            plan.delete.retain(|_| kept());
            store.apply(plan);
            store.apply(planned(&world, &store, 1));
            check(&world, &store)?;
        }
    }

    #[test]
    fn one_change_is_one_write(
        history in vec(world::change(), 0..30),
        change in world::small_change(),
    ) {
        let (mut world, mut store) = settled(&history);
        let before: BTreeMap<_, _> = store.alive().into_iter().map(|slice| (slice.metadata.name.clone(), slice)).collect();
        let had = world.has(&change);
        world.take(&change);
        let plan = planned(&world, &store, 1);
        let counts = (plan.create.len(), plan.update.len(), plan.delete.len());
        let allowed: &[(usize, usize, usize)] = match (&change, had) {
            (Change::Add(_), false) => &[(1, 0, 0), (0, 1, 0)],
            (Change::Remove(_), true) => &[(0, 1, 0), (0, 0, 1)],
            (Change::Touch(_) | Change::Rename(_), true) => &[(0, 1, 0)],
            _ => &[(0, 0, 0)],
        };
        prop_assert!(allowed.contains(&counts), "{change:?}: {counts:?}");

        // And nothing else of the slice changes: the other endpoints stay where they are, in their order.
        for updated in &plan.update {
            let old = &before[&updated.metadata.name].spec.endpoints;
            let new = &updated.spec.endpoints;
            let stay = |a: &[Endpoint], b: &[Endpoint]| -> Vec<Endpoint> {
                a.iter().filter(|entry| b.contains(entry)).cloned().collect()
            };
            prop_assert_eq!(stay(old, new), stay(new, old));
            prop_assert!(stay(old, new).len() + 1 >= old.len().max(new.len()));
        }
        store.apply(plan);
        check(&world, &store)?;
    }

    #[test]
    fn the_last_slice_of_a_network_stays(history in vec(world::change(), 0..30)) {
        let (mut world, mut store) = settled(&history);
        for spot in world.spots() {
            world.take(&Change::Remove(spot));
            let plan = planned(&world, &store, 1);
            prop_assert_eq!(plan.writes(), 1);
            prop_assert!(plan.delete.is_empty() || !world.is_empty(spot.0));
            store.apply(plan);
        }
        check(&world, &store)?;
    }

    #[test]
    fn no_plan_writes_more_than_it_must_nor_more_than_core_s(
        history in vec(world::change(), 0..30),
        changes in vec(world::change_of_endpoints(), 1..12),
    ) {
        let (mut world, store) = settled(&history);
        changes.iter().for_each(|change| world.take(change));
        let plan = planned(&world, &store, 1);
        let (desired, existing) = (world.desired(), store.alive());
        prop_assert_eq!(plan.writes(), cost::fewest(&desired, &existing, world.limit));
        // Core has one empty slice for a family and leaves it beside others; here each network has its own, which is
        // filled or goes.
        let was_empty = |name: Option<&str>| {
            existing.iter().any(|slice| slice.spec.endpoints.is_empty() && slice.metadata.name.as_deref() == name)
        };
        let updated = plan.update.iter().filter(|slice| {
            slice.spec.endpoints.is_empty() || was_empty(slice.metadata.name.as_deref())
        });
        let deleted = plan.delete.iter().filter(|id| was_empty(Some(&id.key.name)));
        let placeholders = updated.count() + deleted.count();
        let core = cost::of_core(&desired, &existing, world.limit);
        prop_assert!(plan.writes() - placeholders <= core, "{} against {}", plan.writes(), core);
    }
}

/// Lets a history happen, with a plan after each batch of events.
fn run<K: Kind>(history: &[Vec<Event>]) -> Outcome {
    let mut world = World::default();
    let mut store = Store::<K>::default();
    for (round, events) in history.iter().enumerate() {
        happen(events, &mut world, &mut store);
        let plan = planned(&world, &store, round as u64);

        // Whatever the order in which things are listed.
        let mut shuffled = store.all();
        shuffled.reverse();
        let again = K::plan(&world.reversed(), &shuffled, trigger(), round as u64);
        prop_assert_eq!(&again, &plan);

        for updated in &plan.update {
            prop_assert!(store.differs(updated), "{:?} is written for nothing", updated.meta().name);
        }
        store.apply(plan);
        check(&world, &store)?;
    }
    Ok(())
}

fn happen<K: Kind>(events: &[Event], world: &mut World, store: &mut Store<K>) {
    for event in events {
        match event {
            Event::Change(change) => world.take(change),
            Event::Edit(edit) => edit.make(store),
        }
    }
}

/// A world after these changes, and slices that nobody has edited.
fn settled(history: &[Change]) -> (World, Store<MultiNetworkEndpointSlice>) {
    let mut world = World::default();
    let mut store = Store::default();
    for (round, change) in history.iter().enumerate() {
        world.take(change);
        store.apply(planned(&world, &store, round as u64));
    }
    (world, store)
}

fn trigger() -> Option<Timestamp> {
    Some(Timestamp::UNIX_EPOCH)
}

fn planned<K: Kind>(world: &World, store: &Store<K>, seed: u64) -> Plan<K> {
    K::plan(world, &store.all(), trigger(), seed)
}

/// What must hold after a plan.
fn check<K: Kind>(world: &World, store: &Store<K>) -> Outcome {
    let mut wanted = K::groups(world);
    let mut found: BTreeMap<String, Vec<K::Endpoint>> = BTreeMap::new();
    let mut slices: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for slice in store.alive() {
        let group = slice.group();
        prop_assert!(wanted.contains_key(&group), "a slice of {}, which nobody wants", group);
        prop_assert_eq!(slice.meta().labels.as_ref(), Some(&K::labels(world)));
        let Owner { namespace, name, .. } = world.owner();
        prop_assert_eq!(slice.service(), Some(ObjectKey { namespace, name }));
        let owners: Vec<_> = (slice.meta().owner_references.iter().flatten())
            .filter(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid.clone())
            .collect();
        prop_assert_eq!(owners, [world.owner().uid]);
        prop_assert_eq!(slice.ports(), world.ports());
        prop_assert!(slice.endpoints().len() <= world.limit);
        slices.entry(group.clone()).or_default().push(slice.endpoints().len());
        found.entry(group).or_default().extend_from_slice(slice.endpoints());
    }

    for (group, sizes) in &slices {
        let placeholders = sizes.iter().filter(|size| **size == 0).count();
        let allowed = usize::from(wanted[group].is_empty());
        prop_assert!(placeholders <= allowed, "{}: {} empty slices", group, placeholders);
    }
    for (group, wanted) in &mut wanted {
        let mut found = found.remove(group).unwrap_or_default();
        found.sort_by_cached_key(|endpoint| format!("{endpoint:?}"));
        wanted.sort_by_cached_key(|endpoint| format!("{endpoint:?}"));
        prop_assert_eq!(&found, wanted, "{}", group);
    }

    let rest = K::plan(world, &store.all(), Some(Timestamp::MAX), 9);
    prop_assert_eq!(rest, Plan::default(), "the second plan writes too");
    Ok(())
}

/// The service that has 16 networks and 5,000 pods behind it is planned like any other.
#[test]
fn a_large_service_is_packed_full() {
    let mut world = World::default();
    world.limit = 100;
    for number in 0..5_000 {
        world.add(0, number);
    }
    let mut store = Store::<MultiNetworkEndpointSlice>::default();
    let plan = planned(&world, &store, 0);
    assert_eq!((plan.create.len(), plan.writes()), (50, 50));
    store.apply(plan);

    // A rolling restart, one pod at a time: one write each.
    for number in 0..50 {
        world.remove(0, number * 7);
        world.add(0, 5_000 + number);
        let plan = slices::plan(&world.desired(), &store.all(), world.limit, trigger(), 1);
        assert_eq!((plan.update.len(), plan.writes()), (1, 1));
        store.apply(plan);
    }
    check(&world, &store).unwrap_or_else(|error| panic!("{error}"));
}
