//! Finds the records at a name below a service, as docs/dns.md defines them.
//! [`records`](crate::store::records) goes the other way: it lists all names of a service. Pure.

use crate::store::build::ServiceAnswers;
use crate::store::group::{GroupView, Hosts, NamedPort};
use crate::store::name::{Labels, MAX_NAME, NETWORKS, PIN, PREFER, ZONES};
use crate::store::rrset::Node;
use crate::store::slice::ProtocolLabel;

/// Result of looking up a name.
#[derive(Debug)]
pub enum LookupResult<'a> {
    /// The name does not exist: NXDOMAIN.
    Nothing,
    /// An empty non-terminal: the name owns no records, but a name below it does (RFC 8020).
    Empty,
    /// One of a zone's own names.
    Node(&'a Node),
    /// The base name of a service or of one of its networks.
    Base(&'a ServiceAnswers, GroupView<'a>),
    /// The endpoints of a service in a topology zone, or all of them. The number is that of the
    /// labels in front of the service's name.
    Zone(&'a ServiceAnswers, GroupView<'a>, usize),
    /// A host of a service, with its endpoints.
    Host(&'a ServiceAnswers, Hosts<'a>),
    /// A named port.
    Port(&'a ServiceAnswers, GroupView<'a>, &'a NamedPort),
    /// A reverse name: the time to live of its PTR records, and their targets, each in four parts.
    Pointers(u32, &'a [[&'a [u8]; 4]]),
}

/// Number of labels in `_<port>._<proto>`.
pub(crate) const PORT_LABELS: usize = 2;

impl LookupResult<'_> {
    /// Tells whether the name exists.
    pub fn exists(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// Returns the time to live of the name's records, or `None` if it owns none.
    pub(crate) fn ttl(&self) -> Option<u32> {
        match *self {
            Self::Nothing | Self::Empty => None,
            Self::Node(node) => Some(node.rrsets.first()?.ttl),
            Self::Base(service, _)
            | Self::Zone(service, ..)
            | Self::Host(service, _)
            | Self::Port(service, ..) => Some(service.ttl),
            Self::Pointers(ttl, _) => Some(ttl),
        }
    }
}

/// Looks up a name whose first `below` labels are in front of the service's name.
pub fn find<'a>(service: &'a ServiceAnswers, name: Labels<'_>, below: usize) -> LookupResult<'a> {
    match below.checked_sub(1) {
        None => LookupResult::Base(service, service.all()),
        Some(last) if name.label(last) == ZONES => find_zone(service, name, last),
        Some(last) if name.label(last) != NETWORKS => find_in(service, service.all(), name, below),
        Some(0) => {
            exists_if(service.networks().any(|(alias, _)| alias.len() + name.wire().len() <= MAX_NAME))
        }
        Some(alias) => match service.network(name.label(alias - 1)) {
            Some(group) => find_in(service, group, name, alias - 1),
            None => LookupResult::Nothing,
        },
    }
}

/// Looks up a name whose first `below` labels are in front of [`ZONES`]: `<zone>.pin`,
/// `<zone>.prefer`, or a name below these. The name of every zone exists, as in CoreDNS, whether or
/// not the zone has endpoints.
fn find_zone<'a>(service: &'a ServiceAnswers, name: Labels<'_>, below: usize) -> LookupResult<'a> {
    let Some(labels) = below.checked_sub(1) else { return LookupResult::Empty };
    let directive = name.label(labels);
    if directive != PIN && directive != PREFER {
        return LookupResult::Nothing;
    }
    let all = (directive == PREFER && labels > 0).then(|| service.all());
    match service.zone(name.between(0, labels)).or(all) {
        Some(group) => LookupResult::Zone(service, group, below + 1),
        None => LookupResult::Empty,
    }
}

/// Looks up a name whose first `below` labels are in front of a group's base name.
fn find_in<'a>(
    service: &'a ServiceAnswers,
    group: GroupView<'a>,
    name: Labels<'_>,
    below: usize,
) -> LookupResult<'a> {
    let protocol = |position| ProtocolLabel::from_wire(name.label(position));
    match below {
        0 => LookupResult::Base(service, group),
        1 => match protocol(0) {
            Some(protocol) => exists_if(group.ports().iter().any(|port| {
                port.protocol == protocol
                    && port.label().len() + name.wire().len() <= MAX_NAME
                    && has_records(group, port, name.from(1))
            })),
            None => match group.hosts_with_label(name.label(0)) {
                hosts if hosts.is_empty() => LookupResult::Nothing,
                hosts => LookupResult::Host(service, hosts),
            },
        },
        PORT_LABELS => match protocol(1).and_then(|protocol| group.port(name.label(0), protocol)) {
            Some(port) if has_records(group, port, name.from(PORT_LABELS)) => {
                LookupResult::Port(service, group, port)
            }
            _ => LookupResult::Nothing,
        },
        _ => LookupResult::Nothing,
    }
}

fn exists_if<'a>(exists: bool) -> LookupResult<'a> {
    if exists { LookupResult::Empty } else { LookupResult::Nothing }
}

/// Tells whether a port has a record whose target's name is short enough for DNS. Nearly always the
/// first record decides.
fn has_records(group: GroupView<'_>, port: &NamedPort, base: &[u8]) -> bool {
    group.srv(port).iter().any(|record| group.label_at(record.host()).len() + base.len() <= MAX_NAME)
}
