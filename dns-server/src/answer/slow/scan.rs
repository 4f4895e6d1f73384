//! A scan of a whole packet. It finds the ends of names and records, and reads only the OPT record
//! and the serial of an SOA record. It allocates nothing and follows no pointer, so that rejecting
//! garbage costs less than answering a valid query with as many labels (docs/benchmarks.md).

use crate::answer::cookie::Cookie;
use crate::answer::query::Edns;
use crate::store::name::MAX_NAME;
use crate::store::rrset::{HEADER, rtype};

/// Parts of a complete packet that decide how to handle it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketScan {
    /// Fields of the OPT record and its version, if the packet has an OPT record.
    pub(super) edns: Option<(Edns, u8)>,
    /// Number of records in the answer section: 0 in a valid query.
    pub(super) answers: u16,
    /// Number of records in the authority section. Among queries, only an IXFR has any.
    pub(super) authorities: u16,
    /// The first SOA record in the authority section: the version that the client has (RFC 1995
    /// §3).
    pub(super) soa: Option<SoaSerial>,
    /// `true` if the additional section has a TSIG record (RFC 8945). Records other than OPT, TSIG
    /// and SIG are skipped.
    pub(super) has_tsig: bool,
    /// `true` if the additional section has a SIG record, a signature by public key (RFC 2931).
    pub(super) has_sig: bool,
}

/// Serial of an SOA record in a query, or that it cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SoaSerial {
    /// The serial that the record's data hold.
    Valid(u32),
    /// The record's data are malformed. That is an error only for a query that needs the serial: an
    /// UPDATE may have a record without data (RFC 2136 §2.5.2).
    Malformed,
}

/// Codes of the EDNS options that this server handles (RFC 7873, RFC 7828, RFC 7830).
const COOKIE: u16 = 10;
const KEEPALIVE: u16 = 11;
const PADDING: u16 = 12;

impl PacketScan {
    /// Scans a packet. Returns `None` if a record is cut off, if bytes follow the last record, or
    /// if the packet has two OPT records or a malformed one (RFC 6891 §6.1.1, RFC 7873 §5.2.2).
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

/// Offsets in a packet at which a record's name and the record end, and the record's type.
pub(crate) struct RecordBounds {
    name_end: usize,
    pub(crate) rtype: u16,
    pub(crate) end: usize,
}

impl RecordBounds {
    /// Reads the record that begins at this offset; `None` if it is cut off.
    pub(crate) fn read(packet: &[u8], at: usize) -> Option<Self> {
        let name_end = name_end(packet, at)?;
        let head = packet.get(name_end..)?.first_chunk::<10>()?;
        let end = name_end + 10 + usize::from(u16::from_be_bytes([head[8], head[9]]));
        (end <= packet.len()).then_some(Self { name_end, rtype: u16::from_be_bytes([head[0], head[1]]), end })
    }

    /// Parses the record as OPT. Returns its EDNS fields and version, or `None` if it is malformed.
    fn opt(&self, packet: &[u8]) -> Option<(Edns, u8)> {
        let (head, mut options) = packet.get(self.name_end..self.end)?.split_first_chunk::<10>()?;
        let mut edns = Edns::new(u16::from_be_bytes([head[2], head[3]]), head[6]);
        let version = head[5];
        if version > 0 {
            // Options of an unknown version cannot be parsed. The reply only states the version
            // that this server knows (RFC 6891 §6.1.3).
            return Some((edns, version));
        }
        while !options.is_empty() {
            let (&[code_high, code_low, high, low], rest) = options.split_first_chunk()?;
            let (data, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([high, low])))?;
            match u16::from_be_bytes([code_high, code_low]) {
                // If there are several cookies, the first one counts (RFC 7873 §5.2).
                COOKIE if edns.cookie.is_none() => edns.cookie = Some(Cookie::read(data)?),
                KEEPALIVE => edns.keepalive = true,
                PADDING => edns.padded = true,
                _ => {}
            }
            options = rest;
        }
        Some((edns, version))
    }

    /// Parses the record as SOA and returns its serial: the data are two names and five numbers, of
    /// which the serial is the first (RFC 1035 §3.3.13).
    fn serial(&self, packet: &[u8]) -> Option<u32> {
        let names_end = name_end(packet, name_end(packet, self.name_end + 10)?)?;
        let numbers: &[u8; 20] = packet.get(names_end..self.end)?.try_into().ok()?;
        numbers.first_chunk().map(|serial| u32::from_be_bytes(*serial))
    }
}

/// Returns the end of the name that begins at an offset: behind its root label or its pointer,
/// which must point backwards. A name that is too long is not scanned to its end.
pub(crate) fn name_end(packet: &[u8], begin: usize) -> Option<usize> {
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

    /// Makes a query for `a.` with these counts, followed by `rest`.
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

    /// Makes a record whose owner's name has this length.
    fn record_of(bytes: usize) -> Vec<u8> {
        let first = [&[2 - bytes as u8 % 2][..], &[b'b'; 2][bytes % 2..]].concat();
        [&first[..], &[1, b'b'].repeat((bytes - first.len()) / 2), &[0], &RECORD[2..]].concat()
    }

    const RECORD: [u8; 12] = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 0];

    #[test]
    fn a_complete_packet_is_scanned() {
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
            // Of an OPT record of another version, only the version is read.
            (packet([0, 0, 1], &opt(1, &[0, 10, 0, 1, 7])), Some((edns, 1)), false),
            (packet([0, 0, 1], &opt(1, &[7])), Some((edns, 1)), false),
            (packet([0, 0, 2], &[&RECORD[..], &opt(0, &[])].concat()), Some((edns, 0)), false),
            (packet([0, 0, 2], &[&opt(0, &[])[..], &signed].concat()), Some((edns, 0)), true),
            (packet([1, 1, 0], &[RECORD, RECORD].concat()), None, false),
            (packet([0, 0, 1], &record_of(255)), None, false),
        ] {
            let scan = PacketScan::of(&packet).unwrap();
            assert_eq!((scan.edns, scan.has_tsig, scan.has_sig), (found, signed, false), "{packet:?}");
            // The packet is rejected if it is cut off anywhere, or has an additional byte.
            for length in 0..packet.len() {
                assert_eq!(PacketScan::of(&packet[..length]), None, "{length} of {packet:?}");
            }
            assert_eq!(PacketScan::of(&[&packet[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn a_malformed_packet_is_rejected() {
        for (counts, rest) in [
            // Two OPT records, one that is not at the root, options that are cut off, a cookie of 9
            // bytes.
            ([0, 0, 2], [opt(0, &[]), opt(0, &[])].concat()),
            ([0, 0, 1], [&[1, b'b'][..], &opt(0, &[])].concat()),
            ([0, 0, 1], opt(0, &[0, 3, 0])),
            ([0, 0, 1], opt(0, &[0, 3, 0, 1])),
            ([0, 0, 1], opt(0, &[&[0, 10, 0, 9][..], &[7; 9]].concat())),
            // Pointers forwards and to themselves, unknown label types.
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
