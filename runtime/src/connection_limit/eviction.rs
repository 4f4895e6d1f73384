//! Who goes when there are too many: of the network with the most connections the client with the most, and of
//! its connections the one that has been idle longest. So whoever opens thousands loses their own, and a
//! client with a few, or with hundreds in use such as CoreDNS, does not notice. Only with hundreds of networks, each
//! with fewer connections than such a client, could somebody get at those.
//!
//! Pure, and nothing is scanned: all is kept in order. Only when a connection was last used is not, since that
//! changes with every query; it is looked at when it is its turn to go, and a connection that has been used
//! since goes to the end of the queue instead.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

/// Connections that are looked at to find one to go. With that many in use since, the next goes anyway.
const MAX_PROBES: u32 = 64;

/// When a connection was last known to be used, in any unit, and which one it is.
type LastUse = (u64, u64);

/// Network that counts as one client where it may have many addresses: IPv4 /24, IPv6 /56.
pub fn network_of(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(peer) => IpAddr::V4((peer.to_bits() & !0xff).into()),
        IpAddr::V6(peer) => IpAddr::V6((peer.to_bits() >> 72 << 72).into()),
    }
}

/// All connections.
#[derive(Debug)]
pub(super) struct EvictionOrder<H> {
    entries: HashMap<u64, Entry<H>>,
    networks: Ranked<IpAddr, Network>,
    next: u64,
}

#[derive(Debug)]
struct Entry<H> {
    peer: IpAddr,
    last_use: u64,
    handle: H,
}

impl<H> EvictionOrder<H> {
    pub(super) fn new() -> Self {
        Self { entries: HashMap::new(), networks: Ranked::default(), next: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a connection that is used now; gives its number.
    pub(super) fn add(&mut self, peer: IpAddr, now: u64, handle: H) -> u64 {
        let id = self.next;
        self.next += 1;
        let peer = peer.to_canonical();
        self.update_queue(peer, |queue| queue.insert((now, id)));
        self.entries.insert(id, Entry { peer, last_use: now, handle });
        id
    }

    /// Takes a connection away, if it is still there.
    pub(super) fn remove(&mut self, id: u64) -> Option<H> {
        let entry = self.entries.remove(&id)?;
        self.update_queue(entry.peer, |queue| queue.remove(&(entry.last_use, id)));
        Some(entry.handle)
    }

    /// Takes away the connection that should go; `used` says when one was last used.
    pub(super) fn evict(&mut self, used: impl Fn(&H) -> u64) -> Option<H> {
        for _ in 0..MAX_PROBES {
            let (last_use, id) = self.first()?;
            let entry = self.entries.get_mut(&id)?;
            let used = used(&entry.handle);
            if used <= last_use {
                break;
            }
            entry.last_use = used;
            let peer = entry.peer;
            self.update_queue(peer, |queue| queue.remove(&(last_use, id)) && queue.insert((used, id)));
        }
        let (_, id) = self.first()?;
        self.remove(id)
    }

    /// The next to go, as far as is known.
    fn first(&self) -> Option<LastUse> {
        let (_, network) = self.networks.largest()?;
        let (_, queue) = network.clients.largest()?;
        queue.first().copied()
    }

    /// Changes the queue of a client, and that of its network.
    fn update_queue(&mut self, peer: IpAddr, change: impl Fn(&mut BTreeSet<LastUse>) -> bool) {
        self.networks.update(network_of(peer), |network| {
            change(&mut network.all);
            network.clients.update(peer, |queue| {
                change(queue);
            });
        });
    }
}

#[derive(Debug, Default)]
struct Network {
    clients: Ranked<IpAddr, BTreeSet<LastUse>>,
    all: BTreeSet<LastUse>,
}

/// Things that hold connections, in the order of how many; among equals those come first whose first
/// connection has been idle longest.
#[derive(Debug)]
struct Ranked<K, V> {
    of: HashMap<K, V>,
    order: BTreeSet<(usize, Reverse<LastUse>, K)>,
}

impl<K, V> Default for Ranked<K, V> {
    fn default() -> Self {
        Self { of: HashMap::new(), order: BTreeSet::new() }
    }
}

trait Queue: Default {
    /// All connections, the one that was used longest ago first.
    fn queue(&self) -> &BTreeSet<LastUse>;
}

impl Queue for BTreeSet<LastUse> {
    fn queue(&self) -> &BTreeSet<LastUse> {
        self
    }
}

impl Queue for Network {
    fn queue(&self) -> &BTreeSet<LastUse> {
        &self.all
    }
}

impl<K: Copy + Ord + Hash, V: Queue> Ranked<K, V> {
    fn largest(&self) -> Option<(&K, &V)> {
        let (_, _, key) = self.order.last()?;
        self.of.get_key_value(key)
    }

    fn update(&mut self, key: K, change: impl FnOnce(&mut V)) {
        let rank = |value: &V| Some((value.queue().len(), Reverse(*value.queue().first()?), key));
        let value = self.of.entry(key).or_default();
        if let Some(before) = rank(value) {
            self.order.remove(&before);
        }
        change(value);
        match rank(value) {
            Some(after) => {
                self.order.insert(after);
            }
            None => {
                self.of.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::Ipv4Addr;

    use super::*;

    /// Connections as (client, added at), and the one that goes, by its place in the list; all idle since.
    #[test]
    fn the_one_to_go() {
        for (case, connections, goes) in [
            ("the longest idle of one client", &[("10.0.0.1", 3), ("10.0.0.1", 1), ("10.0.0.1", 2)][..], 1),
            ("of who has most", &[("10.0.0.1", 1), ("10.0.1.1", 2), ("10.0.1.1", 3)], 1),
            ("among equals the longest idle", &[("10.0.0.1", 2), ("10.0.1.1", 1)], 1),
            (
                "of the network with most, though no client of it has",
                &[("10.0.0.1", 1), ("10.0.0.1", 2), ("10.0.1.1", 3), ("10.0.1.2", 4), ("10.0.1.3", 5)],
                2,
            ),
            (
                "in it of the client with most",
                &[("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.2", 3), ("10.0.1.1", 0)],
                1,
            ),
            ("IPv6 by /56", &[("fd00::1", 2), ("fd00:0:0:ff::1", 3), ("fd00:0:0:100::", 1)], 0),
            (
                "an address is the same however it is written",
                &[("::ffff:10.0.0.1", 5), ("10.0.0.1", 6), ("10.0.1.1", 1)],
                0,
            ),
        ] {
            let mut order = EvictionOrder::new();
            for (place, (client, at)) in connections.iter().enumerate() {
                order.add(client.parse().unwrap(), *at, place);
            }
            assert_eq!(order.evict(|_| 0), Some(goes), "{case}");
            assert_eq!(order.len(), connections.len() - 1);
        }
        assert_eq!(EvictionOrder::<()>::new().evict(|()| 0), None);
    }

    #[test]
    fn what_was_used_since_is_spared() {
        let mut order = EvictionOrder::new();
        let used = [9, 8, 0, 7];
        for at in 0..used.len() {
            order.add("10.0.0.1".parse().unwrap(), at as u64, at);
        }
        let order: Vec<_> = std::iter::from_fn(|| order.evict(|&at| used[at])).collect();
        assert_eq!(order, [2, 3, 1, 0]);
    }

    #[test]
    fn who_is_active_keeps_all_when_a_stranger_opens_thousands() {
        const MOST: usize = 1000;
        let (core, stranger) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let mut order = EvictionOrder::new();
        for _ in 0..300 {
            order.add(core, 0, "core");
        }
        for now in 1..10_000 {
            order.add(stranger, now, "stranger");
            if order.len() > MOST {
                assert_eq!(order.evict(|_| 0), Some("stranger"), "at {now}");
            }
        }
    }

    #[test]
    fn looks_are_few_however_many_were_used() {
        let mut order = EvictionOrder::new();
        for at in 0..10_000 {
            order.add(Ipv4Addr::from_bits(at << 6).into(), 0, ());
        }
        let probes = Cell::new(0);
        let now = Cell::new(1);
        for _ in 0..1_000 {
            now.set(now.get() + 1);
            order.evict(|()| {
                probes.set(probes.get() + 1);
                now.get()
            });
        }
        assert!(probes.get() <= 1_000 * MAX_PROBES, "{}", probes.get());
    }

    #[test]
    fn nothing_is_left_of_who_has_gone() {
        let mut order = EvictionOrder::new();
        let ids: Vec<u64> =
            (0..500u32).map(|at| order.add(Ipv4Addr::from_bits(at * 37).into(), u64::from(at), at)).collect();
        order.evict(|&at| u64::from(at) + 5);
        for id in ids {
            order.remove(id);
            assert_eq!(order.remove(id), None);
        }
        assert!(order.entries.is_empty() && order.networks.of.is_empty() && order.networks.order.is_empty());
    }
}
