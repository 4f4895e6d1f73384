//! Decides which endpoint goes into which slice, with the fewest writes (pure). The same for all
//! kinds of slices.
//!
//! The algorithm is that of Kubernetes' EndpointSlice controller, with a group (network and family)
//! in the place of a set of ports:
//!
//! 1. A slice keeps its endpoints that are still wanted, in their places. Other endpoints are
//!    dropped.
//! 2. Slices that must be written anyway are filled with missing endpoints, fullest first. Slices
//!    that are empty then become spare.
//! 3. Endpoints that are still missing go into spare slices of the same family, from any group. The
//!    rest goes into the unchanged slice with the least free space that can take all of it, or else
//!    into new slices.
//! 4. Spare slices are deleted. A group without endpoints keeps one slice, if it had any.
//!
//! Endpoints are never moved between slices to balance them.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::vec::IntoIter;

use multinet_crds::IpFamily;

/// The properties of an endpoint that packing needs.
pub(crate) trait PackEntry {
    /// Returns the identity of the endpoint; `None` if it does not have exactly one valid address.
    /// Such an endpoint is never wanted.
    fn identity(&self) -> Option<Identity<'_>>;

    /// Returns whether readers would understand `other` in the same way. Both must have the same
    /// identity.
    fn is_equivalent(&self, other: &Self) -> bool;
}

/// Identity of an endpoint, apart from its details. A pod that is created again with the same name
/// and address is the same endpoint, even though its uid differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Identity<'a> {
    pub(crate) address: IpAddr,
    pub(crate) hostname: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

/// A group of endpoints, which shares its slices with no other group.
pub(crate) struct Wanted<'a, E> {
    pub(crate) family: IpFamily,
    /// Endpoints of the group. If several have the same identity, the first one counts.
    pub(crate) entries: Vec<&'a E>,
}

/// An existing slice of the service.
pub(crate) struct Found<'a, E> {
    /// Address family of the slice, which cannot be changed. `None` if the slice can only be
    /// deleted: its family is unknown, or a label that must never change has another value.
    pub(crate) family: Option<IpFamily>,
    /// Index of the group that the slice belongs to, if that group is wanted.
    pub(crate) group: Option<usize>,
    /// Whether everything of the slice but its endpoints is as wanted.
    pub(crate) intact: bool,
    pub(crate) entries: &'a [E],
}

/// Result of packing endpoints into slices.
pub(crate) struct Packed<'a, E> {
    /// Fate of each existing slice, in the order in which [`pack`] got the slices.
    pub(crate) fates: Vec<Fate<'a, E>>,
    /// Contents of the slices to create.
    pub(crate) create: Vec<Content<'a, E>>,
}

/// Fate of an existing slice.
pub(crate) enum Fate<'a, E> {
    /// The slice stays as it is.
    Keep,
    /// The slice is updated to this content.
    Write(Content<'a, E>),
    /// The slice is deleted.
    Delete,
}

/// Desired content of a slice.
pub(crate) struct Content<'a, E> {
    /// Index of the wanted group that the endpoints belong to.
    pub(crate) group: usize,
    pub(crate) entries: Vec<&'a E>,
}

/// Packs the wanted endpoints into slices of at most `limit` endpoints. The order of `found`
/// decides ties, so it must be fixed, such as the order of names. With `merges`, small slices of a
/// group are merged into one that has room.
pub(crate) fn pack<'a, E: PackEntry>(
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

/// Returns the group that adopts a slice without a wanted group: the one that wants most of its
/// endpoints, if any. A network thus keeps its slices if the reference to it is changed, or if
/// another writer edits the slice.
fn adopter<E: PackEntry>(groups: &[GroupEntries<'_, E>], slice: &Found<'_, E>) -> Option<usize> {
    let family = slice.family?;
    let identities: Vec<_> = slice.entries.iter().filter_map(E::identity).collect();
    (groups.iter().enumerate())
        .filter(|(_, group)| group.family == family)
        .map(|(number, group)| (group.count(&identities), number))
        .filter(|(count, _)| *count > 0)
        .max_by_key(|(count, number)| (*count, Reverse(*number)))
        .map(|(_, number)| number)
}

/// Slices that would otherwise be deleted, so that filling them costs no additional write.
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

/// The wanted endpoints of a group, indexed by identity.
struct GroupEntries<'a, E> {
    family: IpFamily,
    entries: Vec<(Identity<'a>, &'a E)>,
    places: HashMap<Identity<'a>, usize>,
}

/// The wanted endpoints that an existing slice contains.
struct SliceContents {
    slice: usize,
    /// Indexes of the slice's endpoints among those that the group wants, in the slice's order.
    places: Vec<usize>,
    /// Whether the slice must be written even if all of `places` stay.
    changed: bool,
}

impl<'a, E: PackEntry> GroupEntries<'a, E> {
    fn new(wanted: &Wanted<'a, E>) -> Self {
        let mut entries = Vec::with_capacity(wanted.entries.len());
        let mut places = HashMap::with_capacity(wanted.entries.len());
        for &entry in &wanted.entries {
            if let Some(identity) = entry.identity()
                && let Entry::Vacant(vacant) = places.entry(identity)
            {
                vacant.insert(entries.len());
                entries.push((identity, entry));
            }
        }
        Self { family: wanted.family, entries, places }
    }

    /// Returns how many of these identities are those of wanted endpoints.
    fn count(&self, identities: &[Identity<'_>]) -> usize {
        identities.iter().filter(|identity| self.places.contains_key(identity)).count()
    }

    /// Lets each slice of the group keep its wanted endpoints, each endpoint in one slice only.
    fn keep(&self, found: &[Found<'a, E>], members: &[usize], limit: usize) -> GroupSlices<'a, E> {
        let mut seen = vec![usize::MAX; self.entries.len()];
        let mut contents: Vec<SliceContents> =
            members.iter().map(|&slice| self.read(slice, &found[slice], &mut seen, limit)).collect();
        // If several slices contain an endpoint, it stays in one that need not be written
        // otherwise. Of such slices, the fullest keeps it; the others may become empty.
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

    /// Reads one slice. `seen` holds, for each wanted endpoint, the last slice that contained it.
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

    /// Returns the endpoints that a slice keeps: those that no slice has kept yet, up to the limit.
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

/// The slices of a group while they are being filled.
struct GroupSlices<'a, E> {
    members: Vec<PackedSlice<'a, E>>,
    /// Wanted endpoints that are in no slice yet.
    missing: IntoIter<&'a E>,
    /// Whether the group wants any endpoints.
    wanted: bool,
}

/// A slice while it is being filled.
struct PackedSlice<'a, E> {
    slice: usize,
    /// Whether the slice must be written, since it differs from the existing one.
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
    /// Fills the slices that must be written anyway. If the group has endpoints, an empty slice
    /// must be filled or deleted, so it counts among them.
    fn fill_written(&mut self, limit: usize) {
        if !self.wanted {
            return;
        }
        self.members.sort_by_key(|member| (Reverse(member.entries.len()), member.slice));
        for member in self.members.iter_mut().filter(|member| member.changed || member.entries.is_empty()) {
            member.fill(&mut self.missing, limit);
        }
    }

    /// Removes the empty slices and returns them. A group without endpoints keeps its first slice:
    /// `keep` has sorted unchanged slices first.
    fn clear_empty(&mut self) -> Vec<usize> {
        let first = usize::from(!self.wanted).min(self.members.len());
        let empty = self.members.extract_if(first.., |member| member.entries.is_empty());
        empty.map(|member| member.slice).collect()
    }

    /// Fills slices that would otherwise be deleted with endpoints that are in no slice yet.
    fn fill_spares(&mut self, family: IpFamily, spares: &mut Spares, limit: usize) {
        while self.missing.len() > 0
            && let Some(slice) = spares.take(family)
        {
            let mut member = PackedSlice { slice, changed: true, entries: Vec::new() };
            member.fill(&mut self.missing, limit);
            self.members.push(member);
        }
    }

    /// Puts the endpoints that are still missing into an unchanged slice or into new ones. Returns
    /// the contents of the new slices.
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

    /// Merges the smallest slices into the fullest one that has room for the smallest.
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
