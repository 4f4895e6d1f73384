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
//! **What a failure means.** A name that does not exist leads to the next one, also one that the server is not responsible
//! for. So does a SERVFAIL, as in the C library, because a search path may have domains whose servers are broken; but
//! if no later name gives an answer it is the outcome, and never "there is no such service". A time-out ends
//! the resolution. So does any failure of a question about a target: endpoints that are missing because of it would
//! look as if they were gone.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, future, stream};

use super::dns::{Answer, Kind, Reply, Session};
use super::question::Port;
use super::records::{Owned, Service, Size, TooMany, endpoints, endpoints_by_address, is_complete};
use super::refresh::MAX_INTERVAL;
use super::{ResolveError, Resolved};
use crate::endpoint::Endpoint;

/// Targets that are looked at the same time; how many questions are in flight is the session's to bound.
const TARGETS_AT_ONCE: usize = 32;

/// Resolves the first of `candidates` that leads to endpoints. `name` is what they stand for.
pub(super) async fn resolve(
    session: &Session<'_>,
    name: &str,
    port: &Port,
    candidates: &[String],
) -> Result<Resolved, ResolveError> {
    let mut verdict = Verdict::default();
    for candidate in candidates {
        match look_up(session, candidate, port).await {
            Ok(resolved) => return Ok(resolved),
            Err(Setback { error, is_final: true }) => return Err(error),
            Err(Setback { error, .. }) => verdict.add(error),
        }
    }
    Err(verdict.finish(name, candidates))
}

/// Resolves a full name.
pub(super) async fn resolve_full(
    session: &Session<'_>,
    name: &str,
    port: &Port,
) -> Result<Resolved, ResolveError> {
    look_up(session, name, port).await.map_err(|setback| setback.error)
}

/// The one endpoint of an address, which is all there is to know.
pub(super) fn address(ip: IpAddr, port: &Port) -> Result<Resolved, ResolveError> {
    let name = ip.to_string();
    let endpoints = match port {
        Port::Number(port) => endpoints_by_address(&[ip], *port, &name),
        Port::Named(_) | Port::All => Vec::new(),
    };
    finish(&name, endpoints, MAX_INTERVAL)
}

/// Why a name did not lead to endpoints.
struct Setback {
    error: ResolveError,
    /// The names behind it are not to be tried.
    is_final: bool,
}

impl Setback {
    fn last(error: ResolveError) -> Self {
        Self { error, is_final: true }
    }
}

/// Of a question about the name itself.
impl From<ResolveError> for Setback {
    fn from(error: ResolveError) -> Self {
        let is_final = !matches!(
            error,
            ResolveError::NoSuchName { .. }
                | ResolveError::NoSuchPort { .. }
                | ResolveError::NoAddress { .. }
                | ResolveError::ServFail { .. }
                | ResolveError::Refused { .. }
        );
        Self { error, is_final }
    }
}

async fn look_up(session: &Session<'_>, name: &str, port: &Port) -> Result<Resolved, Setback> {
    match port {
        Port::Named(port) => by_port_name(session, name, port).await,
        Port::Number(port) => by_port_number(session, name, *port).await,
        Port::All => all_ports(session, name).await,
    }
}

/// What is known when all names have been tried in vain.
#[derive(Default)]
struct Verdict {
    serv_fail: Option<ResolveError>,
    /// The name exists, but not what was asked for.
    partial: Option<ResolveError>,
    is_unknown: bool,
    refused: Option<ResolveError>,
}

impl Verdict {
    /// Takes note of a failure.
    fn add(&mut self, error: ResolveError) {
        let kept = match error {
            ResolveError::NoSuchName { .. } => {
                self.is_unknown = true;
                return;
            }
            ResolveError::NoSuchPort { .. } | ResolveError::NoAddress { .. } => &mut self.partial,
            ResolveError::Refused { .. } => &mut self.refused,
            _ => &mut self.serv_fail,
        };
        kept.get_or_insert(error);
    }

    /// The outcome. A server that is responsible for one of the names only, as multinet-dns is when it is asked
    /// directly, refuses the others: that counts only if it refuses all.
    fn finish(self, name: &str, tried: &[String]) -> ResolveError {
        let unknown = || ResolveError::NoSuchName { name: name.to_owned(), tried: tried.to_vec() };
        let refused = if self.is_unknown { None } else { self.refused };
        self.serv_fail.or(self.partial).or(refused).unwrap_or_else(unknown)
    }
}

fn no_such_name(name: &str) -> ResolveError {
    ResolveError::NoSuchName { name: name.to_owned(), tried: vec![name.to_owned()] }
}

async fn by_port_name(session: &Session<'_>, name: &str, port: &str) -> Result<Resolved, Setback> {
    if let Answer::Found(reply) = session.ask(&format!("_{port}._tcp.{name}"), Kind::Srv).await? {
        return behind(session, name, reply).await.map_err(Setback::last);
    }
    if session.ask(name, Kind::A).await? == Answer::NoName {
        return Err(no_such_name(name).into());
    }
    match session.ask(&format!("_{port}._udp.{name}"), Kind::Srv).await? {
        Answer::Found(reply) => behind(session, name, reply).await.map_err(Setback::last),
        _ => Err(ResolveError::NoSuchPort { name: name.to_owned(), port: port.to_owned() }.into()),
    }
}

/// The SRV records of a service's own name are those of all its ports.
async fn all_ports(session: &Session<'_>, name: &str) -> Result<Resolved, Setback> {
    match session.ask(name, Kind::Srv).await? {
        Answer::Found(reply) => behind(session, name, reply).await.map_err(Setback::last),
        Answer::NoName => Err(no_such_name(name).into()),
        Answer::NoData => {
            Err(ResolveError::NoSuchPort { name: name.to_owned(), port: "*".to_owned() }.into())
        }
    }
}

async fn by_port_number(session: &Session<'_>, name: &str, port: u16) -> Result<Resolved, Setback> {
    let answers = future::try_join(session.ask(name, Kind::A), session.ask(name, Kind::Aaaa)).await?;
    if answers == (Answer::NoName, Answer::NoName) {
        return Err(no_such_name(name).into());
    }
    let mut ttl = Duration::MAX;
    let addresses = addresses(answers.into(), &mut ttl);
    Ok(finish(name, endpoints_by_address(&addresses, port, name), ttl)?)
}

/// The endpoints that SRV records point at.
async fn behind(session: &Session<'_>, name: &str, reply: Reply) -> Result<Resolved, ResolveError> {
    let Reply { mut ttl, services, glue, .. } = reply;
    let mut glue_of: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for (owner, ip) in glue {
        glue_of.entry(owner).or_default().push(ip);
    }
    let targets: BTreeMap<String, Vec<IpAddr>> = services
        .iter()
        .map(|Service { target, .. }| (target.clone(), glue_of.get(target).cloned().unwrap_or_default()))
        .collect();

    let mut looks = stream::iter(targets)
        .map(|(target, glue)| look_at(session, target, glue))
        .buffer_unordered(TARGETS_AT_ONCE);
    let too_many = |TooMany| ResolveError::TooMany { name: name.to_owned() };
    let mut by_target = BTreeMap::new();
    let mut size = Size::default();
    while let Some((target, owned, target_ttl)) = looks.try_next().await? {
        size.add(&owned).map_err(too_many)?;
        ttl = ttl.min(target_ttl);
        by_target.insert(target, owned);
    }
    finish(name, endpoints(&services, &by_target).map_err(too_many)?, ttl)
}

/// What a target owns: its texts, and its addresses, which need not be asked for where the SRV answer had them all.
/// The texts tell whether it had, because they name every address.
async fn look_at(
    session: &Session<'_>,
    target: String,
    glue: Vec<IpAddr>,
) -> Result<(String, Owned, Duration), ResolveError> {
    let mut ttl = Duration::MAX;
    let facts = match session.ask(&target, Kind::Txt).await? {
        Answer::Found(reply) => {
            ttl = ttl.min(reply.ttl);
            reply.facts
        }
        Answer::NoData | Answer::NoName => Vec::new(),
    };
    let mut owned = Owned { addresses: glue, facts };
    if !is_complete(&owned) {
        let answers =
            future::try_join(session.ask(&target, Kind::A), session.ask(&target, Kind::Aaaa)).await?;
        owned.addresses = addresses(answers.into(), &mut ttl);
    }
    Ok((target, owned, ttl))
}

/// All addresses in the answers, whose times to live bound `ttl`.
fn addresses(answers: [Answer; 2], ttl: &mut Duration) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for answer in answers {
        if let Answer::Found(reply) = answer {
            *ttl = reply.ttl.min(*ttl);
            addresses.extend(reply.addresses);
        }
    }
    addresses
}

fn finish(name: &str, endpoints: Vec<Endpoint>, ttl: Duration) -> Result<Resolved, ResolveError> {
    if endpoints.is_empty() {
        return Err(ResolveError::NoAddress { name: name.to_owned() });
    }
    Ok(Resolved { name: name.to_owned(), endpoints, ttl })
}
