//! Everything that the fast path does not take: other opcodes and classes, EDNS with options or of another
//! version, transfers, malformed packets. hickory parses; the verdict is rendered by [`crate::query`].

use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;

use crate::answers::Answers;
use crate::query::{self, Edns, Query, Question, Rcode, Style};
use crate::rrset::{HEADER, rtype};
use crate::transfer::Wanted;

/// Questions that are read before their number is complained about.
const MAX_QUESTIONS: u16 = 2;

/// Records that are read of a query: an SOA for IXFR, an OPT, a signature, and some to spare.
const MAX_RECORDS: u32 = 8;

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Answer what is asked.
    Answer(Query),
    /// Send a zone, if the client may have it.
    Transfer(Query, Wanted),
    /// Say what is wrong; the question is copied up to this offset.
    Error(Rcode, usize, Option<Edns>),
}

impl Verdict {
    /// The query's OPT record, as far as it was understood.
    pub fn edns(&self) -> Option<Edns> {
        match self {
            Self::Answer(query) | Self::Transfer(query, _) => query.edns,
            Self::Error(_, _, edns) => *edns,
        }
    }
}

/// Appends the reply that a verdict asks for; a transfer that is still one by now is refused.
pub fn reply(
    answers: &Answers,
    style: Style,
    verdict: &Verdict,
    packet: &[u8],
    turn: u32,
    out: &mut Vec<u8>,
) -> Rcode {
    match verdict {
        Verdict::Answer(query) => query::render(answers, style, query, packet, turn, out),
        Verdict::Transfer(query, _) => {
            query::render_error(packet, query.question.end(), Rcode::Refused, query.edns, out)
        }
        Verdict::Error(rcode, end, edns) => query::render_error(packet, *end, *rcode, *edns, out),
    }
}

/// Reads a packet whole and decides; pure. Nothing for what is no DNS message, or is itself a reply:
/// answers to answers make loops.
pub fn judge(packet: &[u8]) -> Option<Verdict> {
    let header = packet.first_chunk::<HEADER>()?;
    (header[2] & 0x80 == 0).then(|| judge_query(packet, header))
}

fn judge_query(packet: &[u8], header: &[u8; HEADER]) -> Verdict {
    let questions = u16::from_be_bytes([header[4], header[5]]);
    let question = if questions == 0 { None } else { Question::read(packet) };
    let end = question.as_ref().map_or(HEADER, Question::end);
    if header[2] & 0x78 != 0 {
        return Verdict::Error(Rcode::NotImp, end, opt_behind(packet, end));
    }
    // No query has that many records, and reading them is work that a stranger could make us do.
    let records: u32 =
        [6, 8, 10].map(|at| u32::from(u16::from_be_bytes([header[at], header[at + 1]]))).iter().sum();
    if questions > MAX_QUESTIONS || records > MAX_RECORDS {
        return Verdict::Error(Rcode::FormErr, end, opt_behind(packet, end));
    }
    let (Some(question), Ok(message)) = (question, Message::from_vec(packet)) else {
        return Verdict::Error(Rcode::FormErr, end, opt_behind(packet, end));
    };
    let edns = message
        .edns
        .as_ref()
        .map(|edns| Edns { payload: edns.max_payload(), dnssec_ok: edns.flags().dnssec_ok });
    let error = |rcode| Verdict::Error(rcode, end, edns);
    if message.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        return error(Rcode::BadVers);
    }
    // RFC 9619: a query has one question.
    if questions != 1 || question.qtype == rtype::OPT {
        return error(Rcode::FormErr);
    }
    // There is no key that a signature could be checked with (RFC 8945 §5.2).
    let signed = |rtype: RecordType| matches!(rtype, RecordType::TSIG | RecordType::SIG);
    if message.signature().is_some() || message.additionals.iter().any(|record| signed(record.record_type()))
    {
        return error(Rcode::NotAuth);
    }
    if question.qclass != rtype::CLASS_IN {
        return error(Rcode::Refused);
    }
    let query = Query { question, edns };
    match question.qtype {
        rtype::AXFR => Verdict::Transfer(query, Wanted::Whole),
        rtype::IXFR => Verdict::Transfer(query, Wanted::Since(known_serial(&message))),
        _ => Verdict::Answer(query),
    }
}

/// The OPT record of a packet that cannot be read whole, if it stands where it does in nearly every query:
/// right behind the question. Who sends one gets one back, in errors too (RFC 6891 §6.1.1).
fn opt_behind(packet: &[u8], question_end: usize) -> Option<Edns> {
    let is_only_additional = packet.get(6..10) == Some(&[0; 4]) && packet.get(10..12) != Some(&[0; 2]);
    match packet.get(question_end..)? {
        &[0, 0, 41, high, low, _, _, flags, _, _, _, ..] if is_only_additional => {
            Some(Edns::new(u16::from_be_bytes([high, low]), flags))
        }
        _ => None,
    }
}

/// The serial that the asker of an incremental transfer has already (RFC 1995 §3).
fn known_serial(message: &Message) -> Option<u32> {
    message.authorities.iter().find_map(|record| match &record.data {
        hickory_proto::rr::RData::SOA(soa) => Some(soa.serial),
        _ => None,
    })
}
