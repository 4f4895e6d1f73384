//! TSIG records on the wire (RFC 8945 §4.2), and their position in a message.

use hickory_proto::rr::Name;
use hickory_proto::serialize::binary::{BinDecodable as _, BinDecoder, BinEncodable as _};

use crate::answer::slow::scan::{RecordBounds, name_end};
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
        let mut at = HEADER;
        for _ in 0..questions {
            at = name_end(packet, at)? + 4;
        }
        for _ in 0..before {
            let record = RecordBounds::read(packet, at)?;
            if record.rtype == rtype::TSIG {
                return None;
            }
            at = record.end;
        }
        let is_last = RecordBounds::read(packet, at)?.end == packet.len();
        let position = TsigPosition { start: at, additionals: additionals - 1 };
        Some((position, Self::read(packet, at).filter(|_| is_last)?))
    }

    /// Reads the record that begins at this offset.
    fn read(packet: &[u8], at: usize) -> Option<Self> {
        let mut reader = BinDecoder::new(packet).clone(u16::try_from(at).ok()?);
        let key = name(&mut reader)?;
        if number(&mut reader)? != rtype::TSIG
            || number(&mut reader)? != ANY
            || slice(&mut reader, 4)? != [0; 4]
        {
            return None;
        }
        let length = usize::from(number(&mut reader)?);
        let end = reader.index() + length;
        let algorithm_at = reader.index();
        let algorithm = name(&mut reader)?;
        // RFC 8945 §4.2 forbids compression. The reply repeats the name in full, so a pointer would
        // cause a reply much longer than the query.
        if reader.index() - algorithm_at != algorithm.len() {
            return None;
        }
        let time = slice(&mut reader, TIME)?.iter().fold(0, |time, &byte| time << 8 | u64::from(byte));
        let fudge = number(&mut reader)?;
        let mac = number(&mut reader)?;
        let mac = slice(&mut reader, mac.into())?.to_vec();
        let (id, error) = (number(&mut reader)?, number(&mut reader)?);
        let other = number(&mut reader)?;
        let other = slice(&mut reader, other.into())?.to_vec();
        (reader.index() == end).then_some(Self { key, algorithm, time, fudge, mac, id, error, other })
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

/// Reads a name, which may be compressed. Returns it in wire format, lowercased.
fn name(reader: &mut BinDecoder<'_>) -> Option<Vec<u8>> {
    Name::read(reader).ok()?.to_lowercase().to_bytes().ok()
}

fn number(reader: &mut BinDecoder<'_>) -> Option<u16> {
    Some(reader.read_u16().ok()?.unverified())
}

fn slice<'a>(reader: &mut BinDecoder<'a>, length: usize) -> Option<&'a [u8]> {
    Some(reader.read_slice(length).ok()?.unverified())
}
