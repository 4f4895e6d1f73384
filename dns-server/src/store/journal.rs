//! What changed from version to version of each zone, for incremental transfers (RFC 1995): pure, and bounded.
//!
//! # The feed
//!
//! Whoever changes the answers says so record by record, and then that a version is complete:
//!
//! ```text
//!   removed(record)*  added(record)*  commit(before, after)
//! ```
//!
//! in any order within a version: a record that is removed and added again has not changed. A commit whose `before` is not the last `after` tells of a gap, and the journal
//! begins anew. SOA records are not told of: a version is one serial, and that is all an SOA changes.
//!
//! # What is kept
//!
//! Serials are common to all zones, differences are not: a version is kept in the zones whose records it
//! changed. In the others nothing but its serial is remembered, so that whoever has it can be given the newest
//! with no record between the SOAs. That costs little, so serials are remembered for long: a zone that does
//! not change is not sent again because others do.
//!
//! A zone's differences together are never larger than the zone, since a difference that is larger is worth
//! less than the zone (RFC 1995 §4), nor than [`JournalLimits`]. What is too old is forgotten; the answer then is the
//! whole zone. What a transfer sends, it shares, so forgetting does not disturb it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::store::name::{self, Name};
use crate::store::records;
use crate::store::rrset::Record;

/// What a version costs beside its records, in bytes.
const OVERHEAD: usize = 128;

/// Bytes of a record between its owner and its data.
const FIXED: usize = 10;

/// How much is kept at most.
#[derive(Debug, Clone, Copy)]
pub struct JournalLimits {
    /// Bytes of differences, in each zone.
    pub bytes: usize,
    /// Differences, in each zone.
    pub differences: usize,
    /// Serials; no more than lie within half of the circle that they go round in (RFC 1982).
    pub serials: usize,
}

impl Default for JournalLimits {
    fn default() -> Self {
        Self { bytes: 16 << 20, differences: 4096, serials: 1 << 20 }
    }
}

/// What changed in each zone.
#[derive(Debug)]
pub struct Journal {
    /// The longest apex first, so that the first match is the closest.
    zones: Vec<ZoneJournal>,
    limits: JournalLimits,
    /// The versions that can still be asked for, by their serials, the oldest first. None before the start.
    serials: VecDeque<u32>,
    /// The number of the first of them; versions are counted from the start.
    first: u64,
}

#[derive(Debug)]
struct ZoneJournal {
    apex: Name,
    /// Bytes of all its records but the SOA.
    size: usize,
    pending: Pending,
    /// What changed, by the number of the version that it led to.
    differences: VecDeque<(u64, Arc<Difference>)>,
    /// What they cost together.
    bytes: usize,
    /// The oldest version from which they lead to the newest.
    oldest: u64,
    /// The version that last changed the zone.
    changed: u64,
}

/// What has been said of the version to come.
#[derive(Debug, Default)]
struct Pending {
    /// How often each record was added, less how often it was removed.
    balance: BTreeMap<Box<[u8]>, i32>,
    bytes: usize,
    /// Whether it is too much to be kept.
    is_lost: bool,
}

/// What one version changed in a zone: records in wire format, one behind the other.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Those that were there before.
    pub removed: Arc<[u8]>,
    /// Those that are there now.
    pub added: Arc<[u8]>,
}

/// A step from one version of a zone to a later one.
#[derive(Debug, Clone)]
pub struct Step {
    /// The serial that it leads to.
    pub to: u32,
    /// What it changes; nothing if only the serial does.
    pub difference: Arc<Difference>,
}

impl Difference {
    fn cost(&self) -> usize {
        self.removed.len() + self.added.len() + OVERHEAD
    }
}

impl Journal {
    /// A journal of the zones with these apexes, which are empty. It keeps nothing until it is started.
    pub fn new(apexes: impl IntoIterator<Item = Name>, limits: JournalLimits) -> Self {
        let zone = |apex| ZoneJournal {
            apex,
            size: 0,
            pending: Pending::default(),
            differences: VecDeque::new(),
            bytes: 0,
            oldest: 0,
            changed: 0,
        };
        let mut zones: Vec<ZoneJournal> = apexes.into_iter().map(zone).collect();
        zones.sort_by_key(|zone| std::cmp::Reverse(zone.apex.as_wire().len()));
        Self { zones, limits, serials: VecDeque::new(), first: 0 }
    }

    /// A record is no longer there. All feeding functions are cheap until the start.
    pub fn remove(&mut self, record: Record<'_>) {
        self.change(record, -1);
    }

    /// A record is there now.
    pub fn add(&mut self, record: Record<'_>) {
        self.change(record, 1);
    }

    /// A record of the zone below is there in the zone with this apex, too, and stays.
    pub fn add_delegated(&mut self, apex: &Name, record: Record<'_>) {
        if let Some(zone) = self.zones.iter_mut().find(|zone| zone.apex == *apex) {
            zone.size += length(record);
        }
    }

    fn change(&mut self, record: Record<'_>, by: i32) {
        let holds = |zone: &&mut ZoneJournal| name::is_within(record.owner, zone.apex.as_wire());
        let Some(zone) = self.zones.iter_mut().find(holds) else { return };
        let bytes = length(record);
        zone.size = if by > 0 { zone.size + bytes } else { zone.size.saturating_sub(bytes) };
        if self.serials.is_empty() || zone.pending.is_lost {
            return;
        }
        zone.pending.bytes += bytes;
        if zone.pending.bytes > self.limits.bytes {
            zone.pending = Pending { is_lost: true, ..Pending::default() };
            return;
        }
        let mut wire = Vec::with_capacity(bytes);
        records::push(&mut wire, record);
        *zone.pending.balance.entry(wire.into()).or_default() += by;
    }

    /// What has been said of so far is the version `serial`, the first that anybody can have.
    pub fn start(&mut self, serial: u32) {
        let number = self.first + self.serials.len() as u64 + 1;
        self.serials.clear();
        self.serials.push_back(serial);
        self.first = number;
        for zone in &mut self.zones {
            zone.pending = Pending::default();
            zone.forget_all(number);
            zone.changed = number;
        }
    }

    /// What has been said of since the last version leads from `before` to `after`.
    pub fn commit(&mut self, before: u32, after: u32) {
        match self.serials.back() {
            None => return,
            Some(&last) if last == before => {}
            Some(_) => return self.start(after),
        }
        let number = self.first + self.serials.len() as u64;
        let is_too_old = |oldest: &u32| after.wrapping_sub(*oldest) >= 1 << 31;
        while self.serials.len() >= self.limits.serials || self.serials.front().is_some_and(is_too_old) {
            if self.serials.pop_front().is_none() {
                break;
            }
            self.first += 1;
        }
        self.serials.push_back(after);
        for zone in &mut self.zones {
            zone.commit(number, &self.limits);
            zone.forget_until(self.first);
        }
    }

    /// The steps from version `serial` of a zone to the newest, each with its serial, if they are known and neither
    /// more than the zone itself nor than `most` bytes. `soa` is how long its SOA record is.
    pub fn since(&self, apex: &Name, serial: u32, soa: usize, most: usize) -> Option<Vec<Step>> {
        let zone = self.zones.iter().find(|zone| zone.apex == *apex)?;
        let newest = *self.serials.back()?;
        // Ever smaller, since all are within half of the circle.
        let age = |known: u32| newest.wrapping_sub(known);
        let at = self.serials.partition_point(|&known| age(known) > age(serial));
        if self.serials.get(at) != Some(&serial) {
            return None;
        }
        let from = self.first + at as u64;
        if from < zone.oldest {
            return None;
        }
        let begin = zone.differences.partition_point(|&(number, _)| number <= from);
        let mut steps = Vec::new();
        let mut bytes = 0;
        for (number, difference) in zone.differences.range(begin..) {
            bytes += difference.removed.len() + difference.added.len() + 2 * soa;
            if bytes > most.min(zone.size) {
                return None;
            }
            let to = *self.serials.get(usize::try_from(number - self.first).ok()?)?;
            steps.push(Step { to, difference: Arc::clone(difference) });
        }
        // The newest version need not have changed this zone; its serial still is this zone's.
        match steps.last_mut() {
            Some(last) => last.to = newest,
            None => steps.push(Step { to: newest, difference: Arc::default() }),
        }
        Some(steps)
    }

    /// For each zone, its apex and a number that grows whenever its records change; none before the start.
    pub fn changes(&self) -> impl Iterator<Item = (&Name, u64)> {
        let is_started = !self.serials.is_empty();
        self.zones.iter().filter(move |_| is_started).map(|zone| (&zone.apex, zone.changed))
    }

    /// Bytes that differences take.
    pub fn bytes(&self) -> usize {
        self.zones.iter().map(|zone| zone.bytes).sum()
    }
}

impl ZoneJournal {
    fn commit(&mut self, number: u64, limits: &JournalLimits) {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_lost {
            self.forget_all(number);
            self.changed = number;
            return;
        }
        let with = |sign: i32| -> Arc<[u8]> {
            let records = pending.balance.iter().filter(|(_, balance)| **balance * sign > 0);
            records.flat_map(|(record, _)| record.iter().copied()).collect()
        };
        let difference = Difference { removed: with(-1), added: with(1) };
        if difference == Difference::default() {
            return;
        }
        self.changed = number;
        self.bytes += difference.cost();
        self.differences.push_back((number, Arc::new(difference)));
        let most = limits.bytes.min(self.size);
        while self.bytes > most || self.differences.len() > limits.differences {
            self.forget_oldest();
        }
    }

    /// Nobody can ask any more for what changed before the version `number`, or led to it.
    fn forget_until(&mut self, number: u64) {
        while self.differences.front().is_some_and(|&(to, _)| to <= number) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((number, oldest)) = self.differences.pop_front() {
            self.bytes -= oldest.cost();
            self.oldest = number;
        }
    }

    /// Nothing leads to the version `number`.
    fn forget_all(&mut self, number: u64) {
        self.differences.clear();
        self.bytes = 0;
        self.oldest = number;
    }
}

/// Cuts records in uncompressed wire format, of our own making, apart.
pub fn split_records(mut wire: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (record, rest) = wire.split_at_checked(record_length(wire)?)?;
        wire = rest;
        Some(record)
    })
}

/// How long a record is on the wire.
fn length(record: Record<'_>) -> usize {
    record.owner.len() + FIXED + record.data.len()
}

/// How long the first of some records is.
fn record_length(wire: &[u8]) -> Option<usize> {
    let mut root = wire;
    while let Some(above) = name::parent(root) {
        root = above;
    }
    let [.., high, low] = root.first_chunk::<{ 1 + FIXED }>()?;
    let data = usize::from(u16::from_be_bytes([*high, *low]));
    Some(wire.len() - root.len() + 1 + FIXED + data)
}

#[cfg(test)]
mod tests;
