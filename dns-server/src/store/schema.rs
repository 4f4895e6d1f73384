//! The schema of names below a service: the kinds of names, and the records that a name of each
//! kind owns. Pure.
//!
//! | kind | name | records |
//! |---|---|---|
//! | base | `S`, `<alias>._net.S` | A, AAAA, SRV |
//! | host | `<host>.<base>` | A, AAAA, TXT |
//! | port | `_<port>._<proto>.<base>` | SRV |
//!
//! [`lookup`](crate::store::lookup) finds the owner of a name, the answer path writes one of its
//! [`RecordSet`]s, [`records`](crate::store::records) lists all of them, and the model that tests
//! compare answers with is built from [`NameKind::types`].

use std::iter;
use std::net::IpAddr;

use crate::store::group::{GroupView, Hosts, NamedPort, SrvRecords};
use crate::store::name::MAX_NAME;
use crate::store::rrset::{A_LEN, AAAA_LEN, RECORD_FIXED, rtype};
use crate::store::slice::protocol_label;

/// Kind of a name below a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// The name of a service, or of one of its networks: `<alias>._net.<service>`.
    Base,
    /// The name of a host below a base name: the endpoints with one label.
    Host,
    /// The name of a named port below a base name: `_<port>._<proto>`.
    Port,
}

impl NameKind {
    /// All kinds of names below a service.
    pub const ALL: [Self; 3] = [Self::Base, Self::Host, Self::Port];

    /// Returns the types of the records that names of this kind may own, in the order in which zone
    /// transfers send them.
    pub const fn types(self) -> &'static [u16] {
        match self {
            Self::Base => &[rtype::A, rtype::AAAA, rtype::SRV],
            Self::Host => &[rtype::A, rtype::AAAA, rtype::TXT],
            Self::Port => &[rtype::SRV],
        }
    }
}

/// A name below a service, with the part of the service that its records are made of.
#[derive(Debug, Clone, Copy)]
pub enum Owner<'a> {
    /// A base name, with the group of its endpoints. Names of topology zones own records like one.
    Base(GroupView<'a>),
    /// The name of a host, with its endpoints.
    Host(Hosts<'a>),
    /// The name of a named port, with its group.
    Port(GroupView<'a>, &'a NamedPort),
}

/// All records of one type at one name.
///
/// They are numbered by position. A position may be without a record.
#[derive(Debug, Clone, Copy)]
pub enum RecordSet<'a> {
    /// Address records in wire format, sorted, and the length of each. Their owner is a pointer to
    /// the question.
    Prebuilt(&'a [u8], usize),
    /// Address records of a host's endpoints, all of one family, each address once.
    Addresses(Hosts<'a>),
    /// TXT records of a host, one for each endpoint.
    Texts(Hosts<'a>),
    /// SRV records, and the group that their targets are in.
    Services(GroupView<'a>, SrvRecords<'a>),
}

/// Sort key of a record of a base name or port among the records of its set, or of all records of a
/// host. Two versions of such a set have equal records at equal keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey<'a> {
    hash: u32,
    /// Label of an SRV record's target, or the data of a record of another type.
    bytes: &'a [u8],
    port: u16,
    weight: u16,
}

impl<'a> RecordKey<'a> {
    /// Returns the sort key of all records of a host together.
    pub fn of_host(hosts: Hosts<'a>) -> Self {
        let (hash, bytes) = hosts.order();
        Self { hash, bytes, ..Self::default() }
    }
}

impl<'a> Owner<'a> {
    /// Returns the records of a type. Returns `None` for a type that no name of this kind owns.
    pub fn records(self, rtype: u16) -> Option<RecordSet<'a>> {
        Some(match (self, rtype) {
            (Self::Base(group), rtype::A) => RecordSet::Prebuilt(group.a(), A_LEN),
            (Self::Base(group), rtype::AAAA) => RecordSet::Prebuilt(group.aaaa(), AAAA_LEN),
            (Self::Base(group), rtype::SRV) => RecordSet::Services(group, group.all_srv()),
            (Self::Host(hosts), rtype::A) => RecordSet::Addresses(hosts.of_family(true)),
            (Self::Host(hosts), rtype::AAAA) => RecordSet::Addresses(hosts.of_family(false)),
            (Self::Host(hosts), rtype::TXT) => RecordSet::Texts(hosts),
            (Self::Port(group, port), rtype::SRV) => RecordSet::Services(group, group.srv(port)),
            _ => return None,
        })
    }

    /// Returns the labels in front of the base name in the owner's name; empty ones where it has
    /// fewer.
    pub fn labels(self) -> [&'a [u8]; 2] {
        match self {
            Self::Base(_) => [&[], &[]],
            Self::Host(hosts) => [hosts.order().1, &[]],
            Self::Port(_, port) => [port.label(), protocol_label(port.protocol)],
        }
    }
}

impl<'a> RecordSet<'a> {
    /// Returns the first position at `at` or behind it that has a record.
    pub fn first_from(self, at: usize) -> Option<usize> {
        match self {
            Self::Prebuilt(body, length) => (at < body.len() / length).then_some(at),
            Self::Addresses(hosts) => {
                let address = |position: usize| hosts.get(position).address;
                let is_new = |at: &usize| *at == 0 || address(*at - 1) != address(*at);
                (at..hosts.len()).find(is_new)
            }
            Self::Texts(hosts) => (at < hosts.len()).then_some(at),
            Self::Services(_, records) => records.first_from(at).map(|(slot, _)| slot),
        }
    }

    /// Returns the positions in the set that have a record.
    pub fn positions(self) -> impl Iterator<Item = usize> + use<'a> {
        iter::successors(self.first_from(0), move |&at| self.first_from(at + 1))
    }

    /// Returns the sort key of the record at position `at`.
    pub fn key(self, at: usize) -> RecordKey<'a> {
        match self {
            Self::Prebuilt(body, length) => {
                RecordKey { bytes: data(body, length, at), ..RecordKey::default() }
            }
            Self::Services(group, records) => records.get(at).map_or_else(RecordKey::default, |record| {
                let (hash, bytes) = group.order_at(record.host());
                RecordKey { hash, bytes, port: record.port, weight: record.weight }
            }),
            Self::Addresses(hosts) | Self::Texts(hosts) => RecordKey::of_host(hosts),
        }
    }

    /// Appends the data of the record at a position, whose target is below `base` if it has one.
    /// Tells whether the target's name is short enough for DNS.
    pub fn push_data(self, at: usize, base: &[u8], out: &mut Vec<u8>) -> bool {
        match self {
            Self::Prebuilt(body, length) => out.extend_from_slice(data(body, length, at)),
            Self::Addresses(hosts) => match hosts.get(at).address {
                IpAddr::V4(address) => out.extend_from_slice(&address.octets()),
                IpAddr::V6(address) => out.extend_from_slice(&address.octets()),
            },
            Self::Texts(hosts) => out.extend_from_slice(hosts.get(at).txt),
            Self::Services(group, records) => {
                let Some(record) = records.get(at) else { return false };
                let label = group.label_at(record.host());
                record.push_data(out, label, base);
                return label.len() + base.len() <= MAX_NAME;
            }
        }
        true
    }
}

/// Returns the data of the record at position `at` in `body`, which holds records of one `length`.
fn data(body: &[u8], length: usize, at: usize) -> &[u8] {
    &body[at * length + RECORD_FIXED..(at + 1) * length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_list_the_types_of_each_kind_of_name() {
        let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dns.md")).unwrap();
        for kind in NameKind::ALL {
            let name = match kind {
                NameKind::Base => "`S`",
                NameKind::Host => "`<host>.S`",
                NameKind::Port => "`_<port>._<proto>.S`",
            };
            let start = format!("| {name} | ");
            let rows = docs.lines().filter_map(|line| line.strip_prefix(&*start)?.split(" | ").next());
            let documented: Vec<&str> = rows.flat_map(|types| types.split(", ")).collect();
            let mnemonic = |rtype: &u16| rtype::MNEMONICS.iter().find(|(known, _)| known == rtype).unwrap().1;
            let types: Vec<&str> = kind.types().iter().map(mnemonic).collect();
            assert_eq!(documented, types, "{name}");
        }
    }
}
