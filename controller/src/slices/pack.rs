//! Which endpoint goes into which slice, with the fewest writes. Pure, and the same for every kind of slice.
//!
//! It is what core's EndpointSlice controller does, with a group (network and family) where core has a set of ports:
//!
//! 1. A slice keeps those of its endpoints that are still wanted, each in its place; the others are dropped.
//! 2. Slices that must be written anyway are filled with what is missing, the fullest first, the emptied ones last.
//!    What is still empty then is spare.
//! 3. What is missing still goes into spare slices of the same family, whichever group had them; what then remains into
//!    the one unchanged slice that has the fewest free places among those that can take it all; else into new slices.
//! 4. Spare slices are deleted, but a group that has no endpoints keeps one slice, if it had any.
//!
//! Nothing is moved from one slice to another, so nothing is ever rebalanced.

use std::cmp::Reverse;
use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::vec::IntoIter;

use multinet_crds::IpFamily;

/// An endpoint, as far as packing has to know it.
pub(crate) trait Entry {
    /// What makes it the same endpoint whatever else is said of it. `None` without exactly one valid address: no
    /// such endpoint is ever wanted.
    fn identity(&self) -> Option<Identity<'_>>;

    /// Whether `other`, which has the same identity, would be read as saying the same.
    fn is_equivalent(&self, other: &Self) -> bool;
}

/// What makes two endpoints the same. A pod that is created again under its name and address is the same endpoint,
/// although with another uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Identity<'a> {
    pub(crate) address: IpAddr,
    pub(crate) hostname: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

/// A group of endpoints that share their slices with no other.
pub(crate) struct Wanted<'a, E> {
    /// The family of their addresses.
    pub(crate) family: IpFamily,
    /// The endpoints. Of those with the same identity the first one counts.
    pub(crate) entries: Vec<&'a E>,
}

/// A slice that exists.
pub(crate) struct Found<'a, E> {
    /// The family of its addresses, for life. `None`: it is of no use to any group.
    pub(crate) family: Option<IpFamily>,
    /// The group that it says it is of, if that is wanted.
    pub(crate) group: Option<usize>,
    /// Whether all that is not endpoints is as it should be.
    pub(crate) intact: bool,
    /// Its endpoints.
    pub(crate) entries: &'a [E],
}

/// What becomes of all slices.
pub(crate) struct Packed<'a, E> {
    /// What becomes of each slice that exists, in their order.
    pub(crate) fates: Vec<Fate<'a, E>>,
    /// The new slices.
    pub(crate) create: Vec<Content<'a, E>>,
}

/// What becomes of a slice.
pub(crate) enum Fate<'a, E> {
    /// It stays as it is.
    Keep,
    /// It is written anew.
    Write(Content<'a, E>),
    /// It goes.
    Delete,
}

/// What a slice is to hold.
pub(crate) struct Content<'a, E> {
    /// The group that it is of.
    pub(crate) group: usize,
    /// Its endpoints.
    pub(crate) entries: Vec<&'a E>,
}

/// Packs. `found` comes in some fixed order (that of the names), which settles ties. `merges`: slices are emptied into one of the
/// same group that has room for them, as many as that takes.
pub(crate) fn pack<'a, E: Entry>(
    wanted: &[Wanted<'a, E>],
    found: &[Found<'a, E>],
    limit: usize,
    merges: bool,
) -> Packed<'a, E> {
    let limit = limit.max(1);
    let groups: Vec<GroupEntries<'a, E>> = wanted.iter().map(GroupEntries::new).collect();

    let mut spares = Spares::default();
    let mut members = vec![Vec::new(); groups.len()];
    for (slice, found) in found.iter().enumerate() {
        match found.group.or_else(|| adopter(&groups, found)) {
            Some(group) => members[group].push(slice),
            None => spares.add(found.family, slice),
        }
    }

    let mut slices_by_group = Vec::with_capacity(groups.len());
    for (group, members) in groups.iter().zip(&members) {
        let mut own_slices = group.keep(found, members, limit);
        own_slices.fill_written(limit);
        for slice in own_slices.clear_empty() {
            spares.add(Some(group.family), slice);
        }
        slices_by_group.push(own_slices);
    }

    let mut packing = Packed { fates: found.iter().map(|_| Fate::Delete).collect(), create: Vec::new() };
    for (group, mut own_slices) in slices_by_group.into_iter().enumerate() {
        own_slices.fill_spares(groups[group].family, &mut spares, limit);
        packing
            .create
            .extend(own_slices.fill_rest(limit).into_iter().map(|entries| Content { group, entries }));
        if merges {
            own_slices.merge(limit);
        }
        for member in own_slices.members {
            packing.fates[member.slice] = if member.changed {
                Fate::Write(Content { group, entries: member.entries })
            } else {
                Fate::Keep
            };
        }
    }
    packing
}

/// The group that takes in a slice of no wanted group: the one that wants most of its endpoints, if any does. So a
/// network that is only referred to in another way, or that somebody has written wrongly, keeps its slices.
fn adopter<E: Entry>(groups: &[GroupEntries<'_, E>], slice: &Found<'_, E>) -> Option<usize> {
    let family = slice.family?;
    let identities: Vec<_> = slice.entries.iter().filter_map(E::identity).collect();
    (groups.iter().enumerate())
        .filter(|(_, group)| group.family == family)
        .map(|(number, group)| (group.count(&identities), number))
        .filter(|(count, _)| *count > 0)
        .max_by_key(|(count, number)| (*count, Reverse(*number)))
        .map(|(_, number)| number)
}

/// Slices that would be deleted, and so cost nothing to write.
#[derive(Default)]
struct Spares(BTreeMap<IpFamily, BTreeSet<usize>>);

impl Spares {
    fn add(&mut self, family: Option<IpFamily>, slice: usize) {
        if let Some(family) = family {
            self.0.entry(family).or_default().insert(slice);
        }
    }

    fn take(&mut self, family: IpFamily) -> Option<usize> {
        self.0.get_mut(&family)?.pop_first()
    }
}

/// The endpoints of a group, to be looked up.
struct GroupEntries<'a, E> {
    family: IpFamily,
    entries: Vec<(Identity<'a>, &'a E)>,
    places: HashMap<Identity<'a>, usize>,
}

/// What a slice holds of its group.
struct SliceContents {
    slice: usize,
    /// Where its endpoints stand among the wanted ones, in its own order.
    places: Vec<usize>,
    /// Whether it has to be written even if all of `places` stay.
    changed: bool,
}

impl<'a, E: Entry> GroupEntries<'a, E> {
    fn new(wanted: &Wanted<'a, E>) -> Self {
        let mut entries = Vec::with_capacity(wanted.entries.len());
        let mut places = HashMap::with_capacity(wanted.entries.len());
        for &entry in &wanted.entries {
            if let Some(identity) = entry.identity()
                && let Slot::Vacant(vacant) = places.entry(identity)
            {
                vacant.insert(entries.len());
                entries.push((identity, entry));
            }
        }
        Self { family: wanted.family, entries, places }
    }

    /// How many of these endpoints are wanted.
    fn count(&self, identities: &[Identity<'_>]) -> usize {
        identities.iter().filter(|identity| self.places.contains_key(identity)).count()
    }

    /// Lets each of the group's slices keep what is wanted of it, so that each endpoint stays in one place.
    fn keep(&self, found: &[Found<'a, E>], members: &[usize], limit: usize) -> GroupSlices<'a, E> {
        let mut seen = vec![usize::MAX; self.entries.len()];
        let mut contents: Vec<SliceContents> =
            members.iter().map(|&slice| self.read(slice, &found[slice], &mut seen, limit)).collect();
        // Where an endpoint is found in several slices, the one that could stay as it is keeps it. Between such, the
        // fuller: the other may turn out to be empty.
        contents.sort_by_key(|contents| (contents.changed, Reverse(contents.places.len())));

        let mut placed = vec![false; self.entries.len()];
        let members =
            contents.into_iter().map(|contents| self.member(contents, &mut placed, limit)).collect();
        let mut missing: Vec<_> =
            self.entries.iter().zip(placed).filter(|(_, placed)| !placed).map(|(entry, _)| *entry).collect();
        missing.sort_unstable_by_key(|(identity, _)| *identity);
        let missing: Vec<_> = missing.into_iter().map(|(_, entry)| entry).collect();
        GroupSlices { members, missing: missing.into_iter(), wanted: !self.entries.is_empty() }
    }

    /// Reads a slice by itself. `seen` says for each wanted endpoint which slice had it last.
    fn read(&self, slice: usize, found: &Found<'a, E>, seen: &mut [usize], limit: usize) -> SliceContents {
        let mut places = Vec::with_capacity(found.entries.len());
        let mut changed = !found.intact || found.group.is_none();
        for entry in found.entries {
            let Some(&place) = entry.identity().and_then(|identity| self.places.get(&identity)) else {
                changed = true;
                continue;
            };
            changed |= seen[place] == slice || !self.entries[place].1.is_equivalent(entry);
            seen[place] = slice;
            places.push(place);
        }
        changed |= places.len() > limit;
        SliceContents { slice, places, changed }
    }

    /// What a slice keeps: what no other slice has kept already, up to the limit.
    fn member(&self, contents: SliceContents, placed: &mut [bool], limit: usize) -> PackedSlice<'a, E> {
        let SliceContents { slice, places, mut changed } = contents;
        let mut entries = Vec::with_capacity(places.len().min(limit));
        for place in places {
            if placed[place] || entries.len() == limit {
                changed = true;
            } else {
                placed[place] = true;
                entries.push(self.entries[place].1);
            }
        }
        PackedSlice { slice, changed, entries }
    }
}

/// The slices of a group while they are filled.
struct GroupSlices<'a, E> {
    members: Vec<PackedSlice<'a, E>>,
    /// The endpoints that are in no slice yet.
    missing: IntoIter<&'a E>,
    /// Whether the group has endpoints at all.
    wanted: bool,
}

/// A slice of a group.
struct PackedSlice<'a, E> {
    slice: usize,
    /// Whether it has to be written.
    changed: bool,
    entries: Vec<&'a E>,
}

impl<'a, E> PackedSlice<'a, E> {
    fn fill(&mut self, missing: &mut IntoIter<&'a E>, limit: usize) {
        self.changed = true;
        self.entries.extend(missing.take(limit.saturating_sub(self.entries.len())));
    }
}

impl<'a, E> GroupSlices<'a, E> {
    /// Fills the slices that are written anyway. An empty slice is one of them where there are endpoints: it has to be
    /// filled or go.
    fn fill_written(&mut self, limit: usize) {
        if !self.wanted {
            return;
        }
        self.members.sort_by_key(|member| (Reverse(member.entries.len()), member.slice));
        for member in self.members.iter_mut().filter(|member| member.changed || member.entries.is_empty()) {
            member.fill(&mut self.missing, limit);
        }
    }

    /// Parts with the slices that are empty. A group without endpoints keeps one of them: the first, which need not be
    /// written, if any is such.
    fn clear_empty(&mut self) -> Vec<usize> {
        let first = usize::from(!self.wanted).min(self.members.len());
        let empty = self.members.extract_if(first.., |member| member.entries.is_empty());
        empty.map(|member| member.slice).collect()
    }

    /// Takes spare slices for what is missing.
    fn fill_spares(&mut self, family: IpFamily, spares: &mut Spares, limit: usize) {
        while self.missing.len() > 0
            && let Some(slice) = spares.take(family)
        {
            let mut member = PackedSlice { slice, changed: true, entries: Vec::new() };
            member.fill(&mut self.missing, limit);
            self.members.push(member);
        }
    }

    /// Finds room for what is still missing, in an unchanged slice and in new ones. Returns the new ones.
    fn fill_rest(&mut self, limit: usize) -> Vec<Vec<&'a E>> {
        let mut create = Vec::new();
        while self.missing.len() > 0 {
            let missing = self.missing.len();
            let best = (self.members.iter_mut())
                .filter(|member| !member.changed && member.entries.len() + missing <= limit)
                .max_by_key(|member| (member.entries.len(), Reverse(member.slice)));
            match best {
                Some(member) => member.fill(&mut self.missing, limit),
                None => create.push(self.missing.by_ref().take(limit).collect()),
            }
        }
        create
    }

    /// Empties the smallest slices into the fullest one that has room for any of them.
    fn merge(&mut self, limit: usize) {
        self.members.sort_by_key(|member| (Reverse(member.entries.len()), member.slice));
        let Some(smallest) = self.members.last().map(|member| member.entries.len()) else { return };
        let last = self.members.len() - 1;
        let has_room = |member: &PackedSlice<'a, E>| member.entries.len() + smallest <= limit;
        let Some(target) = self.members.iter().position(has_room).filter(|&target| target < last) else {
            return;
        };
        let emptied = self.members.split_off(target + 1);
        let mut rest = emptied.into_iter().rev().peekable();
        let member = &mut self.members[target];
        while let Some(emptied) = rest.next_if(|next| member.entries.len() + next.entries.len() <= limit) {
            member.changed = true;
            member.entries.extend(emptied.entries);
        }
        self.members.extend(rest);
    }
}

#[cfg(test)]
mod tests;
