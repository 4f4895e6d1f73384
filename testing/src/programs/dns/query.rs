//! Queries, built byte by byte.

use std::fmt;
use std::sync::atomic::{AtomicU16, Ordering};

use super::presentation::{name_to_wire, type_number, wire_to_name};

/// Header flag: recursion desired.
pub const RD: u16 = 0x0100;
/// Header flag: reserved bit.
pub const Z: u16 = 0x0040;
/// Header flag: authentic data.
pub const AD: u16 = 0x0020;
/// Header flag: checking disabled.
pub const CD: u16 = 0x0010;
/// EDNS flag: DNSSEC OK.
pub const DO: u16 = 0x8000;

/// Query with one question.
#[derive(Debug, Clone)]
pub struct Query {
    /// ID, which the reply copies.
    pub id: u16,
    /// Second word of the header: opcode and flags.
    pub flags: u16,
    /// Name in wire format.
    pub name: Vec<u8>,
    /// Record type.
    pub qtype: u16,
    /// Class.
    pub qclass: u16,
    /// OPT record, if the query has one.
    pub edns: Option<Edns>,
}

/// OPT record.
#[derive(Debug, Clone)]
pub struct Edns {
    /// UDP payload size that the client accepts.
    pub size: u16,
    /// EDNS version.
    pub version: u8,
    /// DO, and the bits that have to be zero.
    pub flags: u16,
    /// Options in wire format: code, length, data.
    pub options: Vec<u8>,
}

impl Edns {
    /// Creates an OPT record of version 0 without flags and options.
    pub fn new(size: u16) -> Self {
        Self { size, version: 0, flags: 0, options: Vec::new() }
    }

    /// Adds an option.
    #[must_use]
    pub fn option(mut self, code: u16, data: &[u8]) -> Self {
        self.options.extend_from_slice(&code.to_be_bytes());
        self.options.extend_from_slice(&(data.len() as u16).to_be_bytes()); // tests' options are short
        self.options.extend_from_slice(data);
        self
    }

    fn to_wire(&self) -> Vec<u8> {
        let mut wire = vec![0, 0, 41];
        wire.extend_from_slice(&self.size.to_be_bytes());
        wire.extend_from_slice(&[0, self.version]);
        wire.extend_from_slice(&self.flags.to_be_bytes());
        wire.extend_from_slice(&(self.options.len() as u16).to_be_bytes()); // as above
        wire.extend_from_slice(&self.options);
        wire
    }
}

impl Query {
    /// Creates a query as a stub resolver sends it: class IN, recursion desired, no EDNS. Name and
    /// type are in presentation format.
    ///
    /// // # Panics
    ///
    /// If name or type cannot be parsed. Tests write them literally.
    pub fn new(name: &str, qtype: &str) -> Self {
        static NEXT_ID: AtomicU16 = AtomicU16::new(0x5a00);
        let Some(qtype_number) = type_number(qtype) else { panic!("{qtype:?} is not a record type") };
        let Some(wire) = name_to_wire(name) else { panic!("{name:?} is not a domain name") };
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            flags: RD,
            name: wire,
            qtype: qtype_number,
            qclass: 1,
            edns: None,
        }
    }

    /// Adds an OPT record.
    #[must_use]
    pub fn edns(mut self, edns: Edns) -> Self {
        self.edns = Some(edns);
        self
    }

    /// Sets the header flags.
    #[must_use]
    pub fn flags(mut self, flags: u16) -> Self {
        self.flags = flags;
        self
    }

    /// Sets the opcode.
    #[must_use]
    pub fn opcode(mut self, opcode: u8) -> Self {
        self.flags = self.flags & 0x87ff | u16::from(opcode & 0xf) << 11;
        self
    }

    /// Sets the class.
    #[must_use]
    pub fn class(mut self, class: u16) -> Self {
        self.qclass = class;
        self
    }

    /// Writes every other letter of the name in upper case, as resolvers do against spoofing
    /// ("0x20").
    #[must_use]
    pub fn mixed_case(mut self) -> Self {
        for (position, octet) in self.name.iter_mut().enumerate() {
            if position % 2 == 1 {
                *octet = octet.to_ascii_uppercase(); // a length is at most 63 and so never a letter
            }
        }
        self
    }

    /// Returns the question section in wire format.
    pub fn question(&self) -> Vec<u8> {
        let mut wire = self.name.clone();
        wire.extend_from_slice(&self.qtype.to_be_bytes());
        wire.extend_from_slice(&self.qclass.to_be_bytes());
        wire
    }

    /// Returns the message in wire format.
    pub fn to_wire(&self) -> Vec<u8> {
        let mut wire = Vec::new();
        let additionals = u16::from(self.edns.is_some());
        for word in [self.id, self.flags, 1, 0, 0, additionals] {
            wire.extend_from_slice(&word.to_be_bytes());
        }
        wire.extend(self.question());
        wire.extend(self.edns.iter().flat_map(Edns::to_wire));
        wire
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} class {} type {}", wire_to_name(&self.name), self.qclass, self.qtype)
    }
}
