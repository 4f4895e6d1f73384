//! Zone transfers as streams of messages, each as full as it may be: a whole zone (RFC 5936), or what has
//! changed in it (RFC 1995).
//!
//! ```text
//!   whole        SOA(new)  every record  SOA(new)
//!   difference   SOA(new)  SOA(old) removed  SOA(next) added  …  SOA(new)
//!   up to date   SOA(new)
//! ```
//!
//! What is sent was taken in one moment and is shared with whoever else has it, so a transfer is one version
//! of the zone however long it takes to send, and holds up nobody. Who may have one is for [`desk`] to say.

mod active;
pub mod allow;
pub mod metrics;
pub mod server;

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use multinet_runtime::ConnectionCloser;
use tokio::time::Instant;

pub use active::TransferSlot;

use crate::answer::query::{Edns, Query};
use crate::secondary::tsig::{self, Signer};
use crate::store::journal::{self, Step};
use crate::store::rrset::HEADER;
use crate::store::zone_copy::{Batches, ZoneCopy, ZoneVersion};

/// Room in one message: what TCP's length prefix can say.
const MESSAGE: usize = 65_535;

/// What is sent.
#[derive(Debug)]
pub enum Contents {
    /// Nothing but the version that there is.
    Current(ZoneVersion),
    /// The steps to a version from one that the asker has, whose serial is given.
    Difference(ZoneVersion, u32, Vec<Step>),
    /// Everything.
    Whole(Arc<ZoneCopy>),
}

impl Contents {
    /// The version that the asker has in the end.
    pub fn version(&self) -> &ZoneVersion {
        match self {
            Self::Current(version) | Self::Difference(version, ..) => version,
            Self::Whole(copy) => &copy.version,
        }
    }

    /// What a metric calls it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Current(_) => "current",
            Self::Difference(..) => "ixfr",
            Self::Whole(_) => "axfr",
        }
    }
}

/// The messages of one transfer, made as they are asked for.
#[derive(Debug)]
pub struct Transfer {
    head: Vec<u8>,
    /// For the OPT record of the first message, if the query had one (RFC 5936 §2.2.5).
    edns: Option<Edns>,
    is_first: bool,
    most: usize,
    records: RecordStream,
    signer: Option<Signer>,
    /// Its place among those that there may be at a time, if it needs one.
    slot: Option<TransferSlot>,
}

impl Transfer {
    /// The transfer that answers `query`, which was read from `packet`, over a stream.
    pub fn new(packet: &[u8], query: &Query, contents: Contents) -> Self {
        let mut head = packet[..query.question.end()].to_vec();
        // QR and AA; opcode 0; RD comes back. One question, counts follow per message.
        head[2] = 0x84 | (head[2] & 0x01);
        head[3] = 0;
        head[4..HEADER].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
        let (edns, records) = (query.edns, RecordStream::new(contents));
        Self { head, edns, is_first: true, most: MESSAGE, records, signer: None, slot: None }
    }

    /// With each message signed.
    #[must_use]
    pub fn signed(mut self, signer: Option<Signer>) -> Self {
        self.most = MESSAGE - signer.as_ref().map_or(0, Signer::tsig_len);
        self.signer = signer;
        self
    }

    /// Which gives `slot` back when it ends.
    #[must_use]
    pub fn holding(mut self, slot: Option<TransferSlot>) -> Self {
        self.slot = slot;
        self
    }

    /// Notes what ends the connection that it goes by.
    pub fn set_connection(&self, connection: ConnectionCloser) {
        if let Some(slot) = &self.slot {
            slot.set_connection(connection);
        }
    }

    /// The one message of a transfer by datagram, if it needs no more bytes than this.
    pub fn within(mut self, most: usize) -> Option<Vec<u8>> {
        self.most = most;
        let message = self.next()?;
        (self.records.peek().is_none() && message.len() <= most).then_some(message)
    }
}

impl Iterator for Transfer {
    type Item = Vec<u8>;

    /// The next message, without TCP's length prefix. The question stands in the first only (RFC 5936
    /// §2.2.1 lets later ones leave it out).
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
            // A record always fits a message of its own over a stream: its data have less than 60 KiB.
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

/// The records of a transfer, one piece of memory after the other.
#[derive(Debug)]
struct RecordStream {
    soa: Vec<u8>,
    segments: VecDeque<Segment>,
    /// Records in wire format, and how much of them has been taken.
    wire: Wire,
    taken: usize,
}

/// What is sent without looking at the rest.
#[derive(Debug)]
enum Segment {
    /// The SOA with this serial.
    Soa(u32),
    /// Records in wire format.
    Wire(Arc<[u8]>),
    /// What is left of a whole zone.
    Zone(Batches),
}

/// Records in wire format.
#[derive(Debug)]
enum Wire {
    Own(Vec<u8>),
    Shared(Arc<[u8]>),
}

impl RecordStream {
    fn new(contents: Contents) -> Self {
        let ZoneVersion { serial, soa, .. } = contents.version().clone();
        let segments = match contents {
            Contents::Current(_) => [Segment::Soa(serial)].into(),
            Contents::Whole(copy) => {
                [Segment::Soa(serial), Segment::Zone(Batches::new(copy)), Segment::Soa(serial)].into()
            }
            Contents::Difference(_, known, steps) => {
                let mut from = known;
                let mut segments = VecDeque::from([Segment::Soa(serial)]);
                for Step { to, difference } in steps {
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
        Self { soa, segments, wire: Wire::Own(Vec::new()), taken: 0 }
    }

    /// The next record, which stays the next until it is taken.
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

    fn next_wire(&mut self) -> Option<Wire> {
        Some(match self.segments.pop_front()? {
            Segment::Soa(serial) => Wire::Own(self.soa(serial)),
            Segment::Wire(wire) => Wire::Shared(wire),
            Segment::Zone(mut batches) => match batches.next() {
                Some(batch) => {
                    self.segments.push_front(Segment::Zone(batches));
                    Wire::Own(batch)
                }
                None => Wire::Own(Vec::new()),
            },
        })
    }

    fn soa(&self, serial: u32) -> Vec<u8> {
        let mut soa = self.soa.clone();
        // Of the five numbers at its end the serial is the first (RFC 1035 §3.3.13).
        let at = soa.len().saturating_sub(20);
        if let Some(place) = soa.get_mut(at..at + 4) {
            place.copy_from_slice(&serial.to_be_bytes());
        }
        soa
    }
}

impl Deref for Wire {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(wire) => wire,
            Self::Shared(wire) => wire,
        }
    }
}
