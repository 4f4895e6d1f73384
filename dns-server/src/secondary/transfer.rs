//! Zone transfers as streams of messages that are as full as possible: whole zones (RFC 5936) and
//! incremental transfers (RFC 1995).
//!
//! ```text
//!   whole        SOA(new)  every record  SOA(new)
//!   difference   SOA(new)  SOA(old) removed  SOA(next) added  …  SOA(new)
//!   up to date   SOA(new)
//! ```
//!
//! The contents of a transfer are one consistent version of the zone, however long sending takes.
//! They are shared with other transfers, and block no change. [`server`] decides who may have a
//! transfer.

mod active;
pub mod allow;
pub mod metrics;
pub mod server;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use multinet_runtime::ConnectionCloser;
use tokio::time::Instant;

pub use active::TransferSlot;

use crate::answer::query::{Edns, Query};
use crate::secondary::tsig::{self, Signer};
use crate::store::journal::{self, ZoneStep};
use crate::store::rrset::HEADER;
use crate::store::zone_copy::{Batches, ZoneCopy, ZoneVersion};

/// Largest size of a message in bytes, which TCP's length prefix can state.
const MESSAGE: usize = 65_535;

/// Contents of a zone transfer.
#[derive(Debug)]
pub enum TransferContents {
    /// Only the zone's SOA record: the client is up to date.
    Current(ZoneVersion),
    /// The steps to the newest version from the client's version, whose serial is given.
    Difference(ZoneVersion, u32, Vec<ZoneStep>),
    /// All records of the zone.
    Whole(Arc<ZoneCopy>),
}

impl TransferContents {
    /// Returns the version of the zone that the client has after the transfer.
    pub fn version(&self) -> &ZoneVersion {
        match self {
            Self::Current(version) | Self::Difference(version, ..) => version,
            Self::Whole(copy) => &copy.version,
        }
    }

    /// Returns the kind of transfer, as in the metrics' label `kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Current(_) => "current",
            Self::Difference(..) => "ixfr",
            Self::Whole(_) => "axfr",
        }
    }
}

/// Iterator over the messages of one zone transfer, which makes each when it is requested.
#[derive(Debug)]
pub struct Transfer {
    head: Vec<u8>,
    /// Fields of the OPT record in the first message, if the query had one (RFC 5936 §2.2.5).
    edns: Option<Edns>,
    is_first: bool,
    most: usize,
    records: RecordStream,
    signer: Option<Signer>,
    /// Place among the limited number of running transfers; `None` if the transfer needs none.
    slot: Option<TransferSlot>,
}

impl Transfer {
    /// Makes the transfer that answers `query`, which was parsed from `packet`. It holds `slot`
    /// until it ends.
    pub fn new(packet: &[u8], query: &Query, contents: TransferContents, slot: Option<TransferSlot>) -> Self {
        let mut head = packet[..query.question.end()].to_vec();
        // Set QR and AA, and keep RD. There is one question; each message sets the other counts.
        head[2] = 0x84 | (head[2] & 0x01);
        head[3] = 0;
        head[4..HEADER].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
        let (edns, records) = (query.edns, RecordStream::new(contents));
        Self { head, edns, is_first: true, most: MESSAGE, records, signer: None, slot }
    }

    /// Makes the transfer sign each message with `signer`.
    #[must_use]
    pub fn signed(mut self, signer: Signer) -> Self {
        self.most = MESSAGE - signer.tsig_len();
        self.signer = Some(signer);
        self
    }

    /// Sets the handle by which a stalled transfer's connection is closed.
    pub fn set_connection(&self, connection: ConnectionCloser) {
        if let Some(slot) = &self.slot {
            slot.set_connection(connection);
        }
    }

    /// Returns the only message of a transfer over UDP, if all of it fits `most` bytes.
    pub fn within(mut self, most: usize) -> Option<Vec<u8>> {
        self.most = most;
        let message = self.next()?;
        (self.records.peek().is_none() && message.len() <= most).then_some(message)
    }
}

impl Iterator for Transfer {
    type Item = Vec<u8>;

    /// Returns the next message without TCP's length prefix. Only the first message has the
    /// question (RFC 5936 §2.2.1).
    fn next(&mut self) -> Option<Vec<u8>> {
        self.records.peek()?;
        if let Some(slot) = &self.slot {
            slot.note_progress(Instant::now());
        }
        let mut message = self.head.clone();
        let edns = self.edns.take();
        if !std::mem::replace(&mut self.is_first, false) {
            message.truncate(HEADER);
            message[5] = 0;
        }
        let opt = edns.map_or(0, |edns| edns.reply_len(None));
        let mut count: u16 = 0;
        while let Some(record) = self.records.peek() {
            let length = record.len();
            // Every record fits a message of its own over a stream, since its data are shorter than
            // 60 KiB.
            let is_full = message.len() + length + opt > self.most || count == u16::MAX;
            if is_full && count > 0 {
                break;
            }
            message.extend_from_slice(record);
            self.records.take(length);
            count += 1;
        }
        message[6..8].copy_from_slice(&count.to_be_bytes());
        if let Some(edns) = edns {
            message[11] = 1;
            edns.push(&mut message, (0, self.most), 0, None);
        }
        if let Some(signer) = &mut self.signer {
            signer.sign(&mut message, 0, tsig::now());
        }
        Some(message)
    }
}

/// Stream of the records of a transfer, in wire format.
#[derive(Debug)]
struct RecordStream {
    soa: Vec<u8>,
    segments: VecDeque<Segment>,
    /// Current buffer of records in wire format, and the number of bytes that were taken from it.
    wire: Bytes,
    taken: usize,
}

/// Part of a transfer's records.
#[derive(Debug)]
enum Segment {
    /// The zone's SOA record, with this serial.
    Soa(u32),
    /// Records in wire format: those that a step removes or adds.
    Wire(Arc<[u8]>),
    /// The records of a whole zone that were not sent yet, without the SOA record.
    Zone(Batches),
}

impl RecordStream {
    fn new(contents: TransferContents) -> Self {
        let ZoneVersion { serial, soa, .. } = contents.version().clone();
        let segments = match contents {
            TransferContents::Current(_) => [Segment::Soa(serial)].into(),
            TransferContents::Whole(copy) => {
                [Segment::Soa(serial), Segment::Zone(Batches::new(copy)), Segment::Soa(serial)].into()
            }
            TransferContents::Difference(_, known, steps) => {
                let mut from = known;
                let mut segments = VecDeque::from([Segment::Soa(serial)]);
                for ZoneStep { to, difference } in steps {
                    let [removed, added] = [&difference.removed, &difference.added].map(Arc::clone);
                    segments.extend([
                        Segment::Soa(from),
                        Segment::Wire(removed),
                        Segment::Soa(to),
                        Segment::Wire(added),
                    ]);
                    from = to;
                }
                segments.push_back(Segment::Soa(serial));
                segments
            }
        };
        Self { soa, segments, wire: Bytes::new(), taken: 0 }
    }

    /// Returns the bytes of the next record, without taking it; `None` after the last one.
    fn peek(&mut self) -> Option<&[u8]> {
        while self.taken == self.wire.len() {
            self.wire = self.next_wire()?;
            self.taken = 0;
        }
        journal::split_records(&self.wire[self.taken..]).next()
    }

    fn take(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    fn next_wire(&mut self) -> Option<Bytes> {
        Some(match self.segments.pop_front()? {
            Segment::Soa(serial) => self.soa(serial).into(),
            Segment::Wire(wire) => Bytes::from_owner(wire),
            Segment::Zone(mut batches) => match batches.next() {
                Some(batch) => {
                    self.segments.push_front(Segment::Zone(batches));
                    batch.into()
                }
                None => Bytes::new(),
            },
        })
    }

    fn soa(&self, serial: u32) -> Vec<u8> {
        let mut soa = self.soa.clone();
        // The record ends with five numbers, of which the serial is the first (RFC 1035 §3.3.13).
        let at = soa.len().saturating_sub(20);
        if let Some(field) = soa.get_mut(at..at + 4) {
            field.copy_from_slice(&serial.to_be_bytes());
        }
        soa
    }
}
