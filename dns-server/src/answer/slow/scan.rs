//! A look over a whole packet that understands nothing but the OPT record and the serial of an SOA record: where
//! names and records end, and whether all of it is there. It allocates nothing and follows no pointer, so that
//! rubbish is recognised for less than what a good query with as many labels costs (docs/benchmarks.md).

use crate::answer::cookie::Cookie;
use crate::answer::query::Edns;
use crate::store::name::MAX_NAME;
use crate::store::rrset::{HEADER, rtype};

/// What a packet holds that is in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketScan {
    /// The OPT record and its version.
    pub(super) edns: Option<(Edns, u8)>,
    /// Records in the answer section, which no query has.
    pub(super) answers: u16,
    /// Records in the authority section, which a query has for an incremental transfer only.
    pub(super) authorities: u16,
    /// The first SOA record among those: what the asker has already (RFC 1995 §3).
    pub(super) soa: Option<SoaSerial>,
    /// Whether the additional section holds a signature with a shared key (RFC 8945), or with a public one (RFC 2931).
    /// What else there is beside OPT means nothing, and is passed over.
    pub(super) has_tsig: bool,
    pub(super) has_sig: bool,
}

/// An SOA record's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SoaSerial {
    /// With this serial.
    Valid(u32),
    /// None as they should be. That is for who wants the serial to complain about: an UPDATE may have a record
    /// without data (RFC 2136 §2.5.2).
    Malformed,
}

/// The options of the OPT record that this server looks at (RFC 7873, RFC 7828, RFC 7830).
const COOKIE: u16 = 10;
const KEEPALIVE: u16 = 11;
const PADDING: u16 = 12;

impl PacketScan {
    /// Nothing where a record is cut off or anything follows the last one, where there are two OPT records or
    /// one that is not sound (RFC 6891 §6.1.1, RFC 7873 §5.2.2).
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let count = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
        let (answers, authorities, additionals) = (count(6)?, count(8)?, count(10)?);
        let mut at = HEADER;
        for _ in 0..count(4)? {
            at = name_end(packet, at)? + 4;
        }
        for _ in 0..answers {
            at = RecordBounds::read(packet, at)?.end;
        }
        let mut soa = None;
        for _ in 0..authorities {
            let record = RecordBounds::read(packet, at)?;
            if record.rtype == rtype::SOA && soa.is_none() {
                soa = Some(record.serial(packet).map_or(SoaSerial::Malformed, SoaSerial::Valid));
            }
            at = record.end;
        }
        let mut scan = Self { edns: None, answers, authorities, soa, has_tsig: false, has_sig: false };
        for _ in 0..additionals {
            let record = RecordBounds::read(packet, at)?;
            if record.rtype == rtype::OPT {
                if scan.edns.is_some() || record.name_end != at + 1 {
                    return None;
                }
                scan.edns = Some(record.opt(packet)?);
            }
            scan.has_tsig |= record.rtype == rtype::TSIG;
            scan.has_sig |= record.rtype == rtype::SIG;
            at = record.end;
        }
        (at == packet.len()).then_some(scan)
    }
}

/// Where a record's parts are.
struct RecordBounds {
    name_end: usize,
    rtype: u16,
    end: usize,
}

impl RecordBounds {
    fn read(packet: &[u8], at: usize) -> Option<Self> {
        let name_end = name_end(packet, at)?;
        let head = packet.get(name_end..)?.first_chunk::<10>()?;
        let end = name_end + 10 + usize::from(u16::from_be_bytes([head[8], head[9]]));
        (end <= packet.len()).then_some(Self { name_end, rtype: u16::from_be_bytes([head[0], head[1]]), end })
    }

    /// The record as OPT, with its version.
    fn opt(&self, packet: &[u8]) -> Option<(Edns, u8)> {
        let (head, mut options) = packet.get(self.name_end..self.end)?.split_first_chunk::<10>()?;
        let mut edns = Edns::new(u16::from_be_bytes([head[2], head[3]]), head[6]);
        let version = head[5];
        if version > 0 {
            // What follows is for who knows that version to read: all that there is to say is which one we know
            // (RFC 6891 §6.1.3).
            return Some((edns, version));
        }
        while !options.is_empty() {
            let (&[code_high, code_low, high, low], rest) = options.split_first_chunk()?;
            let (data, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([high, low])))?;
            match u16::from_be_bytes([code_high, code_low]) {
                // Of several the first counts (RFC 7873 §5.2).
                COOKIE if edns.cookie.is_none() => edns.cookie = Some(Cookie::read(data)?),
                KEEPALIVE => edns.keepalive = true,
                PADDING => edns.padded = true,
                _ => {}
            }
            options = rest;
        }
        Some((edns, version))
    }

    /// The serial of the record as SOA: behind two names the first of five numbers, and nothing behind those
    /// (RFC 1035 §3.3.13).
    fn serial(&self, packet: &[u8]) -> Option<u32> {
        let names_end = name_end(packet, name_end(packet, self.name_end + 10)?)?;
        let numbers: &[u8; 20] = packet.get(names_end..self.end)?.try_into().ok()?;
        numbers.first_chunk().map(|serial| u32::from_be_bytes(*serial))
    }
}

/// Where the name at an offset ends: behind its root or its pointer, which has to lead backwards. One that is too
/// long is not walked to its end.
fn name_end(packet: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin;
    loop {
        if at - begin >= MAX_NAME {
            return None;
        }
        match usize::from(*packet.get(at)?) {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + length,
            high @ 0xc0.. => {
                let target = (high & 0x3f) << 8 | usize::from(*packet.get(at + 1)?);
                return (target < begin).then_some(at + 2);
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A query for `a.` with these counts, and what follows the question.
    fn packet(counts: [u8; 3], rest: &[u8]) -> Vec<u8> {
        let mut packet =
            vec![0, 1, 0, 0, 0, 1, 0, counts[0], 0, counts[1], 0, counts[2], 1, b'a', 0, 0, 1, 0, 1];
        packet.extend(rest);
        packet
    }

    fn opt(version: u8, options: &[u8]) -> Vec<u8> {
        let mut opt = vec![0, 0, 41, 4, 0, 0, version, 0x80, 0, 0, options.len() as u8];
        opt.extend(options);
        opt
    }

    /// A record whose owner has so many bytes.
    fn record_of(bytes: usize) -> Vec<u8> {
        let first = [&[2 - bytes as u8 % 2][..], &[b'b'; 2][bytes % 2..]].concat();
        [&first[..], &[1, b'b'].repeat((bytes - first.len()) / 2), &[0], &RECORD[2..]].concat()
    }

    const RECORD: [u8; 12] = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 0];

    #[test]
    fn what_is_in_one_piece_is_counted() {
        let edns = Edns::new(1024, 0x80);
        let cookie = Cookie::read(&[7; 8]);
        let cookie_option = [&[0, 10, 0, 8][..], &[7; 8]].concat();
        let two = [&cookie_option[..], &[0, 10, 0, 8], &[9; 8]].concat();
        let signed = [&RECORD[..2], &[0, 250], &RECORD[4..]].concat();
        for (packet, found, signed) in [
            (packet([0; 3], &[]), None, false),
            (packet([0, 0, 1], &opt(0, &[])), Some((edns, 0)), false),
            (packet([0, 0, 1], &opt(9, &[0, 3, 0, 0])), Some((edns, 9)), false),
            (packet([0, 0, 1], &opt(0, &cookie_option)), Some((Edns { cookie, ..edns }, 0)), false),
            (packet([0, 0, 1], &opt(0, &two)), Some((Edns { cookie, ..edns }, 0)), false),
            (packet([0, 0, 1], &opt(0, &[0, 12, 0, 1, 0])), Some((Edns { padded: true, ..edns }, 0)), false),
            (packet([0, 0, 1], &opt(0, &[0, 11, 0, 0])), Some((Edns { keepalive: true, ..edns }, 0)), false),
            // Of another version nothing is known but that.
            (packet([0, 0, 1], &opt(1, &[0, 10, 0, 1, 7])), Some((edns, 1)), false),
            (packet([0, 0, 1], &opt(1, &[7])), Some((edns, 1)), false),
            (packet([0, 0, 2], &[&RECORD[..], &opt(0, &[])].concat()), Some((edns, 0)), false),
            (packet([0, 0, 2], &[&opt(0, &[])[..], &signed].concat()), Some((edns, 0)), true),
            (packet([1, 1, 0], &[RECORD, RECORD].concat()), None, false),
            (packet([0, 0, 1], &record_of(255)), None, false),
        ] {
            let scan = PacketScan::of(&packet).unwrap();
            assert_eq!((scan.edns, scan.has_tsig, scan.has_sig), (found, signed, false), "{packet:?}");
            // Cut off anywhere, or longer, it is not.
            for length in 0..packet.len() {
                assert_eq!(PacketScan::of(&packet[..length]), None, "{length} of {packet:?}");
            }
            assert_eq!(PacketScan::of(&[&packet[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn what_is_not_sound_is_refused() {
        for (counts, rest) in [
            // Two OPT records, one that is not at the root, options cut off, a cookie of 9 bytes.
            ([0, 0, 2], [opt(0, &[]), opt(0, &[])].concat()),
            ([0, 0, 1], [&[1, b'b'][..], &opt(0, &[])].concat()),
            ([0, 0, 1], opt(0, &[0, 3, 0])),
            ([0, 0, 1], opt(0, &[0, 3, 0, 1])),
            ([0, 0, 1], opt(0, &[&[0, 10, 0, 9][..], &[7; 9]].concat())),
            // Pointers forwards and to themselves, other label types.
            ([1, 0, 0], [&[0xc0, 19][..], &RECORD[2..]].concat()),
            ([1, 0, 0], [&[0xc0, 200][..], &RECORD[2..]].concat()),
            ([1, 0, 0], [&[0x40, 0][..], &RECORD[2..]].concat()),
            ([1, 0, 0], [&[0x80, 0][..], &RECORD[2..]].concat()),
            // Names that are too long.
            ([1, 0, 0], record_of(256)),
            ([0, 1, 0], record_of(257)),
            ([0, 0, 1], record_of(20_000)),
        ] {
            assert_eq!(PacketScan::of(&packet(counts, &rest)), None, "{counts:?} {rest:?}");
        }
    }
}
