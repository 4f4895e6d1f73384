//! The changes from version to version of each zone, for incremental transfers (RFC 1995). Pure,
//! and bounded in size.
//!
//! # The feed
//!
//! The publisher reports changes record by record, then that a version is complete:
//!
//! ```text
//!   remove(record)*  add(record)*  commit(before, after)
//! ```
//!
//! The order within a version does not matter: a record that is removed and added again has not
//! changed. If `before` of a commit is not `after` of the last one, the journal has missed a
//! version, and starts anew. SOA records are not reported: a new version always changes the serial
//! in them, and nothing else.
//!
//! # What is kept
//!
//! All zones share serials, but not changes: a version is stored only for the zones whose records
//! it changed. For the others, the journal remembers the serial. A secondary that has this serial
//! gets the newest one with no record between the SOAs. Remembering serials is cheap, so they are
//! kept for long: an unchanged zone need not be sent again because others have changed.
//!
//! The differences of a zone are together at most as large as the zone, since otherwise the whole
//! zone is the shorter answer (RFC 1995 §4), and at most as large as [`JournalLimits`] allow. Older
//! differences are dropped; secondaries that need them get the whole zone. Running transfers share
//! the data they send, so dropping it does not disturb them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::limits::transfers::{JOURNAL_BYTES, JOURNAL_DIFFERENCES, JOURNAL_SERIALS};
use crate::store::name::{self, Name};
use crate::store::records;
use crate::store::rrset::Record;

/// Memory, in bytes, that a [`Difference`] is assumed to take beside its records.
const OVERHEAD: usize = 128;

/// Length in bytes of a record's part between owner and data: type, class, TTL, data length.
const FIXED: usize = 10;

/// Bounds of the [`Journal`] for each zone.
#[derive(Debug, Clone, Copy)]
pub struct JournalLimits {
    /// Largest size of all differences of a zone together, in bytes.
    pub bytes: usize,
    /// Largest number of differences that are kept for a zone.
    pub differences: usize,
    /// Largest number of serials. Serials that are half of the number circle apart cannot be
    /// compared (RFC 1982), so older ones are dropped in any case.
    pub serials: usize,
}

impl Default for JournalLimits {
    fn default() -> Self {
        Self { bytes: JOURNAL_BYTES, differences: JOURNAL_DIFFERENCES, serials: JOURNAL_SERIALS }
    }
}

/// The last changes of all zones' records, for incremental transfers.
#[derive(Debug)]
pub struct Journal {
    /// Sorted by length of the apex, the longest first, so that the first match is the closest
    /// zone.
    zones: Vec<ZoneJournal>,
    limits: JournalLimits,
    /// Serials of the versions that a secondary may still ask for, the oldest first. Empty before
    /// the start.
    serials: VecDeque<u32>,
    /// Number of the first of these versions. Versions are numbered from the start.
    first: u64,
}

#[derive(Debug)]
struct ZoneJournal {
    apex: Name,
    /// Size of all current records of the zone except the SOA, in bytes.
    size: usize,
    pending: Pending,
    /// Changes of the zone's records, each with the number of the version that it leads to: the
    /// journal's own count, not a serial.
    differences: VecDeque<(u64, Arc<Difference>)>,
    /// Size of all kept differences, in bytes.
    bytes: usize,
    /// Number of the oldest version from which the differences lead to the newest.
    oldest: u64,
    /// Number of the version that last changed the zone.
    changed: u64,
}

/// Changes of a zone's records since the last commit.
#[derive(Debug, Default)]
struct Pending {
    /// For each record, how often it was added minus how often it was removed.
    balance: BTreeMap<Box<[u8]>, i32>,
    bytes: usize,
    /// `true` if the changes exceeded [`JournalLimits::bytes`] and were dropped.
    is_lost: bool,
}

/// The records that one version changed in a zone, in wire format, one behind the other.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Records that the version before had, and this version has no longer.
    pub removed: Arc<[u8]>,
    /// Records that this version has, and the version before had not.
    pub added: Arc<[u8]>,
}

/// A step from one version of a zone to a later one, as an IXFR reply sends it.
#[derive(Debug, Clone)]
pub struct ZoneStep {
    /// Serial of the version that the step leads to.
    pub to: u32,
    /// Records that the step removes and adds; none if only the serial differs.
    pub difference: Arc<Difference>,
}

impl Difference {
    fn cost(&self) -> usize {
        self.removed.len() + self.added.len() + OVERHEAD
    }
}

impl Journal {
    /// Makes a journal of empty zones with these apexes. It stores no changes until it is started.
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

    /// Reports that a record was removed from its zone. Reports cost little before the start.
    pub fn remove(&mut self, record: Record<'_>) {
        self.change(record, -1);
    }

    /// Reports that a record was added to its zone.
    pub fn add(&mut self, record: Record<'_>) {
        self.change(record, 1);
    }

    /// Reports a record of a zone below `apex` that the zone at `apex` contains, too, and that
    /// never changes.
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

    /// Starts with the version `serial`, which consists of all that was reported so far. It is the
    /// first version that a secondary can have.
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

    /// Completes a version: the reports since the last commit lead from the serial `before` to the
    /// serial `after`.
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

    /// Returns the steps from version `serial` of a zone to the newest. `soa` is the length of the
    /// zone's SOA record. Returns `None` if the journal lacks a step, or if the steps are larger
    /// than the zone or than `most` bytes.
    pub fn since(&self, apex: &Name, serial: u32, soa: usize, most: usize) -> Option<Vec<ZoneStep>> {
        let zone = self.zones.iter().find(|zone| zone.apex == *apex)?;
        let newest = *self.serials.back()?;
        // Ages decrease along the list, since all serials are within half of the circle. So a
        // binary search works.
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
            steps.push(ZoneStep { to, difference: Arc::clone(difference) });
        }
        // The newest version may not have changed this zone, but its serial is the zone's current
        // one.
        match steps.last_mut() {
            Some(last) => last.to = newest,
            None => steps.push(ZoneStep { to: newest, difference: Arc::default() }),
        }
        Some(steps)
    }

    /// Returns each zone's apex with a number that grows whenever the zone's records change.
    /// Returns nothing before the start.
    pub fn changes(&self) -> impl Iterator<Item = (&Name, u64)> {
        let is_started = !self.serials.is_empty();
        self.zones.iter().filter(move |_| is_started).map(|zone| (&zone.apex, zone.changed))
    }

    /// Returns the size of all zones' differences in bytes.
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

    /// Drops the differences that lead to version `number` or an earlier one, since no secondary
    /// can ask for them any more.
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

    /// Drops all differences of the zone: version `number` is the oldest that differences start
    /// from.
    fn forget_all(&mut self, number: u64) {
        self.differences.clear();
        self.bytes = 0;
        self.oldest = number;
    }
}

/// Splits consecutive records in uncompressed wire format, as this server writes them.
pub fn split_records(mut wire: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (record, rest) = wire.split_at_checked(record_length(wire)?)?;
        wire = rest;
        Some(record)
    })
}

/// Returns the length in bytes of a record in uncompressed wire format.
fn length(record: Record<'_>) -> usize {
    record.owner.len() + FIXED + record.data.len()
}

/// Returns the length in bytes of the first record in `wire`, or `None` if that is cut off.
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
