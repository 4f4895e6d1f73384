//! The answers of all services, for queries to read.
//!
//! ```text
//!  name ──> zone ──> services: services[<service>.<namespace>] ────────────┐
//!             ├────> vertices: vertices[<vertex>.<pipeline>.<namespace>] ────┼─> lookup::find
//!             └────> reverse:  addresses[address] ──> services[…] ───────────┴─> LookupResult
//! ```
//!
//! The answers of a service are one value, which a change replaces as a whole. All that a query
//! reads of a service, at any name and in any zone, is from one version, so an answer never refers
//! to a host that does not exist. A reverse name is answered from the services that publish its
//! address.
//!
//! The cost of a change depends on the size of the changed service only: no map is ever scanned.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use foldhash::fast::RandomState;

use crate::limits::answers::MAX_POINTERS;
use crate::store::build::ServiceAnswers;
use crate::store::lookup::LookupResult;
use crate::store::name::{Labels, MAX_NAME, Name};
use crate::store::name_tree::NameTree;
use crate::store::reverse::{AddressIndex, ReverseName, ReverseRanges, ServiceKey};
use crate::store::rrset::{Node, RECORD_FIXED};
use crate::store::zone::{SVC, Zone, ZoneKind, Zones};
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Whether the answers are complete and current enough to be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Freshness {
    /// A watch has not synced yet, and no snapshot was loaded. Queries get SERVFAIL.
    Unsynced = 0,
    /// The answers come from a snapshot of an earlier run, until every watch has synced.
    Stale = 1,
    /// Every watch has synced.
    Current = 2,
}

/// The answers of all zones. Queries read them while the publisher changes them.
#[derive(Debug)]
pub struct Answers {
    /// Services by `<service>.<namespace>`.
    pub(crate) services: NameTree,
    /// The same, by `<vertex>.<pipeline>.<namespace>`. Empty without a zone of vertices.
    pub(crate) vertices: NameTree,
    pub(crate) addresses: AddressIndex,
    /// The zones' own names, and the names above them up to an outer zone.
    fixed: HashMap<Name, Node, RandomState>,
    /// Address ranges that the reverse zones stand for, the closest zone first.
    pub(crate) reverse_zones: Vec<ReverseName>,
    /// Addresses that may have PTR records in the reverse zones.
    ranges: ReverseRanges,
    zones: Zones,
    serial: AtomicU32,
    freshness: AtomicU8,
    subsets: AtomicU64,
}

impl Answers {
    /// Makes answers that have only the zones' own names, and are not yet in sync. By default,
    /// private addresses have reverse names.
    pub fn new(zones: Zones, serial: u32) -> Self {
        let reverse_zones = zones.iter().filter(|zone| zone.kind() == ZoneKind::Reverse);
        Self {
            services: NameTree::new(2),
            vertices: NameTree::new(3),
            addresses: AddressIndex::default(),
            fixed: fixed_names(&zones),
            reverse_zones: reverse_zones
                .filter_map(|zone| zone.apex().with_labels(ReverseName::of))
                .collect(),
            ranges: ReverseRanges::default(),
            serial: AtomicU32::new(serial),
            freshness: AtomicU8::new(Freshness::Unsynced as u8),
            subsets: AtomicU64::new(0),
            zones,
        }
    }

    /// Replaces the ranges of addresses that may have PTR records.
    #[must_use]
    pub fn with_reverse_ranges(self, ranges: ReverseRanges) -> Self {
        Self { ranges, ..self }
    }

    /// Returns the closest reverse zone of an address; `None` if the address may have no PTR
    /// record.
    pub(crate) fn reverse_zone_of(&self, address: &IpAddr) -> Option<&ReverseName> {
        // The zones are sorted by length, so the first match is the closest zone.
        self.reverse_zones
            .iter()
            .find(|zone| zone.contains(address))
            .filter(|_| self.ranges.contains(*address))
    }

    /// Looks up a name in `zone` and calls `read` with the result. The PTR records of a reverse
    /// name are gathered only until they exceed `room` bytes, which shows that they do not fit.
    pub fn look_up<R>(
        &self,
        zone: &Zone,
        name: Labels<'_>,
        room: usize,
        read: impl FnOnce(&LookupResult<'_>) -> R,
    ) -> R {
        let below = name.count() - zone.labels();
        match zone.kind() {
            ZoneKind::Services if below > 1 && name.label(below - 1) == SVC => {
                self.services.look_up(name, below - 1, read)
            }
            ZoneKind::Vertices if below > 0 => self.vertices.look_up(name, below, read),
            ZoneKind::Reverse => self.look_up_reverse(name, room, read),
            ZoneKind::Services | ZoneKind::Vertices => read(&self.look_up_fixed(name)),
        }
    }

    fn look_up_fixed(&self, name: Labels<'_>) -> LookupResult<'_> {
        self.fixed.get(name.wire()).map_or(LookupResult::Nothing, LookupResult::Node)
    }

    fn look_up_reverse<R>(
        &self,
        name: Labels<'_>,
        room: usize,
        read: impl FnOnce(&LookupResult<'_>) -> R,
    ) -> R {
        if let Some(node) = self.fixed.get(name.wire()) {
            return read(&LookupResult::Node(node));
        }
        match ReverseName::of(name) {
            Some(ReverseName::Address(address)) => self.look_up_address(address, room, read),
            Some(ReverseName::Range(range)) if self.addresses.any(range.clone()) => {
                read(&LookupResult::Empty)
            }
            _ => read(&LookupResult::Nothing),
        }
    }

    /// Looks up the reverse name of an address and calls `read` with the result.
    pub(crate) fn look_up_address<R>(
        &self,
        address: IpAddr,
        room: usize,
        read: impl FnOnce(&LookupResult<'_>) -> R,
    ) -> R {
        self.addresses.with_services(address, |services| self.read_pointers(address, services, room, read))
    }

    /// Calls `read` with the PTR records of an address, which name services in the first zone.
    /// `publishers` is only a hint: the services' current answers decide.
    fn read_pointers<R>(
        &self,
        address: IpAddr,
        publishers: &mut dyn Iterator<Item = &ServiceKey>,
        room: usize,
        read: impl FnOnce(&LookupResult<'_>) -> R,
    ) -> R {
        let apex = self.zones.forward()[0].as_wire();
        match (publishers.next(), publishers.next()) {
            (None, _) => read(&LookupResult::Nothing),
            (Some(service), None) => match self.services.map.get(service) {
                Some(answers) => match target(address, service, &answers, apex) {
                    Some(label) => read(&LookupResult::Pointers(answers.ttl, &[[label, service, SVC, apex]])),
                    None => read(&LookupResult::Nothing),
                },
                None => read(&LookupResult::Nothing),
            },
            (Some(first), Some(second)) => {
                let mut known: Vec<(&ServiceKey, Arc<ServiceAnswers>)> = Vec::new();
                let mut bytes = 0;
                for service in [first, second].into_iter().chain(publishers) {
                    let Some(answers) = self.services.map.get(service) else { continue };
                    let Some(label) = target(address, service, &answers, apex) else { continue };
                    bytes += RECORD_FIXED + label.len() + service.len() + SVC.len() + apex.len();
                    known.push((service, Arc::clone(&answers)));
                    if bytes > room || known.len() == MAX_POINTERS {
                        break;
                    }
                }
                let known = known.iter().map(|(service, answers)| (*service, &**answers));
                match pointers(address, known, apex) {
                    Some((ttl, targets)) => read(&LookupResult::Pointers(ttl, &targets)),
                    None => read(&LookupResult::Nothing),
                }
            }
        }
    }

    /// Returns the zone that a name belongs to: the longest apex that contains it.
    pub fn zone_of(&self, name: Labels<'_>) -> Option<&Zone> {
        self.zones.find(name)
    }

    /// Returns all forward and reverse zones that the answers are for.
    pub fn zones(&self) -> &Zones {
        &self.zones
    }

    /// Counts an answer that is larger than any message, and was sent in part.
    #[cold]
    pub fn count_subset(&self) {
        self.subsets.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many replies so far held only a subset of an answer larger than any message.
    pub fn subsets(&self) -> u64 {
        self.subsets.load(Ordering::Relaxed)
    }

    /// Returns the current SOA serial, which all zones share.
    pub fn serial(&self) -> u32 {
        self.serial.load(Ordering::Acquire)
    }

    /// Returns how complete and current the answers are, and so whether they may be served.
    pub fn freshness(&self) -> Freshness {
        match self.freshness.load(Ordering::Acquire) {
            0 => Freshness::Unsynced,
            1 => Freshness::Stale,
            _ => Freshness::Current,
        }
    }

    /// Sets how complete and current the answers are. Queries see the change at once.
    pub fn set_freshness(&self, freshness: Freshness) {
        // Release: a query that reads the new state also sees the answers that were published
        // before.
        self.freshness.store(freshness as u8, Ordering::Release);
    }

    /// Raises the serial by one, or to the clock's value if that is ahead (RFC 1982 arithmetic).
    ///
    /// The clock counts hundredths of a second. So a server that restarts is ahead of all its
    /// earlier serials, unless it averaged more than a hundred commits a second, or made no change
    /// for 248 days. A snapshot restores the last serial, regardless of the rate.
    pub(crate) fn raise_serial(&self) {
        let next = self.serial().wrapping_add(1);
        let clock = clock_serial();
        let serial = if is_after(clock, next) { clock } else { next };
        // Release: a query that reads the new serial also sees the answers that it stands for.
        self.serial.store(serial, Ordering::Release);
    }
}

/// Makes the PTR records of an address: their time to live, and their targets in four parts. The
/// first services give the address their names in the zone `apex`. Returns `None` if no service has
/// the address.
pub(crate) fn pointers<'a>(
    address: IpAddr,
    services: impl IntoIterator<Item = (&'a ServiceKey, &'a ServiceAnswers)>,
    apex: &'a [u8],
) -> Option<(u32, Vec<[&'a [u8]; 4]>)> {
    let (ttls, targets): (Vec<u32>, Vec<_>) = services
        .into_iter()
        .filter_map(|(service, answers)| {
            let label = target(address, service, answers, apex)?;
            Some((answers.ttl, [label, service, SVC, apex]))
        })
        .take(MAX_POINTERS)
        .unzip();
    // All records of a set have the same time to live (RFC 2181 §5.2).
    Some((ttls.into_iter().min()?, targets))
}

/// Returns the label that a service gives an address. Returns `None` if the service lacks the
/// address, or the full name would be too long.
fn target<'a>(
    address: IpAddr,
    service: &ServiceKey,
    answers: &'a ServiceAnswers,
    apex: &[u8],
) -> Option<&'a [u8]> {
    let label = answers.all().pointer(address)?;
    (label.len() + service.len() + SVC.len() + apex.len() <= MAX_NAME).then_some(label)
}

/// Returns the zones' own names, and the names above them as far as an outer zone contains those.
/// They exist because the names below them do.
fn fixed_names(zones: &Zones) -> HashMap<Name, Node, RandomState> {
    let mut fixed: HashMap<Name, Node, RandomState> = zones.iter().flat_map(Zone::fixed_names).collect();
    for mut name in fixed.keys().cloned().collect::<Vec<_>>() {
        while let Some(above) = name.parent().filter(|above| zones.of(above).is_some()) {
            fixed.entry(above.clone()).or_default();
            name = above;
        }
    }
    fixed
}

/// Returns the serial to start with: the clock's value, or the successor of `known` if the clock is
/// not ahead of it.
pub fn first_serial(known: Option<u32>) -> u32 {
    let clock = clock_serial();
    match known {
        Some(known) if !is_after(clock, known) => known.wrapping_add(1),
        _ => clock,
    }
}

/// Returns hundredths of a second since 1970, truncated to the 32 bits of a serial.
fn clock_serial() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_millis() / 10) as u32
}

/// Tells whether serial `a` is greater than `b` (RFC 1982 §3.2).
pub(crate) fn is_after(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::limits::answers::MAX_POINTERS;
    use crate::store::build;
    use crate::store::endpoints::Endpoint;
    use crate::store::index::{Created, ServiceView};
    use crate::store::slice::Slice;
    use crate::store::zone::ZoneSettings;

    #[test]
    fn a_ptr_set_has_the_lowest_time_to_live_of_its_services() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let service = |ttl| {
            let endpoint = Endpoint { address, host: "h", named: true, txt: b"" };
            let slice = Slice { endpoints: [endpoint].into_iter().collect(), ..Slice::default() };
            build::build(&ServiceView { ttl, slices: vec![&Arc::new(slice)], ..ServiceView::default() })
                .unwrap()
        };
        let key = |bytes: usize| ServiceKey::from([&[bytes as u8 - 1], &vec![b'x'; bytes - 1][..]].concat());
        let (short, longest, too_long) = (key(2), key(61), key(62));
        // With `h`, `svc` and this apex, the name of the second service has 255 bytes.
        let apex = [&[63; 64][..], &[63; 64], &[58; 59], &[0]].concat();
        let answers = [7, 3, 1].map(service);
        let services = [&short, &longest, &too_long].into_iter().zip(&answers);
        let targets = vec![[&b"\x01h"[..], &short, SVC, &apex], [b"\x01h", &longest, SVC, &apex]];
        assert_eq!(targets[1].concat().len(), MAX_NAME);
        assert_eq!(pointers(address, services, &apex), Some((3, targets)));
        assert_eq!(pointers(address, [(&too_long, &answers[2])], &apex), None);
    }

    #[test]
    fn ptr_records_are_gathered_until_one_does_not_fit() {
        let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
        let zones = Zones::new(vec!["z".parse().unwrap()], &[], &settings).unwrap();
        let answers = Answers::new(zones, 1);
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let endpoint = Endpoint { address, host: "h", named: true, txt: b"" };
        let slice = Slice { endpoints: [endpoint].into_iter().collect(), ..Slice::default() };
        let service =
            build::build(&ServiceView { ttl: 5, slices: vec![&Arc::new(slice)], ..ServiceView::default() })
                .unwrap();
        let service = Arc::new(service);
        for number in 0..100u8 {
            let key = ServiceKey::from([2, b's', number, 1, b'n']);
            answers.services.insert(&key, &service);
            answers.addresses.replace(&[address], &key, None, Some(Created::at(number.into())));
        }
        let gathered = |room| {
            answers.look_up_address(address, room, |found| match found {
                LookupResult::Pointers(_, targets) => targets.len(),
                _ => panic!("{found:?}"),
            })
        };
        let bytes = RECORD_FIXED + b"\x01h\x02s?\x01n\x03svc\x01z\0".len();
        assert_eq!([usize::MAX, 100 * bytes, 16 * bytes, 15 * bytes].map(gathered), [MAX_POINTERS; 4]);
        // One target more than fits is gathered, which shows that not all fit.
        assert_eq!([10 * bytes, 10 * bytes - 1, 0].map(gathered), [11, 10, 1]);
    }

    #[test]
    fn a_first_serial_is_greater_than_the_known_one() {
        let clock = clock_serial();
        assert!(!is_after(clock, first_serial(None)));
        let ahead = clock.wrapping_add(1_000_000);
        assert_eq!(first_serial(Some(ahead)), ahead.wrapping_add(1));
        assert!(is_after(first_serial(Some(clock.wrapping_sub(1_000_000))), clock.wrapping_sub(1_000_000)));
    }

    #[test]
    fn serials_compare_across_the_wrap_around() {
        assert!(is_after(1, u32::MAX));
        assert!(!is_after(u32::MAX, 1));
        assert!(!is_after(5, 5));
    }
}
