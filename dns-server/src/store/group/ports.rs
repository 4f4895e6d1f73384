//! Which named ports the endpoints of a base name have: its SRV records, without one in memory for each.
//!
//! ```text
//!  targets   [host] [host] [host] …       labels with a port, 4 bytes each
//!     │ offered (if not all have the same)
//!     v
//!  offers    [port, number] …             what such a target offers; shared by all groups of a service that have the same
//!     │                                   named ports
//!     v
//!  every     [number, weight] …           the same for all ports together, each record once
//! ```
//!
//! Nearly always all slices of a service have the same ports, and there is one offer. There are several while slices are written anew
//! after a change of the ports, and where slices that were written by hand have other ones.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::EndpointRef;
use crate::store::name::MAX_LABEL;
use crate::store::slice::{Port, ProtocolLabel, Slice};

/// The SRV records of a base name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ports {
    table: Arc<PortTable>,
    /// The weight of each named port's records.
    weights: Box<[u16]>,
    /// Of each target, the position of its label's first host; ascending.
    targets: Targets,
    /// Of each target, its offer; empty if all have the first.
    offered: Box<[u32]>,
    /// Of each offer, what the records of all ports together say.
    all_ports: Box<[AllPorts]>,
    /// Of each named port, where its records are; empty if each target has one of each port.
    columns: Box<[Column]>,
    /// Targets that have some ports; see [`Column`].
    subsets: Box<[Targets]>,
}

/// Positions, ascending.
type Targets = Box<[u32]>;

/// Numbers and weights of records, ascending.
type AllPorts = Box<[(u16, u16)]>;

/// The named ports, and what targets offer of them.
#[derive(Debug, Default, PartialEq, Eq)]
struct PortTable {
    sets: Box<[NamedPort]>,
    offers: Box<[Offer]>,
}

/// Named ports, by their position, with numbers; ascending. One port has several numbers if slices disagree.
type Offer = Box<[(u32, u16)]>;

/// A named port.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// `_tcp` and so on.
    pub protocol: ProtocolLabel,
    /// `_<port>`, in wire format.
    label: Box<[u8]>,
    position: u32,
}

/// The records of a named port that not all targets have, or some several times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Column {
    /// The most numbers that a target has for it.
    width: u32,
    /// Which subset of the targets has it; [`ALL`] of them.
    subset: u32,
}

const ALL: u32 = u32::MAX;

/// One SRV record: its target is the label of the first of the hosts at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SrvRecord {
    host: u32,
    /// The port's number.
    pub port: u16,
    /// As CoreDNS gives it: 100 shared among the endpoints, at least 1.
    pub weight: u16,
}

/// The SRV records of a named port, or of all of them together; those of a target side by side.
#[derive(Debug, Clone, Copy)]
pub struct SrvRecords<'a> {
    ports: &'a Ports,
    /// The named port; none: all of them.
    set: Option<u32>,
}

impl NamedPort {
    /// `_<port>`, in wire format.
    pub fn label(&self) -> &[u8] {
        &self.label
    }
}

impl SrvRecord {
    /// Bytes of the record's data before its target (RFC 2782).
    pub const FIXED: usize = 6;

    /// The position of the first host with the target's label.
    pub fn host(&self) -> u32 {
        self.host
    }

    /// Appends the record's data; its target is `label` below `base`.
    pub fn push_data(&self, out: &mut Vec<u8>, label: &[u8], base: &[u8]) {
        out.extend_from_slice(&[0, 0]); // priority
        out.extend_from_slice(&self.weight.to_be_bytes());
        out.extend_from_slice(&self.port.to_be_bytes());
        out.extend_from_slice(label);
        out.extend_from_slice(base);
    }
}

impl<'a> SrvRecords<'a> {
    /// How many places there are for records. Some may be empty.
    pub fn slots(&self) -> usize {
        let (width, subset) = self.shape();
        width * subset.map_or(self.ports.targets.len(), <[u32]>::len)
    }

    /// The record at a slot; none if that is empty, or behind the last one.
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

    /// The first record at a slot or behind it, with its slot.
    pub fn first_from(&self, slot: usize) -> Option<(usize, SrvRecord)> {
        (slot..self.slots()).find_map(|slot| Some((slot, self.get(slot)?)))
    }

    /// All records.
    pub fn iter(&self) -> impl Iterator<Item = SrvRecord> + use<'a> {
        let records = *self;
        (0..records.slots()).filter_map(move |slot| records.get(slot))
    }

    /// How many places each target has, and which targets have any; none: all.
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
    /// The ports of endpoints that slices mention. Mentions are sorted by label, and those of a label by address; `labels`
    /// are, of each, the position of its label's first host.
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
            // A label that DNS cannot express is no target.
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
            // Two ports of one number say the same here, and a set holds no record twice (RFC 2181 §5).
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

    /// Keeps the names and numbers of ports once, if others are the same.
    pub(super) fn share(&mut self, other: &Self) {
        if self.table == other.table {
            self.table = Arc::clone(&other.table);
        }
    }

    /// The named ports, by protocol and name.
    pub(super) fn sets(&self) -> &[NamedPort] {
        &self.table.sets
    }

    /// The records of a named port.
    pub(super) fn of(&self, port: &NamedPort) -> SrvRecords<'_> {
        SrvRecords { ports: self, set: Some(port.position) }
    }

    /// The records of all ports together, each once.
    pub(super) fn all(&self) -> SrvRecords<'_> {
        SrvRecords { ports: self, set: None }
    }
}

/// The different lists of ports that slices have.
struct PortLists<'a> {
    /// Of each slice, its list.
    of_slice: Vec<usize>,
    /// Names of ports that targets have, ascending.
    names: Vec<(ProtocolLabel, &'a str)>,
    /// Of each list, its named ports with their numbers.
    entries: Vec<Vec<(u32, u16)>>,
}

impl<'a> PortLists<'a> {
    fn new(slices: &'a [Arc<Slice>], mentions: &[EndpointRef]) -> Self {
        // Slices of one service share their lists; nothing is lost where they do not.
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
        let names: BTreeSet<(ProtocolLabel, &str)> = seen
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

    /// The lists of some mentions, each once.
    fn of_all(&self, mentions: &[EndpointRef]) -> BTreeSet<usize> {
        mentions.iter().map(|mention| self.of(mention)).collect()
    }

    /// Whether some mentions have the same list.
    fn is_one(&self, mentions: &[EndpointRef]) -> bool {
        mentions.windows(2).all(|two| self.of(&two[0]) == self.of(&two[1]))
    }
}

/// OfferSet of all targets, in the order in which they are first met.
struct OfferSet {
    offers: Vec<Offer>,
    known: HashMap<Vec<(u32, u16)>, u32>,
    /// Of each list, its offer, once it is known.
    of_list: Vec<Option<u32>>,
}

impl OfferSet {
    fn new(lists: usize) -> Self {
        Self { offers: Vec::new(), known: HashMap::new(), of_list: vec![None; lists] }
    }

    /// The offer of the mentions of a label; none without a named port.
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

/// How many endpoints have each port.
struct EndpointCounts {
    by_list: Vec<usize>,
    by_set: Vec<usize>,
}

impl EndpointCounts {
    fn new(lists: &PortLists<'_>) -> Self {
        Self { by_list: vec![0; lists.entries.len()], by_set: vec![0; lists.names.len()] }
    }

    /// Adds the addresses of a label, each once.
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

/// Where the records of each port are, unless each target has one of each.
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

/// `_<port>` in wire format; the name is shorter than a label may be.
fn port_label(name: &str) -> Box<[u8]> {
    let length = (1 + name.len()) as u8;
    [length, b'_'].into_iter().chain(name.bytes().map(|byte| byte.to_ascii_lowercase())).collect()
}

fn weight(endpoints: usize) -> u16 {
    (100 / endpoints.clamp(1, 100)) as u16 // at most 100
}

#[cfg(test)]
mod tests;
