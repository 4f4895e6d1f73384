//! Records and RRsets in wire format, as they stand behind a reply's question.
//!
//! The owner of every record in an [`Rrset`] is the pointer `0xC00C` to the question's name (RFC
//! 1035 §4.1.4). So the bytes of a set do not depend on the name that it is served under.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::store::name::Name;

/// A DNS record, whose names are in uncompressed wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record<'a> {
    /// Name that owns the record, in wire format.
    pub owner: &'a [u8],
    /// Number of the record's type.
    pub rtype: u16,
    /// Time to live, in seconds.
    pub ttl: u32,
    /// Data of the record (RDATA), in wire format.
    pub data: &'a [u8],
}

/// Numbers of record types and classes (IANA DNS Parameters).
pub mod rtype {
    /// Type of records with an IPv4 address (RFC 1035).
    pub const A: u16 = 1;
    /// Type of records with the name of a zone's name server (RFC 1035).
    pub const NS: u16 = 2;
    /// Type of the record with a zone's serial and timers: start of authority (RFC 1035).
    pub const SOA: u16 = 6;
    /// Type of records with the name that a reverse name points at (RFC 1035).
    pub const PTR: u16 = 12;
    /// Type for host information (RFC 1035), used only to answer ANY queries (RFC 8482).
    pub const HINFO: u16 = 13;
    /// Type of records with text (RFC 1035).
    pub const TXT: u16 = 16;
    /// Type of records that sign a message with a public key (RFC 2931).
    pub const SIG: u16 = 24;
    /// Type of records with an IPv6 address (RFC 3596).
    pub const AAAA: u16 = 28;
    /// Type of records with a service's target, port, priority and weight (RFC 2782).
    pub const SRV: u16 = 33;
    /// Type of the EDNS pseudo record (RFC 6891).
    pub const OPT: u16 = 41;
    /// Type of records that sign a message with a shared key (RFC 8945).
    pub const TSIG: u16 = 250;
    /// Type of queries for an incremental zone transfer (RFC 1995).
    pub const IXFR: u16 = 251;
    /// Type of queries for the transfer of a whole zone (RFC 5936).
    pub const AXFR: u16 = 252;
    /// Type of queries for records of any type (RFC 8482).
    pub const ANY: u16 = 255;
    /// Class IN (Internet), the only one that is served.
    pub const CLASS_IN: u16 = 1;

    /// Mnemonics of the record types that are served, which metrics count separately.
    pub const MNEMONICS: [(u16, &str); 8] = [
        (A, "A"),
        (AAAA, "AAAA"),
        (SRV, "SRV"),
        (TXT, "TXT"),
        (PTR, "PTR"),
        (SOA, "SOA"),
        (NS, "NS"),
        (ANY, "ANY"),
    ];
}

/// Length in bytes of a message's header (RFC 1035 §4.1.1).
pub const HEADER: usize = 12;

/// Compression pointer to the name in the question, the owner of most records in a reply.
pub const QUESTION_POINTER: [u8; 2] = [0xc0, HEADER as u8];

/// Length in bytes of a record with a compressed owner, without its data.
pub const RECORD_FIXED: usize = QUESTION_POINTER.len() + 2 + 2 + 4 + 2;

/// Length in bytes of an A record with a compressed owner.
pub const A_LEN: usize = RECORD_FIXED + size_of::<Ipv4Addr>();

/// Length in bytes of an AAAA record with a compressed owner.
pub const AAAA_LEN: usize = RECORD_FIXED + size_of::<Ipv6Addr>();

/// Largest offset in a message that a compression pointer can express (RFC 1035 §4.1.4).
const MAX_POINTER: usize = 0x3fff;

/// An RRset: all records of one type at one name, in wire format. Their owner is a pointer to the
/// question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rrset {
    /// Number of the records' type.
    pub rtype: u16,
    /// Time to live of the records, in seconds.
    pub ttl: u32,
    /// Number of records in `body`.
    pub records: usize,
    /// The RRset's records in wire format, one behind the other.
    pub body: Box<[u8]>,
    /// Length of each record if all have the same length and may be sent in any order: only for
    /// addresses.
    pub stride: Option<usize>,
    /// Records for the additional section that save the client further queries, most useful first.
    pub glue: Vec<Glue>,
}

/// Additional records that are sent as a whole or not at all, since a partial RRset is not allowed
/// (RFC 2181 §9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glue {
    /// The additional records in wire format, one behind the other.
    pub bytes: Box<[u8]>,
    /// Number of records in `bytes`.
    pub records: u16,
}

/// All RRsets at one name. A node without RRsets is an empty non-terminal: its name exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// RRsets at the name, one for each type; empty for an empty non-terminal.
    pub rrsets: Vec<Rrset>,
}

impl Node {
    /// Returns the RRset of one type at this name, or `None` if the name has no such records.
    pub fn rrset(&self, rtype: u16) -> Option<&Rrset> {
        self.rrsets.iter().find(|rrset| rrset.rtype == rtype)
    }

    /// Returns the records of all types at this name, with `owner` as the name.
    pub fn records<'a>(&'a self, owner: &'a Name) -> impl Iterator<Item = Record<'a>> {
        self.rrsets.iter().flat_map(move |rrset| {
            let mut rest = &rrset.body[..];
            std::iter::from_fn(move || {
                let length = rest.get(RECORD_FIXED - 2..)?.first_chunk::<2>()?;
                let length = RECORD_FIXED + usize::from(u16::from_be_bytes(*length));
                let (record, others) = rest.split_at_checked(length)?;
                rest = others;
                let Rrset { rtype, ttl, .. } = *rrset;
                Some(Record { owner: owner.as_wire(), rtype, ttl, data: &record[RECORD_FIXED..] })
            })
        })
    }
}

impl Rrset {
    /// Makes the RRset of records with these data; `None` if there are none.
    pub fn of(rtype: u16, ttl: u32, data: &[impl AsRef<[u8]>]) -> Option<Self> {
        let mut body = Vec::new();
        for data in data {
            push_record(&mut body, &QUESTION_POINTER, rtype, ttl, data.as_ref());
        }
        let (records, body) = (data.len(), body.into());
        (records > 0).then(|| Self { rtype, ttl, records, body, stride: None, glue: Vec::new() })
    }
}

/// Makes the A and AAAA RRsets of `addresses`, sorted by address. A family without any is left out.
pub fn addresses(ttl: u32, addresses: &BTreeSet<IpAddr>) -> Vec<Rrset> {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for address in addresses {
        match address {
            IpAddr::V4(address) => v4.push(address.octets()),
            IpAddr::V6(address) => v6.push(address.octets()),
        }
    }
    let v4 = Rrset::of(rtype::A, ttl, &v4).map(|rrset| Rrset { stride: Some(A_LEN), ..rrset });
    let v6 = Rrset::of(rtype::AAAA, ttl, &v6).map(|rrset| Rrset { stride: Some(AAAA_LEN), ..rrset });
    v4.into_iter().chain(v6).collect()
}

/// Returns the addresses in `body`, which holds A records with compressed owners.
pub fn v4_addresses(body: &[u8]) -> impl Iterator<Item = Ipv4Addr> {
    body.chunks_exact(A_LEN).filter_map(|record| Some(Ipv4Addr::from(*record.last_chunk::<4>()?)))
}

/// Returns the addresses in `body`, which holds AAAA records with compressed owners.
pub fn v6_addresses(body: &[u8]) -> impl Iterator<Item = Ipv6Addr> {
    body.chunks_exact(AAAA_LEN).filter_map(|record| Some(Ipv6Addr::from(*record.last_chunk::<16>()?)))
}

/// Returns the index of the address record with this data. The records are sorted.
pub fn find_address(body: &[u8], data: &[u8]) -> Option<usize> {
    let length = RECORD_FIXED + data.len();
    let (mut low, mut high) = (0, body.len() / length);
    while low < high {
        let middle = low + (high - low) / 2;
        match body[middle * length + RECORD_FIXED..(middle + 1) * length].cmp(data) {
            Ordering::Equal => return Some(middle),
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    None
}

/// Appends a record of class IN in wire format.
pub fn push_record(out: &mut Vec<u8>, owner: &[u8], rtype: u16, ttl: u32, data: &[u8]) {
    push_record_header(out, owner, rtype, ttl, data.len());
    out.extend_from_slice(data);
}

/// Appends the part of a record before its data. `length` is that of the data; every caller passes
/// less than 64 KiB.
pub fn push_record_header(out: &mut Vec<u8>, owner: &[u8], rtype: u16, ttl: u32, length: usize) {
    out.extend_from_slice(owner);
    out.extend_from_slice(&rtype.to_be_bytes());
    out.extend_from_slice(&rtype::CLASS_IN.to_be_bytes());
    out.extend_from_slice(&ttl.to_be_bytes());
    out.extend_from_slice(&(length as u16).to_be_bytes());
}

/// Makes the NS RRset of a zone's apex: its only name server, with the server's addresses as glue.
pub fn name_server(owner: &Name, ttl: u32, host: &Name, addresses: &[Rrset]) -> Option<Rrset> {
    let host_at = HEADER + owner.as_wire().len() + 4 + RECORD_FIXED;
    let mut rrset = Rrset::of(rtype::NS, ttl, &[host.as_wire()])?;
    rrset.glue =
        addresses.iter().map(|set| glue(&pointer(host_at).unwrap_or(QUESTION_POINTER), set)).collect();
    Some(rrset)
}

/// Makes glue from the records of an address RRset, with `owner` instead of their owner.
fn glue(owner: &[u8; 2], rrset: &Rrset) -> Glue {
    let records = rrset.body.chunks_exact(rrset.stride.unwrap_or(A_LEN));
    let bytes =
        records.flat_map(|record| owner.iter().chain(&record[QUESTION_POINTER.len()..])).copied().collect();
    Glue { bytes, records: rrset.records as u16 } // a server has few addresses
}

/// Makes a compression pointer to `offset`, or returns `None` if a pointer cannot express it.
pub fn pointer(offset: usize) -> Option<[u8; 2]> {
    (offset <= MAX_POINTER).then(|| (0xc000 | offset as u16).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn address_records_of_a_family_have_one_length() {
        let rrsets = addresses(5, &set(&["10.0.0.2", "10.0.0.1", "fd00::1"]));
        assert_eq!(rrsets.len(), 2);
        assert_eq!(rrsets[0].stride, Some(16));
        assert_eq!(rrsets[0].body.len(), 32);
        assert_eq!(&rrsets[0].body[..16], b"\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04\x0a\0\0\x01");
        assert_eq!(rrsets[1].stride, Some(28));
        assert_eq!(rrsets[1].records, 1);
    }

    #[test]
    fn no_addresses_make_no_rrset() {
        assert_eq!(addresses(5, &set(&[])), []);
    }

    #[test]
    fn an_address_is_found_in_sorted_records() {
        let texts = ["10.0.0.1", "10.0.0.2", "10.0.1.0", "192.168.0.1"];
        let rrsets = addresses(5, &set(&texts));
        let found: Vec<String> = v4_addresses(&rrsets[0].body).map(|address| address.to_string()).collect();
        assert_eq!(found, texts);
        for (place, text) in texts.iter().enumerate() {
            let address: Ipv4Addr = text.parse().unwrap();
            assert_eq!(find_address(&rrsets[0].body, &address.octets()), Some(place));
        }
        assert_eq!(find_address(&rrsets[0].body, &[10, 0, 0, 3]), None);
        assert_eq!(find_address(&[], &[10, 0, 0, 3]), None);
    }
}
