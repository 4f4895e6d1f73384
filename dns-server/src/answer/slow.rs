//! The slow path, for packets that the fast path does not accept: other opcodes and classes, other
//! EDNS options and versions, signatures, transfers, and malformed packets. A scan of the packet
//! (`slow/scan.rs`) leads to a [`PacketAction`], from which [`crate::answer::query`] renders the
//! reply.

pub(crate) mod scan;

use crate::answer::query::{self, Edns, Query, Question, Rcode, Style};
use crate::limits::answers::{MAX_QUESTIONS, MAX_RECORDS};
use crate::store::answers::Answers;
use crate::store::rrset::{HEADER, rtype};
use scan::{PacketScan, SoaSerial};

/// Kind of zone transfer that a secondary asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferKind {
    /// AXFR: the whole zone.
    Whole,
    /// IXFR: the changes since the serial that the secondary has.
    Since(u32),
}

/// Decision of the slow path on how to handle a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketAction {
    /// Answer the packet's question.
    Answer(Query),
    /// Send a zone transfer, if the client is allowed to have it.
    Transfer(Query, TransferKind),
    /// Verify the signature before anything else (RFC 8945 §5.2). The reply copies the packet up to
    /// this offset, the end of the question.
    Signed(usize, Option<Edns>),
    /// Send only a cookie, since the query has no question (RFC 7873 §5.4).
    Cookie(Option<Edns>),
    /// Send an error. The reply copies the packet up to this offset, the end of the question.
    Error(Rcode, usize, Option<Edns>),
}

impl PacketAction {
    /// Returns the fields of the query's OPT record, as far as it could be parsed.
    pub fn edns(&self) -> Option<Edns> {
        match self {
            Self::Answer(query) | Self::Transfer(query, _) => query.edns,
            Self::Error(_, _, edns) | Self::Signed(_, edns) | Self::Cookie(edns) => *edns,
        }
    }

    /// Returns the record type in the packet's question, or `None` if it has no readable question.
    pub fn qtype(&self, packet: &[u8]) -> Option<u16> {
        match self {
            Self::Answer(query) | Self::Transfer(query, _) => Some(query.question.qtype),
            Self::Error(_, end, _) | Self::Signed(end, _) if *end > HEADER => {
                Some(u16::from_be_bytes([*packet.get(end - 4)?, *packet.get(end - 3)?]))
            }
            Self::Error(..) | Self::Signed(..) | Self::Cookie(_) => None,
        }
    }

    /// Returns the OPT record, for the caller to set the fields of the reply.
    pub fn edns_mut(&mut self) -> &mut Option<Edns> {
        match self {
            Self::Answer(query) | Self::Transfer(query, _) => &mut query.edns,
            Self::Error(_, _, edns) | Self::Signed(_, edns) | Self::Cookie(edns) => edns,
        }
    }
}

/// Appends the reply for an action. A transfer or a signature that the caller has not handled is
/// refused.
pub fn reply(
    answers: &Answers,
    style: Style,
    action: &PacketAction,
    packet: &[u8],
    turn: u32,
    out: &mut Vec<u8>,
) -> Rcode {
    match action {
        PacketAction::Answer(query) => query::render(answers, style, query, packet, turn, out),
        PacketAction::Transfer(query, _) => {
            query::render_error(packet, query.question.end(), Rcode::Refused, query.edns, out)
        }
        PacketAction::Signed(end, edns) => query::render_error(packet, *end, Rcode::NotAuth, *edns, out),
        PacketAction::Cookie(edns) => query::render_error(packet, HEADER, Rcode::NoError, *edns, out),
        PacketAction::Error(rcode, end, edns) => query::render_error(packet, *end, *rcode, *edns, out),
    }
}

/// Returns the action on a query whose question is already known to be malformed.
pub fn classify_malformed(packet: &[u8]) -> PacketAction {
    PacketAction::Error(Rcode::FormErr, HEADER, opt_behind(packet, HEADER))
}

/// Parses a packet completely, and decides how to handle it. Returns `None` if it is not a DNS
/// message, or is a reply, since answering replies could cause loops.
pub fn classify(packet: &[u8]) -> Option<PacketAction> {
    let header = packet.first_chunk::<HEADER>()?;
    (header[2] & 0x80 == 0).then(|| classify_query(packet, header))
}

fn classify_query(packet: &[u8], header: &[u8; HEADER]) -> PacketAction {
    let questions = u16::from_be_bytes([header[4], header[5]]);
    let question = Question::read(packet);
    let end = question.as_ref().map_or(HEADER, Question::end);
    let is_query = query::is_query(packet);
    let malformed = || {
        let rcode = if is_query { Rcode::FormErr } else { Rcode::NotImp };
        PacketAction::Error(rcode, end, opt_behind(packet, end))
    };
    // No query has so many records, and reading them would be costly work that any stranger can
    // cause.
    let records: u32 =
        [6, 8, 10].map(|at| u32::from(u16::from_be_bytes([header[at], header[at + 1]]))).iter().sum();
    if questions > MAX_QUESTIONS || records > MAX_RECORDS || questions > 0 && question.is_none() {
        return malformed();
    }
    let Some(scan) = PacketScan::of(packet) else { return malformed() };
    let edns = scan.edns.map(|(edns, _)| edns);
    let has_cookie = scan.edns.is_some_and(|(edns, version)| version == 0 && edns.cookie.is_some());
    if questions == 0 && records == 1 && is_query && has_cookie {
        return PacketAction::Cookie(edns);
    }
    let Some(question) = question else { return malformed() };
    if scan.has_tsig {
        return PacketAction::Signed(end, edns);
    }
    let error = |rcode| PacketAction::Error(rcode, end, edns);
    if !is_query {
        return error(Rcode::NotImp);
    }
    if scan.edns.is_some_and(|(_, version)| version > 0) {
        return error(Rcode::BadVers);
    }
    let is_incremental = question.qtype == rtype::IXFR;
    if scan.answers > 0 || scan.authorities > 0 && !is_incremental {
        return malformed();
    }
    // A query has exactly one question (RFC 9619).
    if questions != 1 || question.qtype == rtype::OPT {
        return error(Rcode::FormErr);
    }
    // This server has no public keys to verify the signature with (RFC 2931).
    if scan.has_sig {
        return error(Rcode::NotAuth);
    }
    if question.qclass != rtype::CLASS_IN {
        return error(Rcode::Refused);
    }
    let query = Query { question, edns };
    match question.qtype {
        rtype::AXFR => PacketAction::Transfer(query, TransferKind::Whole),
        rtype::IXFR => match scan.soa {
            Some(SoaSerial::Valid(serial)) => PacketAction::Transfer(query, TransferKind::Since(serial)),
            // IXFR must contain the client's SOA record (RFC 1995 §3).
            Some(SoaSerial::Malformed) | None => error(Rcode::FormErr),
        },
        _ => PacketAction::Answer(query),
    }
}

/// Returns the OPT record of a packet that cannot be parsed completely, if it directly follows the
/// question, as in nearly every query. Errors, too, need an OPT record if the query has one (RFC
/// 6891 §6.1.1).
fn opt_behind(packet: &[u8], question_end: usize) -> Option<Edns> {
    let is_only_additional = packet.get(6..10) == Some(&[0; 4]) && packet.get(10..12) != Some(&[0; 2]);
    match packet.get(question_end..)? {
        &[0, 0, 41, high, low, _, _, flags, _, _, _, ..] if is_only_additional => {
            Some(Edns::new(u16::from_be_bytes([high, low]), flags))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a packet with a question of this type, followed by `rest`: the authority and
    /// additional records.
    fn packet(qtype: u16, counts: [u8; 2], rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0, 1, 0, 0, 0, 1, 0, 0, 0, counts[0], 0, counts[1], 1, b'z', 0];
        packet.extend(qtype.to_be_bytes());
        packet.extend([0, 1]);
        packet.extend(rest);
        packet
    }

    fn soa(names: &[u8]) -> Vec<u8> {
        let head = [0xc0, 12, 0, 6, 0, 1, 0, 0, 0, 0, 0, names.len() as u8 + 20];
        [&head[..], names, &[0, 0, 0, 7], &[9; 16]].concat()
    }

    fn is_malformed(packet: &[u8]) -> bool {
        matches!(classify(packet), Some(PacketAction::Error(Rcode::FormErr, ..)))
    }

    #[test]
    fn an_incremental_transfer_starts_at_the_serial_of_its_soa() {
        let address = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 1, 2, 3, 4];
        let whole = [&[2, b'n', b's'][..], &[1, b'z', 0], &[0]].concat();
        for (counts, rest) in [
            ([1, 0], soa(&[0, 0])),
            ([1, 0], soa(&[0xc0, 12, 1, b'h', 0xc0, 12])),
            ([1, 0], soa(&whole)),
            ([2, 0], [&address[..], &soa(&[0, 0])].concat()),
        ] {
            let packet = packet(rtype::IXFR, counts, &rest);
            let Some(PacketAction::Transfer(_, wanted)) = classify(&packet) else { panic!("{packet:?}") };
            assert_eq!(wanted, TransferKind::Since(7), "{packet:?}");
        }
        // Without an SOA record, with another record, and with an SOA in another section.
        for (counts, rest) in [([0, 0], vec![]), ([1, 0], address.to_vec()), ([0, 1], soa(&[0, 0]))] {
            assert!(is_malformed(&packet(rtype::IXFR, counts, &rest)), "{counts:?}");
        }
        for names in [&[][..], &[0], &[0, 0, 0], &[0, 0xc0, 200], &[0, 0x41], &[63; 4]] {
            assert!(is_malformed(&packet(rtype::IXFR, [1, 0], &soa(names))), "{names:?}");
        }
    }

    #[test]
    fn a_record_whose_name_is_too_long_is_a_format_error() {
        let txt = |labels| [&[1, b'x'].repeat(labels)[..], &[0, 0, 16, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
        assert!(matches!(classify(&packet(rtype::A, [0, 1], &txt(127))), Some(PacketAction::Answer(_))));
        assert!(is_malformed(&packet(rtype::A, [0, 1], &txt(150))));
    }

    /// Transfers are no exception: other records in them are not read either.
    #[test]
    fn the_data_of_irrelevant_records_is_not_read() {
        let broken = [0, 0, 16, 0, 1, 0, 0, 0, 0, 0, 2, 9, b'x'];
        for (qtype, known) in [(rtype::A, vec![]), (rtype::AXFR, vec![]), (rtype::IXFR, soa(&[0, 0]))] {
            let counts = [u8::from(!known.is_empty()), 1];
            let action = classify(&packet(qtype, counts, &[&known[..], &broken].concat())).unwrap();
            assert!(
                matches!(action, PacketAction::Answer(_) | PacketAction::Transfer(..)),
                "{qtype}: {action:?}"
            );
        }
    }
}
