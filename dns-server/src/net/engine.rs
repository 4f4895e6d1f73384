//! What every listener holds: the answers, how they are made, who may have a whole zone, which keys there are,
//! and the counting.
//!
//! A [`Worker`] is one thread's or one connection's share of it. It tries the fast path, falls back to
//! the slow one, counts, and logs the query where that is asked for.

mod slow_path;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use multinet_runtime::EVERY;
use tracing::info;

use crate::answer::cookie::{Jar, Standing};
use crate::answer::limit::Limiter;
use crate::answer::peer::{Peer, Proto};
use crate::answer::query::{self, Edns, Query, Question, Rcode, Style};
use crate::ops::dnstap::Tap;
use crate::ops::metrics::{Sampler, Tallies, TallyHandle};
use crate::secondary::transfer::Transfer;
use crate::secondary::transfer::allow::Allowed;
use crate::secondary::transfer::desk::Desk;
use crate::secondary::transfer::metrics::TransferMetrics;
use crate::secondary::tsig::Keyring;
use crate::store::answers::Answers;
use crate::store::name::Presented;
use crate::store::state::State;

/// Shared by all listeners.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    state: Arc<State>,
    settings: Settings,
    desk: Desk,
    tallies: Tallies,
}

/// How queries are answered.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether address records begin at a different one each time.
    pub rotate: bool,
    /// Whether every query is logged.
    pub log_queries: bool,
    /// Who may transfer zones.
    pub transfer_to: Vec<Allowed>,
    /// What queries may be signed with.
    pub keys: Keyring,
    /// What is counted of transfers and signatures.
    pub transfers: TransferMetrics,
    /// The largest UDP payload that is sent and announced.
    pub udp_payload: u16,
    /// Who may ask how much over UDP; nothing for everybody as much as they like.
    pub limiter: Option<Arc<Limiter>>,
    /// The cookies of clients.
    pub cookies: Jar,
    /// Where queries and replies are passed on to.
    pub tap: Option<Tap>,
}

impl Settings {
    /// Answers for all, in a fixed order, with these cookies.
    pub fn new(cookies: Jar) -> Self {
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
    /// An engine that answers from `state`.
    pub fn new(state: Arc<State>, settings: Settings, tallies: Tallies) -> Self {
        let desk = Desk::new(settings.transfer_to.clone(), settings.transfers.clone());
        Self(Arc::new(Shared { state, settings, desk, tallies }))
    }

    /// A worker for one thread or connection.
    pub fn worker(&self, proto: Proto) -> Worker {
        let style = Style { datagram: proto == Proto::Udp, rotate: self.0.settings.rotate, reserve: 0 };
        let answers = Arc::clone(self.0.state.answers());
        // Connections are short: a common start would give them all the same turn.
        let turn = random_turn();
        // A client's address is its own where it has to receive before it can ask.
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

/// Seconds since 1970, which wrap around as a cookie's do.
fn now() -> u32 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}

/// A number that differs from call to call; not one that nobody could guess.
fn random_turn() -> u32 {
    use std::hash::BuildHasher as _;
    foldhash::fast::RandomState::default().hash_one(0u8) as u32
}

/// What became of a packet.
#[derive(Debug)]
pub enum Handled {
    /// A reply was appended.
    Reply,
    /// Nothing is to be sent.
    Ignore,
    /// The messages of a zone transfer are to be sent.
    Transfer(Box<Transfer>),
}

/// One thread's or connection's way of answering.
pub struct Worker {
    shared: Arc<Shared>,
    answers: Arc<Answers>,
    tally: TallyHandle,
    sampler: Sampler,
    /// Whether more is made of queries than numbers.
    records_details: bool,
    tap: Option<Box<Tap>>,
    style: Style,
    proto: Proto,
    turn: u32,
    limiter: Option<Arc<Limiter>>,
    /// Queries over the limit that had no cookie.
    limited: u32,
}

impl Worker {
    /// Appends the whole reply to `packet` to `out`.
    pub fn answer(&mut self, packet: &[u8], peer: impl Into<Peer>, out: &mut Vec<u8>) -> Handled {
        let peer = peer.into();
        if self.tap.is_some() {
            self.answer_tapped(packet, peer, out)
        } else {
            self.handle(packet, peer.ip, out)
        }
    }

    /// The same, and passes both on.
    #[cold]
    fn answer_tapped(&mut self, packet: &[u8], peer: Peer, out: &mut Vec<u8>) -> Handled {
        let (asked_at, start) = (SystemTime::now(), out.len());
        let handled = self.handle(packet, peer.ip, out);
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

    /// Notes that so many packets were passed over.
    pub fn shed(&mut self, packets: u64) {
        self.tally.shed(packets);
    }

    /// Whether to say of the next batch of queries how long it [`record_duration`](Self::record_duration). Whoever has to read the clock
    /// for that asks; who knows anyway need not.
    pub fn should_time(&mut self) -> bool {
        self.sampler.should_sample()
    }

    /// Notes how long each of `queries` queries record_duration.
    pub fn record_duration(&mut self, queries: u32, each: Duration) {
        self.tally.record_duration(queries, each);
    }

    /// Says what the reply's OPT record holds; and what the query's cookie proves, if there is one.
    fn complete_edns(&self, edns: &mut Option<Edns>, peer: IpAddr) -> Option<Standing> {
        let edns = edns.as_mut()?;
        edns.announced = self.shared.settings.udp_payload;
        // Where all can be read its length gives nothing away, and padding would help floods to grow (RFC 7830 §6).
        edns.padded &= self.proto.is_encrypted();
        let standing = self.shared.settings.cookies.stamp(edns.cookie.as_mut()?, peer, now());
        self.tally.cookie(standing);
        Some(standing)
    }

    /// Whether there is to be no answer but a word about the limit.
    fn is_over_limit(&self, standing: Option<Standing>, peer: IpAddr) -> bool {
        // Who has a cookie is no forger; if it is one who asks too much, that is for a firewall.
        standing != Some(Standing::Proven)
            && self.limiter.as_ref().is_some_and(|limiter| limiter.is_over(peer))
    }

    /// Over the limit: a client that knows cookies is given one, others are sent to TCP (or told that there is only
    /// QUERY) or not answered, in turn. None of it is longer than the query by more than a cookie, and a client that
    /// is real gets on.
    #[cold]
    fn answer_over_limit(
        &mut self,
        packet: &[u8],
        question: Option<&Question>,
        edns: Option<Edns>,
        peer: IpAddr,
        out: &mut Vec<u8>,
    ) -> Handled {
        self.tally.limited();
        let start = out.len();
        let Some(question) = question else { return Handled::Ignore };
        let rcode = if edns.is_some_and(|edns| edns.cookie.is_some()) {
            query::render_error(packet, question.end(), Rcode::BadCookie, edns, out)
        } else {
            // Every second one, but not of a pair of A and AAAA always the same.
            self.limited = self.limited.wrapping_add(0x9e37_79b9);
            if self.limited >> 31 == 0 {
                return Handled::Ignore;
            }
            if query::is_query(packet) {
                query::render_truncated(packet, question.end(), edns, out)
            } else {
                // Without an error it would look done.
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
            self.tally.dnssec_ok();
        }
        if self.records_details {
            self.record_details(query, Some(reply.len()));
        }
    }

    /// A transfer that begins; how long its messages will be nobody knows yet.
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
            name: EVERY,
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

/// A query and what was said to it.
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
