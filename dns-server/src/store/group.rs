//! A group: the endpoints below one base name, in the order that answers need. A service has one
//! group for all networks together, and further groups for single networks and topology zones.
//! Pure.
//!
//! ```text
//!  slices   ──> endpoints, packed     shared with the index and with other versions of the service
//!     ▲
//!     │ slice, entry
//!  hosts      sorted by hash of label, label, address: endpoints with one label are adjacent
//!     ▲  ▲
//!     │  └─── by_address   for each address, the host that its PTR record names
//!     └─ ports             for each label, the named ports that it has
//!  a, aaaa    whole records, ascending: answers copy them
//! ```
//!
//! Each change of a service builds its groups anew from all of its endpoints. A group takes 36
//! bytes for an endpoint, regardless of the number of ports, and has no pointers per endpoint.
//! Labels and TXT data stay in the slices.

mod ports;
mod view;

use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::FixedState;

use self::ports::Ports;
pub(crate) use self::ports::{NamedPort, SrvRecord, SrvRecords};
pub(crate) use self::view::{GroupView, Hosts};
use crate::store::endpoints::PackedEndpoint;
use crate::store::rrset::{self, rtype};
use crate::store::slice::Slice;

/// Position in `by_address` for an address that has no host with a name.
const NAMELESS: u32 = u32::MAX;

/// The endpoints below a base name. It is read by way of a [`GroupView`].
#[derive(Debug, Default)]
pub(crate) struct Group {
    a: Box<[u8]>,
    aaaa: Box<[u8]>,
    hosts: Box<[EndpointRef]>,
    by_address: Box<[u32]>,
    ports: Ports,
}

/// Reference to an endpoint in one of the service's slices, with the hash of its label.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndpointRef {
    hash: u32,
    slice: u32,
    entry: u32,
}

impl Group {
    /// Builds the group of all endpoints in `slices`, or of those on one network. Endpoints with
    /// the same network, label and address are one: it has the ports of all slices that contain it,
    /// and the TXT data of the first.
    pub(crate) fn new(ttl: u32, slices: &[Arc<Slice>], network: Option<&str>) -> Self {
        Self::of(ttl, slices, &mentions(slices, network))
    }

    /// Builds a group from references to endpoints, sorted as [`mentions`] sorts them.
    pub(crate) fn of(ttl: u32, slices: &[Arc<Slice>], mentions: &[EndpointRef]) -> Self {
        // For each mention, the position of the first host with its label.
        let mut labels = Vec::with_capacity(mentions.len());
        let mut hosts: Vec<EndpointRef> = Vec::with_capacity(mentions.len());
        let mut first = 0;
        for mention in mentions {
            let last = hosts.last();
            if last.is_none_or(|last| last.label(slices) != mention.label(slices)) {
                first = hosts.len();
            }
            labels.push(first as u32);
            if last.is_none_or(|last| last.identity(slices) != mention.identity(slices)) {
                hosts.push(*mention);
            }
        }
        let ([a, aaaa], by_address) = addresses(ttl, slices, &hosts);
        let ports = Ports::new(slices, mentions, &labels);
        Self { a: a.into(), aaaa: aaaa.into(), hosts: hosts.into(), by_address: by_address.into(), ports }
    }

    /// Shares the port table of another group, if both have equal ones, to save memory.
    pub(crate) fn share_ports(&mut self, other: &Self) {
        self.ports.share(&other.ports);
    }
}

impl EndpointRef {
    /// Returns the endpoint that this refers to, from the slices that the group was built from.
    pub(crate) fn endpoint<'a>(&self, slices: &'a [Arc<Slice>]) -> PackedEndpoint<'a> {
        slices[self.slice as usize].endpoints.get(self.entry as usize)
    }

    /// Returns the key by which a group sorts its endpoints: the hash of the label, then the label.
    fn order<'a>(&self, slices: &'a [Arc<Slice>]) -> (u32, &'a [u8]) {
        (self.hash, self.label(slices))
    }

    fn label<'a>(&self, slices: &'a [Arc<Slice>]) -> &'a [u8] {
        self.endpoint(slices).label
    }

    /// Returns the key that two mentions of the same endpoint have in common.
    fn identity<'a>(&self, slices: &'a [Arc<Slice>]) -> (&'a [u8], IpAddr, &'a str) {
        let PackedEndpoint { label, address, .. } = self.endpoint(slices);
        (label, address, &slices[self.slice as usize].network)
    }
}

/// Hashes a label. The hash needs no secret seed: whoever chooses colliding labels for their pods
/// slows down only their own service.
fn hash(label: &[u8]) -> u32 {
    FixedState::default().hash_one(label) as u32
}

/// Returns the length of the leading run of `things` that satisfy `is_so`; no later thing may
/// satisfy it. The run is nearly always of length one, so the search gallops: it takes a number of
/// calls that is logarithmic in the length of the run, not of `things`.
fn count_leading<T>(things: &[T], is_so: impl Fn(&T) -> bool) -> usize {
    let mut end = 1;
    while things.get(end).is_some_and(&is_so) {
        end *= 2;
    }
    let (known, end) = (end / 2, end.min(things.len()));
    known + things[known..end].partition_point(is_so)
}

/// Returns a reference for each occurrence of an endpoint in `slices`, or in those of one network,
/// sorted. An endpoint that is in several slices is returned once for each.
pub(crate) fn mentions(slices: &[Arc<Slice>], network: Option<&str>) -> Vec<EndpointRef> {
    let chosen = |slice: &Slice| network.is_none_or(|network| *slice.network == *network);
    let mut mentions = Vec::with_capacity(slices.iter().map(|slice| slice.endpoints.len()).sum());
    for (slice_number, slice) in slices.iter().enumerate().filter(|(_, slice)| chosen(slice)) {
        mentions.extend(slice.endpoints.iter().enumerate().map(|(entry, endpoint)| EndpointRef {
            hash: hash(endpoint.label),
            slice: slice_number as u32,
            entry: entry as u32,
        }));
    }
    mentions.sort_unstable_by(|one, two| {
        let in_full = |host: &EndpointRef| (host.identity(slices), host.slice, host.entry);
        one.hash.cmp(&two.hash).then_with(|| in_full(one).cmp(&in_full(two)))
    });
    mentions
}

/// Makes the A and AAAA records of `hosts`, each address once, and picks the host that the PTR
/// record of each address names.
fn addresses(ttl: u32, slices: &[Arc<Slice>], hosts: &[EndpointRef]) -> ([Vec<u8>; 2], Vec<u32>) {
    let rank = |position: &u32| {
        let endpoint = hosts[*position as usize].endpoint(slices);
        (!endpoint.has_name(), !endpoint.named, endpoint.label)
    };
    let positions = (0u32..).zip(hosts);
    let mut positions: Vec<(IpAddr, u32)> =
        positions.map(|(position, host)| (host.endpoint(slices).address, position)).collect();
    positions.sort_unstable(); // IPv4 first
    let (mut a, mut aaaa, mut by_address) = (Vec::new(), Vec::new(), Vec::new());
    for same in positions.chunk_by(|one, two| one.0 == two.0) {
        let owner = &rrset::QUESTION_POINTER;
        match same[0].0 {
            IpAddr::V4(address) => rrset::push_record(&mut a, owner, rtype::A, ttl, &address.octets()),
            IpAddr::V6(address) => rrset::push_record(&mut aaaa, owner, rtype::AAAA, ttl, &address.octets()),
        }
        let best = same.iter().map(|&(_, position)| position).min_by_key(rank);
        by_address.push(best.filter(|best| !rank(best).0).unwrap_or(NAMELESS));
    }
    ([a, aaaa], by_address)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};
    use std::net::Ipv4Addr;

    use multinet_crds::Protocol;

    use super::*;
    use crate::store::endpoints::Endpoint;
    use crate::store::slice::Port;

    /// Returns two hostnames whose labels have the same hash.
    fn colliding_hosts() -> [String; 2] {
        let mut seen: HashMap<u32, String> = HashMap::new();
        // With hashes of 32 bits, a million labels have about a hundred colliding pairs.
        (0..1_000_000)
            .map(|number| format!("h{number}"))
            .find_map(|host| {
                let label = [&[host.len() as u8], host.as_bytes()].concat();
                seen.insert(hash(&label), host.clone()).map(|other| [other, host])
            })
            .unwrap()
    }

    fn slice(hosts: &[(&str, u8)]) -> [Arc<Slice>; 1] {
        let endpoints = hosts.iter().map(|&(host, number)| Endpoint {
            address: Ipv4Addr::new(10, 0, 0, number).into(),
            host,
            named: true,
            txt: b"",
        });
        let ports = [Port { name: "p".into(), protocol: Protocol::Tcp, number: 7 }].into();
        [Arc::new(Slice { ports, endpoints: endpoints.collect(), ..Slice::default() })]
    }

    #[test]
    fn the_length_of_a_leading_run_is_found_in_few_calls() {
        for all in (0..100).chain([10_000]) {
            for leads in (0..=all).filter(|leads| all < 100 || leads % 97 < 2) {
                let calls = std::cell::Cell::new(0);
                let things: Vec<bool> = (0..all).map(|at| at < leads).collect();
                let found = count_leading(&things, |thing| {
                    calls.set(calls.get() + 1);
                    *thing
                });
                assert_eq!(found, leads, "of {all}");
                assert!(calls.get() <= 4 + 2 * leads.max(1).ilog2(), "{} calls for {leads}", calls.get());
            }
        }
    }

    #[test]
    fn a_port_whose_endpoints_have_no_names_has_no_records() {
        let slices = slice(&[("", 1), ("", 2)]);
        let group = Group::new(5, &slices, None);
        let group = GroupView::new(&group, &slices);
        assert!(group.ports().is_empty() && group.all_srv().iter().next().is_none());
        assert_eq!(group.addresses().count(), 2);
    }

    #[test]
    fn labels_with_equal_hashes_are_told_apart() {
        let [one, two] = &colliding_hosts();
        let label = |host: &str| [&[host.len() as u8], host.as_bytes()].concat();
        let addresses = |slices: &[Arc<Slice>], host: &str| -> Vec<IpAddr> {
            let group = Group::new(5, slices, None);
            let hosts = GroupView::new(&group, slices).hosts_with_label(&label(host));
            hosts.iter().map(|endpoint| endpoint.address).collect()
        };
        let of = |last: [u8; 2]| last.map(|number| IpAddr::from([10, 0, 0, number]));
        // Their addresses alternate, and they have one in common.
        let both = slice(&[(one, 1), (two, 2), (one, 3), (two, 3)]);
        assert_eq!(addresses(&both, one), of([1, 3]));
        assert_eq!(addresses(&both, two), of([2, 3]));
        // A label that is missing is not found, although another one has its hash.
        for (there, missing) in [(one, two), (two, one)] {
            let slices = slice(&[(there, 1), (there, 2)]);
            assert_eq!(addresses(&slices, there), of([1, 2]));
            assert!(addresses(&slices, missing).is_empty());
        }

        let group = Group::new(5, &both, None);
        let group = GroupView::new(&group, &both);
        let targets: BTreeSet<&[u8]> =
            group.all_srv().iter().map(|record| group.label_at(record.host())).collect();
        assert_eq!(targets, [&label(one)[..], &label(two)].into());
        assert_eq!(group.all_srv().iter().count(), 2);
        assert_eq!([0, 2].map(|first| group.hosts_from(first).len()), [2, 2]);
    }
}
