//! Lists all records of a service, at all names of the [`schema`](crate::store::schema). Zone
//! transfers send them, and the journal compares them. Pure.
//!
//! The records come in items of one or a few records. The items of every version of a service are
//! in the same order. So the difference between two versions is found in one pass over both, and a
//! transfer can stop at any item and later continue from its [`Cursor`].

use std::cmp::Ordering;
use std::iter;

use multinet_crds::Protocol;

use crate::store::build::ServiceAnswers;
use crate::store::group::{GroupView, Hosts};
use crate::store::name::{MAX_NAME, NETWORKS};
use crate::store::rrset::{self, Record};
use crate::store::schema::{NameKind, Owner, RecordKey, RecordSet};

/// Position in the list of a service's records at which [`next_item`] goes on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    group: usize,
    section: usize,
    at: usize,
}

/// Records of a service that change only together: one record, or all of a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordItem<'a> {
    service: &'a ServiceAnswers,
    /// Alias of the records' network in wire format; empty for all networks together.
    alias: &'a [u8],
    section: ItemSection<'a>,
    content: ItemContent<'a>,
}

/// Part of a group's list of records. Items are sorted by section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ItemSection<'a> {
    /// The records of one type at the base name, by the position of the type in
    /// [`NameKind::types`].
    Base(usize),
    Hosts,
    /// The records of one type at a named port, by the port's protocol, its label without the
    /// length byte, and the position of the type.
    Port(Protocol, &'a [u8], usize),
}

#[derive(Debug, Clone, Copy)]
enum ItemContent<'a> {
    /// One record: its owner, its type, and its position in a set of records.
    Record(Owner<'a>, u16, RecordSet<'a>, usize),
    /// All records of the endpoints that share one host label.
    Host(Hosts<'a>),
}

/// Sort key of items. No two items of a service have the same.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ItemKey<'a> {
    alias: &'a [u8],
    section: ItemSection<'a>,
    record: RecordKey<'a>,
}

/// Returns the item of a service's records at `cursor`, and moves `cursor` behind it.
pub(crate) fn next_item<'a>(service: &'a ServiceAnswers, cursor: &mut Cursor) -> Option<RecordItem<'a>> {
    let mut groups = iter::once((&[][..], service.all())).chain(service.networks()).skip(cursor.group);
    let (mut alias, mut group) = groups.next()?;
    loop {
        let Some((section, item)) = section(group, cursor) else {
            (alias, group) = groups.next()?;
            *cursor = Cursor { group: cursor.group + 1, section: 0, at: 0 };
            continue;
        };
        if let Some((next, content)) = item {
            cursor.at = next;
            return Some(RecordItem { service, alias, section, content });
        }
        (cursor.section, cursor.at) = (cursor.section + 1, 0);
    }
}

/// Returns the cursor's section, with the next item there and the position behind it, if one is
/// left. Returns `None` if the group has no such section.
fn section<'a>(
    group: GroupView<'a>,
    &Cursor { section, at, .. }: &Cursor,
) -> Option<(ItemSection<'a>, Option<(usize, ItemContent<'a>)>)> {
    let [base, ports] = [NameKind::Base, NameKind::Port].map(NameKind::types);
    let record = |owner: Owner<'a>, rtype: u16| {
        let set = owner.records(rtype)?;
        let at = set.first_from(at)?;
        Some((at + 1, ItemContent::Record(owner, rtype, set, at)))
    };
    Some(match section.checked_sub(base.len()) {
        None => (ItemSection::Base(section), record(Owner::Base(group), base[section])),
        Some(0) => {
            let hosts = group.hosts_from(at as u32); // positions have 32 bits
            let item = (!hosts.is_empty()).then(|| (at + hosts.len(), ItemContent::Host(hosts)));
            (ItemSection::Hosts, item)
        }
        Some(number) => {
            let (position, index) = ((number - 1) / ports.len(), (number - 1) % ports.len());
            let port = group.ports().get(position)?;
            let section = ItemSection::Port(port.protocol, &port.label()[1..], index);
            (section, record(Owner::Port(group, port), ports[index]))
        }
    })
}

/// Returns all records of a service as items, sorted by key.
pub(crate) fn items(service: &ServiceAnswers) -> impl Iterator<Item = RecordItem<'_>> {
    let mut cursor = Cursor::default();
    iter::from_fn(move || next_item(service, &mut cursor))
}

impl<'a> RecordItem<'a> {
    /// Returns the key by which the items of a service are sorted.
    pub(crate) fn key(&self) -> ItemKey<'a> {
        let record = match self.content {
            ItemContent::Record(_, _, set, at) => set.key(at),
            ItemContent::Host(hosts) => RecordKey::of_host(hosts),
        };
        // Networks are sorted by their aliases as text, without the length byte.
        let alias = self.alias.get(1..).unwrap_or_default();
        ItemKey { alias, section: self.section, record }
    }

    /// Tells whether this item and another version's item with the same key have the same records.
    pub(crate) fn has_same_records(&self, other: &Self) -> bool {
        self.service.ttl == other.service.ttl
            && match (self.content, other.content) {
                (ItemContent::Host(one), ItemContent::Host(two)) => one.iter().eq(two.iter()),
                _ => true,
            }
    }

    /// Appends the name that consists of `labels` and the base name of the item's group. Tells
    /// whether the name is short enough for DNS.
    fn push_name(&self, out: &mut Vec<u8>, labels: [&[u8]; 2], base: &[u8]) -> bool {
        out.clear();
        let networks: &[u8] = if self.alias.is_empty() { &[] } else { NETWORKS };
        for part in [labels[0], labels[1], self.alias, networks, base] {
            out.extend_from_slice(part);
        }
        out.len() <= MAX_NAME
    }
}

/// Writes the records of a service under its name in one zone.
#[derive(Debug)]
pub(crate) struct RecordWriter<'b> {
    /// Name of the service in the zone, in wire format.
    service: &'b [u8],
    owner: Vec<u8>,
    /// Buffer for the base name of an item's group, which SRV targets are below.
    base: Vec<u8>,
    data: Vec<u8>,
}

impl<'b> RecordWriter<'b> {
    /// Makes a writer for the service whose name is `service`, in wire format.
    pub(crate) fn new(service: &'b [u8]) -> Self {
        let [owner, base, data] = [const { 2 * MAX_NAME }; 3].map(Vec::with_capacity);
        Self { service, owner, base, data }
    }

    /// Calls `each` with every record of an item. Records whose names are too long for DNS are left
    /// out.
    pub(crate) fn records(&mut self, item: &RecordItem<'_>, each: &mut impl FnMut(Record<'_>)) {
        let labels = match item.content {
            ItemContent::Record(owner, ..) => owner.labels(),
            ItemContent::Host(hosts) => Owner::Host(hosts).labels(),
        };
        if !item.push_name(&mut self.owner, labels, self.service) {
            return;
        }
        item.push_name(&mut self.base, [&[]; 2], self.service);
        match item.content {
            ItemContent::Record(_, rtype, set, at) => self.record(item, rtype, set, at, each),
            // The endpoints without a name are not listed as a host.
            ItemContent::Host(_) if labels[0].len() <= 1 => {}
            ItemContent::Host(hosts) => {
                for same_address in hosts.by_address() {
                    for &rtype in NameKind::Host.types() {
                        let Some(set) = Owner::Host(same_address).records(rtype) else { continue };
                        set.positions().for_each(|at| self.record(item, rtype, set, at, each));
                    }
                }
            }
        }
    }

    /// Calls `each` with the record at position `at` of a set, unless its target is too long for
    /// DNS.
    fn record(
        &mut self,
        item: &RecordItem<'_>,
        rtype: u16,
        set: RecordSet<'_>,
        at: usize,
        each: &mut impl FnMut(Record<'_>),
    ) {
        self.data.clear();
        if set.push_data(at, &self.base, &mut self.data) {
            each(Record { owner: &self.owner, rtype, ttl: item.service.ttl, data: &self.data });
        }
    }
}

/// Merges two sorted sequences. Calls `each` with every pair of items with equal keys, and with
/// every item that only one sequence has, in order.
pub(crate) fn merge<T, K: Ord>(
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

/// Appends a record in uncompressed wire format.
pub(crate) fn push(out: &mut Vec<u8>, record: Record<'_>) {
    rrset::push_record(out, record.owner, record.rtype, record.ttl, record.data);
}
