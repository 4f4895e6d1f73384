//! Queries to DNS servers. Beside `sockets`, no other module uses hickory.
//!
//! hickory encodes messages and exchanges one with a server, with random ports and identifiers and
//! with retransmission over UDP. This module adds:
//!
//! - **TCP** after a truncated answer. hickory's pool returns the same error for a blocked TCP port
//!   and for an answer that does not fit.
//! - **No cache.** The records' time to live says when to query again. A cache in between would
//!   double that.
//! - **The next server** after any failure. hickory's pool takes a SERVFAIL of the first server as
//!   the answer, and has no time left for the second one after a time-out. NXDOMAIN is an answer.
//! - **Additional records**, which spare two queries for each endpoint.
//! - **A fresh start** for each resolution. Connections and queries end with it, so that a server
//!   that was replaced is found again.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverOpts};
use hickory_resolver::net::xfer::DnsHandle;
use hickory_resolver::net::{DnsError, NetError, NoRecords};
use hickory_resolver::proto::op::{DnsRequestOptions, Message, Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::{NameServerPool, PoolContext, TlsConfig};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::error::ResolveError;
use super::facts::Facts;
use super::question;
use super::records::SrvTarget;
use super::sockets::Sockets;

/// Limit on the queries in flight, for all resolutions together: resolving a thousand endpoints
/// must not flood the servers.
const IN_FLIGHT: usize = 16;

/// Largest time to live. Larger ones have the highest bit set, and count as zero (RFC 2181 §8).
const MAX_TTL: u32 = 0x7fff_ffff;

/// Length to which the message of a foreign error is cut, in characters.
const MAX_REASON: usize = 200;

/// Answer of a DNS server to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DnsAnswer {
    /// The queried name does not exist (NXDOMAIN).
    NoName {
        /// Zone that denies the name: the owner of the answer's SOA record. `None` without that
        /// record.
        zone: Option<String>,
    },
    /// The queried name exists, but has no records of the queried type.
    NoData,
    Found(Reply),
}

/// Records of an answer. Only the lists of the queried type are filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    /// Smallest time to live among the answer's records.
    pub(super) ttl: Duration,
    pub(super) services: Vec<SrvTarget>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) facts: Vec<Facts>,
    /// Addresses of other names than the queried one, from the answer's additional records.
    pub(super) glue: Vec<(String, IpAddr)>,
}

impl Reply {
    /// Returns the port numbers of the SRV records, sorted, each once.
    pub(super) fn ports(&self) -> Vec<u16> {
        let ports: BTreeSet<u16> = self.services.iter().map(|service| service.port).collect();
        Vec::from_iter(ports)
    }
}

/// DNS client: the servers, and the settings of queries to them.
pub(super) struct Dns {
    servers: Vec<SocketAddr>,
    timeout: Duration,
    attempts: usize,
    context: Arc<PoolContext>,
    in_flight: Semaphore,
}

impl Dns {
    /// Returns a client that queries `servers` in this order, each for at most `timeout`, and all
    /// of them up to `attempts` times.
    pub(super) fn new(
        servers: Vec<SocketAddr>,
        timeout: Duration,
        attempts: usize,
    ) -> Result<Self, NetError> {
        let mut options = ResolverOpts::default();
        options.timeout = timeout;
        options.num_concurrent_reqs = 1;
        options.max_active_requests = 2 * IN_FLIGHT;
        Ok(Self {
            servers,
            timeout,
            attempts,
            context: Arc::new(PoolContext::new(options, TlsConfig::new()?)),
            in_flight: Semaphore::new(IN_FLIGHT),
        })
    }

    pub(super) fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    /// Returns a session for the queries of one resolution.
    pub(super) fn session(&self) -> Queries<'_> {
        let server = |address: &SocketAddr| Server {
            address: *address,
            udp: self.pool(*address, ConnectionConfig::udp()),
            tcp: self.pool(*address, ConnectionConfig::tcp()),
        };
        Queries { dns: self, servers: self.servers.iter().map(server).collect(), first: AtomicUsize::new(0) }
    }

    /// Returns hickory's pool of connections to one server over one transport.
    fn pool(&self, server: SocketAddr, mut connection: ConnectionConfig) -> Pool {
        connection.port = server.port();
        let config = NameServerConfig::new(server.ip(), true, vec![connection]);
        NameServerPool::from_config([config], self.context.clone(), Sockets::to(server))
    }
}

impl fmt::Debug for Dns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dns")
            .field("servers", &self.servers)
            .field("timeout", &self.timeout)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}

type Pool = NameServerPool<Sockets>;

/// DNS server that a session queries over UDP, or over TCP if the answer is truncated.
struct Server {
    address: SocketAddr,
    udp: Pool,
    tcp: Pool,
}

/// Client for the queries of one resolution of a service.
pub(super) struct Queries<'a> {
    dns: &'a Dns,
    servers: Vec<Server>,
    /// Index of the server to query first: the one that answered last, so that a dead server costs
    /// its time-out once and not for each endpoint. Each resolution begins with the first server,
    /// as the order in the file asks for.
    first: AtomicUsize,
}

impl Queries<'_> {
    /// Queries the records of one type at `name`.
    ///
    /// # Errors
    ///
    /// If no server answers: the failure that tells most.
    pub(super) async fn ask(&self, name: &str, kind: RecordType) -> Result<DnsAnswer, ResolveError> {
        // The semaphore is never closed.
        let _place = self.dns.in_flight.acquire().await.ok();
        let mut failure = ResolveError::Timeout { name: name.to_owned(), servers: self.dns.servers.clone() };
        for _ in 0..self.dns.attempts {
            let first = self.first.load(Ordering::Relaxed);
            let mut may_help = false;
            for turn in 0..self.servers.len() {
                let place = (first + turn) % self.servers.len();
                match self.ask_server(&self.servers[place], name, kind).await {
                    Ok(answer) => {
                        self.first.store(place, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Err(error @ ResolveError::TooLarge { .. }) => return Err(error),
                    Err(error) => {
                        may_help |=
                            matches!(error, ResolveError::Timeout { .. } | ResolveError::Unreachable { .. });
                        if rank(&error) >= rank(&failure) {
                            failure = error;
                        }
                    }
                }
            }
            if !may_help {
                break;
            }
        }
        Err(match failure {
            // The failure names the last server. None of them has answered.
            ResolveError::Timeout { name, .. } => {
                ResolveError::Timeout { name, servers: self.dns.servers.clone() }
            }
            failure => failure,
        })
    }

    async fn ask_server(
        &self,
        server: &Server,
        name: &str,
        kind: RecordType,
    ) -> Result<DnsAnswer, ResolveError> {
        let address = server.address;
        let owner = Name::from_labels(name.split('.').map(str::as_bytes)).map_err(|_| {
            ResolveError::BadName { name: name.to_owned(), reason: "it does not fit into DNS" }
        })?;
        let query = Query::query(owner, kind);
        let outcome = match self.exchange(&server.udp, query.clone()).await {
            Err(NetError::Truncated) => match self.exchange(&server.tcp, query).await {
                Err(NetError::Truncated) => {
                    return Err(ResolveError::TooLarge { name: name.to_owned(), server: address });
                }
                outcome @ (Ok(_) | Err(NetError::Dns(_))) => outcome,
                Err(error) => {
                    let reason = match error {
                        NetError::Timeout => "nothing comes back".to_owned(),
                        // hickory's error for a refused connection.
                        NetError::NoConnections => "no connection is made".to_owned(),
                        error => printable(&error),
                    };
                    return Err(ResolveError::NoTcp { name: name.to_owned(), server: address, reason });
                }
            },
            outcome => outcome,
        };
        let name = || name.to_owned();
        outcome.map_err(|error| match error {
            NetError::Dns(DnsError::ResponseCode(ResponseCode::Refused)) => {
                ResolveError::Refused { name: name(), server: address }
            }
            NetError::Dns(DnsError::ResponseCode(code)) => {
                ResolveError::ServFail { name: name(), server: address, code: code.to_string() }
            }
            NetError::Timeout => ResolveError::Timeout { name: name(), servers: vec![address] },
            error => ResolveError::Unreachable { name: name(), server: address, reason: printable(&error) },
        })
    }

    /// Sends one query to one server over one transport, and waits for the answer.
    async fn exchange(&self, pool: &Pool, query: Query) -> Result<DnsAnswer, NetError> {
        let kind = query.query_type();
        let mut answers = pool.lookup(query, DnsRequestOptions::default());
        match timeout(self.dns.timeout, answers.next()).await {
            Ok(Some(Ok(response))) => match response.response_code {
                ResponseCode::NoError => Ok(answer(&response, kind)),
                // The answer is an alias whose target does not exist.
                ResponseCode::NXDomain => Ok(DnsAnswer::NoName { zone: None }),
                code => Err(NetError::Dns(DnsError::ResponseCode(code))),
            },
            Ok(Some(Err(NetError::Dns(DnsError::NoRecordsFound(NoRecords {
                response_code, soa, ..
            }))))) => Ok(match response_code {
                ResponseCode::NXDomain => {
                    DnsAnswer::NoName { zone: soa.and_then(|record| host_name(&record.name)) }
                }
                _ => DnsAnswer::NoData,
            }),
            Ok(Some(Err(error))) => Err(error),
            // The stream ends without an answer when hickory gives up.
            Ok(None) | Err(_) => Err(NetError::Timeout),
        }
    }
}

/// Returns a message that is safe for a terminal. It may quote the answer of a server.
fn printable(error: &NetError) -> String {
    error.to_string().chars().take(MAX_REASON).flat_map(char::escape_debug).collect()
}

/// Rank of a failure by how much it tells: any answer tells more than none.
fn rank(error: &ResolveError) -> u8 {
    match error {
        ResolveError::Timeout { .. } => 0,
        ResolveError::Unreachable { .. } => 1,
        ResolveError::Refused { .. } => 2,
        _ => 3,
    }
}

/// Returns the records of a message without an error. They may belong to an alias that the server
/// has followed.
pub(super) fn answer(message: &Message, kind: RecordType) -> DnsAnswer {
    let mut reply = Reply::default();
    let mut ttl = MAX_TTL;
    let mut is_found = false;
    for record in &message.answers {
        if record.record_type() == RecordType::CNAME {
            ttl = ttl.min(ttl_of(record));
        } else if record.record_type() == kind {
            ttl = ttl.min(ttl_of(record));
            is_found = true;
            add_record(&mut reply, &record.data);
        }
    }
    if !is_found {
        return DnsAnswer::NoData;
    }
    if kind == RecordType::SRV {
        for record in &message.additionals {
            if let (Some(owner), Some(ip)) = (host_name(&record.name), address(&record.data)) {
                ttl = ttl.min(ttl_of(record));
                reply.glue.push((owner, ip));
            }
        }
    }
    reply.ttl = Duration::from_secs(ttl.into());
    DnsAnswer::Found(reply)
}

fn add_record(reply: &mut Reply, data: &RData) {
    match data {
        // A target that is no host's name is left out, such as the root, which stands for "no such
        // service" (RFC 2782).
        RData::SRV(srv) => {
            reply.services.extend(host_name(&srv.target).map(|target| SrvTarget { target, port: srv.port }));
        }
        RData::TXT(txt) => reply.facts.extend(Facts::parse(&txt.txt_data)),
        data => reply.addresses.extend(address(data)),
    }
}

fn address(data: &RData) -> Option<IpAddr> {
    match data {
        RData::A(a) => Some(a.0.into()),
        RData::AAAA(aaaa) => Some(aaaa.0.into()),
        _ => None,
    }
}

fn ttl_of(record: &Record) -> u32 {
    if record.ttl > MAX_TTL { 0 } else { record.ttl }
}

/// Returns a name in lower case without the dot at its end, as names are compared here.
fn host_name(name: &Name) -> Option<String> {
    let text = name.to_ascii().to_ascii_lowercase();
    let text = text.strip_suffix('.').unwrap_or(&text);
    question::is_name(text).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::op::{MessageType, OpCode};
    use hickory_resolver::proto::rr::rdata::{A, CNAME, SRV, TXT};

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn message(answers: Vec<Record>, additionals: Vec<Record>) -> Message {
        let mut message = Message::new(1, MessageType::Response, OpCode::Query);
        message.add_answers(answers);
        message.add_additionals(additionals);
        message
    }

    fn srv(target: &Name, ttl: u32) -> Record {
        Record::from_rdata(name("_p._tcp.s."), ttl, RData::SRV(SRV::new(0, 1, 7, target.clone())))
    }

    fn a(owner: &str, ttl: u32) -> Record {
        Record::from_rdata(name(owner), ttl, RData::A(A::new(10, 0, 0, 1)))
    }

    fn found(answer: DnsAnswer) -> Reply {
        match answer {
            DnsAnswer::Found(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn srv_records_come_with_their_glue_and_the_smallest_time_to_live() {
        let odd = Name::from_labels([&b"a \x1bb"[..], b"s"]).unwrap();
        let reply = found(answer(
            &message(
                vec![srv(&name("H.S."), 30), srv(&Name::root(), 60), srv(&odd, 60)],
                vec![a("h.s.", 5), a("x.s.", 60)],
            ),
            RecordType::SRV,
        ));
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(reply.services, [SrvTarget { target: "h.s".to_owned(), port: 7 }]);
        assert_eq!(reply.glue, [("h.s".to_owned(), ip), ("x.s".to_owned(), ip)]);
        assert_eq!(reply.ttl, Duration::from_secs(5));
    }

    #[test]
    fn aliases_are_followed_and_nothing_else_counts() {
        let alias = Record::from_rdata(name("s."), 3, RData::CNAME(CNAME(name("t."))));
        let reply = found(answer(
            &message(vec![alias.clone(), a("t.", 9), srv(&name("h."), 1)], vec![a("u.", 1)]),
            RecordType::A,
        ));
        assert_eq!((reply.addresses.len(), reply.glue.len(), reply.services.len()), (1, 0, 0));
        assert_eq!(reply.ttl, Duration::from_secs(3));
        assert_eq!(
            answer(&message(vec![alias, srv(&name("h."), 1)], vec![]), RecordType::A),
            DnsAnswer::NoData
        );
    }

    #[test]
    fn texts_without_an_address_are_an_answer_without_facts() {
        let text =
            Record::from_rdata(name("h."), 0x8000_0000, RData::TXT(TXT::new(vec!["v=spf1".to_owned()])));
        let reply = found(answer(&message(vec![text], vec![]), RecordType::TXT));
        assert_eq!(reply, Reply::default(), "a time to live with the highest bit set is zero");
    }
}
