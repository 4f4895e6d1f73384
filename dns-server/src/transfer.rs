//! Zone transfers (RFC 5936): a whole zone as a stream of messages, each as full as it may be.
//!
//! An incremental transfer (RFC 1995) is answered with the one SOA if the asker is up to date, else with
//! the whole zone, which the RFC allows. The zone's names are taken in one moment from what the
//! publisher owns, so a transfer is one version of the zone however long it takes to send.

use std::sync::Arc;
use std::vec;

use crate::name::Name;
use crate::query::{self, Query};
use crate::rrset::{HEADER, Node, Rrset};

/// Room in one message: what TCP's length prefix can say.
const MESSAGE: usize = 65_535;

/// A day in the serial's hundredths of a second.
const A_DAY: u32 = 24 * 60 * 60 * 100;

/// What kind of transfer is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// AXFR.
    Whole,
    /// IXFR, with the serial that the asker has.
    Since(Option<u32>),
}

/// A zone at one moment.
#[derive(Debug)]
pub struct ZoneCopy {
    /// Its serial.
    pub serial: u32,
    /// The SOA record behind its owner, with that serial.
    pub soa: Vec<u8>,
    /// The zone's name.
    pub apex: Name,
    /// All names that own records, without the SOA.
    pub names: Vec<(Name, Arc<Node>)>,
}

/// The messages of one transfer, made as they are asked for.
#[derive(Debug)]
pub struct Transfer {
    head: Vec<u8>,
    /// The OPT record of the first message; empty if the query had none (RFC 5936 §2.2.5).
    opt: Vec<u8>,
    first: bool,
    records: Records,
    pending: Option<Vec<u8>>,
}

impl Transfer {
    /// The transfer of `zone` that answers `query`, which was read from `packet`.
    pub fn new(packet: &[u8], query: &Query, wanted: Wanted, zone: ZoneCopy) -> Self {
        let mut head = packet[..query.question.end()].to_vec();
        // QR and AA; opcode 0; RD comes back. One question, counts follow per message.
        head[2] = 0x84 | (head[2] & 0x01);
        head[3] = 0;
        head[4..HEADER].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
        // Whoever has a newer version is not sent back to ours (RFC 1995 §2). It can only be a little newer, from
        // a replica whose clock is ahead; a serial far off, such as 0, was never one of ours.
        let is_newest = |known: u32| known.wrapping_sub(zone.serial) < A_DAY;
        let up_to_date = matches!(wanted, Wanted::Since(Some(known)) if is_newest(known));
        let mut opt = Vec::new();
        if let Some(edns) = query.edns {
            query::push_opt(&mut opt, edns, 0, None);
        }
        Self { head, opt, first: true, records: Records::new(zone, up_to_date), pending: None }
    }
}

impl Iterator for Transfer {
    type Item = Vec<u8>;

    /// The next message, without TCP's length prefix. The question stands in the first only (RFC 5936
    /// §2.2.1 lets later ones leave it out).
    fn next(&mut self) -> Option<Vec<u8>> {
        let mut record = self.pending.take().or_else(|| self.records.next())?;
        let mut message = self.head.clone();
        let opt = if std::mem::replace(&mut self.first, false) {
            std::mem::take(&mut self.opt)
        } else {
            message.truncate(HEADER);
            message[5] = 0;
            Vec::new()
        };
        let mut count: u16 = 0;
        loop {
            if message.len() + record.len() + opt.len() > MESSAGE || count == u16::MAX {
                self.pending = Some(record);
                break;
            }
            message.extend_from_slice(&record);
            count += 1;
            match self.records.next() {
                Some(next) => record = next,
                None => break,
            }
        }
        message[6..8].copy_from_slice(&count.to_be_bytes());
        message[11] = u8::from(!opt.is_empty());
        message.extend_from_slice(&opt);
        Some(message)
    }
}

/// The records of a zone in the order of a transfer: SOA, everything, SOA.
#[derive(Debug)]
struct Records {
    soa: Vec<u8>,
    soas: u8,
    names: vec::IntoIter<(Name, Arc<Node>)>,
    current: Option<(Name, Arc<Node>)>,
    rrset: usize,
    offset: usize,
}

impl Records {
    fn new(zone: ZoneCopy, only_soa: bool) -> Self {
        let mut soa = zone.apex.as_wire().to_vec();
        soa.extend_from_slice(&zone.soa);
        let names = if only_soa { Vec::new() } else { zone.names };
        let soas = if only_soa { 1 } else { 2 };
        Self { soa, soas, names: names.into_iter(), current: None, rrset: 0, offset: 0 }
    }

    /// The next record of the name at hand, its owner written out.
    fn next_of_current(&mut self) -> Option<Vec<u8>> {
        let (name, node) = self.current.as_ref()?;
        let rrset: &Rrset = node.rrsets.get(self.rrset)?;
        // Every stored record begins with the two octets of its pointer to the question; the length of
        // its data stands at octets 10 and 11.
        let rest = &rrset.body[self.offset..];
        let length = 12 + usize::from(u16::from_be_bytes([*rest.get(10)?, *rest.get(11)?]));
        let mut record = name.as_wire().to_vec();
        record.extend_from_slice(&rest[2..length]);
        self.offset += length;
        if self.offset == rrset.body.len() {
            self.offset = 0;
            self.rrset += 1;
        }
        Some(record)
    }
}

impl Iterator for Records {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let first = self.current.is_none() && self.soas == 2;
        if first {
            self.soas = 1;
            self.current = self.names.next();
            return Some(self.soa.clone());
        }
        loop {
            if let Some(record) = self.next_of_current() {
                return Some(record);
            }
            self.rrset = 0;
            self.current = self.names.next();
            if self.current.is_none() {
                let last = self.soas == 1;
                self.soas = 0;
                return last.then(|| self.soa.clone());
            }
        }
    }
}
