//! One packet in, one reply out: the fast path's strict parser, and the renderer that both paths use.
//!
//! ```text
//!   packet ──> Query::parse ──────────┐
//!      │ (anything unusual)           ├──> render: look-up, copy, fit ──> reply
//!      └─────> slow: hickory's parser ┘
//! ```
//!
//! There is one renderer, so the two paths cannot differ in what they say, only in what they accept; a
//! fuzz target holds them to the same verdict there too. Nothing here allocates: a reply is appended
//! to a buffer that the caller keeps.

use crate::answers::{Answers, Freshness};
use crate::name::MAX_NAME;
use crate::rrset::{HEADER, Rrset, rtype};

/// The largest UDP payload that is sent (DNS flag day 2020) and announced.
pub const MAX_UDP: usize = 1232;

/// The largest UDP payload to a client without EDNS (RFC 1035 §4.2.1).
const MIN_UDP: usize = 512;

/// Octets of an OPT record without options (RFC 6891 §6.1.2).
const OPT: usize = 11;

/// Octets of an Extended DNS Error without text (RFC 8914 §2).
const EXTENDED_ERROR: usize = 6;

/// Response codes (RFC 1035, RFC 6895).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the IANA mnemonics say it")]
#[repr(u16)]
pub enum Rcode {
    NoError = 0,
    FormErr = 1,
    ServFail = 2,
    NxDomain = 3,
    NotImp = 4,
    Refused = 5,
    NotAuth = 9,
    BadVers = 16,
}

impl Rcode {
    /// Every code that is ever sent.
    pub const ALL: [Self; 8] = [
        Self::NoError,
        Self::FormErr,
        Self::ServFail,
        Self::NxDomain,
        Self::NotImp,
        Self::Refused,
        Self::NotAuth,
        Self::BadVers,
    ];

    /// The IANA mnemonic.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoError => "NOERROR",
            Self::FormErr => "FORMERR",
            Self::ServFail => "SERVFAIL",
            Self::NxDomain => "NXDOMAIN",
            Self::NotImp => "NOTIMP",
            Self::Refused => "REFUSED",
            Self::NotAuth => "NOTAUTH",
            Self::BadVers => "BADVERS",
        }
    }
}

/// Extended DNS Errors that are sent (RFC 8914 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum ExtendedError {
    StaleAnswer = 3,
    NotReady = 14,
}

/// What a query's OPT record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edns {
    /// The payload that the client takes over UDP.
    pub payload: u16,
    /// Whether the client wants DNSSEC records (RFC 3225); it is echoed.
    pub dnssec_ok: bool,
}

impl Edns {
    /// From a payload and the first octet of the flags. Less than 512 means 512 (RFC 6891 §6.2.3).
    pub fn new(payload: u16, flags: u8) -> Self {
        Self { payload: payload.max(MIN_UDP as u16), dnssec_ok: flags & 0x80 != 0 }
    }
}

/// The first question of a packet, as it stands there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    name: [u8; MAX_NAME],
    name_len: usize,
    /// Record type.
    pub qtype: u16,
    /// Class.
    pub qclass: u16,
}

impl Question {
    /// Reads the question behind the header. Nothing where it is cut off, longer than DNS allows, or
    /// uses compression, for which a first name has no honest use.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let mut question = Self { name: [0; MAX_NAME], name_len: 0, qtype: 0, qclass: 0 };
        let wire = packet.get(HEADER..)?;
        let mut at = 0;
        loop {
            let length = usize::from(*wire.get(at)?);
            if length > 63 {
                return None;
            }
            let end = at + 1 + length;
            let label = wire.get(at..end)?;
            for (lowered, octet) in question.name.get_mut(at..end)?.iter_mut().zip(label) {
                // A length is at most 63 and so never taken for a letter.
                *lowered = octet.to_ascii_lowercase();
            }
            at = end;
            if length == 0 {
                break;
            }
        }
        question.name_len = at;
        let rest = wire.get(at..at + 4)?;
        question.qtype = u16::from_be_bytes([rest[0], rest[1]]);
        question.qclass = u16::from_be_bytes([rest[2], rest[3]]);
        Some(question)
    }

    /// The lowercased name in wire format.
    pub fn name(&self) -> &[u8] {
        &self.name[..self.name_len]
    }

    /// Where the question ends in its packet.
    pub fn end(&self) -> usize {
        HEADER + self.name_len + 4
    }
}

/// A well-formed query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// What is asked.
    pub question: Question,
    /// The OPT record, if there is one.
    pub edns: Option<Edns>,
}

impl Query {
    /// The strict parser of the fast path: a query for a class IN name with at most one OPT record that
    /// carries no option, and not an octet more. All else is the slow path's.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        // QR and opcode are zero; of the other flags none changes the answer. Counts: one question, no
        // answer, no authority, at most one additional record.
        let counts = packet.get(2..HEADER)?;
        if counts[0] & 0xf8 != 0 || counts[2..9] != [0, 1, 0, 0, 0, 0, 0] || counts[9] > 1 {
            return None;
        }
        let question = Question::read(packet)?;
        if question.qclass != rtype::CLASS_IN || is_special(question.qtype) {
            return None;
        }
        let rest = packet.get(question.end()..)?;
        let edns = match (counts[9], rest) {
            (0, []) => None,
            // Root owner, type OPT, payload, extended code, version 0, flags, no options.
            (1, &[0, 0, 41, high, low, _, 0, flags, _, 0, 0]) => {
                Some(Edns::new(u16::from_be_bytes([high, low]), flags))
            }
            _ => return None,
        };
        Some(Self { question, edns })
    }
}

/// Types that are no data: transfers and pseudo records.
fn is_special(qtype: u16) -> bool {
    matches!(qtype, rtype::OPT | rtype::AXFR | rtype::IXFR)
}

/// How replies are made, the same for every query of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Whether the message goes over UDP and so has to be small.
    pub datagram: bool,
    /// Whether address records begin at a different one each time.
    pub rotate: bool,
}

impl Style {
    fn limit(self, edns: Option<Edns>) -> usize {
        match (self.datagram, edns) {
            (false, _) => usize::from(u16::MAX),
            (true, Some(edns)) => usize::from(edns.payload).min(MAX_UDP),
            (true, None) => MIN_UDP,
        }
    }
}

/// Appends the reply to `query`, which was read from `packet`. `turn` is any number that differs from
/// query to query; it chooses where a rotated set begins.
pub fn render(
    answers: &Answers,
    style: Style,
    query: &Query,
    packet: &[u8],
    turn: u32,
    out: &mut Vec<u8>,
) -> Rcode {
    let mut reply = Reply::begin(packet, query.question.end(), out);
    let name = query.question.name();
    let zone = answers.zone_of(name);
    let freshness = answers.freshness();
    let error = match freshness {
        Freshness::Current => None,
        Freshness::Stale => Some(ExtendedError::StaleAnswer),
        Freshness::Unsynced => Some(ExtendedError::NotReady),
    };
    let Some(zone) = zone else {
        return reply.finish(Rcode::Refused, query.edns, None);
    };
    if freshness == Freshness::Unsynced {
        return reply.finish(Rcode::ServFail, query.edns, error);
    }
    let error = error.filter(|_| query.edns.is_some());
    let limit = style.limit(query.edns);
    let room = Room {
        end: reply.start + limit - query.edns.map_or(0, |_| OPT) - error.map_or(0, |_| EXTENDED_ERROR),
        turn: style.rotate.then_some(turn),
    };
    reply.set_authoritative();
    let exists = answers.with_node(name, |node| {
        let node = node?;
        match node.rrset(query.question.qtype) {
            Some(rrset) => {
                reply.push_answer(rrset, room);
                Some(true)
            }
            None => Some(false),
        }
    });
    let rcode = if exists.is_some() { Rcode::NoError } else { Rcode::NxDomain };
    if exists != Some(true) {
        let is_apex_soa = query.question.qtype == rtype::SOA && zone.apex().as_wire() == name;
        zone.push_soa(reply.out, name.len(), answers.serial());
        reply.count(if is_apex_soa { Section::Answer } else { Section::Authority }, 1);
    }
    reply.finish(rcode, query.edns, error)
}

/// Appends a reply that says only what is wrong. `question_end` is the header's length where the
/// question could not be read.
pub fn render_error(
    packet: &[u8],
    question_end: usize,
    rcode: Rcode,
    edns: Option<Edns>,
    out: &mut Vec<u8>,
) -> Rcode {
    Reply::begin(packet, question_end, out).finish(rcode, edns, None)
}

/// How much an answer may take, and where rotation stands.
#[derive(Clone, Copy)]
struct Room {
    /// The offset in the output that records may not pass.
    end: usize,
    turn: Option<u32>,
}

/// The sections whose counts stand in the header.
#[derive(Clone, Copy)]
enum Section {
    Answer = 6,
    Authority = 8,
    Additional = 10,
}

/// A reply in the making, behind whatever the buffer already held.
struct Reply<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
}

impl<'o> Reply<'o> {
    /// Copies the header's identity and the question, byte for byte.
    fn begin(packet: &[u8], question_end: usize, out: &'o mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&packet[..question_end]);
        let header = &mut out[start..start + HEADER];
        // QR=1; the opcode and RD come back, AA, TC, RA, Z, AD and the code begin as zero, CD comes back.
        header[2] = 0x80 | (header[2] & 0x79);
        header[3] &= 0x10;
        header[4..].fill(0);
        header[5] = u8::from(question_end > HEADER);
        Self { out, start }
    }

    fn set_authoritative(&mut self) {
        self.out[self.start + 2] |= 0x04;
    }

    fn set_truncated(&mut self) {
        self.out[self.start + 2] |= 0x02;
    }

    fn count(&mut self, section: Section, records: u16) {
        let at = self.start + section as usize;
        self.out[at..at + 2].copy_from_slice(&records.to_be_bytes());
    }

    /// Copies the set, or of one that does not fit as many whole records as do, if their order is free.
    fn push_answer(&mut self, rrset: &Rrset, room: Room) {
        let free = room.end.saturating_sub(self.out.len());
        let first = room.turn.map_or(0, |turn| spread(turn, rrset.records));
        let records = match rrset.stride {
            _ if rrset.body.len() <= free && (first == 0 || rrset.stride.is_none()) => {
                self.out.extend_from_slice(&rrset.body);
                rrset.records
            }
            Some(stride) => {
                let records = rrset.records.min(free / stride);
                let (before, from) = rrset.body.split_at(first * stride);
                let tail = from.len().min(records * stride);
                self.out.extend_from_slice(&from[..tail]);
                self.out.extend_from_slice(&before[..records * stride - tail]);
                records
            }
            None => 0,
        };
        self.count(Section::Answer, records as u16); // bounded by the size of a message
        if records < rrset.records {
            self.set_truncated();
            return;
        }
        let (length, glued) = rrset.glue.fitting(room.end.saturating_sub(self.out.len()));
        self.out.extend_from_slice(&rrset.glue.bytes[..length]);
        self.count(Section::Additional, glued);
    }

    /// Writes the code, and the OPT record where the query had one.
    fn finish(self, rcode: Rcode, edns: Option<Edns>, error: Option<ExtendedError>) -> Rcode {
        let code = rcode as u16;
        self.out[self.start + 3] |= (code & 0xf) as u8;
        let Some(edns) = edns else { return rcode };
        let additional = self.start + Section::Additional as usize;
        let records = u16::from_be_bytes([self.out[additional], self.out[additional + 1]]) + 1;
        self.out[additional..additional + 2].copy_from_slice(&records.to_be_bytes());
        push_opt(self.out, edns, code, error);
        rcode
    }
}

/// Appends an OPT record (RFC 6891 §6.1.2): our payload, the high part of the code, the DO bit of the query.
pub(crate) fn push_opt(out: &mut Vec<u8>, edns: Edns, code: u16, error: Option<ExtendedError>) {
    let [size_high, size_low] = (MAX_UDP as u16).to_be_bytes();
    let flags = if edns.dnssec_ok { 0x80 } else { 0 };
    out.extend_from_slice(&[0, 0, 41, size_high, size_low, (code >> 4) as u8, 0, flags, 0]);
    match error {
        None => out.extend_from_slice(&[0, 0]),
        Some(error) => {
            let [high, low] = (error as u16).to_be_bytes();
            out.extend_from_slice(&[0, EXTENDED_ERROR as u8, 0, 15, 0, 2, high, low]);
        }
    }
}

/// Where a set of `records` begins at the given turn. Multiples of the golden ratio visit all places
/// evenly, also when a client's queries take every second turn only (an A and an AAAA each time).
fn spread(turn: u32, records: usize) -> usize {
    let fraction = u64::from(turn.wrapping_mul(0x9e37_79b9));
    ((fraction * records as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_visits_every_place_also_at_every_second_turn() {
        for records in 1..50 {
            for step in 1..4 {
                let places: std::collections::BTreeSet<usize> =
                    (0..4 * records as u32).map(|turn| spread(turn * step, records)).collect();
                assert_eq!(places.len(), records, "{records} records, step {step}");
            }
        }
    }
}
