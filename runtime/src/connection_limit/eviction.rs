//! Choice of the connection to evict.
//!
//! It is the idlest connection of the client with the most connections, in the network with the
//! most connections. So a client that opens thousands loses its own, and clients with a few, or
//! with hundreds in use such as CoreDNS, lose none. Only an attacker with hundreds of networks,
//! each with fewer connections than CoreDNS has, could evict those of CoreDNS.
//!
//! No I/O, and no scans: networks, clients and connections are kept sorted. The time of last use
//! changes with every query, so sorting by it at once would be too dear. It is read only when a
//! connection is about to be evicted. If the connection has been used since it was sorted, it moves
//! to its new position, and the next candidate is probed.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

/// Number of candidates that one eviction probes. If all were used lately, the next one is evicted.
const MAX_PROBES: u32 = 64;

/// Sort key of a connection: its last known time of use, in any unit, and its number.
type LastUse = (u64, u64);

/// Returns the network of an address, IPv4 /24 or IPv6 /56: one client may own all addresses of it.
pub fn network_of(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(peer) => IpAddr::V4((peer.to_bits() & !0xff).into()),
        IpAddr::V6(peer) => IpAddr::V6((peer.to_bits() >> 72 << 72).into()),
    }
}

/// All connections, in the order in which they would be evicted. `H` is the caller's handle.
#[derive(Debug)]
pub(super) struct EvictionOrder<H> {
    entries: HashMap<u64, Entry<H>>,
    networks: Ranked<IpAddr, Network>,
    /// Number that the next connection gets.
    next: u64,
}

#[derive(Debug)]
struct Entry<H> {
    peer: IpAddr,
    /// Time of last use by which the connection is sorted, which may be older than the real one.
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

    /// Adds a connection that is used now. Returns its number.
    pub(super) fn add(&mut self, peer: IpAddr, now: u64, handle: H) -> u64 {
        let id = self.next;
        self.next += 1;
        let peer = peer.to_canonical();
        self.update_queue(peer, |queue| queue.insert((now, id)));
        self.entries.insert(id, Entry { peer, last_use: now, handle });
        id
    }

    /// Removes a connection. Returns its handle, unless it has been removed before.
    pub(super) fn remove(&mut self, id: u64) -> Option<H> {
        let entry = self.entries.remove(&id)?;
        self.update_queue(entry.peer, |queue| queue.remove(&(entry.last_use, id)));
        Some(entry.handle)
    }

    /// Removes the connection to evict, and returns its handle. `used` returns when a connection
    /// was last used.
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

    /// Returns the next connection to evict, by the known times of use.
    fn first(&self) -> Option<LastUse> {
        let (_, network) = self.networks.largest()?;
        let (_, queue) = network.clients.largest()?;
        queue.first().copied()
    }

    /// Applies `change` to the queue of a client and to that of its network.
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
    /// Connections of all clients in the network.
    all: BTreeSet<LastUse>,
}

/// Owners of connections (networks, or clients), ranked by their number of connections. Among
/// equals, the one with the idlest connection ranks highest.
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

/// Owner of connections: a client, or a network of clients.
trait Queue: Default {
    /// Returns all connections of the owner, the idlest one first.
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

    /// Cases are connections as (client, added at), all idle since, and the index of the evicted
    /// one.
    #[test]
    fn the_idlest_connection_of_the_largest_client_of_the_largest_network_is_evicted() {
        for (case, connections, evicted) in [
            ("the idlest of one client", &[("10.0.0.1", 3), ("10.0.0.1", 1), ("10.0.0.1", 2)][..], 1),
            ("of the client with most", &[("10.0.0.1", 1), ("10.0.1.1", 2), ("10.0.1.1", 3)], 1),
            ("among equals the idlest", &[("10.0.0.1", 2), ("10.0.1.1", 1)], 1),
            (
                "of the network with most, though another client has more",
                &[("10.0.0.1", 1), ("10.0.0.1", 2), ("10.0.1.1", 3), ("10.0.1.2", 4), ("10.0.1.3", 5)],
                2,
            ),
            (
                "of the client with most in that network",
                &[("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.2", 3), ("10.0.1.1", 0)],
                1,
            ),
            ("IPv6 by /56", &[("fd00::1", 2), ("fd00:0:0:ff::1", 3), ("fd00:0:0:100::", 1)], 0),
            (
                "an IPv4-mapped address counts as its IPv4 address",
                &[("::ffff:10.0.0.1", 5), ("10.0.0.1", 6), ("10.0.1.1", 1)],
                0,
            ),
        ] {
            let mut order = EvictionOrder::new();
            for (index, (client, at)) in connections.iter().enumerate() {
                order.add(client.parse().unwrap(), *at, index);
            }
            assert_eq!(order.evict(|_| 0), Some(evicted), "{case}");
            assert_eq!(order.len(), connections.len() - 1);
        }
        assert_eq!(EvictionOrder::<()>::new().evict(|()| 0), None);
    }

    #[test]
    fn connections_used_since_they_were_sorted_are_evicted_later() {
        let mut order = EvictionOrder::new();
        let used = [9, 8, 0, 7];
        for at in 0..used.len() {
            order.add("10.0.0.1".parse().unwrap(), at as u64, at);
        }
        let order: Vec<_> = std::iter::from_fn(|| order.evict(|&at| used[at])).collect();
        assert_eq!(order, [2, 3, 1, 0]);
    }

    #[test]
    fn an_active_client_keeps_its_connections_when_another_opens_thousands() {
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
    fn an_eviction_probes_few_connections_however_many_were_used() {
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
    fn removed_connections_leave_no_state() {
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
