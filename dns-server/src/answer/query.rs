//! Turns a query into a reply: the strict parser of the fast path, and the renderer that both paths
//! use.
//!
//! ```text
//!   packet ──> Query::parse ─────────────┐
//!      │ (anything unusual)              ├──> render: look-up, copy, fit ──> reply
//!      └─────> slow: all of the packet ──┘
//! ```
//!
//! Both paths use one renderer, so they give the same answer to every query that both accept; a
//! fuzz target checks that they also classify queries alike. A reply is appended to a buffer that
//! the caller reuses. Nothing else is allocated, except for PTR queries for an address that several
//! services publish.

use strum::{FromRepr, IntoStaticStr, VariantArray};

use crate::answer::compose::{Composer, Fit};
use crate::answer::cookie::Cookie;
use crate::answer::edns::{self, ExtendedError, MIN_UDP};
pub use crate::answer::edns::{Edns, MAX_UDP};
use crate::store::answers::{Answers, Freshness};
use crate::store::name::{Labels, MAX_LABEL, MAX_LABELS, MAX_NAME};
use crate::store::rrset::{HEADER, rtype};

/// The TC bit in the third byte of a header (RFC 1035 §4.1.1).
const TRUNCATED: u8 = 0x02;

/// Response codes that this server sends (RFC 1035, RFC 6895).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, FromRepr, IntoStaticStr, VariantArray)]
#[expect(missing_docs, reason = "the IANA mnemonics say it")]
#[strum(serialize_all = "UPPERCASE")]
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
    BadCookie = 23,
}

impl Rcode {
    /// Returns the code's IANA mnemonic, such as NXDOMAIN.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// First question of a packet: the name, type and class that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    name: [u8; MAX_NAME],
    name_len: usize,
    /// Offsets in `name` at which the labels begin, without the root.
    labels: [u8; MAX_LABELS],
    label_count: usize,
    /// Record type that is asked for (QTYPE).
    pub qtype: u16,
    /// Class that is asked for (QCLASS).
    pub qclass: u16,
}

impl Question {
    /// Parses the question behind the header. Returns `None` if the packet has no question, or the
    /// question is cut off, too long, or compressed. Nothing comes before the first name that a
    /// pointer could refer to.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let mut question = Self {
            name: [0; MAX_NAME],
            name_len: 0,
            labels: [0; MAX_LABELS],
            label_count: 0,
            qtype: 0,
            qclass: 0,
        };
        if packet.get(4..6)? == [0; 2] {
            return None;
        }
        let wire = packet.get(HEADER..)?;
        let mut at = 0;
        loop {
            let length = usize::from(*wire.get(at)?);
            if length == 0 {
                at += 1;
                break;
            }
            if length > MAX_LABEL {
                return None;
            }
            *question.labels.get_mut(question.label_count)? = at as u8; // truncates only if the name is too long, which is detected below
            question.label_count += 1;
            at += 1 + length;
        }
        // Lowercasing the length bytes, too, is safe: a length is at most 63, and letters begin at
        // 65.
        let name = question.name.get_mut(..at)?;
        name.copy_from_slice(wire.get(..at)?);
        name.make_ascii_lowercase();
        question.name_len = at;
        let rest = wire.get(at..at + 4)?;
        question.qtype = u16::from_be_bytes([rest[0], rest[1]]);
        question.qclass = u16::from_be_bytes([rest[2], rest[3]]);
        Some(question)
    }

    /// Returns the name that is asked for, lowercased, in wire format.
    pub fn name(&self) -> &[u8] {
        &self.name[..self.name_len]
    }

    /// Returns the lowercased name that is asked for, divided into labels.
    pub fn labels(&self) -> Labels<'_> {
        Labels::new(self.name(), &self.labels[..self.label_count])
    }

    /// Returns the offset in the packet at which the question ends.
    pub fn end(&self) -> usize {
        HEADER + self.name_len + 4
    }
}

/// A parsed query: its question and EDNS fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// Name, type and class that are asked for.
    pub question: Question,
    /// Fields of the OPT record, if the query has one.
    pub edns: Option<Edns>,
}

/// Reason why the fast path does not accept a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declined {
    /// The question is malformed. The slow path must not parse it again, or the most expensive
    /// names would cost twice.
    Question,
    /// The packet may be valid, and needs the slow path's complete parser.
    Unusual,
}

impl Query {
    /// Parses a packet on the fast path. Accepts only a query of class IN with at most one OPT
    /// record, which has no option or only a cookie, and with no byte after it. The slow path
    /// handles all other packets.
    pub fn parse(packet: &[u8]) -> Result<Self, Declined> {
        // QR and opcode must be zero; no other flag changes the answer. The counts must be one
        // question, no answer, no authority, and at most one additional record.
        let counts = packet.get(2..HEADER).ok_or(Declined::Unusual)?;
        if counts[0] & 0xf8 != 0 || counts[2..9] != [0, 1, 0, 0, 0, 0, 0] || counts[9] > 1 {
            return Err(Declined::Unusual);
        }
        let question = Question::read(packet).ok_or(Declined::Question)?;
        if question.qclass != rtype::CLASS_IN || is_special(question.qtype) {
            return Err(Declined::Unusual);
        }
        let rest = packet.get(question.end()..).ok_or(Declined::Unusual)?;
        let edns = match (counts[9], rest) {
            (0, []) => None,
            // Root owner, type OPT, payload, extended code, version 0, flags, length of options,
            // options.
            (1, &[0, 0, 41, high, low, _, 0, flags, _, 0, length, ref options @ ..])
                if options.len() == usize::from(length) =>
            {
                let cookie = match options {
                    [] => None,
                    // dig always sends a cookie, and so do BIND and Knot as resolvers.
                    [0, 10, 0, length, data @ ..] if data.len() == usize::from(*length) => {
                        Some(Cookie::read(data).ok_or(Declined::Unusual)?)
                    }
                    _ => return Err(Declined::Unusual),
                };
                Some(Edns { cookie, ..Edns::new(u16::from_be_bytes([high, low]), flags) })
            }
            _ => return Err(Declined::Unusual),
        };
        Ok(Self { question, edns })
    }
}

/// Tells whether a message's opcode is QUERY, the only one that is served.
pub fn is_query(packet: &[u8]) -> bool {
    packet.get(2).is_some_and(|flags| flags & 0x78 == 0)
}

/// Tells whether a query's type is OPT or a zone transfer, which only the slow path handles.
fn is_special(qtype: u16) -> bool {
    matches!(qtype, rtype::OPT | rtype::AXFR | rtype::IXFR)
}

/// Options for the replies of one listener.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// `true` for UDP, where the client's payload size limits a reply.
    pub datagram: bool,
    /// `true` if address records are rotated: each answer begins with another record than the last.
    pub rotate: bool,
    /// Number of bytes that a reply leaves free for its TSIG record; 0 if it is not signed.
    pub reserve: usize,
}

impl Style {
    /// Returns the largest length of a reply in bytes, without its TSIG record.
    pub(crate) fn limit(self, edns: Option<Edns>) -> usize {
        let message = match (self.datagram, edns) {
            (false, _) => usize::from(u16::MAX),
            (true, Some(edns)) => usize::from(edns.payload.min(edns.announced)),
            (true, None) => MIN_UDP,
        };
        message.saturating_sub(self.reserve)
    }
}

/// Appends the reply to `query`, which was parsed from `packet`. `turn` differs from query to
/// query, and chooses the first record of a rotated set.
pub fn render(
    answers: &Answers,
    style: Style,
    query: &Query,
    packet: &[u8],
    turn: u32,
    out: &mut Vec<u8>,
) -> Rcode {
    let mut reply = ReplyWriter::begin(packet, query.question.end(), out);
    let name = query.question.labels();
    let zone = answers.zone_of(name);
    let freshness = answers.freshness();
    let error = match freshness {
        Freshness::Current => None,
        Freshness::Stale => Some(ExtendedError::StaleAnswer),
        Freshness::Unsynced => Some(ExtendedError::NotReady),
    };
    let limit = style.limit(query.edns);
    let Some(zone) = zone else {
        return reply.finish(Rcode::Refused, query.edns, None, limit);
    };
    if freshness == Freshness::Unsynced {
        return reply.finish(Rcode::ServFail, query.edns, error, limit);
    }
    let opt = query.edns.map_or(0, |edns| edns.reply_len(error));
    let end = reply.start + limit.saturating_sub(opt);
    let turn = style.rotate.then_some(turn);
    reply.set_authoritative();
    // Over UDP, PTR records are sent all or none, so gathering stops when they exceed the room.
    // Over a stream, a subset is sent, which may start at any record.
    let room = if style.datagram { end.saturating_sub(reply.out.len()) } else { usize::MAX };
    let (exists, written) = answers.look_up(zone, name, room, |found| {
        let (out, start, datagram) = (&mut *reply.out, reply.start, style.datagram);
        let written =
            found.answer(query.question.qtype, name, &mut Composer { out, start, end, turn, datagram });
        (found.exists(), written)
    });
    match written {
        Some(written) => {
            reply.count(MessageSection::Answer, written.answers);
            reply.count(MessageSection::Additional, written.additionals);
            match written.fit {
                Fit::Whole => {}
                Fit::Truncated => reply.set_truncated(),
                Fit::Subset => answers.count_subset(),
            }
        }
        None => {
            let is_apex_soa = query.question.qtype == rtype::SOA && zone.labels() == name.count();
            let section = if is_apex_soa { MessageSection::Answer } else { MessageSection::Authority };
            let before = reply.out.len();
            zone.push_soa(reply.out, name.wire().len(), answers.serial());
            if reply.out.len() <= end {
                reply.count(section, 1);
            } else {
                reply.out.truncate(before);
                reply.set_truncated();
            }
        }
    }
    let rcode = if exists { Rcode::NoError } else { Rcode::NxDomain };
    reply.finish(rcode, query.edns, error, limit)
}

/// Appends a reply that has only a response code. `question_end` is the length of the header if the
/// question could not be parsed.
pub fn render_error(
    packet: &[u8],
    question_end: usize,
    rcode: Rcode,
    edns: Option<Edns>,
    out: &mut Vec<u8>,
) -> Rcode {
    ReplyWriter::begin(packet, question_end, out).finish(rcode, edns, None, edns::BLOCK)
}

/// Appends an empty reply with the TC bit. It makes the client retry over TCP, where replies may be
/// larger and source addresses cannot be forged.
pub fn render_truncated(packet: &[u8], question_end: usize, edns: Option<Edns>, out: &mut Vec<u8>) -> Rcode {
    let mut reply = ReplyWriter::begin(packet, question_end, out);
    reply.set_truncated();
    reply.finish(Rcode::NoError, edns, None, edns::BLOCK)
}

/// Tells whether a reply has the TC bit, which sends the client to TCP.
pub(crate) fn is_truncated(reply: &[u8]) -> bool {
    reply.get(2).is_some_and(|flags| flags & TRUNCATED != 0)
}

/// Sections of a message, by the offset of their count in the header.
#[derive(Clone, Copy)]
enum MessageSection {
    Answer = 6,
    Authority = 8,
    Additional = 10,
}

/// A reply that is being written, behind the data that the buffer already has.
struct ReplyWriter<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
}

impl<'o> ReplyWriter<'o> {
    /// Starts a reply: the packet's header, with the flags of a reply, and its question as it came.
    fn begin(packet: &[u8], question_end: usize, out: &'o mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&packet[..question_end]);
        let header = &mut out[start..start + HEADER];
        // Set QR and keep the opcode. For queries, also keep RD and CD. Clear AA, TC, RA, Z, AD and
        // the code.
        let (rd, cd) = if is_query(packet) { (0x01, 0x10) } else { (0, 0) };
        header[2] = 0x80 | (header[2] & (0x78 | rd));
        header[3] &= cd;
        header[4..].fill(0);
        header[5] = u8::from(question_end > HEADER);
        Self { out, start }
    }

    fn set_authoritative(&mut self) {
        self.out[self.start + 2] |= 0x04;
    }

    fn set_truncated(&mut self) {
        self.out[self.start + 2] |= TRUNCATED;
    }

    fn count(&mut self, section: MessageSection, records: u16) {
        let at = self.start + section as usize;
        self.out[at..at + 2].copy_from_slice(&records.to_be_bytes());
    }

    /// Writes the response code, and an OPT record if the query had one. Padding ends at `limit`.
    fn finish(self, rcode: Rcode, edns: Option<Edns>, error: Option<ExtendedError>, limit: usize) -> Rcode {
        let code = rcode as u16;
        self.out[self.start + 3] |= (code & 0xf) as u8;
        let Some(edns) = edns else { return rcode };
        let additional = self.start + MessageSection::Additional as usize;
        let records = u16::from_be_bytes([self.out[additional], self.out[additional + 1]]) + 1;
        self.out[additional..additional + 2].copy_from_slice(&records.to_be_bytes());
        edns.push(self.out, (self.start, limit), code, error);
        rcode
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::store::name::Name;
    use crate::store::zone::{ZoneSettings, Zones};

    /// Makes a name of this length that ends in `end`.
    fn name_of(bytes: usize, end: &str) -> Name {
        let mut name: Name = end.parse().unwrap();
        while name.as_wire().len() < bytes {
            let left = bytes - name.as_wire().len();
            // Leave room for one more letter, since a label cannot be empty.
            let label = left.min(if left == 65 { 32 } else { 64 }) - 1;
            name = name.child(&"x".repeat(label)).unwrap();
        }
        name
    }

    /// Returns the replies over UDP to a query for a name that does not exist: without EDNS, and
    /// with the longest OPT record.
    fn negative_replies(answers: &Answers, name: &Name) -> [Vec<u8>; 2] {
        let packet =
            [&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], name.as_wire(), &[0, rtype::A as u8, 0, 1]].concat();
        let query = Query::parse(&packet).unwrap();
        let cookie = Some(Cookie { client: [1; 8], server: Some([2; 16]), is_returned: true });
        [None, Some(Edns { cookie, ..Edns::new(512, 0) })].map(|edns| {
            let mut out = Vec::new();
            let style = Style { datagram: true, rotate: false, reserve: 0 };
            let rcode = render(answers, style, &Query { edns, ..query }, &packet, 0, &mut out);
            assert_eq!(rcode, Rcode::NxDomain);
            out
        })
    }

    #[test]
    fn a_negative_reply_fits_a_datagram_in_a_zone_of_any_length() {
        let longest = MAX_NAME - "hostmaster".len() - 1;
        for bytes in 5..=longest {
            let forward = name_of(bytes, "z");
            let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
            let reverse = ["in-addr.arpa".parse().unwrap()];
            let zones = Zones::new(vec![forward.clone()], &reverse, &settings).unwrap();
            let answers = Answers::new(zones, 1);
            answers.set_freshness(Freshness::Stale);
            for (apex, always_fits) in [(&forward, true), (&reverse[0], bytes <= 73)] {
                for reply in negative_replies(&answers, &name_of(MAX_NAME, &apex.to_string())) {
                    assert!(reply.len() <= MIN_UDP, "{} bytes for {apex} with {bytes}", reply.len());
                    // Either the reply has the SOA record, or the TC bit.
                    let authorities = reply[MessageSection::Authority as usize + 1];
                    assert_eq!(authorities == 0, is_truncated(&reply), "{apex} with {bytes}");
                    assert!(authorities == 1 || !always_fits, "no SOA record for {apex} with {bytes}");
                }
            }
        }
    }
}
