//! The queries of one resolution, and the meaning of their answers together.
//!
//! ```text
//!  for each full name that the given one may stand for:
//!    SRV _port._tcp.<name> ── none ─> A <name> ── NXDOMAIN ──> next name
//!      │ targets, perhaps glue          └── exists ──> SRV _port._udp.<name> ── none ──> next name
//!      v
//!    TXT <target>, all targets at the same time
//!      │ texts and glue name the same addresses? then that is all; else
//!      v
//!    A and AAAA <target>
//! ```
//!
//! For all ports, the SRV records of the name itself are queried. For a port's number, its
//! addresses are the endpoints. The name of one host exists without SRV records: of those of its
//! service, whose name is the rest of the host's, the ones that lead to the host count.
//!
//! **Failures.** If a name does not exist, the next one is tried. If the zone that denies it lies
//! below the domain of the search path, the search ends: that zone knows the service's part of the
//! name, and later domains, which may be broken or have wildcards, do not count. A name that exists
//! ends the search even without the wanted records.
//!
//! If DNS fails for a name, the next one is tried, because some domains of a search path may have
//! broken servers. If no name has endpoints, `verdict` reports which names do not exist and which
//! have no answer. A second name without an answer in time ends the resolution.
//!
//! A failed query about the target of an SRV record fails the resolution. Otherwise its endpoint
//! would seem to be gone.
//!
//! **Wildcards** (`*.corp.example.com`) answer for any name. So an answer without SRV records
//! counts only if a name beside it, which does not exist, gets no answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, future, stream};
use hickory_resolver::proto::rr::RecordType;

use super::dns::{DnsAnswer, Queries, Reply};
use super::question::{NETWORK, Ports, ZONE, is_name};
use super::records::{
    AddressCount, SrvTarget, TargetRecords, TooMany, endpoints, endpoints_by_address, is_complete,
};
use super::refresh::MAX_INTERVAL;
use super::verdict::Verdict;
use super::{ResolveError, Resolved};
use crate::endpoint::Endpoint;

/// Targets that are resolved at a time. The session limits the queries in flight.
const TARGETS_AT_ONCE: usize = 32;

/// Label that no service has. It replaces a service's own label in the query that detects
/// wildcards.
const PROBE_LABEL: &str = "multinet-probe";

/// Resolves the first of `candidates` that leads to endpoints. They are the full names of `name`. A
/// wildcard may answer for an absolute name.
pub(super) async fn resolve(
    session: &Queries<'_>,
    name: &str,
    port: &Ports,
    candidates: &[String],
    is_absolute: bool,
) -> Result<Resolved, ResolveError> {
    let error = match search(session, name, port, candidates, is_absolute).await {
        Err(error @ ResolveError::NoSuchName { .. }) => error,
        outcome => return outcome,
    };
    let Some((network, service)) = name.split_once(NETWORK) else { return Err(error) };
    // Tells a service that lacks this network from one that does not exist.
    let services: Vec<String> =
        candidates.iter().filter_map(|candidate| Some(candidate.split_once(NETWORK)?.1.to_owned())).collect();
    let port = if let Ports::Number(_) = port { &Ports::All } else { port };
    let Ok(found) = search(session, service, port, &services, is_absolute).await else { return Err(error) };
    let addresses = found.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
    let networks: BTreeSet<String> = addresses.filter_map(|address| address.network.clone()).collect();
    // A host's label may stand before the network's alias.
    let network = network.rsplit('.').next().unwrap_or(network).to_owned();
    if networks.is_empty() || networks.contains(&network) {
        return Err(error);
    }
    Err(ResolveError::NoSuchNetwork { name: found.name, network, networks: Vec::from_iter(networks) })
}

async fn search(
    session: &Queries<'_>,
    name: &str,
    port: &Ports,
    candidates: &[String],
    is_absolute: bool,
) -> Result<Resolved, ResolveError> {
    let mut verdict = Verdict::new(name, candidates);
    for candidate in candidates {
        let outcome = look_up(session, candidate, port).await;
        let lacks_services = match &outcome {
            Ok(_) => matches!(port, Ports::Number(_)),
            Err(setback) => matches!(setback, LookupError::NoData(_)),
        };
        if lacks_services && !is_absolute && is_wildcard(session, candidate).await {
            verdict.add_wildcard();
            continue;
        }
        match outcome {
            Ok(resolved) => return Ok(resolved),
            Err(LookupError::NoName { zone }) => verdict.add_absent(zone.as_deref())?,
            Err(LookupError::Failed(error)) => verdict.add_failure(error)?,
            Err(LookupError::NoData(error) | LookupError::Final(error)) => return Err(error),
        }
    }
    Err(verdict.outcome())
}

/// Returns whether a name exists that has another label in place of the candidate's service.
async fn is_wildcard(session: &Queries<'_>, candidate: &str) -> bool {
    let parts = [NETWORK, ZONE].iter().find_map(|mark| candidate.split_once(mark));
    let service = parts.map_or(candidate, |(_, service)| service);
    let beside = match service.split_once('.') {
        Some((_, parent)) => format!("{PROBE_LABEL}.{parent}"),
        None => PROBE_LABEL.to_owned(),
    };
    is_name(&beside)
        && matches!(session.ask(&beside, RecordType::A).await, Ok(DnsAnswer::NoData | DnsAnswer::Found(_)))
}

/// Returns the one endpoint of an IP address given in place of a service's name. Sends no query.
pub(super) fn address(ip: IpAddr, port: &Ports) -> Result<Resolved, ResolveError> {
    let name = ip.to_string();
    let endpoints = match port {
        Ports::Number(port) => endpoints_by_address(&[ip], *port, &name),
        Ports::Named(_) | Ports::All => Vec::new(),
    };
    resolved(&name, endpoints, MAX_INTERVAL)
}

/// Reason why one candidate for the full name did not lead to endpoints.
enum LookupError {
    /// The candidate does not exist in DNS (NXDOMAIN).
    NoName {
        /// Zone that denies the candidate. `None` if the answer does not name it.
        zone: Option<String>,
    },
    /// The candidate exists in DNS, but has no records of the wanted kind.
    NoData(ResolveError),
    /// DNS fails for the candidate, which may exist or not.
    Failed(ResolveError),
    /// The whole resolution fails with this error. Other candidates are not tried.
    Final(ResolveError),
}

impl From<ResolveError> for LookupError {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::ServFail { .. }
            | ResolveError::Refused { .. }
            | ResolveError::Timeout { .. }
            | ResolveError::Unreachable { .. } => Self::Failed(error),
            _ => Self::Final(error),
        }
    }
}

async fn look_up(session: &Queries<'_>, name: &str, port: &Ports) -> Result<Resolved, LookupError> {
    match port {
        Ports::Named(port) => by_port_name(session, name, port).await,
        Ports::Number(port) => by_port_number(session, name, *port).await,
        Ports::All => all_ports(session, name).await,
    }
}

async fn by_port_name(session: &Queries<'_>, name: &str, port: &str) -> Result<Resolved, LookupError> {
    if let DnsAnswer::Found(reply) = session.ask(&format!("_{port}._tcp.{name}"), RecordType::SRV).await? {
        return resolve_targets(session, name, reply).await.map_err(LookupError::Final);
    }
    if let DnsAnswer::NoName { zone } = session.ask(name, RecordType::A).await? {
        return Err(LookupError::NoName { zone });
    }
    if let DnsAnswer::Found(reply) = session.ask(&format!("_{port}._udp.{name}"), RecordType::SRV).await? {
        return resolve_targets(session, name, reply).await.map_err(LookupError::Final);
    }
    // DNS knows the numbers of the other ports, but not their names.
    let ports = match session.ask(name, RecordType::SRV).await? {
        DnsAnswer::Found(reply) => reply.ports(),
        DnsAnswer::NoData | DnsAnswer::NoName { .. } => Vec::new(),
    };
    one_host(session, name, port, ports).await
}

/// Resolves a port of one host. SRV records are the service's, whose name is the rest of the
/// host's: of these, the ones that lead to the host count. `ports` has the numbers of the host's
/// ports, if DNS knows them.
async fn one_host(
    session: &Queries<'_>,
    host: &str,
    port: &str,
    mut ports: Vec<u16>,
) -> Result<Resolved, LookupError> {
    let Some((label, service)) = host.split_once('.').filter(|(_, service)| service.contains('.')) else {
        return Err(no_such_port(host, port, ports));
    };
    for owner in [format!("_{port}._tcp.{service}"), format!("_{port}._udp.{service}")] {
        let DnsAnswer::Found(mut reply) = session.ask(&owner, RecordType::SRV).await? else { continue };
        // CoreDNS' plugin etcd names a host of a service's port below that port.
        let below_port = format!("{label}.{owner}");
        reply.services.retain(|service| service.target == host || service.target == below_port);
        if !reply.services.is_empty() {
            return resolve_targets(session, host, reply).await.map_err(LookupError::Final);
        }
    }
    if ports.is_empty()
        && let DnsAnswer::Found(mut reply) = session.ask(service, RecordType::SRV).await?
    {
        reply.services.retain(|service| service.target == host);
        ports = reply.ports();
    }
    Err(no_such_port(host, port, ports))
}

/// Resolves all named ports of a service, from the SRV records of the service's own name.
async fn all_ports(session: &Queries<'_>, name: &str) -> Result<Resolved, LookupError> {
    match session.ask(name, RecordType::SRV).await? {
        DnsAnswer::Found(reply) => resolve_targets(session, name, reply).await.map_err(LookupError::Final),
        DnsAnswer::NoName { zone } => Err(LookupError::NoName { zone }),
        DnsAnswer::NoData => all_ports_of_host(session, name).await,
    }
}

/// Resolves all named ports of one host, from the SRV records of its service.
async fn all_ports_of_host(session: &Queries<'_>, host: &str) -> Result<Resolved, LookupError> {
    if let Some((_, service)) = host.split_once('.').filter(|(_, service)| service.contains('.'))
        && let DnsAnswer::Found(mut reply) = session.ask(service, RecordType::SRV).await?
    {
        reply.services.retain(|service| service.target == host);
        if !reply.services.is_empty() {
            return resolve_targets(session, host, reply).await.map_err(LookupError::Final);
        }
    }
    Err(no_such_port(host, "*", Vec::new()))
}

fn no_such_port(name: &str, port: &str, ports: Vec<u16>) -> LookupError {
    let (name, port) = (name.to_owned(), port.to_owned());
    LookupError::NoData(ResolveError::NoSuchPort { name, port, ports })
}

async fn by_port_number(session: &Queries<'_>, name: &str, port: u16) -> Result<Resolved, LookupError> {
    let ask = |rtype| session.ask(name, rtype);
    let answers = future::try_join3(ask(RecordType::A), ask(RecordType::AAAA), ask(RecordType::SRV)).await?;
    let (v4, v6, services) = match answers {
        (DnsAnswer::NoName { zone }, DnsAnswer::NoName { .. }, _) => {
            return Err(LookupError::NoName { zone });
        }
        answers => answers,
    };
    // A named port of this number leads to the texts about the endpoints.
    if let DnsAnswer::Found(mut reply) = services {
        reply.services.retain(|service| service.port == port);
        if !reply.services.is_empty() {
            return resolve_targets(session, name, reply).await.map_err(LookupError::Final);
        }
    }
    let mut ttl = Duration::MAX;
    let addresses = addresses([v4, v6], &mut ttl);
    resolved(name, endpoints_by_address(&addresses, port, name), ttl).map_err(LookupError::NoData)
}

/// Resolves the targets of SRV records, and returns the endpoints that they make up.
async fn resolve_targets(session: &Queries<'_>, name: &str, reply: Reply) -> Result<Resolved, ResolveError> {
    let Reply { mut ttl, services, glue, .. } = reply;
    let mut glue_of: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for (owner, ip) in glue {
        glue_of.entry(owner).or_default().push(ip);
    }
    let targets: BTreeMap<String, Vec<IpAddr>> = services
        .iter()
        .map(|SrvTarget { target, .. }| (target.clone(), glue_of.get(target).cloned().unwrap_or_default()))
        .collect();

    let mut lookups = stream::iter(targets)
        .map(|(target, glue)| resolve_target(session, target, glue))
        .buffer_unordered(TARGETS_AT_ONCE);
    let too_many = |TooMany| ResolveError::TooMany { name: name.to_owned() };
    let mut by_target = BTreeMap::new();
    let mut size = AddressCount::default();
    while let Some((target, owned, target_ttl)) = lookups.try_next().await? {
        size.add(&owned).map_err(too_many)?;
        ttl = ttl.min(target_ttl);
        by_target.insert(target, owned);
    }
    resolved(name, endpoints(&services, &by_target).map_err(too_many)?, ttl)
}

/// Returns the records of a target. Its addresses are queried only if the SRV answer did not have
/// all of them, which the texts show: they name every address.
async fn resolve_target(
    session: &Queries<'_>,
    target: String,
    glue: Vec<IpAddr>,
) -> Result<(String, TargetRecords, Duration), ResolveError> {
    let mut ttl = Duration::MAX;
    let facts = match session.ask(&target, RecordType::TXT).await? {
        DnsAnswer::Found(reply) => {
            ttl = ttl.min(reply.ttl);
            reply.facts
        }
        DnsAnswer::NoData | DnsAnswer::NoName { .. } => Vec::new(),
    };
    let mut owned = TargetRecords { addresses: glue, facts };
    if !is_complete(&owned) {
        let answers =
            future::try_join(session.ask(&target, RecordType::A), session.ask(&target, RecordType::AAAA))
                .await?;
        owned.addresses = addresses(answers.into(), &mut ttl);
    }
    Ok((target, owned, ttl))
}

/// Returns the addresses in the answers, and lowers `ttl` to their smallest time to live.
fn addresses(answers: [DnsAnswer; 2], ttl: &mut Duration) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for answer in answers {
        if let DnsAnswer::Found(reply) = answer {
            *ttl = reply.ttl.min(*ttl);
            addresses.extend(reply.addresses);
        }
    }
    addresses
}

fn resolved(name: &str, endpoints: Vec<Endpoint>, ttl: Duration) -> Result<Resolved, ResolveError> {
    if endpoints.is_empty() {
        return Err(ResolveError::NoAddress { name: name.to_owned() });
    }
    Ok(Resolved { name: name.to_owned(), endpoints, ttl })
}
