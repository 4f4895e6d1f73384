//! Lists all records of a service, at all names that docs/dns.md defines. Zone transfers send them,
//! and the journal compares them. Pure.
//!
//! The records come in items of one or a few records. The items of every version of a service are
//! in the same order. So the difference between two versions is found in one pass over both, and a
//! transfer can stop at any item and later continue from its [`Cursor`].

use std::cmp::Ordering;
use std::iter;
use std::net::IpAddr;

use crate::store::build::ServiceAnswers;
use crate::store::group::{GroupView, Hosts, NamedPort, SrvRecord, SrvRecords};
use crate::store::name::{MAX_NAME, NETWORKS};
use crate::store::rrset::{A_LEN, AAAA_LEN, RECORD_FIXED, Record, rtype};
use crate::store::slice::ProtocolLabel;

/// Position of the next item of a service.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cursor {
    group: usize,
    section: usize,
    at: usize,
}

/// Records that are added and removed together.
#[derive(Debug, Clone, Copy)]
pub struct RecordItem<'a> {
    service: &'a ServiceAnswers,
    /// Alias of the network in wire format; empty for all networks together.
    alias: &'a [u8],
    group: GroupView<'a>,
    kind: ItemKind<'a>,
    content: ItemContent<'a>,
}

/// Kind of an item. A group's items are sorted by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ItemKind<'a> {
    A,
    Aaaa,
    AllPorts,
    Hosts,
    /// A named port, by its protocol and its label without the length byte.
    Port(ProtocolLabel, &'a [u8]),
}

#[derive(Debug, Clone, Copy)]
enum ItemContent<'a> {
    /// Type and data of an address record at the base name.
    Address(u16, &'a [u8]),
    /// An SRV record of a named port, or (with `None`) one at the base name.
    Service(Option<&'a NamedPort>, SrvRecord),
    /// The endpoints with one label.
    Host(Hosts<'a>),
}

/// Sort key of items. No two items of a service have the same.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ItemKey<'a> {
    alias: &'a [u8],
    kind: ItemKind<'a>,
    hash: u32,
    /// Label of a host or of an SRV target, or the bytes of an address.
    label: &'a [u8],
    port: u16,
    weight: u16,
}

/// Returns the item at `cursor`, and moves `cursor` behind it.
pub fn next_item<'a>(service: &'a ServiceAnswers, cursor: &mut Cursor) -> Option<RecordItem<'a>> {
    let mut groups = iter::once((&[][..], service.all())).chain(service.networks()).skip(cursor.group);
    let (mut alias, mut group) = groups.next()?;
    loop {
        let Some((kind, content)) = section(group, cursor) else {
            (alias, group) = groups.next()?;
            *cursor = Cursor { group: cursor.group + 1, section: 0, at: 0 };
            continue;
        };
        if let Some((at, content)) = content {
            cursor.at = at + content.length();
            return Some(RecordItem { service, alias, group, kind, content });
        }
        (cursor.section, cursor.at) = (cursor.section + 1, 0);
    }
}

/// Returns the kind of the items in the cursor's section, with the next item there and its
/// position, if one is left. Returns `None` if the group has no such section.
fn section<'a>(
    group: GroupView<'a>,
    &Cursor { section, at, .. }: &Cursor,
) -> Option<(ItemKind<'a>, Option<(usize, ItemContent<'a>)>)> {
    let address = |rtype, records: &'a [u8], length| {
        let record = records.chunks_exact(length).nth(at)?;
        Some((at, ItemContent::Address(rtype, &record[RECORD_FIXED..])))
    };
    let record = |port, records: SrvRecords<'a>| {
        let (at, record) = records.first_from(at)?;
        Some((at, ItemContent::Service(port, record)))
    };
    Some(match section {
        0 => (ItemKind::A, address(rtype::A, group.a(), A_LEN)),
        1 => (ItemKind::Aaaa, address(rtype::AAAA, group.aaaa(), AAAA_LEN)),
        2 => (ItemKind::AllPorts, record(None, group.all_srv())),
        3 => {
            let hosts = group.hosts_from(at as u32); // positions have 32 bits
            (ItemKind::Hosts, (!hosts.is_empty()).then_some((at, ItemContent::Host(hosts))))
        }
        named => {
            let port = group.ports().get(named - 4)?;
            (ItemKind::Port(port.protocol, &port.label()[1..]), record(Some(port), group.srv(port)))
        }
    })
}

/// Returns all items of a service, sorted by key.
pub fn items(service: &ServiceAnswers) -> impl Iterator<Item = RecordItem<'_>> {
    let mut cursor = Cursor::default();
    iter::from_fn(move || next_item(service, &mut cursor))
}

impl<'a> RecordItem<'a> {
    /// Returns the sort key.
    pub fn key(&self) -> ItemKey<'a> {
        let (hash, label, port, weight) = match self.content {
            ItemContent::Address(_, data) => (0, data, 0, 0),
            ItemContent::Service(_, record) => {
                let (hash, label) = self.group.order_at(record.host());
                (hash, label, record.port, record.weight)
            }
            ItemContent::Host(hosts) => {
                let (hash, label) = hosts.order();
                (hash, label, 0, 0)
            }
        };
        // Networks are sorted by their aliases as text, without the length byte.
        let alias = self.alias.get(1..).unwrap_or_default();
        ItemKey { alias, kind: self.kind, hash, label, port, weight }
    }

    /// Tells whether this item and another version's item with the same key have the same records.
    pub fn has_same_records(&self, other: &Self) -> bool {
        self.service.ttl == other.service.ttl
            && match (self.content, other.content) {
                (ItemContent::Host(one), ItemContent::Host(two)) => described(one).eq(described(two)),
                _ => true,
            }
    }

    /// Appends the name that consists of `labels` and the base name of the item's group. Tells
    /// whether the name is short enough for DNS.
    fn push_name(&self, out: &mut Vec<u8>, labels: [&[u8]; 2], base: &[u8]) -> bool {
        let begin = out.len();
        let networks: &[u8] = if self.alias.is_empty() { &[] } else { NETWORKS };
        for part in [labels[0], labels[1], self.alias, networks, base] {
            out.extend_from_slice(part);
        }
        out.len() - begin <= MAX_NAME
    }
}

/// Returns the parts of each endpoint from which records are made: address and TXT data.
fn described(hosts: Hosts<'_>) -> impl Iterator<Item = (IpAddr, &[u8])> {
    hosts.iter().map(|endpoint| (endpoint.address, endpoint.txt))
}

impl ItemContent<'_> {
    /// Returns the number of positions that the item takes in its section.
    fn length(&self) -> usize {
        match self {
            Self::Address(..) | Self::Service(..) => 1,
            Self::Host(hosts) => hosts.len(),
        }
    }
}

/// Writes the records of a service under its names in one zone.
#[derive(Debug)]
pub struct RecordWriter<'b> {
    base: &'b [u8],
    owner: Vec<u8>,
    target: Vec<u8>,
    data: Vec<u8>,
}

impl<'b> RecordWriter<'b> {
    /// Makes a writer for the service whose name is `base`, in wire format.
    pub fn new(base: &'b [u8]) -> Self {
        let [owner, target, data] = [const { 2 * MAX_NAME }; 3].map(Vec::with_capacity);
        Self { base, owner, target, data }
    }

    /// Calls `each` with every record of an item. Records whose names are too long for DNS are left
    /// out.
    pub fn records(&mut self, item: &RecordItem<'_>, each: &mut impl FnMut(Record<'_>)) {
        let Self { base, owner, target, data } = self;
        let ttl = item.service.ttl;
        owner.clear();
        match item.content {
            ItemContent::Address(rtype, data) => {
                if item.push_name(owner, [&[]; 2], base) {
                    each(Record { owner, rtype, ttl, data });
                }
            }
            ItemContent::Service(port, record) => {
                let labels = port.map_or([&[][..]; 2], |port| [port.label(), port.protocol.as_wire()]);
                let label = item.group.label_at(record.host());
                target.clear();
                data.clear();
                if item.push_name(owner, labels, base) && item.push_name(target, [label, &[]], base) {
                    record.push_data(data, &[], target);
                    each(Record { owner, rtype: rtype::SRV, ttl, data });
                }
            }
            ItemContent::Host(hosts) => {
                let (_, label) = hosts.order();
                if label.len() <= 1 || !item.push_name(owner, [label, &[]], base) {
                    return;
                }
                let mut last = None;
                for (address, txt) in described(hosts) {
                    if last.replace(address) != Some(address) {
                        of_address(owner, ttl, address, each);
                    }
                    each(Record { owner, rtype: rtype::TXT, ttl, data: txt });
                }
            }
        }
    }
}

/// Merges two sorted sequences. Calls `each` with every pair of items with equal keys, and with
/// every item that only one sequence has, in order.
pub fn merge<T, K: Ord>(
    one: impl Iterator<Item = T>,
    two: impl Iterator<Item = T>,
    key: impl Fn(&T) -> K,
    mut each: impl FnMut(Option<T>, Option<T>),
) {
    let (mut one, mut two) = (one.peekable(), two.peekable());
    loop {
        let order = match (one.peek(), two.peek()) {
            (Some(one), Some(two)) => key(one).cmp(&key(two)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return,
        };
        let first = if order.is_le() { one.next() } else { None };
        let second = if order.is_ge() { two.next() } else { None };
        each(first, second);
    }
}

fn of_address(owner: &[u8], ttl: u32, address: IpAddr, each: &mut impl FnMut(Record<'_>)) {
    match address {
        IpAddr::V4(address) => each(Record { owner, rtype: rtype::A, ttl, data: &address.octets() }),
        IpAddr::V6(address) => each(Record { owner, rtype: rtype::AAAA, ttl, data: &address.octets() }),
    }
}

/// Appends a record in wire format.
pub fn push(out: &mut Vec<u8>, record: Record<'_>) {
    crate::store::rrset::push_record(out, record.owner, record.rtype, record.ttl, record.data);
}
