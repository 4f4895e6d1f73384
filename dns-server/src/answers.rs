//! The store: a concurrent map from owner name to prebuilt answer, and the one writer that changes it.
//!
//! Readers take one look at one key and see one whole version of that name. A name is in the map exactly
//! if it exists (RFC 8020), so a miss inside a zone proves NXDOMAIN and a node without RRsets is an
//! empty non-terminal. The writer keeps that true at every moment, and never lets a set point at a
//! name that is not there:
//!
//! ```text
//!   publish:   parents → hosts → sets, reverse names
//!   withdraw:  reverse names, sets → hosts → parents
//! ```
//!
//! The price of a change follows the size of the service that changed: the map is never walked.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use dashmap::{DashMap, Entry};
use foldhash::fast::RandomState;
use multinet_runtime::ObjectKey;

use crate::build::Built;
use crate::name::{self, Name};
use crate::rrset::{Node, RrsetWriter, rtype};
use crate::zone::{Zone, Zones};

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
    names: DashMap<Name, Known, RandomState>,
    zones: Zones,
    serial: AtomicU32,
    freshness: AtomicU8,
}

/// A name that exists.
#[derive(Debug)]
struct Known {
    node: Arc<Node>,
    /// Existing names one label below, plus one if the zone itself needs this name.
    children: u32,
}

impl Answers {
    /// The names that every zone has, and nothing else, not yet in sync.
    pub fn new(zones: Zones, serial: u32) -> Self {
        let answers = Self {
            names: DashMap::with_hasher(RandomState::default()),
            serial: AtomicU32::new(serial),
            freshness: AtomicU8::new(Freshness::Unsynced as u8),
            zones,
        };
        for zone in answers.zones.iter() {
            for (name, node) in zone.fixed_names() {
                answers.put(&name, Arc::new(node));
                answers.pin(&name);
            }
        }
        // A zone within another: the names between the two apexes exist, because the inner one does.
        for zone in answers.zones.iter() {
            if let Some(above) =
                zone.apex().parent().filter(|above| answers.zones.find(above.as_wire()).is_some())
            {
                if !answers.names.contains_key(&above) {
                    answers.put(&above, Arc::new(Node::default()));
                }
                answers.pin(&above);
            }
        }
        answers
    }

    /// Runs `read` on the node at `wire`, a lowercased wire-format name, if that name exists.
    pub fn with_node<R>(&self, wire: &[u8], read: impl FnOnce(Option<&Node>) -> R) -> R {
        match self.names.get(wire) {
            Some(known) => read(Some(&known.node)),
            None => read(None),
        }
    }

    /// The zone that the name belongs to: the longest of those that it is in.
    pub fn zone_of(&self, wire: &[u8]) -> Option<&Zone> {
        self.zones.find(wire)
    }

    /// The zones.
    pub fn zones(&self) -> &Zones {
        &self.zones
    }

    /// How many names exist, empty non-terminals included.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether no name exists at all, which only a server without zones can say.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
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
    fn raise_serial(&self) {
        let next = self.serial().wrapping_add(1);
        let clock = clock_serial();
        let serial = if is_after(clock, next) { clock } else { next };
        self.serial.store(serial, Ordering::Release);
    }

    /// Puts a node at a name; its parents come first. `false` if it stood there already.
    fn put(&self, name: &Name, node: Arc<Node>) -> bool {
        self.ensure_parent(name);
        match self.names.entry(name.clone()) {
            Entry::Occupied(mut known) => {
                let changed = known.get().node != node;
                known.get_mut().node = node;
                changed
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Known { node, children: 0 });
                self.adjust_parent(name, 1);
                true
            }
        }
    }

    /// Takes a node away, and the empty non-terminals that existed for it alone. Readers see the node or
    /// what is then true: no name, or an empty non-terminal where names below it still stand.
    fn remove(&self, name: &Name) {
        if self.names.remove_if(name, |_, known| known.children == 0).is_none() {
            if let Some(mut known) = self.names.get_mut(name) {
                known.node = Arc::new(Node::default());
            }
            return;
        }
        if let Some(parent) = self.adjust_parent(name, -1) {
            self.prune(&parent);
        }
    }

    fn ensure_parent(&self, name: &Name) {
        if let Some(parent) = self.parent(name)
            && !self.names.contains_key(&parent)
        {
            self.put(&parent, Arc::new(Node::default()));
        }
    }

    fn prune(&self, name: &Name) {
        let unused = |_: &Name, known: &Known| known.children == 0 && known.node.rrsets.is_empty();
        if self.names.remove_if(name, unused).is_some()
            && let Some(parent) = self.adjust_parent(name, -1)
        {
            self.prune(&parent);
        }
    }

    fn adjust_parent(&self, name: &Name, by: i32) -> Option<Name> {
        let parent = self.parent(name)?;
        if let Some(mut known) = self.names.get_mut(&parent) {
            known.children = known.children.saturating_add_signed(by);
        }
        Some(parent)
    }

    /// The name above, as far as the zone goes.
    fn parent(&self, name: &Name) -> Option<Name> {
        let zone = self.zones.find(name.as_wire())?;
        if zone.apex() == name { None } else { name.parent() }
    }

    fn pin(&self, name: &Name) {
        if let Some(mut known) = self.names.get_mut(name) {
            known.children += 1;
        }
    }
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
fn is_after(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}

/// The only writer of [`Answers`]: remembers what each service owns.
#[derive(Debug)]
pub struct Publisher {
    answers: Arc<Answers>,
    services: HashMap<Arc<ObjectKey>, Owned>,
    /// Who publishes an address, with the host that its reverse name gives for them.
    pointers: HashMap<IpAddr, BTreeMap<Arc<ObjectKey>, (Name, u32)>>,
}

#[derive(Debug, Default)]
struct Owned {
    hosts: Vec<Name>,
    sets: Vec<Name>,
    addresses: Vec<IpAddr>,
}

impl Publisher {
    /// A publisher that owns nothing yet.
    pub fn new(answers: Arc<Answers>) -> Self {
        Self { answers, services: HashMap::new(), pointers: HashMap::new() }
    }

    /// What is being published to.
    pub fn answers(&self) -> &Arc<Answers> {
        &self.answers
    }

    /// Replaces all that each of some services says; an empty [`Built`] withdraws it. The serial rises once,
    /// if any answer changed.
    pub fn publish(&mut self, services: impl IntoIterator<Item = (ObjectKey, Built)>) {
        let mut changed = false;
        for (key, built) in services {
            changed |= self.publish_one(key, built);
        }
        if changed {
            self.answers.raise_serial();
        }
    }

    fn publish_one(&mut self, key: ObjectKey, built: Built) -> bool {
        let key = Arc::new(key);
        let before = self.services.remove(&key).unwrap_or_default();
        let mut changed = false;

        let now = Owned {
            hosts: built.hosts.iter().map(|(name, _)| name.clone()).collect(),
            sets: built.sets.iter().map(|(name, _)| name.clone()).collect(),
            addresses: built.pointers.iter().map(|(address, _)| *address).collect(),
        };
        for (name, node) in built.hosts.into_iter().chain(built.sets) {
            changed |= self.answers.put(&name, node);
        }
        for (address, target) in built.pointers {
            if self.answers.zone_of(name::reverse_name(address).as_wire()).is_none() {
                continue;
            }
            self.pointers.entry(address).or_default().insert(Arc::clone(&key), (target, built.ttl));
            changed |= self.publish_pointers(address);
        }

        let kept: HashSet<IpAddr> = now.addresses.iter().copied().collect();
        for address in before.addresses.into_iter().filter(|address| !kept.contains(address)) {
            if let Some(publishers) = self.pointers.get_mut(&address) {
                publishers.remove(&key);
                changed |= self.publish_pointers(address);
            }
        }
        let kept: HashSet<&Name> = now.hosts.iter().chain(&now.sets).collect();
        for name in before.sets.iter().chain(&before.hosts).filter(|name| !kept.contains(name)) {
            self.answers.remove(name);
            changed = true;
        }

        if !(now.hosts.is_empty() && now.sets.is_empty()) {
            self.services.insert(key, now);
        }
        changed
    }

    /// Every name that owns records in the zone `apex`, sorted. Nothing is published meanwhile, since
    /// publishing takes `&mut self`, so this is one version of the zone.
    pub fn names(&self, apex: &Name) -> Vec<(Name, Arc<Node>)> {
        let in_zone =
            |name: &Name| self.answers.zone_of(name.as_wire()).is_some_and(|zone| zone.apex() == apex);
        let fixed = self.answers.zones().iter().flat_map(Zone::fixed_names);
        let owned = self.services.values().flat_map(|owned| owned.hosts.iter().chain(&owned.sets));
        let reverse = self.pointers.keys().map(|&address| name::reverse_name(address));
        let mut names: Vec<Name> =
            fixed.map(|(name, _)| name).chain(owned.cloned()).chain(reverse).filter(in_zone).collect();
        names.sort_unstable();
        names
            .into_iter()
            .filter_map(|name| {
                let node = Arc::clone(&self.answers.names.get(&name)?.node);
                (!node.rrsets.is_empty()).then_some((name, node))
            })
            .collect()
    }

    /// Puts the PTR set of an address in order after a change of who publishes it.
    fn publish_pointers(&mut self, address: IpAddr) -> bool {
        let owner = name::reverse_name(address);
        let set = self.pointers.get(&address).and_then(|publishers| {
            let ttl = publishers.values().map(|&(_, ttl)| ttl).min()?;
            let mut set = RrsetWriter::new(rtype::PTR, ttl);
            publishers.values().for_each(|(target, _)| set.push(target.as_wire()));
            set.finish()
        });
        match set {
            Some(set) => self.answers.put(&owner, Arc::new(Node { rrsets: vec![set] })),
            None => {
                self.pointers.remove(&address);
                self.answers.remove(&owner);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rrset;
    use crate::zone::ZoneSettings;

    fn publisher() -> Publisher {
        let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
        let reverse = ["in-addr.arpa".parse().unwrap()];
        let zones = Zones::new(vec!["z".parse().unwrap()], &reverse, &settings).unwrap();
        Publisher::new(Arc::new(Answers::new(zones, 1)))
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "n".into(), name: name.into() }
    }

    fn built(service: &str, address: &str) -> Built {
        let address: IpAddr = address.parse().unwrap();
        let node = Arc::new(Node { rrsets: rrset::addresses(5, &[address].into()) });
        let base: Name = format!("{service}.n.svc.z").parse().unwrap();
        let host = base.child("h").unwrap();
        Built {
            hosts: vec![(host.clone(), Arc::clone(&node))],
            sets: vec![(base, node)],
            pointers: vec![(address, host)],
            ttl: 5,
        }
    }

    /// `None` for no such name, else how many RRsets it has.
    fn rrsets(publisher: &Publisher, name: &str) -> Option<usize> {
        let name: Name = name.parse().unwrap();
        publisher.answers().with_node(name.as_wire(), |node| node.map(|node| node.rrsets.len()))
    }

    #[test]
    fn a_zone_has_its_own_names_from_the_start() {
        let publisher = publisher();
        for (name, rrset_count) in
            [("z", 1), ("svc.z", 0), ("dns.z", 0), ("ns.dns.z", 0), ("dns-version.z", 1), ("in-addr.arpa", 1)]
        {
            assert_eq!(rrsets(&publisher, name), Some(rrset_count), "{name}");
        }
        assert_eq!(rrsets(&publisher, "n.svc.z"), None);
    }

    #[test]
    fn names_above_a_service_exist_as_long_as_it_does() {
        let mut publisher = publisher();
        publisher.publish([(key("s"), built("s", "10.0.0.1"))]);
        publisher.publish([(key("t"), built("t", "10.0.0.2"))]);
        assert_eq!(rrsets(&publisher, "n.svc.z"), Some(0));
        assert_eq!(rrsets(&publisher, "0.0.10.in-addr.arpa"), Some(0));
        publisher.publish([(key("s"), Built::default())]);
        assert_eq!(rrsets(&publisher, "s.n.svc.z"), None);
        assert_eq!(rrsets(&publisher, "h.s.n.svc.z"), None);
        assert_eq!(rrsets(&publisher, "1.0.0.10.in-addr.arpa"), None);
        assert_eq!(rrsets(&publisher, "n.svc.z"), Some(0));
        publisher.publish([(key("t"), Built::default())]);
        assert_eq!(rrsets(&publisher, "n.svc.z"), None);
        assert_eq!(rrsets(&publisher, "10.in-addr.arpa"), None);
        assert_eq!(rrsets(&publisher, "svc.z"), Some(0));
    }

    #[test]
    fn nothing_is_left_behind() {
        let mut publisher = publisher();
        let before = publisher.answers().len();
        for round in 0..3 {
            publisher.publish([(key("s"), built("s", &format!("10.0.{round}.1")))]);
        }
        publisher.publish([(key("s"), Built::default())]);
        assert_eq!(publisher.answers().len(), before);
        assert!(publisher.services.is_empty() && publisher.pointers.is_empty());
    }

    #[test]
    fn addresses_outside_the_reverse_zones_are_not_kept() {
        let mut publisher = publisher();
        publisher.publish([(key("s"), built("s", "fd00::1"))]);
        assert!(publisher.pointers.is_empty());
        publisher.publish([(key("s"), Built::default())]);
        assert!(publisher.services.is_empty());
    }

    #[test]
    fn names_between_nested_zones_exist() {
        let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
        let zones = ["z", "a.b.z"].map(|zone| zone.parse().unwrap()).into();
        let reverse = ["in-addr.arpa", "168.192.in-addr.arpa"].map(|zone| zone.parse().unwrap());
        let answers = Answers::new(Zones::new(zones, &reverse, &settings).unwrap(), 1);
        let publisher = Publisher::new(Arc::new(answers));
        assert_eq!(rrsets(&publisher, "b.z"), Some(0));
        assert_eq!(rrsets(&publisher, "192.in-addr.arpa"), Some(0));
        assert_eq!(rrsets(&publisher, "c.z"), None);
    }

    #[test]
    fn an_address_of_two_services_points_at_both() {
        let mut publisher = publisher();
        publisher.publish([(key("s"), built("s", "10.0.0.1"))]);
        publisher.publish([(key("t"), built("t", "10.0.0.1"))]);
        let owner: Name = "1.0.0.10.in-addr.arpa".parse().unwrap();
        let records = |publisher: &Publisher| {
            publisher.answers().with_node(owner.as_wire(), |node| Some(node?.rrset(rtype::PTR)?.records))
        };
        assert_eq!(records(&publisher), Some(2));
        publisher.publish([(key("s"), Built::default())]);
        assert_eq!(records(&publisher), Some(1));
    }

    #[test]
    fn the_serial_rises_with_changes_only() {
        let mut publisher = publisher();
        let first = publisher.answers().serial();
        publisher.publish([(key("s"), built("s", "10.0.0.1"))]);
        let second = publisher.answers().serial();
        assert!(is_after(second, first));
        publisher.publish([(key("s"), built("s", "10.0.0.1"))]);
        assert_eq!(publisher.answers().serial(), second);
        publisher.publish([(key("s"), built("s", "10.0.0.2"))]);
        assert!(is_after(publisher.answers().serial(), second));
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
