use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::*;

const A: u16 = 1;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn record<'a>(owner: &'a Name, rtype: u16, ttl: u32, data: &'a [u8]) -> Record<'a> {
    Record { owner: owner.as_wire(), rtype, ttl, data }
}

fn wire(record: Record<'_>) -> Vec<u8> {
    let mut wire = Vec::new();
    records::push(&mut wire, record);
    wire
}

fn journal(limits: JournalLimits) -> Journal {
    let mut journal = Journal::new(["z", "in.z", "arpa"].map(name), limits);
    // The zones are so large that all differences are worth sending.
    for apex in ["z", "in.z", "arpa"] {
        for number in 0..100 {
            journal.add(record(&name(&format!("fixed-{number}.{apex}")), A, 5, &[10, 0, 0, number]));
        }
    }
    journal.start(100);
    journal
}

fn serials(journal: &Journal, apex: &str, since: u32) -> Option<Vec<u32>> {
    Some(journal.since(&name(apex), since, 50, usize::MAX)?.iter().map(|step| step.to).collect())
}

#[test]
fn every_version_that_changed_a_zone_is_a_step_in_it() {
    let mut journal = journal(JournalLimits::default());
    for (serial, owner) in [(101, "a.z"), (102, "a.in.z"), (105, "b.z"), (106, "b.in.z")] {
        let before = *journal.serials.back().unwrap();
        journal.add(record(&name(owner), A, 5, &[1, 2, 3, 4]));
        journal.commit(before, serial);
    }
    // The last step leads to the current serial.
    assert_eq!(serials(&journal, "z", 100), Some(vec![101, 106]));
    assert_eq!(serials(&journal, "z", 101), Some(vec![106]));
    assert_eq!(serials(&journal, "z", 102), Some(vec![106]));
    assert_eq!(serials(&journal, "in.z", 101), Some(vec![102, 106]));
    // In this zone, only the serial has changed.
    let steps = journal.since(&name("arpa"), 102, 50, usize::MAX).unwrap();
    assert_eq!((steps.len(), steps[0].to, &*steps[0].difference), (1, 106, &Difference::default()));
    // Serials that were never published, from before the start, and of an unknown zone.
    for (apex, serial) in [("z", 103), ("z", 104), ("z", 99), ("z", 107), ("y", 101)] {
        assert_eq!(serials(&journal, apex, serial), None, "{apex} {serial}");
    }
    assert_eq!(serials(&journal, "z", 106), Some(vec![106]));
    let changes: HashMap<String, u64> =
        journal.changes().map(|(apex, number)| (apex.to_string(), number)).collect();
    assert!(changes["in.z."] > changes["z."] && changes["z."] > changes["arpa."]);
}

#[test]
fn a_record_removed_and_added_again_has_not_changed() {
    let mut journal = journal(JournalLimits::default());
    journal.remove(record(&name("fixed-1.z"), A, 5, &[10, 0, 0, 1]));
    journal.add(record(&name("fixed-1.z"), A, 5, &[10, 0, 0, 1]));
    journal.commit(100, 101);
    assert_eq!(journal.bytes(), 0);
    // A record with another time to live is a different record.
    journal.remove(record(&name("fixed-1.z"), A, 5, &[10, 0, 0, 1]));
    journal.add(record(&name("fixed-1.z"), A, 6, &[10, 0, 0, 1]));
    journal.commit(101, 102);
    let steps = journal.since(&name("z"), 100, 50, usize::MAX).unwrap();
    assert_eq!(steps.len(), 1);
    assert_eq!(split_records(&steps[0].difference.removed).count(), 1);
    assert_eq!(&*steps[0].difference.added, b"\x07fixed-1\x01z\0\0\x01\0\x01\0\0\0\x06\0\x04\x0a\0\0\x01");
}

#[test]
fn no_step_is_stored_before_the_start_or_across_a_gap() {
    let mut journal = Journal::new([name("z")], JournalLimits::default());
    journal.add(record(&name("a.z"), A, 5, &[1, 2, 3, 4]));
    journal.commit(1, 2);
    assert_eq!(journal.changes().count(), 0);
    assert_eq!(serials(&journal, "z", 2), None);
    journal.start(2);
    assert_eq!(journal.changes().count(), 1);
    journal.commit(2, 3);
    assert_eq!(serials(&journal, "z", 2), Some(vec![3]));
    journal.commit(7, 8);
    assert_eq!(serials(&journal, "z", 3), None);
    assert_eq!(serials(&journal, "z", 8), Some(vec![8]));
}

#[test]
fn a_difference_larger_than_the_zone_is_not_returned() {
    let mut journal = Journal::new([name("z")], JournalLimits::default());
    journal.add(record(&name("a.z"), A, 5, &[1, 2, 3, 4]));
    journal.start(1);
    journal.add(record(&name("b.z"), A, 5, &[1, 2, 3, 4]));
    journal.commit(1, 2);
    assert_eq!(serials(&journal, "z", 1), None);
}

#[test]
fn a_journal_stays_within_its_limits() {
    let mut few = journal(JournalLimits { differences: 10, ..JournalLimits::default() });
    let mut small = journal(JournalLimits { bytes: 1000, ..JournalLimits::default() });
    for serial in 100..1000 {
        change(&mut few, serial);
        change(&mut small, serial);
        assert!(small.bytes() <= 1000);
        assert!(few.zones.iter().all(|zone| zone.differences.len() <= 10));
    }
    assert_eq!(serials(&few, "z", 990), Some((991..=1000).collect()));
    assert_eq!(serials(&few, "z", 989), None);
    assert!(serials(&small, "z", 998).is_some() && serials(&small, "z", 900).is_none());
    // A change that alone exceeds the limit ends the chain of steps, but later changes are stored
    // again.
    for number in 0..100 {
        small.add(record(&name(&format!("many-{number}.z")), A, 5, &[0; 4]));
    }
    small.commit(1000, 1001);
    assert_eq!(serials(&small, "z", 999), None);
    assert_eq!(serials(&small, "z", 1001), Some(vec![1001]));
    assert!(small.zones.iter().all(|zone| zone.pending.balance.is_empty()));
}

/// Replaces the address of a name in `z` by one that depends on the serial.
fn change(journal: &mut Journal, serial: u32) {
    let owner = name("changing.z");
    journal.remove(record(&owner, A, 5, &serial.to_be_bytes()));
    journal.add(record(&owner, A, 5, &(serial + 1).to_be_bytes()));
    journal.commit(serial, serial + 1);
}

#[test]
fn serials_are_remembered_for_longer_than_differences() {
    let mut journal = journal(JournalLimits { differences: 10, serials: 100, ..JournalLimits::default() });
    journal.add(record(&name("a.in.z"), A, 5, &[1, 2, 3, 4]));
    journal.commit(100, 101);
    for serial in 101..150 {
        change(&mut journal, serial);
    }
    // The zone that changes has as many steps as there are differences; the others are known not to
    // have changed.
    assert_eq!(serials(&journal, "z", 139), None);
    assert_eq!(serials(&journal, "z", 140).map(|steps| steps.len()), Some(10));
    assert_eq!(serials(&journal, "arpa", 100), Some(vec![150]));
    assert_eq!(serials(&journal, "in.z", 100), Some(vec![150]));
    let steps = journal.since(&name("in.z"), 100, 50, usize::MAX).unwrap();
    assert_eq!(
        (
            split_records(&steps[0].difference.removed).count(),
            split_records(&steps[0].difference.added).count()
        ),
        (0, 1)
    );
    // A difference that leads to a forgotten serial is dropped.
    let of_inner = |journal: &Journal| {
        journal.zones.iter().find(|zone| zone.apex == name("in.z")).unwrap().differences.len()
    };
    assert_eq!(of_inner(&journal), 1);
    for serial in 150..201 {
        change(&mut journal, serial);
    }
    assert_eq!((of_inner(&journal), journal.serials.len()), (0, 100));
    assert_eq!(serials(&journal, "in.z", 101), None);
    assert_eq!(serials(&journal, "in.z", 102), Some(vec![201]));
    assert_eq!(journal.bytes(), journal.zones.iter().map(|zone| zone.bytes).sum::<usize>());
}

#[test]
fn serials_are_found_across_the_wrap_around() {
    let mut journal = Journal::new([name("z")], JournalLimits::default());
    journal.start(0);
    let far = 1 << 30;
    for number in 0..6u32 {
        journal.commit(number.wrapping_mul(far), (number + 1).wrapping_mul(far));
        let newest = (number + 1).wrapping_mul(far);
        assert_eq!(serials(&journal, "z", newest), Some(vec![newest]));
        assert_eq!(serials(&journal, "z", newest.wrapping_sub(far)), Some(vec![newest]));
        // A serial half the range behind is equal to one half the range ahead.
        assert_eq!(serials(&journal, "z", newest.wrapping_sub(2 * far)), None);
        assert_eq!(serials(&journal, "z", newest.wrapping_sub(1)), None);
    }
}

#[test]
fn steps_larger_than_the_callers_limit_are_not_returned() {
    let mut journal = journal(JournalLimits::default());
    (100..110).for_each(|serial| change(&mut journal, serial));
    let since = |serial, most| journal.since(&name("z"), serial, 50, most).map(|steps| steps.len());
    // Two records and two SOAs. A record has its owner's name, ten bytes, and its data.
    let step = 2 * (b"\x08changing\x01z\0".len() + 10 + 4 + 50);
    assert_eq!(since(107, 3 * step), Some(3));
    assert_eq!(since(107, 3 * step - 1), None);
    assert_eq!(since(110, 0), Some(1));
}

/// The records of a version, as bits: those in zone `z` and those in zone `in.z`.
type Contents = (u16, u16);

fn owners(contents: Contents) -> BTreeSet<Name> {
    let of = |bits: u16, apex: &'static str| {
        (0..16).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| name(&format!("h{bit}.{apex}")))
    };
    of(contents.0, "z").chain(of(contents.1, "in.z")).collect()
}

proptest! {
    #[test]
    fn every_difference_leads_from_the_old_zone_to_the_new(
        versions in prop::collection::vec((any::<Contents>(), 1u32..5), 1..30),
        most in 1usize..40,
        serials in 2usize..40,
        bytes in 200usize..4000,
    ) {
        let mut journal = journal(JournalLimits { bytes, differences: most, serials });
        let mut known = vec![(100, BTreeSet::new())];
        for (contents, by) in versions {
            let (serial, before) = known.last().unwrap().clone();
            let after = owners(contents);
            // All records are removed and added: only the balance counts.
            before.iter().for_each(|owner| journal.remove(record(owner, A, 5, &[1; 4])));
            after.iter().for_each(|owner| journal.add(record(owner, A, 5, &[1; 4])));
            journal.commit(serial, serial + by);
            known.push((serial + by, after));
        }
        let (newest, newest_contents) = known.last().unwrap().clone();
        for apex in ["z", "in.z"] {
            let apex = name(apex);
            let of_zone = |contents: &BTreeSet<Name>| -> BTreeSet<Vec<u8>> {
                let inner = name("in.z");
                let is_in = |owner: &&Name| owner.is_within(&apex) && (owner.is_within(&inner) == (apex == inner));
                contents.iter().filter(is_in).map(|owner| wire(record(owner, A, 5, &[1; 4]))).collect()
            };
            for (serial, contents) in &known {
                let Some(steps) = journal.since(&apex, *serial, 50, usize::MAX) else { continue };
                let mut zone = of_zone(contents);
                for step in &steps {
                    for record in split_records(&step.difference.removed) {
                        prop_assert!(zone.remove(record));
                    }
                    for record in split_records(&step.difference.added) {
                        prop_assert!(zone.insert(record.to_vec()));
                    }
                }
                prop_assert_eq!(steps.last().map(|step| step.to), Some(newest));
                prop_assert_eq!(&zone, &of_zone(&newest_contents));
            }
            prop_assert!(journal.since(&apex, newest, 50, usize::MAX).is_some());
        }
    }
}
