//! Prebuilt RRsets: the bytes that a reply carries behind its question, made once per change.
//!
//! ```text
//!  reply  = header │ question │ answer body          │ glue                     │ OPT
//!           12     │ copied   │ Rrset::body          │ Glue::bytes, cut to fit  │ per query
//!                    ▲          owner = 0xC00C ──────┘ owner = pointer to the SRV target
//! ```
//!
//! Every record's owner is the pointer `0xC00C` to the question (RFC 1035 §4.1.4), so a body does not
//! depend on the name that it stands under, and names with equal contents share it. Glue points into
//! the answer; its offsets are known beforehand because a node's name, and with it the length of the
//! question, is.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::name::Name;

/// Record types and classes, by their numbers (IANA DNS Parameters).
pub mod rtype {
    /// IPv4 address (RFC 1035).
    pub const A: u16 = 1;
    /// Name server (RFC 1035).
    pub const NS: u16 = 2;
    /// Start of authority (RFC 1035).
    pub const SOA: u16 = 6;
    /// Pointer (RFC 1035).
    pub const PTR: u16 = 12;
    /// Text (RFC 1035).
    pub const TXT: u16 = 16;
    /// IPv6 address (RFC 3596).
    pub const AAAA: u16 = 28;
    /// Server selection (RFC 2782).
    pub const SRV: u16 = 33;
    /// EDNS pseudo record (RFC 6891).
    pub const OPT: u16 = 41;
    /// Incremental transfer (RFC 1995).
    pub const IXFR: u16 = 251;
    /// Whole transfer (RFC 5936).
    pub const AXFR: u16 = 252;
    /// Any type (RFC 8482).
    pub const ANY: u16 = 255;
    /// The class IN.
    pub const CLASS_IN: u16 = 1;
}

/// Length of a message header (RFC 1035 §4.1.1).
pub const HEADER: usize = 12;

/// Pointer to the question's name.
const OWNER: [u8; 2] = [0xc0, HEADER as u8];

/// The largest offset that a compression pointer reaches.
const MAX_POINTER: usize = 0x3fff;

/// All records of one type at one name, in wire format, owners as pointers to the question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rrset {
    /// The record type.
    pub rtype: u16,
    /// How many records `body` holds.
    pub records: usize,
    /// The records, one behind the other.
    pub body: Arc<[u8]>,
    /// Octets per record where all are of one length and their order is free: address records.
    pub stride: Option<usize>,
    /// Additional records that save the asker a query.
    pub glue: Glue,
}

/// Additional records in units that are sent whole or not at all (RFC 2181 §9: no partial RRsets).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Glue {
    /// The records, one behind the other.
    pub bytes: Box<[u8]>,
    /// After each unit: the octets and the records up to there.
    pub units: Box<[(u32, u16)]>,
}

impl Glue {
    /// The longest run of whole units that fits into `room` octets: its length and its records.
    pub fn fitting(&self, room: usize) -> (usize, u16) {
        let fits = self.units.partition_point(|&(end, _)| end as usize <= room);
        match fits.checked_sub(1).and_then(|last| self.units.get(last)) {
            Some(&(end, records)) => (end as usize, records),
            None => (0, 0),
        }
    }
}

/// All that one name owns. A node without RRsets is an empty non-terminal: the name exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// The RRsets, one per type.
    pub rrsets: Vec<Rrset>,
}

impl Node {
    /// The RRset of a type.
    pub fn rrset(&self, rtype: u16) -> Option<&Rrset> {
        self.rrsets.iter().find(|rrset| rrset.rtype == rtype)
    }
}

/// A service's addresses at one name as A and AAAA RRsets, in ascending order.
pub fn addresses(ttl: u32, addresses: &BTreeSet<IpAddr>) -> Vec<Rrset> {
    let mut v4 = RrsetWriter::new(rtype::A, ttl);
    let mut v6 = RrsetWriter::new(rtype::AAAA, ttl);
    for address in addresses {
        match address {
            IpAddr::V4(address) => v4.push(&address.octets()),
            IpAddr::V6(address) => v6.push(&address.octets()),
        }
    }
    v4.stride = Some(RECORD_FIXED + size_of::<Ipv4Addr>());
    v6.stride = Some(RECORD_FIXED + size_of::<Ipv6Addr>());
    [v4, v6].into_iter().filter_map(RrsetWriter::finish).collect()
}

/// Octets of a record with a compressed owner before its data.
const RECORD_FIXED: usize = OWNER.len() + 2 + 2 + 4 + 2;

/// Collects the records of one RRset.
pub struct RrsetWriter {
    rtype: u16,
    ttl: u32,
    records: usize,
    body: Vec<u8>,
    stride: Option<usize>,
}

impl RrsetWriter {
    /// An empty set.
    pub fn new(rtype: u16, ttl: u32) -> Self {
        Self { rtype, ttl, records: 0, body: Vec::new(), stride: None }
    }

    /// Adds a record; `data` is shorter than 64 KiB by construction of every caller.
    pub fn push(&mut self, data: &[u8]) {
        push_record(&mut self.body, &OWNER, self.rtype, self.ttl, data);
        self.records += 1;
    }

    /// The set, if it has a record.
    pub fn finish(self) -> Option<Rrset> {
        (self.records > 0).then(|| Rrset {
            rtype: self.rtype,
            records: self.records,
            body: self.body.into(),
            stride: self.stride,
            glue: Glue::default(),
        })
    }
}

/// Appends one record of class IN.
pub fn push_record(out: &mut Vec<u8>, owner: &[u8], rtype: u16, ttl: u32, data: &[u8]) {
    out.extend_from_slice(owner);
    out.extend_from_slice(&rtype.to_be_bytes());
    out.extend_from_slice(&rtype::CLASS_IN.to_be_bytes());
    out.extend_from_slice(&ttl.to_be_bytes());
    out.extend_from_slice(&(data.len() as u16).to_be_bytes());
    out.extend_from_slice(data);
}

/// One SRV record (RFC 2782), its target not yet known to exist elsewhere in the message.
pub struct Service<'a> {
    /// Relative weight; the priority is always 0.
    pub weight: u16,
    /// The port.
    pub port: u16,
    /// The host.
    pub target: Name,
    /// The host's own address RRsets, as stored at `target`.
    pub addresses: &'a [Rrset],
}

/// The SRV RRset of the name `owner`, with its targets' addresses as glue, each target's once.
///
/// Targets are not compressed: RFC 2782 forbids it. Their glue points at the first mention.
pub fn services(owner: &Name, ttl: u32, services: &[Service<'_>]) -> Option<Rrset> {
    let question = HEADER + owner.as_wire().len() + 4;
    let mut set = RrsetWriter::new(rtype::SRV, ttl);
    let mut glue = GlueWriter::default();
    let mut seen = BTreeSet::new();
    for service in services {
        let target_at = question + set.body.len() + RECORD_FIXED + 6;
        let mut data = Vec::with_capacity(6 + service.target.as_wire().len());
        data.extend_from_slice(&0u16.to_be_bytes());
        data.extend_from_slice(&service.weight.to_be_bytes());
        data.extend_from_slice(&service.port.to_be_bytes());
        data.extend_from_slice(service.target.as_wire());
        set.push(&data);
        if !seen.insert(&service.target) {
            continue;
        }
        let pointer = pointer(target_at);
        let owner = pointer.as_ref().map_or(service.target.as_wire(), |pointer| pointer);
        glue.push(owner, service.addresses);
    }
    let mut rrset = set.finish()?;
    rrset.glue = glue.finish();
    Some(rrset)
}

/// The NS RRset of a zone's apex: its one server, with that server's addresses as glue.
pub fn name_server(owner: &Name, ttl: u32, host: &Name, addresses: &[Rrset]) -> Option<Rrset> {
    let host_at = HEADER + owner.as_wire().len() + 4 + RECORD_FIXED;
    let mut set = RrsetWriter::new(rtype::NS, ttl);
    set.push(host.as_wire());
    let mut glue = GlueWriter::default();
    glue.push(&pointer(host_at).unwrap_or(OWNER), addresses);
    let mut rrset = set.finish()?;
    rrset.glue = glue.finish();
    Some(rrset)
}

/// A compression pointer, where one reaches that far.
fn pointer(offset: usize) -> Option<[u8; 2]> {
    (offset <= MAX_POINTER).then(|| (0xc000 | offset as u16).to_be_bytes())
}

/// Collects glue, an RRset at a time.
#[derive(Default)]
struct GlueWriter {
    bytes: Vec<u8>,
    units: Vec<(u32, u16)>,
    records: u16,
}

impl GlueWriter {
    fn push(&mut self, owner: &[u8], rrsets: &[Rrset]) {
        for rrset in rrsets {
            let end = self.bytes.len() + rrset.records * (owner.len() + rrset.stride.unwrap_or(0));
            // Beyond 64 KiB no message has room: what is there is enough.
            if end > usize::from(u16::MAX) {
                return;
            }
            for record in records(rrset) {
                self.bytes.extend_from_slice(owner);
                self.bytes.extend_from_slice(&record[OWNER.len()..]);
                self.records += 1;
            }
            self.units.push((self.bytes.len() as u32, self.records));
        }
    }

    fn finish(self) -> Glue {
        Glue { bytes: self.bytes.into(), units: self.units.into() }
    }
}

/// The single records of an address RRset.
fn records(rrset: &Rrset) -> impl Iterator<Item = &[u8]> {
    rrset.body.chunks_exact(rrset.stride.unwrap_or_else(|| rrset.body.len().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_have_one_length_each() {
        let rrsets = addresses(5, &set(&["10.0.0.2", "10.0.0.1", "fd00::1"]));
        assert_eq!(rrsets.len(), 2);
        assert_eq!(rrsets[0].stride, Some(16));
        assert_eq!(rrsets[0].body.len(), 32);
        assert_eq!(&rrsets[0].body[..16], b"\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04\x0a\0\0\x01");
        assert_eq!(rrsets[1].stride, Some(28));
        assert_eq!(rrsets[1].records, 1);
    }

    #[test]
    fn an_empty_set_is_no_rrset() {
        assert_eq!(addresses(5, &set(&[])), []);
        assert!(services(&Name::root(), 5, &[]).is_none());
    }

    #[test]
    fn glue_is_cut_between_whole_rrsets() {
        let both = addresses(5, &set(&["10.0.0.1", "10.0.0.2", "fd00::1"]));
        let owner: Name = "_p._tcp.s.n.svc.z".parse().unwrap();
        let target: Name = "h.s.n.svc.z".parse().unwrap();
        let one = |port| Service { weight: 100, port, target: target.clone(), addresses: &both };
        let rrset = services(&owner, 5, &[one(1), one(2)]).unwrap();
        assert_eq!(rrset.records, 2);
        assert_eq!(rrset.glue.units.as_ref(), [(32, 2), (60, 3)]);
        assert_eq!(rrset.glue.fitting(31), (0, 0));
        assert_eq!(rrset.glue.fitting(59), (32, 2));
        assert_eq!(rrset.glue.fitting(60), (60, 3));
        // The glue's owner points at the first target in the answer.
        let at = HEADER + owner.as_wire().len() + 4 + RECORD_FIXED + 6;
        assert_eq!(rrset.glue.bytes[..2], (0xc000 | at as u16).to_be_bytes());
        assert!(rrset.body[RECORD_FIXED + 6..].starts_with(target.as_wire()));
    }
}
