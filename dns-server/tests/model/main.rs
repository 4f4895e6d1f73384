//! The state compared with a plain model. After any sequence of events, the answers are exactly
//! those that the objects require: no address is served that is in no ready endpoint, and none is
//! missing.
//!
//! The model ([`expected`]) builds the whole zone from all objects, in the simplest way; the state
//! follows the events. [`paths`] sends every kind of query, and reads the replies with
//! another parser. [`publishing`] watches answers while they change; the crate
//! `multinet-dns-orders` does the same under a scheduler.

#![expect(clippy::expect_used, reason = "a test that cannot be set up has failed")]

mod ask;
mod events;
mod expected;
mod latency;
mod paths;
mod publishing;
mod transfers;

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use ask::Asker;
use events::{Event, World};
use expected::{Expected, universe};

/// All names are compared after every this many events, and a sample of them after each event.
const FULL_EVERY: usize = 40;

/// Number of names queried after each event.
const SAMPLE: usize = 12;

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn answers_follow_the_events(events in prop::collection::vec(events::event(), 1..160), seed: u64) {
        let mut world = World::default();
        let asker = Asker::new();
        world.sync(&asker.state);
        for (position, event) in events.iter().enumerate() {
            world.take(event, &asker.state);
            if matches!(event, Event::Nothing) {
                continue;
            }
            let expected = Expected::new(&world);
            check_names(&asker, &expected)?;
            let is_full = position % FULL_EVERY == FULL_EVERY - 1 || position + 1 == events.len();
            let sample = if is_full { usize::MAX } else { SAMPLE };
            check_answers(&asker, &expected, seed.wrapping_add(position as u64), sample)?;
        }
    }

    /// CoreDNS' kubernetes plugin answers from incomplete knowledge. This server answers nothing
    /// before everything has synced, and then everything.
    #[test]
    fn nothing_is_answered_before_both_kinds_have_synced(
        events in prop::collection::vec(events::event(), 1..40),
        services_first: bool,
    ) {
        let mut world = World::default();
        let asker = Asker::new();
        for event in events.iter().filter(|event| !matches!(event, Event::Relist(_))) {
            world.take(event, &asker.state);
            for name in universe().iter().step_by(50) {
                prop_assert_eq!(asker.ask(name, "A").rcode, "SERVFAIL");
            }
        }
        world.sync_one(&asker.state, services_first);
        for name in universe() {
            prop_assert_eq!(asker.ask(name, "A").rcode, "SERVFAIL");
        }
        world.sync_one(&asker.state, !services_first);
        check_answers(&asker, &Expected::new(&world), 0, usize::MAX)?;
    }
}

/// Checks that exactly the names of the model own records.
fn check_names(asker: &Asker, expected: &Expected) -> Result<(), TestCaseError> {
    let published = asker.owners();
    let wanted: BTreeSet<String> = expected.owners().map(ToOwned::to_owned).collect();
    let extra: Vec<_> = published.difference(&wanted).collect();
    let missing: Vec<_> = wanted.difference(&published).collect();
    prop_assert!(extra.is_empty() && missing.is_empty(), "extra names {extra:?}, missing names {missing:?}");
    Ok(())
}

/// Checks the answers for a sample of all possible names.
fn check_answers(asker: &Asker, expected: &Expected, seed: u64, sample: usize) -> Result<(), TestCaseError> {
    let (names, types) = (universe(), expected::types());
    let step = (names.len() / sample.min(names.len())).max(1);
    let offset = (seed % step as u64) as usize;
    for name in names.iter().skip(offset).step_by(step) {
        for &qtype in &types {
            let reply = asker.ask(name, qtype);
            let wanted = expected.reply(name, qtype);
            prop_assert!(
                reply.rcode == wanted.rcode,
                "{} {}: {:?} instead of {:?}",
                name,
                qtype,
                reply,
                wanted
            );
            prop_assert!(
                reply.records == wanted.records,
                "{} {}\nanswer   {:?}\nexpected {:?}",
                name,
                qtype,
                reply.records,
                wanted.records
            );
        }
    }
    Ok(())
}
