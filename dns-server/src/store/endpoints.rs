//! The ready endpoints of one slice, packed: a million of them are in memory at one time.
//!
//! ```text
//!  entries   [address, named, offset]  [address, named, offset] …      24 bytes each
//!                              │                         │
//!  bytes     len label txt … <─┘   len label txt … <─────┘             what they have to say
//! ```
//!
//! A label stands there as names have it on the wire, the text as TXT records have it, so that answers are
//! made by copying.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::store::name::MAX_LABEL;

/// The longest text; a dozen facts of a character string each are far from it.
const MAX_TXT: usize = 8 << 10;

/// An endpoint as it is put in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint<'a> {
    /// Its one address.
    pub address: IpAddr,
    /// Its label: the hostname, else made of the address.
    pub host: &'a str,
    /// Whether `host` is a hostname that somebody chose.
    pub named: bool,
    /// Data of its TXT record.
    pub txt: &'a [u8],
}

/// An endpoint as it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedEndpoint<'a> {
    /// Its one address.
    pub address: IpAddr,
    /// Its label in wire format, lowercased: an byte of length and the rest. Of length 0 where `host` was none
    /// that DNS can express; then the endpoint has an address and no name.
    pub label: &'a [u8],
    /// Whether somebody chose the label.
    pub named: bool,
    /// Data of its TXT record.
    pub txt: &'a [u8],
}

/// Endpoints in the order in which they were put in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoints {
    entries: Box<[PackedEntry]>,
    bytes: Box<[u8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PackedEntry {
    address: IpAddr,
    named: bool,
    /// Where its label begins.
    offset: u32,
}

impl Endpoints {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The endpoint at a position below [`len`](Self::len).
    ///
    /// # Panics
    ///
    /// As indexing does.
    pub fn get(&self, position: usize) -> PackedEndpoint<'_> {
        let PackedEntry { address, named, offset } = self.entries[position];
        let end = self.entries.get(position + 1).map_or(self.bytes.len(), |next| next.offset as usize);
        let said = &self.bytes[offset as usize..end];
        let (label, txt) = said.split_at(1 + usize::from(said[0]));
        PackedEndpoint { address, label, named, txt }
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PackedEndpoint<'_>> {
        (0..self.len()).map(|position| self.get(position))
    }
}

impl PackedEndpoint<'_> {
    /// Whether DNS has a name for it.
    pub fn has_name(&self) -> bool {
        self.label.len() > 1
    }

    /// The label as text, empty without a name.
    pub fn host(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.label[1..])
    }
}

/// Collects endpoints.
#[derive(Debug, Default)]
pub struct EndpointsBuilder {
    entries: Vec<PackedEntry>,
    bytes: Vec<u8>,
}

impl EndpointsBuilder {
    /// Adds one.
    pub fn push(&mut self, endpoint: &Endpoint<'_>) {
        let &Endpoint { address, host, named, txt } = endpoint;
        // An object of the API server has 3 MiB at most; what a file has is bounded in the same way.
        let Ok(offset) = u32::try_from(self.bytes.len()) else { return };
        self.entries.push(PackedEntry { address, named, offset });
        let label = if host.len() <= MAX_LABEL { host.as_bytes() } else { &[] };
        self.bytes.push(label.len() as u8); // at most 63
        self.bytes.extend(label.iter().map(u8::to_ascii_lowercase));
        self.bytes.extend_from_slice(if txt.len() <= MAX_TXT { txt } else { &[] });
    }

    /// All that were added.
    pub fn finish(self) -> Endpoints {
        Endpoints { entries: self.entries.into(), bytes: self.bytes.into() }
    }
}

impl<'a> FromIterator<Endpoint<'a>> for Endpoints {
    fn from_iter<I: IntoIterator<Item = Endpoint<'a>>>(endpoints: I) -> Self {
        let mut builder = EndpointsBuilder::default();
        endpoints.into_iter().for_each(|endpoint| builder.push(&endpoint));
        builder.finish()
    }
}

/// For files: an endpoint after the other.
#[derive(Serialize, Deserialize)]
struct Row<'a> {
    address: IpAddr,
    host: &'a str,
    named: bool,
    txt: &'a [u8],
}

impl Serialize for Endpoints {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(|endpoint| {
            let PackedEndpoint { address, label, named, txt } = endpoint;
            // Labels are cut from strings, and nothing but their case was changed.
            Row { address, host: str::from_utf8(&label[1..]).unwrap_or_default(), named, txt }
        }))
    }
}

impl<'de> Deserialize<'de> for Endpoints {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rows = Vec::<Row<'de>>::deserialize(deserializer)?;
        let endpoint = |&Row { address, host, named, txt }: &Row<'de>| Endpoint { address, host, named, txt };
        Ok(rows.iter().map(endpoint).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(address: &str, host: &'static str, txt: &'static [u8]) -> Endpoint<'static> {
        Endpoint { address: address.parse().unwrap(), host, named: true, txt }
    }

    #[test]
    fn what_is_put_in_comes_out() {
        let all = [endpoint("10.0.0.1", "A", b"\x01x"), endpoint("fd00::1", "b-c", b"")];
        let endpoints: Endpoints = all.into_iter().collect();
        let seen: Vec<_> = endpoints.iter().collect();
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[0].label, seen[0].txt), (&b"\x01a"[..], &b"\x01x"[..]));
        assert_eq!((seen[1].label, seen[1].txt), (&b"\x03b-c"[..], &b""[..]));
        assert_eq!(seen[1].address, "fd00::1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn a_label_that_dns_cannot_express_is_no_name() {
        let long: &'static str = Box::leak("x".repeat(64).into_boxed_str());
        let endpoints: Endpoints =
            [endpoint("10.0.0.1", long, b"\x01x"), endpoint("10.0.0.2", "", b"")].into_iter().collect();
        assert!(endpoints.iter().all(|endpoint| !endpoint.has_name()));
        assert_eq!(endpoints.get(0).txt, b"\x01x");
    }

    #[test]
    fn an_entry_is_as_small_as_the_drawing_says() {
        assert_eq!(size_of::<PackedEntry>(), 24);
    }
}
