//! Properties of packing for any input, and the number of writes that it takes.

mod cost;

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;

/// Families of the groups. Groups 0 and 2 are on one network, 1 and 3 on another.
const FAMILIES: [IpFamily; 4] = [IpFamily::Ipv4, IpFamily::Ipv4, IpFamily::Ipv6, IpFamily::Ipv6];

/// Letters of each wanted group, by its number.
type Groups = BTreeMap<usize, String>;

/// A slice as the API server stores it.
#[derive(Clone, Debug, PartialEq)]
struct Slice {
    family: Option<IpFamily>,
    group: Option<usize>,
    intact: bool,
    letters: String,
}

/// Write of a slice. A created slice has no `before`, a deleted one no `after`.
#[derive(Debug)]
struct Write {
    before: Option<Slice>,
    after: Option<Slice>,
}

/// Packs. Returns the resulting slices, and the writes that lead to them.
fn packed(groups: &Groups, existing: &[Slice], limit: usize) -> (Vec<Slice>, Vec<Write>) {
    packed_with(groups, existing, limit, false)
}

fn packed_with(groups: &Groups, existing: &[Slice], limit: usize, merges: bool) -> (Vec<Slice>, Vec<Write>) {
    let numbers: Vec<usize> = groups.keys().copied().collect();
    let wanted: Vec<Vec<Letter>> = groups.values().map(|group| letters(group)).collect();
    let wanted: Vec<_> = numbers
        .iter()
        .zip(&wanted)
        .map(|(number, group)| Wanted { family: FAMILIES[*number], entries: group.iter().collect() })
        .collect();
    let entries: Vec<Vec<Letter>> = existing.iter().map(|slice| letters(&slice.letters)).collect();
    let found: Vec<_> = existing
        .iter()
        .zip(&entries)
        .map(|(slice, entries)| {
            let group = slice.group.and_then(|group| numbers.iter().position(|number| *number == group));
            Found { family: slice.family, group, intact: slice.intact, entries }
        })
        .collect();

    let packing = pack(&wanted, &found, limit, merges);
    let slice = |content: &Content<'_, Letter>| {
        let group = numbers[content.group];
        let letters = text(&content.entries);
        Slice { family: Some(FAMILIES[group]), group: Some(group), intact: true, letters }
    };
    let (mut slices, mut writes) = (Vec::new(), Vec::new());
    for (before, fate) in existing.iter().zip(&packing.fates) {
        let after = match fate {
            Fate::Keep => Some(before.clone()),
            Fate::Write(content) => Some(slice(content)),
            Fate::Delete => None,
        };
        slices.extend(after.clone());
        if !matches!(fate, Fate::Keep) {
            writes.push(Write { before: Some(before.clone()), after });
        }
    }
    for content in &packing.create {
        slices.push(slice(content));
        writes.push(Write { before: None, after: Some(slice(content)) });
    }
    (slices, writes)
}

fn sorted(letters: impl Iterator<Item = char>) -> String {
    let mut letters: Vec<char> = letters.collect();
    letters.sort_unstable();
    letters.into_iter().collect()
}

/// Returns the letters that both texts contain, in lower case and each once.
fn common(these: &str, those: &str) -> String {
    let (mut common, those) = (String::new(), those.to_lowercase());
    for letter in these.to_lowercase().chars() {
        if those.contains(letter) && !common.contains(letter) {
            common.push(letter);
        }
    }
    common
}

/// Checks the properties that hold after any packing.
fn check(groups: &Groups, existing: &[Slice], limit: usize) -> Result<(), TestCaseError> {
    let (slices, writes) = packed(groups, existing, limit);
    for write in &writes {
        if let Write { before: Some(before), after: Some(after) } = write {
            prop_assert_ne!(before, after, "written for nothing");
            prop_assert_eq!(before.family, after.family, "the family is immutable");
            if before.group == after.group {
                let stays = common(&before.letters, &after.letters);
                prop_assert_eq!(common(&after.letters, &stays), stays, "moved: {:?}", write);
            }
        }
    }
    for (number, wanted) in groups {
        let of_group: Vec<_> = slices.iter().filter(|slice| slice.group == Some(*number)).collect();
        let found = sorted(of_group.iter().flat_map(|slice| slice.letters.chars()));
        prop_assert_eq!(found, sorted(wanted.chars()), "group {}", number);
        let empty = of_group.iter().filter(|slice| slice.letters.is_empty()).count();
        prop_assert!(empty <= usize::from(wanted.is_empty()), "{} empty slices of {}", empty, number);
    }
    for slice in &slices {
        prop_assert!(slice.intact && slice.letters.len() <= limit, "{:?}", slice);
        prop_assert!(slice.group.is_some_and(|group| groups.contains_key(&group)), "{:?}", slice);
    }
    prop_assert!(packed(groups, &slices, limit).1.is_empty(), "the second packing writes too");
    let reversed = groups.iter().map(|(number, group)| (*number, group.chars().rev().collect())).collect();
    prop_assert_eq!(packed(&reversed, existing, limit).0, slices, "the order of endpoints matters");
    Ok(())
}

/// Change of a group's endpoints. A number selects an endpoint of the group.
#[derive(Clone, Debug)]
enum Change {
    Toggle(usize, u8),
    /// The details of an endpoint change.
    Touch(usize, u8),
    /// The group consists of its first endpoints, up to this number.
    Fill(usize, u8),
    Clear(usize),
    /// The service loses or gets a network.
    Network(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (0..4_usize, 0..13_u8).prop_map(|(group, number)| Change::Toggle(group, number)),
        2 => (0..4_usize, 0..13_u8).prop_map(|(group, number)| Change::Touch(group, number)),
        2 => (0..4_usize, 0..13_u8).prop_map(|(group, count)| Change::Fill(group, count)),
        1 => (0..4_usize).prop_map(Change::Clear),
        1 => (0..2_usize).prop_map(Change::Network),
    ]
}

/// Endpoints of a service, and the network that it lacks.
#[derive(Default)]
struct Service {
    /// Whether each letter of a group exists, and whether it is a capital.
    groups: [BTreeMap<char, bool>; 4],
    without: Option<usize>,
}

impl Service {
    fn take(&mut self, change: &Change) {
        // No two networks have an address in common.
        let letter = |group: usize, number: u8| char::from(b"an"[group % 2] + number);
        match *change {
            Change::Toggle(group, number) => {
                let letter = letter(group, number);
                if self.groups[group].remove(&letter).is_none() {
                    self.groups[group].insert(letter, false);
                }
            }
            Change::Touch(group, number) => {
                self.groups[group].entry(letter(group, number)).and_modify(|capital| *capital = !*capital);
            }
            Change::Fill(group, count) => {
                for number in 0..count {
                    self.groups[group].entry(letter(group, number)).or_default();
                }
            }
            Change::Clear(group) => self.groups[group].clear(),
            Change::Network(network) => {
                self.without = (self.without != Some(network)).then_some(network);
            }
        }
    }

    fn wanted(&self) -> Groups {
        let text = |group: &BTreeMap<char, bool>| {
            let letters = group.iter();
            letters
                .map(|(letter, capital)| if *capital { letter.to_ascii_uppercase() } else { *letter })
                .collect()
        };
        let groups = self.groups.iter().enumerate();
        groups
            .filter(|(number, _)| self.without != Some(number % 2))
            .map(|(number, group)| (number, text(group)))
            .collect()
    }
}

fn slice() -> impl Strategy<Value = Slice> {
    let family = prop_oneof![4 => (0..4_usize).prop_map(|group| Some(FAMILIES[group])), 1 => Just(None)];
    (prop::option::weighted(0.8, 0..4_usize), family, prop::bool::weighted(0.8), "[a-zA-Z.]{0,7}").prop_map(
        |(group, family, intact, letters)| {
            let family = group.map_or(family, |group| Some(FAMILIES[group]));
            Slice { family, group, intact, letters }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Starts from any state, such as one after edits by others and lost writes.
    #[test]
    fn slices_in_any_state_get_the_wanted_endpoints(
        changes in vec(change(), 0..20),
        existing in vec(slice(), 0..8),
        limit in 1..6_usize,
    ) {
        let mut service = Service::default();
        changes.iter().for_each(|change| service.take(change));
        check(&service.wanted(), &existing, limit)?;
    }

    /// Starts from slices that were packed with a lower limit.
    #[test]
    fn merging_loses_no_endpoint_and_ends_when_no_two_slices_fit_into_one(
        changes in vec(change(), 1..20),
        (lower, limit) in (1..4_usize, 4..8_usize),
    ) {
        let mut service = Service::default();
        changes.iter().for_each(|change| service.take(change));
        let wanted = service.wanted();
        let mut slices = packed(&wanted, &[], lower).0;
        loop {
            let (merged, writes) = packed_with(&wanted, &slices, limit, true);
            // Endpoints are added before others are removed: an endpoint of a deleted slice is in a
            // remaining one.
            for write in writes.iter().filter(|write| write.after.is_none()) {
                let gone = &write.before.as_ref().unwrap().letters;
                let stays = |slice: &Slice| common(gone, &slice.letters).len() == gone.len();
                prop_assert!(merged.iter().any(stays), "{} is lost", gone);
            }
            check(&wanted, &merged, limit)?;
            prop_assert!(writes.is_empty() || merged.len() < slices.len());
            slices = merged;
            if writes.is_empty() {
                break;
            }
        }
        for (place, slice) in slices.iter().enumerate() {
            let others = slices[place + 1..].iter().filter(|other| other.group == slice.group);
            for other in others {
                prop_assert!(slice.letters.len() + other.letters.len() > limit, "{:?} {:?}", slice, other);
            }
        }
    }

    /// Starts from slices that only the controller has written.
    #[test]
    fn a_change_takes_the_fewest_writes_and_no_more_than_in_kubernetes(
        history in vec(change(), 0..30),
        changes in vec(change(), 1..12),
        limit in 1..5_usize,
    ) {
        let (mut service, mut existing) = (Service::default(), Vec::new());
        for change in &history {
            service.take(change);
            existing = packed(&service.wanted(), &existing, limit).0;
        }
        changes.iter().for_each(|change| service.take(change));
        let wanted = service.wanted();
        check(&wanted, &existing, limit)?;
        let writes = packed(&wanted, &existing, limit).1;
        prop_assert_eq!(writes.len(), cost::fewest(&wanted, &existing, limit), "{:?}", writes);
        // Kubernetes keeps one empty slice per family, even next to others. Here each network has
        // its own, which is filled or deleted.
        let is_empty = |slice: &Option<Slice>| slice.as_ref().is_some_and(|slice| slice.letters.is_empty());
        let placeholders = writes.iter().filter(|write| is_empty(&write.before) || is_empty(&write.after));
        let core = cost::of_core(&wanted, &existing, limit);
        prop_assert!(writes.len() - placeholders.count() <= core, "{:?}: core takes {}", writes, core);
    }
}

#[test]
fn a_large_group_is_packed_full_and_each_restart_is_one_write() {
    // Letters of a script with many letters and no capitals.
    let letter = |number| char::from_u32(0x4e00 + number).unwrap();
    let mut group: Vec<char> = (0..5_000).map(letter).collect();
    let wanted = |group: &[char]| Groups::from([(0, group.iter().collect())]);
    let (mut slices, writes) = packed(&wanted(&group), &[], 100);
    assert_eq!((slices.len(), writes.len()), (50, 50));
    for number in 0..50 {
        group[number * 7] = letter(5_000 + number as u32);
        let writes;
        (slices, writes) = packed(&wanted(&group), &slices, 100);
        assert_eq!((slices.len(), writes.len()), (50, 1));
    }
}
