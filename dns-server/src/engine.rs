//! What every listener holds: the answers, how they are made, who may have a whole zone, and the counting.
//!
//! A [`Worker`] is one thread's or one connection's share of it. It tries the fast path, falls back to
//! the slow one, counts, and logs the query where that is asked for.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tracing::info;

pub use crate::metrics::Proto;

use crate::answers::{Answers, Freshness};
use crate::metrics::{Tallies, Tally};
use crate::name::Presented;
use crate::query::{self, Edns, Query, Question, Rcode, Style};
use crate::rrset::rtype;
use crate::slow::{self, Verdict};
use crate::state::State;
use crate::transfer::{Transfer, Wanted};
use crate::zone::Zone;

/// Shared by all listeners.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    state: Arc<State>,
    settings: Settings,
    tallies: Tallies,
}

/// How queries are answered.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Whether address records begin at a different one each time.
    pub rotate: bool,
    /// Whether every query is logged.
    pub log_queries: bool,
    /// Who may transfer zones.
    pub transfer_to: Vec<IpNet>,
}

impl Engine {
    /// An engine that answers from `state`.
    pub fn new(state: Arc<State>, settings: Settings, tallies: Tallies) -> Self {
        Self(Arc::new(Shared { state, settings, tallies }))
    }

    /// A worker for one thread or connection.
    pub fn worker(&self, proto: Proto) -> Worker {
        let style = Style { datagram: proto == Proto::Udp, rotate: self.0.settings.rotate };
        let answers = Arc::clone(self.0.state.answers());
        // Connections are short: a common start would give them all the same turn.
        let turn = u32::from_ne_bytes(foldhash_seed());
        Worker { tally: self.0.tallies.take(proto), shared: Arc::clone(&self.0), answers, style, proto, turn }
    }
}

/// Four octets that differ from call to call.
fn foldhash_seed() -> [u8; 4] {
    use std::hash::BuildHasher as _;
    let hash = foldhash::fast::RandomState::default().hash_one(0u8).to_ne_bytes();
    [hash[0], hash[1], hash[2], hash[3]]
}

/// What became of a packet.
#[derive(Debug)]
pub enum Handled {
    /// A reply was appended.
    Reply,
    /// Nothing is to be sent.
    Ignore,
    /// The messages of a zone transfer are to be sent.
    Transfer(Transfer),
}

/// One thread's or connection's way of answering.
pub struct Worker {
    shared: Arc<Shared>,
    answers: Arc<Answers>,
    tally: Arc<Tally>,
    style: Style,
    proto: Proto,
    turn: u32,
}

impl Worker {
    /// Appends the whole reply to `packet` to `out`.
    pub fn answer(&mut self, packet: &[u8], peer: IpAddr, out: &mut Vec<u8>) -> Handled {
        self.turn = self.turn.wrapping_add(1);
        let Some(query) = Query::parse(packet) else { return self.answer_slowly(packet, peer, out) };
        let start = out.len();
        let rcode = query::render(&self.answers, self.style, &query, packet, self.turn, out);
        let exchange = Exchange { peer, packet, question: Some(&query.question), edns: query.edns, rcode };
        self.note(&exchange, &out[start..]);
        Handled::Reply
    }

    /// Notes how long each of `queries` queries took.
    pub fn took(&mut self, queries: u32, each: Duration) {
        self.tally.took(queries, each);
    }

    #[cold]
    fn answer_slowly(&self, packet: &[u8], peer: IpAddr, out: &mut Vec<u8>) -> Handled {
        self.tally.slow();
        let Some(verdict) = slow::judge(packet) else {
            self.tally.ignored();
            return Handled::Ignore;
        };
        let start = out.len();
        let rcode = match &verdict {
            Verdict::Transfer(query, wanted) if self.may_transfer(peer) => {
                match self.transfer(packet, query, *wanted, out) {
                    Ok(transfer) => return Handled::Transfer(transfer),
                    Err(rcode) => rcode,
                }
            }
            verdict => slow::reply(&self.answers, self.style, verdict, packet, self.turn, out),
        };
        let question = Question::read(packet);
        let exchange = Exchange { peer, packet, question: question.as_ref(), edns: verdict.edns(), rcode };
        self.note(&exchange, &out[start..]);
        Handled::Reply
    }

    fn may_transfer(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.shared.settings.transfer_to.iter().any(|network| network.contains(&peer))
    }

    /// A whole zone over a stream, or an ordinary reply, whose code is given. Over UDP the SOA tells the
    /// asker to come back by TCP (RFC 1995 §2).
    fn transfer(
        &self,
        packet: &[u8],
        query: &Query,
        wanted: Wanted,
        out: &mut Vec<u8>,
    ) -> Result<Transfer, Rcode> {
        let question = &query.question;
        let error = |rcode, out| Err(query::render_error(packet, question.end(), rcode, query.edns, out));
        if self.answers.freshness() == Freshness::Unsynced {
            // As to every question: not ready.
            return Err(query::render(&self.answers, self.style, query, packet, self.turn, out));
        }
        let is_apex = |zone: &&Zone| zone.apex().as_wire() == question.name();
        let Some(zone) = self.answers.zone_of(question.name()).filter(is_apex) else {
            return error(Rcode::NotAuth, out);
        };
        if self.answers.freshness() != Freshness::Current {
            return error(Rcode::ServFail, out);
        }
        match (self.proto, wanted) {
            (Proto::Tcp | Proto::Tls, _) => {
                let Some(copy) = self.shared.state.zone_copy(zone.apex()) else {
                    return error(Rcode::ServFail, out);
                };
                info!(target: "dns", zone = %zone.apex(), serial = copy.serial, "zone transfer");
                Ok(Transfer::new(packet, query, wanted, copy))
            }
            (Proto::Udp, Wanted::Since(_)) => {
                let mut soa = *query;
                soa.question.qtype = rtype::SOA;
                Err(query::render(&self.answers, self.style, &soa, packet, self.turn, out))
            }
            _ => error(Rcode::Refused, out),
        }
    }

    fn note(&self, exchange: &Exchange<'_>, reply: &[u8]) {
        let Exchange { peer, packet, question, edns, rcode } = exchange;
        let is_ipv6 = matches!(peer, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_none());
        let qtype = question.map(|question| question.qtype);
        self.tally.answered(is_ipv6, qtype, *rcode, packet.len(), reply);
        if edns.is_some_and(|edns| edns.dnssec_ok) {
            self.tally.dnssec_ok();
        }
        if self.shared.settings.log_queries {
            self.log(exchange, reply.len());
        }
    }

    #[cold]
    fn log(&self, exchange: &Exchange<'_>, size: usize) {
        let question = exchange.question;
        info!(
            target: "dns",
            proto = self.proto.name(),
            peer = %exchange.peer.to_canonical(),
            name = %Presented(question.map_or(&b"\0"[..], Question::name)),
            qtype = question.map(|question| question.qtype),
            qclass = question.map(|question| question.qclass),
            rcode = exchange.rcode.name(),
            size,
            "query"
        );
    }
}

/// A query and what was said to it.
struct Exchange<'a> {
    peer: IpAddr,
    packet: &'a [u8],
    question: Option<&'a Question>,
    edns: Option<Edns>,
    rcode: Rcode,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.tallies.give_back(Arc::clone(&self.tally));
    }
}
