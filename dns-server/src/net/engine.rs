//! The engine that all listeners share: it holds the answers, the settings, the TSIG keys and the
//! counters.
//!
//! Each thread or connection answers with a [`Worker`] of its own. A worker tries the fast path
//! first and falls back to the slow path. It counts every query and logs it if `--log-queries` is
//! set.

mod slow_path;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use multinet_runtime::UNLIMITED;
use tracing::info;

use crate::answer::cookie::{CookieSigner, CookieStatus};
use crate::answer::limit::Limiter;
use crate::answer::proto::Proto;
use crate::answer::query::{self, Edns, Query, Question, Rcode, Style};
use crate::ops::dnstap::Tap;
use crate::ops::metrics::{PacketEvent, Sampler, Tallies, TallyHandle};
use crate::secondary::transfer::Transfer;
use crate::secondary::transfer::allow::AllowedClient;
use crate::secondary::transfer::metrics::TransferMetrics;
use crate::secondary::transfer::server::TransferServer;
use crate::secondary::tsig::Keyring;
use crate::store::answers::Answers;
use crate::store::name::Presented;
use crate::store::state::State;

/// Answers the queries of all listeners, which share its state and settings. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    state: Arc<State>,
    settings: Settings,
    transfer_server: TransferServer,
    tallies: Tallies,
}

/// Settings of an [`Engine`], from the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether the address records of each answer begin at another record than those of the last
    /// one.
    pub rotate: bool,
    /// Whether every query is logged (`--log-queries`).
    pub log_queries: bool,
    /// Client networks and TSIG keys that zone transfers are allowed for.
    pub transfer_to: Vec<AllowedClient>,
    /// TSIG keys that this server knows, to verify signed queries and to sign their replies.
    pub keys: Keyring,
    /// Counters of zone transfers and of invalid signatures.
    pub transfers: TransferMetrics,
    /// Largest UDP payload in bytes that the server sends and announces by EDNS.
    pub udp_payload: u16,
    /// Rate limiter for UDP queries; `None` means no limit.
    pub limiter: Option<Arc<Limiter>>,
    /// Makes and checks DNS cookies.
    pub cookies: CookieSigner,
    /// Queue of queries and replies for the dnstap collector; `None` without a collector.
    pub tap: Option<Tap>,
}

impl Settings {
    /// Returns settings without limits, logs or transfers: every client is answered, and records
    /// keep their order.
    pub fn new(cookies: CookieSigner) -> Self {
        Self {
            rotate: false,
            log_queries: false,
            transfer_to: Vec::new(),
            keys: Keyring::default(),
            transfers: TransferMetrics::default(),
            udp_payload: query::MAX_UDP as u16,
            limiter: None,
            cookies,
            tap: None,
        }
    }
}

impl Engine {
    /// Returns an engine that answers from `state` and counts queries in `tallies`.
    pub fn new(state: Arc<State>, settings: Settings, tallies: Tallies) -> Self {
        let transfer_server = TransferServer::new(settings.transfer_to.clone(), settings.transfers.clone());
        Self(Arc::new(Shared { state, settings, transfer_server, tallies }))
    }

    /// Returns a worker that answers the queries of one thread or connection by `proto`.
    pub fn worker(&self, proto: Proto) -> Worker {
        let style = Style { datagram: proto == Proto::Udp, rotate: self.0.settings.rotate, reserve: 0 };
        let answers = Arc::clone(self.0.state.answers());
        // Connections are short. If all workers began at the same turn, all clients would get the
        // same first address.
        let turn = fastrand::u32(..);
        // Only UDP source addresses can be forged: every other transport has completed a handshake
        // with the client.
        let limiter = self.0.settings.limiter.clone().filter(|_| proto == Proto::Udp);
        let tally = self.0.tallies.handle(proto);
        let (shared, sampler) = (Arc::clone(&self.0), Sampler::new(turn));
        let records_details = self.0.settings.log_queries || self.0.tallies.counts_names();
        let tap = shared.settings.tap.clone().map(Box::new);
        Worker {
            tally,
            records_details,
            sampler,
            tap,
            shared,
            answers,
            style,
            proto,
            turn,
            limiter,
            limited: 0,
        }
    }
}

/// Returns the seconds since 1970, which wrap around as those in a cookie do (RFC 9018 §4.3).
fn now() -> u32 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}

/// Outcome of a packet for the listener that received it.
#[derive(Debug)]
pub enum Handled {
    /// A reply was appended to the output buffer; the listener sends it.
    Reply,
    /// The packet gets no reply: it is no query, or over the rate limit.
    Ignore,
    /// The caller sends the messages of this zone transfer instead of a reply.
    Transfer(Box<Transfer>),
}

/// Answers the packets of one thread or connection, with the state of its [`Engine`].
pub struct Worker {
    shared: Arc<Shared>,
    answers: Arc<Answers>,
    tally: TallyHandle,
    sampler: Sampler,
    /// Whether each query is logged or its name counted, so that the question is parsed once more.
    records_details: bool,
    tap: Option<Box<Tap>>,
    style: Style,
    proto: Proto,
    turn: u32,
    limiter: Option<Arc<Limiter>>,
    /// Hash of the count of queries without a cookie that were over the rate limit. Its highest bit
    /// decides whether the latest one gets a reply or is dropped.
    limited: u32,
}

impl Worker {
    /// Answers `packet`, which came from `peer`, and appends the whole reply to `out`.
    pub fn answer(&mut self, packet: &[u8], peer: SocketAddr, out: &mut Vec<u8>) -> Handled {
        if self.tap.is_some() {
            self.answer_tapped(packet, peer, out)
        } else {
            self.handle(packet, peer.ip(), out)
        }
    }

    /// Answers a packet, and passes query and reply on to the dnstap collector.
    #[cold]
    fn answer_tapped(&mut self, packet: &[u8], peer: SocketAddr, out: &mut Vec<u8>) -> Handled {
        let (asked_at, start) = (SystemTime::now(), out.len());
        let handled = self.handle(packet, peer.ip(), out);
        let reply = match handled {
            Handled::Reply => out.get(start..).unwrap_or_default(),
            Handled::Ignore | Handled::Transfer(_) => &[],
        };
        if let Some(tap) = &self.tap {
            tap.send(self.proto, peer, asked_at, packet, reply);
        }
        handled
    }

    fn handle(&mut self, packet: &[u8], peer: IpAddr, out: &mut Vec<u8>) -> Handled {
        self.turn = self.turn.wrapping_add(1);
        let mut query = match Query::parse(packet) {
            Ok(query) => query,
            Err(declined) => return self.answer_on_slow_path(packet, declined, peer, out),
        };
        let standing = self.complete_edns(&mut query.edns, peer);
        if self.is_over_limit(standing, peer) {
            return self.answer_over_limit(packet, Some(&query.question), query.edns, peer, out);
        }
        let start = out.len();
        let rcode = query::render(&self.answers, self.style, &query, packet, self.turn, out);
        let qtype = Some(query.question.qtype);
        let answered = AnsweredQuery { peer, packet, qtype, edns: query.edns, rcode };
        self.record(&answered, &out[start..]);
        Handled::Reply
    }

    /// Counts packets that the listener dropped unanswered under overload.
    pub fn shed(&mut self, packets: u64) {
        self.tally.count(PacketEvent::Shed, packets);
    }

    /// Tells whether the caller should measure the next batch of queries and report it by
    /// [`record_duration`](Self::record_duration). A caller that knows the time anyway may report
    /// every batch.
    pub fn should_time(&mut self) -> bool {
        self.sampler.should_sample()
    }

    /// Records in the histogram of durations that each of `queries` queries took the time `each`.
    pub fn record_duration(&mut self, queries: u32, each: Duration) {
        self.tally.record_duration(queries, each);
    }

    /// Fills in the EDNS fields of the reply. Returns the validity of the query's cookie, if it has
    /// one.
    fn complete_edns(&self, edns: &mut Option<Edns>, peer: IpAddr) -> Option<CookieStatus> {
        let edns = edns.as_mut()?;
        edns.announced = self.shared.settings.udp_payload;
        // On a plain transport padding hides nothing, and would amplify floods (RFC 7830 §6).
        edns.padded &= self.proto.is_encrypted();
        let standing = self.shared.settings.cookies.check_and_sign(edns.cookie.as_mut()?, peer, now());
        self.tally.cookie(standing);
        Some(standing)
    }

    /// Tells whether the query exceeds the rate limit, so that it gets at most a short reply.
    fn is_over_limit(&self, standing: Option<CookieStatus>, peer: IpAddr) -> bool {
        // A valid cookie proves the source address, so the client is exempt. Throttling real
        // clients is left to a firewall.
        standing != Some(CookieStatus::Valid)
            && self.limiter.as_ref().is_some_and(|limiter| limiter.is_over(peer))
    }

    /// Answers a query over the rate limit. A client that sends cookies gets BADCOOKIE with a fresh
    /// one. Of other queries, half get a truncated reply, which sends the client to TCP (NOTIMP if
    /// the opcode is not QUERY), and half get none. No reply is longer than its query by more than
    /// a cookie, and a genuine client still gets through.
    #[cold]
    fn answer_over_limit(
        &mut self,
        packet: &[u8],
        question: Option<&Question>,
        edns: Option<Edns>,
        peer: IpAddr,
        out: &mut Vec<u8>,
    ) -> Handled {
        self.tally.count(PacketEvent::Limited, 1);
        let start = out.len();
        let Some(question) = question else { return Handled::Ignore };
        let rcode = if edns.is_some_and(|edns| edns.cookie.is_some()) {
            query::render_error(packet, question.end(), Rcode::BadCookie, edns, out)
        } else {
            // Reply to half of the queries in a pattern that does not always drop the same one of
            // an A and AAAA pair.
            self.limited = self.limited.wrapping_add(0x9e37_79b9);
            if self.limited >> 31 == 0 {
                return Handled::Ignore;
            }
            if query::is_query(packet) {
                query::render_truncated(packet, question.end(), edns, out)
            } else {
                // Without an error code, an empty reply to another opcode would look like success.
                query::render_error(packet, question.end(), Rcode::NotImp, edns, out)
            }
        };
        let qtype = Some(question.qtype);
        self.record(&AnsweredQuery { peer, packet, qtype, edns, rcode }, &out[start..]);
        Handled::Reply
    }

    fn record(&self, query: &AnsweredQuery<'_>, reply: &[u8]) {
        let AnsweredQuery { packet, qtype, edns, rcode, .. } = query;
        self.tally.answered(query.is_ipv6(), *qtype, *rcode, packet.len(), reply);
        if edns.is_some_and(|edns| edns.dnssec_ok) {
            self.tally.count(PacketEvent::DnssecOk, 1);
        }
        if self.records_details {
            self.record_details(query, Some(reply.len()));
        }
    }

    /// Records a transfer that begins. The size of its messages is not known yet.
    #[cold]
    fn record_transfer(&self, query: &AnsweredQuery<'_>) {
        self.tally.transferred(query.is_ipv6(), query.qtype, query.packet.len());
        if self.records_details {
            self.record_details(query, None);
        }
    }

    #[cold]
    fn record_details(&self, query: &AnsweredQuery<'_>, size: Option<usize>) {
        let question = Question::read(query.packet);
        if let Some(question) = &question {
            self.tally.asked_for(question.name(), question.qtype, query.rcode);
        }
        if self.shared.settings.log_queries {
            self.log(query, question.as_ref(), size);
        }
    }

    fn log(&self, query: &AnsweredQuery<'_>, question: Option<&Question>, size: Option<usize>) {
        info!(
            name: UNLIMITED,
            target: "dns",
            proto = self.proto.name(),
            peer = %query.peer.to_canonical(),
            name = %Presented(question.map_or(&b"\0"[..], Question::name)),
            qtype = query.qtype,
            qclass = question.map(|question| question.qclass),
            rcode = query.rcode.name(),
            size,
            "query"
        );
    }
}

/// An answered query with its response code, for counters and the log.
struct AnsweredQuery<'a> {
    peer: IpAddr,
    packet: &'a [u8],
    qtype: Option<u16>,
    edns: Option<Edns>,
    rcode: Rcode,
}

impl AnsweredQuery<'_> {
    fn is_ipv6(&self) -> bool {
        matches!(self.peer, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_none())
    }
}
