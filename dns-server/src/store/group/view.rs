//! Reading of groups: a [`GroupView`] has a group with its slices, [`Hosts`] some of its endpoints.

use std::net::IpAddr;
use std::sync::Arc;

use multinet_crds::Protocol;

use super::ports::{NamedPort, SrvRecords};
use super::{EndpointRef, Group, count_leading, hash};
use crate::store::endpoints::PackedEndpoint;
use crate::store::rrset;
use crate::store::slice::Slice;

/// A group together with the slices that it was built from, into which its references point.
#[derive(Debug, Clone, Copy)]
pub struct GroupView<'a> {
    group: &'a Group,
    slices: &'a [Arc<Slice>],
}

/// Endpoints of a group with the same label, sorted by address, IPv4 first.
#[derive(Debug, Clone, Copy)]
pub struct Hosts<'a> {
    refs: &'a [EndpointRef],
    slices: &'a [Arc<Slice>],
}

impl<'a> GroupView<'a> {
    /// Makes the view of a group that was built from `slices`.
    pub(crate) fn new(group: &'a Group, slices: &'a [Arc<Slice>]) -> Self {
        Self { group, slices }
    }

    /// Returns all A records, sorted by address. Their owner is a pointer to the question.
    pub fn a(self) -> &'a [u8] {
        &self.group.a
    }

    /// Returns all AAAA records, sorted by address. Their owner is a pointer to the question.
    pub fn aaaa(self) -> &'a [u8] {
        &self.group.aaaa
    }

    /// Returns the endpoints with a label, which is in wire format and lowercased.
    pub fn hosts_with_label(self, label: &[u8]) -> Hosts<'a> {
        let (hash, slices) = (hash(label), self.slices);
        // Labels are compared only if their hashes are equal.
        let is_before =
            |host: &EndpointRef| host.hash < hash || host.hash == hash && host.label(slices) < label;
        let refs: &[EndpointRef] = match &self.group.hosts[self.group.hosts.partition_point(is_before)..] {
            rest @ [first, ..] if first.hash == hash && first.label(slices) == label => rest,
            _ => &[],
        };
        self.same_label(refs)
    }

    /// Returns the endpoints with the same label as the one at position `first`, which is the first
    /// of them. Returns none if `first` is behind the last endpoint.
    pub fn hosts_from(self, first: u32) -> Hosts<'a> {
        self.same_label(&self.group.hosts[first as usize..])
    }

    /// Returns the endpoints at the beginning of `hosts` that have the first one's label.
    fn same_label(self, hosts: &'a [EndpointRef]) -> Hosts<'a> {
        let slices = self.slices;
        let is_same = |host: &EndpointRef| {
            hosts
                .first()
                .is_some_and(|first| host.hash == first.hash && host.label(slices) == first.label(slices))
        };
        Hosts { refs: &hosts[..count_leading(hosts, is_same)], slices }
    }

    /// Returns the label, in wire format, of the endpoint at `position` in the group.
    pub fn label_at(self, position: u32) -> &'a [u8] {
        self.group.hosts[position as usize].label(self.slices)
    }

    /// Returns the key by which the group sorts its labels, for the endpoint at a position.
    pub fn order_at(self, position: u32) -> (u32, &'a [u8]) {
        self.group.hosts[position as usize].order(self.slices)
    }

    /// Returns the named ports of the group, sorted by protocol and name.
    pub fn ports(self) -> &'a [NamedPort] {
        self.group.ports.sets()
    }

    /// Returns the named port `_<port>._<proto>`. `label` is its first label in wire format.
    pub fn port(self, label: &[u8], protocol: Protocol) -> Option<&'a NamedPort> {
        self.ports().iter().find(|port| port.protocol == protocol && *port.label() == *label)
    }

    /// Returns the SRV records of one named port of the group.
    pub fn srv(self, port: &NamedPort) -> SrvRecords<'a> {
        self.group.ports.of(port)
    }

    /// Returns the SRV records of all ports of the group together, without duplicates.
    pub fn all_srv(self) -> SrvRecords<'a> {
        self.group.ports.all()
    }

    /// Returns the label that the PTR record of an address points at. Hostnames from slices come
    /// before labels made from addresses; among equals, the first in order wins. Returns `None` if
    /// no endpoint with a name has the address.
    pub fn pointer(self, address: IpAddr) -> Option<&'a [u8]> {
        let position = match address {
            IpAddr::V4(address) => rrset::find_address(self.a(), &address.octets())?,
            IpAddr::V6(address) => {
                self.a().len() / rrset::A_LEN + rrset::find_address(self.aaaa(), &address.octets())?
            }
        };
        self.label_of(*self.group.by_address.get(position)?)
    }

    /// Returns each address that has a PTR record, with the label that the record points at. Sorted
    /// by address, IPv4 first.
    pub fn pointers(self) -> impl Iterator<Item = (IpAddr, &'a [u8])> {
        self.addresses()
            .zip(&self.group.by_address)
            .filter_map(move |(address, &host)| Some((address, self.label_of(host)?)))
    }

    /// Returns the label of an element of `by_address`, or `None` if that refers to no host.
    fn label_of(self, host: u32) -> Option<&'a [u8]> {
        Some(self.group.hosts.get(host as usize)?.label(self.slices))
    }

    /// Returns the addresses of all endpoints in the group, each once, sorted, IPv4 first.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> + use<'a> {
        rrset::v4_addresses(self.a())
            .map(IpAddr::from)
            .chain(rrset::v6_addresses(self.aaaa()).map(IpAddr::from))
    }

    /// Tells whether two groups give the same answers apart from their times to live.
    pub fn has_same_answers(self, other: GroupView<'_>) -> bool {
        let (this, that) = (self.group, other.group);
        this.a == that.a
            && this.aaaa == that.aaaa
            && this.hosts.len() == that.hosts.len()
            && this.hosts.iter().zip(&that.hosts).all(|(one, two)| {
                let slices = (&self.slices[one.slice as usize], &other.slices[two.slice as usize]);
                one.entry == two.entry && Arc::ptr_eq(slices.0, slices.1)
                    || one.endpoint(self.slices) == two.endpoint(other.slices)
                        && slices.0.network == slices.1.network
            })
            && this.by_address == that.by_address
            && this.ports == that.ports
    }

    /// Tells whether two views are of the same group in memory.
    #[cfg(test)]
    pub(crate) fn is_same_group(self, other: GroupView<'_>) -> bool {
        std::ptr::eq(self.group, other.group)
    }
}

impl<'a> Hosts<'a> {
    /// Returns the number of endpoints of the host.
    pub fn len(self) -> usize {
        self.refs.len()
    }

    /// Tells whether the host has no endpoints.
    pub fn is_empty(self) -> bool {
        self.refs.is_empty()
    }

    /// Returns the endpoint at a position below [`len`](Self::len).
    ///
    /// # Panics
    ///
    /// Panics if `position` is not below `len`.
    pub fn get(self, position: usize) -> PackedEndpoint<'a> {
        self.refs[position].endpoint(self.slices)
    }

    /// Returns all endpoints of the host.
    pub fn iter(self) -> impl Iterator<Item = PackedEndpoint<'a>> {
        self.refs.iter().map(move |host| host.endpoint(self.slices))
    }

    /// Returns the key by which the group sorts the endpoints' label: its hash and the label.
    pub fn order(self) -> (u32, &'a [u8]) {
        self.refs.first().map_or((0, &[][..]), |first| first.order(self.slices))
    }

    /// Divides the endpoints into those before `position` and those from it on.
    pub fn split_at(self, position: usize) -> (Self, Self) {
        let (before, rest) = self.refs.split_at(position);
        (Self { refs: before, ..self }, Self { refs: rest, ..self })
    }

    /// Returns only the endpoints with IPv4 addresses, or only those with IPv6 addresses.
    pub fn of_family(self, wants_ipv4: bool) -> Self {
        let is_ipv4 = |host: &EndpointRef| host.endpoint(self.slices).address.is_ipv4();
        let (v4, v6) = self.split_at(self.refs.partition_point(is_ipv4));
        if wants_ipv4 { v4 } else { v6 }
    }

    /// Returns the endpoints in parts, one part for each address.
    pub fn by_address(self) -> impl Iterator<Item = Self> + use<'a> {
        let slices = self.slices;
        let same =
            self.refs.chunk_by(move |one, two| one.endpoint(slices).address == two.endpoint(slices).address);
        same.map(move |refs| Self { refs, slices })
    }

    /// Returns the addresses of the endpoints, sorted, each once.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> + use<'a> {
        let address = move |position: usize| self.get(position).address;
        (0..self.len())
            .filter(move |&position| position == 0 || address(position - 1) != address(position))
            .map(address)
    }
}
