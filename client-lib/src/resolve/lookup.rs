//! One resolution: which questions are asked, and what their answers mean together.
//!
//! ```text
//!  for each full name that the given one may stand for:
//!    SRV _port._tcp.<name>  ── none ──> A <name> ── NXDOMAIN ──> next name
//!      │ targets, perhaps glue              └── exists ──> SRV _port._udp.<name> ── none ──> next name
//!      v
//!    TXT <target>, all targets at the same time
//!      │ texts and glue name the same addresses? then that is all; else
//!      v
//!    A and AAAA <target>
//! ```
//!
//! For all ports the SRV records of the name itself are asked for. With a port's number there are no SRV records to ask for: the addresses of the name are the endpoints.
//!
//! **What a failure means.** A name that does not exist leads to the next one, unless the zone that says so lies below
//! the domain of the search path: then the server knows that part of the name, and later ones, which may be broken or
//! have wildcards, are not asked for. A name that exists ends the search, too, whatever it lacks. A failure leads to
//! the next name, because a search path may have domains whose servers are broken; if no later name gives an answer,
//! `verdict` tells which names do not exist and which are not known. A second name without an answer in time ends the
//! resolution. So does any failure of a question about a target: endpoints that are missing because of it would look as
//! if they were gone.
//!
//! **Wildcards** (`*.corp.example.com`) answer for any name, so that an answer without SRV records is taken for the
//! service's only if a name beside it, which does not exist, gets none.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, future, stream};

use super::dns::{DnsAnswer, QueryType, Reply, Session};
use super::question::{NETWORK, Port, ZONE, is_name};
use super::records::{
    AddressCount, SrvTarget, TargetRecords, TooMany, endpoints, endpoints_by_address, is_complete,
};
use super::refresh::MAX_INTERVAL;
use super::verdict::Verdict;
use super::{ResolveError, Resolved};
use crate::endpoint::Endpoint;

/// Targets that are looked at the same time; how many questions are in flight is the session's to bound.
const TARGETS_AT_ONCE: usize = 32;

/// Label that no service has. It replaces the name's first label in the query that finds wildcards.
const PROBE_LABEL: &str = "multinet-probe";

/// Resolves the first of `candidates` that leads to endpoints. `name` is what they stand for; if it is absolute, it may
/// be a wildcard that answers.
pub(super) async fn resolve(
    session: &Session<'_>,
    name: &str,
    port: &Port,
    candidates: &[String],
    is_absolute: bool,
) -> Result<Resolved, ResolveError> {
    let error = match search(session, name, port, candidates, is_absolute).await {
        Err(error @ ResolveError::NoSuchName { .. }) => error,
        outcome => return outcome,
    };
    let Some((network, service)) = name.split_once(NETWORK) else { return Err(error) };
    // Is it the network alone that is not there?
    let services: Vec<String> =
        candidates.iter().filter_map(|candidate| Some(candidate.split_once(NETWORK)?.1.to_owned())).collect();
    let port = if let Port::Number(_) = port { &Port::All } else { port };
    let Ok(found) = search(session, service, port, &services, is_absolute).await else { return Err(error) };
    let addresses = found.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
    let networks: BTreeSet<String> = addresses.filter_map(|address| address.network.clone()).collect();
    // In front of it may be the label of a host.
    let network = network.rsplit('.').next().unwrap_or(network).to_owned();
    if networks.is_empty() || networks.contains(&network) {
        return Err(error);
    }
    Err(ResolveError::NoSuchNetwork { name: found.name, network, networks: Vec::from_iter(networks) })
}

async fn search(
    session: &Session<'_>,
    name: &str,
    port: &Port,
    candidates: &[String],
    is_absolute: bool,
) -> Result<Resolved, ResolveError> {
    let mut verdict = Verdict::new(name, candidates);
    for candidate in candidates {
        let outcome = look_up(session, candidate, port).await;
        let lacks_services = match &outcome {
            Ok(_) => matches!(port, Port::Number(_)),
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

/// Whether any name in the place of the candidate's service exists.
async fn is_wildcard(session: &Session<'_>, candidate: &str) -> bool {
    let parts = [NETWORK, ZONE].iter().find_map(|mark| candidate.split_once(mark));
    let service = parts.map_or(candidate, |(_, service)| service);
    let beside = match service.split_once('.') {
        Some((_, parent)) => format!("{PROBE_LABEL}.{parent}"),
        None => PROBE_LABEL.to_owned(),
    };
    is_name(&beside)
        && matches!(session.ask(&beside, QueryType::A).await, Ok(DnsAnswer::NoData | DnsAnswer::Found(_)))
}

/// The one endpoint of an address, which is all there is to know.
pub(super) fn address(ip: IpAddr, port: &Port) -> Result<Resolved, ResolveError> {
    let name = ip.to_string();
    let endpoints = match port {
        Port::Number(port) => endpoints_by_address(&[ip], *port, &name),
        Port::Named(_) | Port::All => Vec::new(),
    };
    resolved(&name, endpoints, MAX_INTERVAL)
}

/// Why a name did not lead to endpoints.
enum LookupError {
    /// It does not exist.
    NoName {
        /// The zone that says so.
        zone: Option<String>,
    },
    /// It exists, without what was asked for.
    NoData(ResolveError),
    /// It is not known whether it exists.
    Failed(ResolveError),
    /// No other name is to be tried.
    Final(ResolveError),
}

/// Of a question about the name itself.
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

async fn look_up(session: &Session<'_>, name: &str, port: &Port) -> Result<Resolved, LookupError> {
    match port {
        Port::Named(port) => by_port_name(session, name, port).await,
        Port::Number(port) => by_port_number(session, name, *port).await,
        Port::All => all_ports(session, name).await,
    }
}

async fn by_port_name(session: &Session<'_>, name: &str, port: &str) -> Result<Resolved, LookupError> {
    if let DnsAnswer::Found(reply) = session.ask(&format!("_{port}._tcp.{name}"), QueryType::Srv).await? {
        return resolve_targets(session, name, reply).await.map_err(LookupError::Final);
    }
    if let DnsAnswer::NoName { zone } = session.ask(name, QueryType::A).await? {
        return Err(LookupError::NoName { zone });
    }
    if let DnsAnswer::Found(reply) = session.ask(&format!("_{port}._udp.{name}"), QueryType::Srv).await? {
        return resolve_targets(session, name, reply).await.map_err(LookupError::Final);
    }
    // The numbers are all that DNS tells of the ports that there are.
    let ports = match session.ask(name, QueryType::Srv).await? {
        DnsAnswer::Found(reply) => reply.services.iter().map(|service| service.port).collect(),
        DnsAnswer::NoData | DnsAnswer::NoName { .. } => BTreeSet::new(),
    };
    Err(no_such_port(name, port, Vec::from_iter(ports)))
}

/// The SRV records of a service's own name are those of all its ports.
async fn all_ports(session: &Session<'_>, name: &str) -> Result<Resolved, LookupError> {
    match session.ask(name, QueryType::Srv).await? {
        DnsAnswer::Found(reply) => resolve_targets(session, name, reply).await.map_err(LookupError::Final),
        DnsAnswer::NoName { zone } => Err(LookupError::NoName { zone }),
        DnsAnswer::NoData => Err(no_such_port(name, "*", Vec::new())),
    }
}

fn no_such_port(name: &str, port: &str, ports: Vec<u16>) -> LookupError {
    let (name, port) = (name.to_owned(), port.to_owned());
    LookupError::NoData(ResolveError::NoSuchPort { name, port, ports })
}

async fn by_port_number(session: &Session<'_>, name: &str, port: u16) -> Result<Resolved, LookupError> {
    let answers =
        future::try_join(session.ask(name, QueryType::A), session.ask(name, QueryType::Aaaa)).await?;
    if let (DnsAnswer::NoName { zone }, DnsAnswer::NoName { .. }) = answers {
        return Err(LookupError::NoName { zone });
    }
    let mut ttl = Duration::MAX;
    let addresses = addresses(answers.into(), &mut ttl);
    resolved(name, endpoints_by_address(&addresses, port, name), ttl).map_err(LookupError::NoData)
}

/// The endpoints that SRV records point at.
async fn resolve_targets(session: &Session<'_>, name: &str, reply: Reply) -> Result<Resolved, ResolveError> {
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

/// What a target owns: its texts, and its addresses, which need not be asked for where the SRV answer had them all.
/// The texts tell whether it had, because they name every address.
async fn resolve_target(
    session: &Session<'_>,
    target: String,
    glue: Vec<IpAddr>,
) -> Result<(String, TargetRecords, Duration), ResolveError> {
    let mut ttl = Duration::MAX;
    let facts = match session.ask(&target, QueryType::Txt).await? {
        DnsAnswer::Found(reply) => {
            ttl = ttl.min(reply.ttl);
            reply.facts
        }
        DnsAnswer::NoData | DnsAnswer::NoName { .. } => Vec::new(),
    };
    let mut owned = TargetRecords { addresses: glue, facts };
    if !is_complete(&owned) {
        let answers =
            future::try_join(session.ask(&target, QueryType::A), session.ask(&target, QueryType::Aaaa))
                .await?;
        owned.addresses = addresses(answers.into(), &mut ttl);
    }
    Ok((target, owned, ttl))
}

/// All addresses in the answers, whose times to live bound `ttl`.
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
