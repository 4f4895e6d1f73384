//! The store: what each service says, for readers.
//!
//! ```text
//!  name ──> zone ──> forward: services[<service>.<namespace>] ──> lookup::find ─┐
//!             │               namespaces, the zone's own names                  ├──> Found
//!             └────> reverse: publishers[address] ──> services[…] ──────────────┘
//! ```
//!
//! A service's answers are one value, and a change swaps it whole: whatever a reader asks of one service, below
//! any of its names and in any zone, comes from one version of it. So no set ever points at a host that is not
//! there. A reverse name is answered by the services that publish the address, and nobody else knows the host.
//!
//! The price of a change follows the size of the service that changed: no map is ever walked.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use foldhash::fast::RandomState;

use crate::store::build::ServiceAnswers;
use crate::store::lookup::{self, Found};
use crate::store::name::{Labels, MAX_NAME, Name};
use crate::store::reverse::{AddressIndex, MAX_POINTERS, ReverseName, ReverseRanges, ServiceKey};
use crate::store::rrset::{Node, RECORD_FIXED};
use crate::store::zone::{Zone, Zones};
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::sync::{self, Map};

/// The label above a service's and its namespace's.
pub const SVC: &[u8] = b"\x03svc";

/// Whether the answers may be given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Freshness {
    /// A watch has not synced yet, and there is nothing older to serve.
    Unsynced = 0,
    /// What a snapshot file held, until every watch has synced.
    Stale = 1,
    /// Every watch has synced.
    Current = 2,
}

/// The answers of all zones, for readers.
#[derive(Debug)]
pub struct Answers {
    pub(crate) services: Map<ServiceKey, Arc<ServiceAnswers>>,
    /// How many services each namespace has, by its label in wire format.
    pub(crate) namespaces: Map<Box<[u8]>, usize>,
    pub(crate) addresses: AddressIndex,
    /// The zones' own names, and those above them.
    fixed: HashMap<Name, Node, RandomState>,
    /// The networks of the reverse zones.
    pub(crate) reverse_zones: Vec<ReverseName>,
    /// Which addresses have a name there.
    ranges: ReverseRanges,
    zones: Zones,
    serial: AtomicU32,
    freshness: AtomicU8,
    subsets: AtomicU64,
}

impl Answers {
    /// The names that every zone has, and nothing else, not yet in sync. Private addresses have reverse names.
    pub fn new(zones: Zones, serial: u32) -> Self {
        let reverse_zones = zones.iter().filter(|zone| !zone.is_forward());
        Self {
            services: sync::map(),
            namespaces: sync::map(),
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

    /// The same, with reverse names for these addresses.
    #[must_use]
    pub fn with_reverse_ranges(self, ranges: ReverseRanges) -> Self {
        Self { ranges, ..self }
    }

    /// The reverse zone that an address has a name in.
    pub(crate) fn reverse_zone_of(&self, address: &IpAddr) -> Option<&ReverseName> {
        // The first that holds it is the closest.
        self.reverse_zones
            .iter()
            .find(|zone| zone.contains(address))
            .filter(|_| self.ranges.contains(*address))
    }

    /// Runs `read` on what a name in `zone` is. Of the pointers of a reverse name nothing is gathered once they have more
    /// than `room` bytes.
    pub fn look_up<R>(
        &self,
        zone: &Zone,
        name: Labels<'_>,
        room: usize,
        read: impl FnOnce(&Found<'_>) -> R,
    ) -> R {
        // As many labels are the service's and below it.
        let below = name.count() - zone.labels();
        if !zone.is_forward() {
            self.look_up_reverse(name, room, read)
        } else if let Some(service_at) = below.checked_sub(3).filter(|_| name.label(below - 1) == SVC) {
            match self.services.get(name.between(service_at, below - 1)) {
                Some(service) => read(&lookup::find(&service, name, service_at)),
                None => read(&Found::Nothing),
            }
        } else if below == 2 && name.label(1) == SVC {
            let exists = self.namespaces.contains_key(name.label(0));
            read(if exists { &Found::Empty } else { &Found::Nothing })
        } else {
            read(&self.fixed.get(name.wire()).map_or(Found::Nothing, Found::Node))
        }
    }

    fn look_up_reverse<R>(&self, name: Labels<'_>, room: usize, read: impl FnOnce(&Found<'_>) -> R) -> R {
        if let Some(node) = self.fixed.get(name.wire()) {
            return read(&Found::Node(node));
        }
        match ReverseName::of(name) {
            Some(ReverseName::Address(address)) => self.look_up_address(address, room, read),
            Some(ReverseName::Range(range)) if self.addresses.any(range.clone()) => read(&Found::Empty),
            _ => read(&Found::Nothing),
        }
    }

    /// Runs `read` on what the reverse name of an address is.
    pub(crate) fn look_up_address<R>(
        &self,
        address: IpAddr,
        room: usize,
        read: impl FnOnce(&Found<'_>) -> R,
    ) -> R {
        self.addresses.with_services(address, |services| self.read_pointers(address, services, room, read))
    }

    /// The names that an address has in the first zone. Who publishes it is a hint: what counts is what the
    /// services say now.
    fn read_pointers<R>(
        &self,
        address: IpAddr,
        publishers: &mut dyn Iterator<Item = &ServiceKey>,
        room: usize,
        read: impl FnOnce(&Found<'_>) -> R,
    ) -> R {
        let apex = self.zones.forward()[0].as_wire();
        match (publishers.next(), publishers.next()) {
            (None, _) => read(&Found::Nothing),
            (Some(service), None) => match self.services.get(service) {
                Some(answers) => match target(address, service, &answers, apex) {
                    Some(label) => read(&Found::Pointers(answers.ttl, &[[label, service, SVC, apex]])),
                    None => read(&Found::Nothing),
                },
                None => read(&Found::Nothing),
            },
            (Some(first), Some(second)) => {
                let mut known: Vec<(&ServiceKey, Arc<ServiceAnswers>)> = Vec::new();
                let mut bytes = 0;
                for service in [first, second].into_iter().chain(publishers) {
                    let Some(answers) = self.services.get(service) else { continue };
                    let Some(label) = target(address, service, &answers, apex) else { continue };
                    bytes += RECORD_FIXED + label.len() + service.len() + SVC.len() + apex.len();
                    known.push((service, Arc::clone(&answers)));
                    if bytes > room || known.len() == MAX_POINTERS {
                        break;
                    }
                }
                let known = known.iter().map(|(service, answers)| (*service, &**answers));
                match pointers(address, known, apex) {
                    Some((ttl, targets)) => read(&Found::Pointers(ttl, &targets)),
                    None => read(&Found::Nothing),
                }
            }
        }
    }

    /// The zone that the name belongs to: the longest of those that it is in.
    pub fn zone_of(&self, name: Labels<'_>) -> Option<&Zone> {
        self.zones.find(name)
    }

    /// The zones.
    pub fn zones(&self) -> &Zones {
        &self.zones
    }

    /// Counts an answer that no message has room for.
    #[cold]
    pub fn count_subset(&self) {
        self.subsets.fetch_add(1, Ordering::Relaxed);
    }

    /// How many answers no message had room for.
    pub fn subsets(&self) -> u64 {
        self.subsets.load(Ordering::Relaxed)
    }

    /// The serial of the moment, the same in all zones.
    pub fn serial(&self) -> u32 {
        self.serial.load(Ordering::Acquire)
    }

    /// Whether the answers may be given out.
    pub fn freshness(&self) -> Freshness {
        match self.freshness.load(Ordering::Acquire) {
            0 => Freshness::Unsynced,
            1 => Freshness::Stale,
            _ => Freshness::Current,
        }
    }

    /// Says whether the answers may be given out.
    pub fn set_freshness(&self, freshness: Freshness) {
        self.freshness.store(freshness as u8, Ordering::Release);
    }

    /// Raises the serial: by one, or to the clock's where that is ahead (RFC 1982 arithmetic).
    ///
    /// The clock counts hundredths of a second, so that a server that starts again is ahead of all that it had
    /// numbered before, as long as there were fewer than a hundred commits a second on the whole, and
    /// for 248 days without a change. With a snapshot the last serial is known, whatever the rate.
    pub(crate) fn raise_serial(&self) {
        let next = self.serial().wrapping_add(1);
        let clock = clock_serial();
        let serial = if is_after(clock, next) { clock } else { next };
        self.serial.store(serial, Ordering::Release);
    }
}

/// The PTR set of an address: its time to live, and in parts the names that the first of some services give the
/// address in the zone `apex`. None where no service does.
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
    // A set has one time to live (RFC 2181 §5.2).
    Some((ttls.into_iter().min()?, targets))
}

/// The label that a service gives an address in a zone; none where the name would be too long.
fn target<'a>(
    address: IpAddr,
    service: &ServiceKey,
    answers: &'a ServiceAnswers,
    apex: &[u8],
) -> Option<&'a [u8]> {
    let label = answers.all.pointer(&answers.slices, address)?;
    (label.len() + service.len() + SVC.len() + apex.len() <= MAX_NAME).then_some(label)
}

/// The zones' own names, and the names above them as far as a zone goes: they exist because those do.
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

/// A first serial: the clock's, or one past `known` where that is ahead.
pub fn first_serial(known: Option<u32>) -> u32 {
    let clock = clock_serial();
    match known {
        Some(known) if !is_after(clock, known) => known.wrapping_add(1),
        _ => clock,
    }
}

/// Hundredths of a second since 1970, in the 32 bits that a serial has.
fn clock_serial() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_millis() / 10) as u32
}

/// Whether serial `a` is greater than `b` (RFC 1982 §3.2).
pub(crate) fn is_after(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::store::build;
    use crate::store::endpoints::Endpoint;
    use crate::store::index::{Created, ServiceView};
    use crate::store::slice::Slice;
    use crate::store::zone::ZoneSettings;

    #[test]
    fn a_set_of_pointers_has_the_lowest_time_to_live_of_the_names_in_it() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let service = |ttl| {
            let endpoint = Endpoint { address, host: "h", named: true, txt: b"" };
            let slice = Slice { endpoints: [endpoint].into_iter().collect(), ..Slice::default() };
            build::build(&ServiceView { ttl, slices: vec![&Arc::new(slice)], ..ServiceView::default() })
                .unwrap()
        };
        let key = |bytes: usize| ServiceKey::from([&[bytes as u8 - 1], &vec![b'x'; bytes - 1][..]].concat());
        let (short, longest, too_long) = (key(2), key(61), key(62));
        // With `h`, `svc` and the apex 255 bytes.
        let apex = [&[63; 64][..], &[63; 64], &[58; 59], &[0]].concat();
        let answers = [7, 3, 1].map(service);
        let services = [&short, &longest, &too_long].into_iter().zip(&answers);
        let targets = vec![[&b"\x01h"[..], &short, SVC, &apex], [b"\x01h", &longest, SVC, &apex]];
        assert_eq!(targets[1].concat().len(), MAX_NAME);
        assert_eq!(pointers(address, services, &apex), Some((3, targets)));
        assert_eq!(pointers(address, [(&too_long, &answers[2])], &apex), None);
    }

    #[test]
    fn no_more_pointers_are_gathered_than_there_is_room_for() {
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
            answers.services.insert(Arc::clone(&key), Arc::clone(&service));
            answers.addresses.insert([address].into_iter(), Created::at(number.into()), &key);
        }
        let gathered = |room| {
            answers.look_up_address(address, room, |found| match found {
                Found::Pointers(_, targets) => targets.len(),
                _ => panic!("{found:?}"),
            })
        };
        let bytes = RECORD_FIXED + b"\x01h\x02s?\x01n\x03svc\x01z\0".len();
        assert_eq!([usize::MAX, 100 * bytes, 16 * bytes, 15 * bytes].map(gathered), [MAX_POINTERS; 4]);
        // One more than fits, which says that not all do.
        assert_eq!([10 * bytes, 10 * bytes - 1, 0].map(gathered), [11, 10, 1]);
    }

    #[test]
    fn a_first_serial_is_past_what_is_known() {
        let clock = clock_serial();
        assert!(!is_after(clock, first_serial(None)));
        let ahead = clock.wrapping_add(1_000_000);
        assert_eq!(first_serial(Some(ahead)), ahead.wrapping_add(1));
        assert!(is_after(first_serial(Some(clock.wrapping_sub(1_000_000))), clock.wrapping_sub(1_000_000)));
    }

    #[test]
    fn serials_compare_around_the_circle() {
        assert!(is_after(1, u32::MAX));
        assert!(!is_after(u32::MAX, 1));
        assert!(!is_after(5, 5));
    }
}
