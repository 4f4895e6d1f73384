//! TSIG records on the wire (RFC 8945 §4.2), and their position in a message.

use crate::store::name::MAX_NAME;
use crate::store::rrset::{HEADER, rtype};

/// Length in bytes of a TSIG record without its two names, MAC and other data.
pub(super) const FIXED: usize = 10 + 16;

/// Length in bytes of a time in a TSIG record.
pub(super) const TIME: usize = 6;

/// Number of the class ANY, which TSIG records have.
const ANY: u16 = 255;

/// Largest number of records that a signed message may have; real ones have far fewer.
const MAX_RECORDS: u32 = 64;

/// Fields of a TSIG record (RFC 8945 §4.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TsigRecord {
    /// Name of the key in wire format, lowercased.
    pub(super) key: Vec<u8>,
    /// Name of the MAC algorithm in wire format, lowercased.
    pub(super) algorithm: Vec<u8>,
    /// Time of signing, in seconds since 1970.
    pub(super) time: u64,
    pub(super) fudge: u16,
    pub(super) mac: Vec<u8>,
    /// Id of the message when it was signed; forwarders may change the id in the header.
    pub(super) id: u16,
    pub(super) error: u16,
    pub(super) other: Vec<u8>,
}

/// Position of the TSIG record in a message.
#[derive(Debug)]
pub(super) struct TsigPosition {
    pub(super) start: usize,
    /// Number of additional records other than the TSIG record.
    pub(super) additionals: u16,
}

impl TsigRecord {
    /// Finds the TSIG record of a message. It must be the last record, and the only one of its
    /// type.
    pub(super) fn find(packet: &[u8]) -> Option<(TsigPosition, Self)> {
        let header = packet.first_chunk::<HEADER>()?;
        let [questions, answers, authorities, additionals] =
            [4, 6, 8, 10].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        let before = u32::from(answers) + u32::from(authorities) + u32::from(additionals.checked_sub(1)?);
        if u32::from(questions) + before > MAX_RECORDS {
            return None;
        }
        let mut reader = Reader { packet, at: HEADER };
        for _ in 0..questions {
            reader.name()?;
            reader.take(4)?;
        }
        for _ in 0..before {
            reader.name()?;
            if reader.u16()? == rtype::TSIG {
                return None;
            }
            reader.take(6)?;
            let length = reader.u16()?;
            reader.take(length.into())?;
        }
        let start = reader.at;
        let tsig = reader.tsig()?;
        (reader.at == packet.len()).then_some((TsigPosition { start, additionals: additionals - 1 }, tsig))
    }

    /// Returns the fields of the record that the MAC of a first message covers (RFC 8945 §4.3.3).
    pub(super) fn variables(&self) -> Vec<u8> {
        let mut bytes = self.key.clone();
        bytes.extend_from_slice(&ANY.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.algorithm);
        bytes.extend_from_slice(&self.timers());
        bytes.extend_from_slice(&self.error.to_be_bytes());
        bytes.extend_from_slice(&(self.other.len() as u16).to_be_bytes()); // shorter than a record
        bytes.extend_from_slice(&self.other);
        bytes
    }

    /// Returns the fields that the MACs of all messages but the first cover (RFC 8945 §5.3.1).
    pub(super) fn timers(&self) -> Vec<u8> {
        [&time(self.time)[..], &self.fudge.to_be_bytes()].concat()
    }

    /// Appends the record to the message that begins at `start` in `out`, and counts it there.
    pub(super) fn append(&self, out: &mut Vec<u8>, start: usize) {
        let length = self.algorithm.len() + self.mac.len() + self.other.len() + 16;
        out.extend_from_slice(&self.key);
        out.extend_from_slice(&rtype::TSIG.to_be_bytes());
        out.extend_from_slice(&ANY.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(length as u16).to_be_bytes()); // a name, a MAC and a time
        out.extend_from_slice(&self.algorithm);
        out.extend_from_slice(&self.timers());
        out.extend_from_slice(&(self.mac.len() as u16).to_be_bytes());
        out.extend_from_slice(&self.mac);
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&self.error.to_be_bytes());
        out.extend_from_slice(&(self.other.len() as u16).to_be_bytes());
        out.extend_from_slice(&self.other);
        if let Some(count) = out.get_mut(start + 10..start + 12) {
            let additionals = u16::from_be_bytes([count[0], count[1]]).saturating_add(1);
            count.copy_from_slice(&additionals.to_be_bytes());
        }
    }
}

/// Returns a time, in seconds since 1970, as TSIG records have it: in 48 bits.
pub(super) fn time(seconds: u64) -> [u8; TIME] {
    let [_, _, time @ ..] = seconds.to_be_bytes();
    time
}

/// Reads the parts of a message from front to back.
struct Reader<'a> {
    packet: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let taken = self.packet.get(self.at..self.at.checked_add(bytes)?)?;
        self.at += bytes;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Reads a name, lowercased. Each pointer must lead further to the front, so that the loop
    /// ends.
    fn name(&mut self) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        let (mut at, mut end) = (self.at, None);
        let mut limit = at;
        loop {
            let length = *self.packet.get(at)?;
            match length {
                0 => {
                    name.push(0);
                    break;
                }
                1..=63 => {
                    let label = self.packet.get(at..=at + usize::from(length))?;
                    name.extend(label.iter().map(u8::to_ascii_lowercase)); // a length is never a letter
                    at += label.len();
                }
                0xc0.. => {
                    let to = usize::from(u16::from_be_bytes([length & 0x3f, *self.packet.get(at + 1)?]));
                    end.get_or_insert(at + 2);
                    if to >= limit {
                        return None;
                    }
                    (at, limit) = (to, to);
                }
                _ => return None,
            }
            if name.len() >= MAX_NAME {
                return None;
            }
        }
        self.at = end.unwrap_or(at + 1);
        Some(name)
    }

    fn tsig(&mut self) -> Option<TsigRecord> {
        let key = self.name()?;
        if self.u16()? != rtype::TSIG || self.u16()? != ANY || self.take(4)? != [0; 4] {
            return None;
        }
        let length = usize::from(self.u16()?);
        let end = self.at + length;
        let algorithm_at = self.at;
        let algorithm = self.name()?;
        // RFC 8945 §4.2 forbids compression. The reply repeats the name in full, so a pointer would
        // cause a reply much longer than the query.
        if self.at - algorithm_at != algorithm.len() {
            return None;
        }
        let time = self.take(TIME)?.iter().fold(0, |time, &byte| time << 8 | u64::from(byte));
        let fudge = self.u16()?;
        let mac = self.u16()?;
        let mac = self.take(mac.into())?.to_vec();
        let (id, error) = (self.u16()?, self.u16()?);
        let other = self.u16()?;
        let other = self.take(other.into())?.to_vec();
        (self.at == end).then_some(TsigRecord { key, algorithm, time, fudge, mac, id, error, other })
    }
}
