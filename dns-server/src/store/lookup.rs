//! Finds the owner that a name below a service stands for in the [`schema`](crate::store::schema).
//! [`records`](crate::store::records) goes the other way: it lists all names of a service. Pure.

use crate::store::build::ServiceAnswers;
use crate::store::group::{GroupView, NamedPort};
use crate::store::name::{Labels, MAX_NAME, NETWORKS, PIN, PREFER, ZONES};
use crate::store::rrset::Node;
use crate::store::schema::Owner;
use crate::store::slice::protocol_of;

/// Result of looking up a name in a zone.
#[derive(Debug)]
pub enum LookupResult<'a> {
    /// The name does not exist: NXDOMAIN.
    Nothing,
    /// An empty non-terminal: the name owns no records, but a name below it does (RFC 8020).
    Empty,
    /// A name with fixed records, such as a zone's apex or its name server.
    Node(&'a Node),
    /// A name of a service that owns records.
    Service {
        /// Time to live of the records, in seconds.
        ttl: u32,
        /// Part of the service that the records are made of.
        owner: Owner<'a>,
        /// Number of labels in front of the base name, which the targets of SRV records are below.
        /// That of a topology zone is the service's name.
        labels: usize,
    },
    /// A reverse name: the time to live of its PTR records, and their targets, each in four parts.
    Pointers(u32, &'a [[&'a [u8]; 4]]),
}

/// Number of labels in `_<port>._<proto>`.
const PORT_LABELS: usize = 2;

impl<'a> LookupResult<'a> {
    fn service(service: &ServiceAnswers, owner: Owner<'a>, labels: usize) -> Self {
        Self::Service { ttl: service.ttl, owner, labels }
    }

    /// Tells whether the name exists, with or without records; otherwise the reply is NXDOMAIN.
    pub fn exists(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// Returns the time to live of the name's records, or `None` if it owns none.
    pub(crate) fn ttl(&self) -> Option<u32> {
        match *self {
            Self::Nothing | Self::Empty => None,
            Self::Node(node) => Some(node.rrsets.first()?.ttl),
            Self::Service { ttl, .. } | Self::Pointers(ttl, _) => Some(ttl),
        }
    }
}

/// Looks up a name whose first `below` labels are in front of the service's name.
pub(crate) fn find<'a>(service: &'a ServiceAnswers, name: Labels<'_>, below: usize) -> LookupResult<'a> {
    match below.checked_sub(1) {
        None => LookupResult::service(service, Owner::Base(service.all()), 0),
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
        Some(group) => LookupResult::service(service, Owner::Base(group), below + 1),
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
    let protocol = |position| protocol_of(name.label(position));
    match below {
        0 => LookupResult::service(service, Owner::Base(group), 0),
        1 => match protocol(0) {
            Some(protocol) => exists_if(group.ports().iter().any(|port| {
                port.protocol == protocol
                    && port.label().len() + name.wire().len() <= MAX_NAME
                    && has_records(group, port, name.from(1))
            })),
            None => match group.hosts_with_label(name.label(0)) {
                hosts if hosts.is_empty() => LookupResult::Nothing,
                hosts => LookupResult::service(service, Owner::Host(hosts), 1),
            },
        },
        PORT_LABELS => match protocol(1).and_then(|protocol| group.port(name.label(0), protocol)) {
            Some(port) if has_records(group, port, name.from(PORT_LABELS)) => {
                LookupResult::service(service, Owner::Port(group, port), PORT_LABELS)
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
