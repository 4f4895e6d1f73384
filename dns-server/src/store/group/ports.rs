//! The named ports of a group's endpoints, from which its SRV records are computed. The records are
//! not stored one by one.
//!
//! ```text
//!  targets    [host] [host] [host] …      labels with a named port, 4 bytes each
//!     │ offered (if the targets differ)
//!     v
//!  offers     [port, number] …            the ports of such a target; groups of a service
//!     │                                   with the same named ports share them
//!     v
//!  all_ports  [number, weight] …          the same for all ports together, each record once
//! ```
//!
//! Nearly always, all slices of a service have the same ports, and there is one offer. Several
//! exist while slices are rewritten after a change of the ports, or if slices that were written by
//! hand have different ports.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use multinet_crds::Protocol;

use super::EndpointRef;
use crate::store::name::MAX_LABEL;
use crate::store::slice::{Port, Slice};

/// Named ports of a group's endpoints, from which its SRV records are computed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ports {
    table: Arc<PortTable>,
    /// Weight of the SRV records of each named port, by the port's position.
    weights: Box<[u16]>,
    /// Positions of the targets: for each label with a named port, that of its first host. Sorted.
    targets: Targets,
    /// Index of each target's offer. Empty if all targets have the first offer.
    offered: Box<[u32]>,
    /// For each offer, the SRV records at the base name, for all ports together.
    all_ports: Box<[AllPorts]>,
    /// For each named port, the targets that have it. Empty if each target has one record for each
    /// port.
    columns: Box<[Column]>,
    /// Sets of targets that have a port, which [`Column::subset`] refers to.
    subsets: Box<[Targets]>,
}

/// Sorted positions of targets: indices into a group's hosts or into [`Ports::targets`].
type Targets = Box<[u32]>;

/// Pairs of a port number and a weight, sorted: a target's SRV records at the base name.
type AllPorts = Box<[(u16, u16)]>;

/// The named ports of a group, and the different offers that its targets make of them.
#[derive(Debug, Default, PartialEq, Eq)]
struct PortTable {
    sets: Box<[NamedPort]>,
    offers: Box<[Offer]>,
}

/// A target's ports: pairs of a named port (by its position) and a port number, sorted. A named
/// port has several numbers if slices disagree.
type Offer = Box<[(u32, u16)]>;

/// A named port of a group, at the name `_<port>._<proto>`.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// Protocol of the port.
    pub protocol: Protocol,
    /// Label `_<port>` in wire format, lowercased.
    label: Box<[u8]>,
    position: u32,
}

/// Shape of a named port's records if some targets lack the port, or have several numbers for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Column {
    /// Largest number of records that a target has for the port.
    width: u32,
    /// Index into [`Ports::subsets`] of the targets that have the port, or [`ALL`].
    subset: u32,
}

const ALL: u32 = u32::MAX;

/// One SRV record. Its target is the label of the host at position `host`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SrvRecord {
    host: u32,
    /// Port number at the target.
    pub port: u16,
    /// Weight, as CoreDNS computes it: 100 divided by the number of endpoints, at least 1.
    pub weight: u16,
}

/// The SRV records of a named port, or of all ports together. Records with the same target are
/// adjacent.
///
/// They are numbered by slot. Each target has as many slots as the largest count of records of a
/// target, so a slot may be empty.
#[derive(Debug, Clone, Copy)]
pub struct SrvRecords<'a> {
    ports: &'a Ports,
    /// Position of the named port; `None` for all ports of the group together.
    set: Option<u32>,
}

impl NamedPort {
    /// Returns the label `_<port>` in wire format, lowercased.
    pub fn label(&self) -> &[u8] {
        &self.label
    }
}

impl SrvRecord {
    /// Length in bytes of an SRV record's data before the target: priority, weight, port (RFC
    /// 2782).
    pub const FIXED: usize = 6;

    /// Returns the position in the group of the first host that has the target's label.
    pub fn host(&self) -> u32 {
        self.host
    }

    /// Appends the SRV record's data (RFC 2782). The target's name is `label` in front of `base`.
    pub fn push_data(&self, out: &mut Vec<u8>, label: &[u8], base: &[u8]) {
        out.extend_from_slice(&[0, 0]); // priority
        out.extend_from_slice(&self.weight.to_be_bytes());
        out.extend_from_slice(&self.port.to_be_bytes());
        out.extend_from_slice(label);
        out.extend_from_slice(base);
    }
}

impl<'a> SrvRecords<'a> {
    /// Returns the number of slots for records, of which some may be empty.
    pub fn slots(&self) -> usize {
        let (width, subset) = self.shape();
        width * subset.map_or(self.ports.targets.len(), <[u32]>::len)
    }

    /// Returns the record at a slot. Returns `None` if the slot is empty or behind the last one.
    pub fn get(&self, slot: usize) -> Option<SrvRecord> {
        let ports = self.ports;
        let (width, subset) = self.shape();
        let (target, nth) = (slot.checked_div(width)?, slot % width);
        let target = match subset {
            Some(subset) => *subset.get(target)? as usize,
            None => target,
        };
        let host = *ports.targets.get(target)?;
        let offer = if ports.offered.is_empty() { 0 } else { ports.offered[target] as usize };
        let (port, weight) = match self.set {
            None => *ports.all_ports[offer].get(nth)?,
            Some(set) => {
                let offer = &ports.table.offers[offer];
                let begin = offer.partition_point(|(known, _)| *known < set);
                let (_, number) = *offer.get(begin + nth).filter(|(known, _)| *known == set)?;
                (number, ports.weights[set as usize])
            }
        };
        Some(SrvRecord { host, port, weight })
    }

    /// Returns the first record in `slot` or a later slot, with its slot.
    pub fn first_from(&self, slot: usize) -> Option<(usize, SrvRecord)> {
        (slot..self.slots()).find_map(|slot| Some((slot, self.get(slot)?)))
    }

    /// Returns an iterator over the records in all slots.
    pub fn iter(&self) -> impl Iterator<Item = SrvRecord> + use<'a> {
        let records = *self;
        (0..records.slots()).filter_map(move |slot| records.get(slot))
    }

    /// Returns the number of slots of each target, and the targets that have slots (`None` if all
    /// have).
    fn shape(&self) -> (usize, Option<&'a [u32]>) {
        let ports = self.ports;
        let Some(set) = self.set else {
            return (ports.all_ports.iter().map(|all_ports| all_ports.len()).max().unwrap_or_default(), None);
        };
        ports.columns.get(set as usize).map_or((1, None), |column| {
            (column.width as usize, ports.subsets.get(column.subset as usize).map(|subset| &**subset))
        })
    }
}

impl Ports {
    /// Collects the ports of a group. `mentions` are sorted by label, then by address. `labels`
    /// has, for each mention, the position of its label's first host.
    pub(super) fn new(slices: &[Arc<Slice>], mentions: &[EndpointRef], labels: &[u32]) -> Self {
        let lists = PortLists::new(slices, mentions);
        let mut offers = OfferSet::new(lists.entries.len());
        let (mut targets, mut offered) = (Vec::new(), Vec::new());
        let mut counts = EndpointCounts::new(&lists);
        let mut rest = mentions;
        for same in labels.chunk_by(|one, two| one == two) {
            let (of_label, others) = rest.split_at(same.len());
            rest = others;
            counts.add(slices, of_label, &lists);
            // An endpoint without a name cannot be a target.
            if of_label.first().is_some_and(|first| first.endpoint(slices).has_name())
                && let Some(offer) = offers.of(of_label, &lists)
            {
                targets.push(same[0]);
                offered.push(offer);
            }
        }
        let weights: Box<[u16]> = counts.finish(&lists).into_iter().map(weight).collect();
        let offers: Box<[Offer]> = offers.offers.into();
        let all_ports = offers.iter().map(|offer| {
            let mut all_ports: Vec<(u16, u16)> =
                offer.iter().map(|&(set, number)| (number, weights[set as usize])).collect();
            // Two named ports with the same number give equal records here, and an RRset has no
            // duplicates (RFC 2181 §5).
            all_ports.sort_unstable();
            all_ports.dedup();
            all_ports.into()
        });
        let all_ports = all_ports.collect();
        let (columns, subsets) = columns(&offers, weights.len(), &offered);
        if offers.len() == 1 {
            offered = Vec::new();
        }
        let sets = lists.names.iter().zip(0..).map(|(&(protocol, name), position)| NamedPort {
            protocol,
            label: port_label(name),
            position,
        });
        let table = Arc::new(PortTable { sets: sets.collect(), offers });
        Self { table, weights, targets: targets.into(), offered: offered.into(), all_ports, columns, subsets }
    }

    /// Shares the table of another group, if both are equal, to save memory.
    pub(super) fn share(&mut self, other: &Self) {
        if self.table == other.table {
            self.table = Arc::clone(&other.table);
        }
    }

    /// Returns the group's named ports, sorted by protocol and name.
    pub(super) fn sets(&self) -> &[NamedPort] {
        &self.table.sets
    }

    /// Returns the SRV records of one named port.
    pub(super) fn of(&self, port: &NamedPort) -> SrvRecords<'_> {
        SrvRecords { ports: self, set: Some(port.position) }
    }

    /// Returns the SRV records of all ports together, without duplicates.
    pub(super) fn all(&self) -> SrvRecords<'_> {
        SrvRecords { ports: self, set: None }
    }
}

/// The distinct lists of ports that the slices of a service have.
struct PortLists<'a> {
    /// Index in `entries` of each slice's port list.
    of_slice: Vec<usize>,
    /// Protocols and names of ports that targets have, sorted.
    names: Vec<(Protocol, &'a str)>,
    /// For each port list, pairs of a port's position in `names` and its number.
    entries: Vec<Vec<(u32, u16)>>,
}

impl<'a> PortLists<'a> {
    fn new(slices: &'a [Arc<Slice>], mentions: &[EndpointRef]) -> Self {
        // The index makes slices share equal lists, so comparing pointers finds nearly all
        // duplicates. A duplicate that remains costs memory only.
        let mut known: HashMap<*const Port, usize> = HashMap::new();
        let mut lists: Vec<&'a [Port]> = Vec::new();
        let list = |slice: &'a Arc<Slice>| {
            *known.entry(slice.ports.as_ptr()).or_insert_with(|| {
                lists.push(&slice.ports);
                lists.len() - 1
            })
        };
        let of_slice: Vec<usize> = slices.iter().map(list).collect();
        let mut has_target = vec![false; lists.len()];
        for mention in mentions.iter().filter(|mention| mention.endpoint(slices).has_name()) {
            has_target[of_slice[mention.slice as usize]] = true;
        }
        let named = |port: &&Port| !port.name.is_empty() && port.name.len() < MAX_LABEL;
        let seen = lists.iter().zip(has_target).filter(|(_, has_target)| *has_target);
        let names: BTreeSet<(Protocol, &str)> = seen
            .flat_map(|(list, _)| list.iter().filter(named))
            .map(|port| (port.protocol, &*port.name))
            .collect();
        let names: Vec<_> = names.into_iter().collect();
        let entries = lists.iter().map(|list| {
            let position = |port: &Port| names.binary_search(&(port.protocol, &*port.name)).ok();
            let entry = |port: &Port| Some((position(port)? as u32, port.number));
            let mut entries: Vec<(u32, u16)> = list.iter().filter(named).filter_map(entry).collect();
            entries.sort_by_key(|(set, _)| *set);
            entries.dedup_by_key(|(set, _)| *set);
            entries
        });
        let entries = entries.collect();
        Self { of_slice, names, entries }
    }

    fn of(&self, mention: &EndpointRef) -> usize {
        self.of_slice[mention.slice as usize]
    }

    /// Returns the indices of the port lists that the mentioned endpoints have, each once.
    fn of_all(&self, mentions: &[EndpointRef]) -> BTreeSet<usize> {
        mentions.iter().map(|mention| self.of(mention)).collect()
    }

    /// Tells whether all mentioned endpoints have the same port list.
    fn is_one(&self, mentions: &[EndpointRef]) -> bool {
        mentions.windows(2).all(|two| self.of(&two[0]) == self.of(&two[1]))
    }
}

/// The distinct offers of all targets, in the order of their first occurrence.
struct OfferSet {
    offers: Vec<Offer>,
    known: HashMap<Vec<(u32, u16)>, u32>,
    /// For each port list, the index of its offer; `None` until the first target with only that
    /// list.
    of_list: Vec<Option<u32>>,
}

impl OfferSet {
    fn new(lists: usize) -> Self {
        Self { offers: Vec::new(), known: HashMap::new(), of_list: vec![None; lists] }
    }

    /// Returns the offer of a label's mentions, or `None` if they have no named port.
    fn of(&mut self, mentions: &[EndpointRef], lists: &PortLists<'_>) -> Option<u32> {
        let first = lists.of(mentions.first()?);
        if !lists.is_one(mentions) {
            let all = lists.of_all(mentions).into_iter();
            let mut all: Vec<(u32, u16)> = all.flat_map(|list| lists.entries[list].iter().copied()).collect();
            all.sort_unstable();
            all.dedup();
            return self.intern(all);
        }
        if self.of_list[first].is_none() {
            self.of_list[first] = self.intern(lists.entries[first].clone());
        }
        self.of_list[first]
    }

    fn intern(&mut self, offer: Vec<(u32, u16)>) -> Option<u32> {
        if offer.is_empty() {
            return None;
        }
        Some(*self.known.entry(offer).or_insert_with_key(|offer| {
            self.offers.push(offer.as_slice().into());
            self.offers.len() as u32 - 1
        }))
    }
}

/// Number of endpoints that have each named port, from which weights are computed.
struct EndpointCounts {
    by_list: Vec<usize>,
    by_set: Vec<usize>,
}

impl EndpointCounts {
    fn new(lists: &PortLists<'_>) -> Self {
        Self { by_list: vec![0; lists.entries.len()], by_set: vec![0; lists.names.len()] }
    }

    /// Counts the endpoints with one label for each of their named ports, each address once.
    fn add(&mut self, slices: &[Arc<Slice>], mentions: &[EndpointRef], lists: &PortLists<'_>) {
        let address = |mention: &EndpointRef| -> IpAddr { mention.endpoint(slices).address };
        for same in mentions.chunk_by(|one, two| address(one) == address(two)) {
            if lists.is_one(same) {
                self.by_list[lists.of(&same[0])] += 1;
                continue;
            }
            let all = lists.of_all(same).into_iter().flat_map(|list| &lists.entries[list]);
            let sets: BTreeSet<u32> = all.map(|(set, _)| *set).collect();
            sets.into_iter().for_each(|set| self.by_set[set as usize] += 1);
        }
    }

    fn finish(mut self, lists: &PortLists<'_>) -> Vec<usize> {
        for (entries, count) in lists.entries.iter().zip(self.by_list) {
            entries.iter().for_each(|(set, _)| self.by_set[*set as usize] += count);
        }
        self.by_set
    }
}

/// Returns the shape of each port's records, and the sets of targets that the shapes refer to. Both
/// are empty if each target has one record for each port.
fn columns(offers: &[Offer], sets: usize, offered: &[u32]) -> (Box<[Column]>, Box<[Targets]>) {
    let mut having: Vec<Vec<u32>> = vec![Vec::new(); sets];
    let mut widths = vec![0u32; sets];
    for (offer, number) in offers.iter().zip(0..) {
        for same in offer.chunk_by(|one, two| one.0 == two.0) {
            let set = same[0].0 as usize;
            having[set].push(number);
            widths[set] = widths[set].max(same.len() as u32);
        }
    }
    if offers.len() <= 1 && widths.iter().all(|width| *width == 1) {
        return Default::default();
    }
    let mut of_offer: Vec<Vec<u32>> = vec![Vec::new(); offers.len()];
    for (target, offer) in (0..).zip(offered) {
        of_offer[*offer as usize].push(target);
    }
    let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
    let mut subsets: Vec<Targets> = Vec::new();
    let columns = having.into_iter().zip(widths).map(|(having, width)| {
        if having.len() == offers.len() {
            return Column { width, subset: ALL };
        }
        let subset = *known.entry(having).or_insert_with_key(|having| {
            let mut targets: Vec<u32> =
                having.iter().flat_map(|offer| of_offer[*offer as usize].iter().copied()).collect();
            targets.sort_unstable();
            subsets.push(targets.into());
            subsets.len() as u32 - 1
        });
        Column { width, subset }
    });
    let columns = columns.collect();
    (columns, subsets.into())
}

/// Makes the label `_<port>` in wire format. The name is shorter than a label may be.
fn port_label(name: &str) -> Box<[u8]> {
    let length = (1 + name.len()) as u8;
    [length, b'_'].into_iter().chain(name.bytes().map(|byte| byte.to_ascii_lowercase())).collect()
}

fn weight(endpoints: usize) -> u16 {
    (100 / endpoints.clamp(1, 100)) as u16 // at most 100
}

#[cfg(test)]
mod tests;
