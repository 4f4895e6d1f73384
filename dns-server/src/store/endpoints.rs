//! The ready endpoints of one slice in a compact form, since a million of them may be in memory at
//! a time.
//!
//! ```text
//!  entries   [address, named, offset]  [address, named, offset] …      24 bytes each
//!                              │                         │
//!  bytes     len label txt … <─┘   len label txt … <─────┘             labels and TXT data
//! ```
//!
//! Labels are stored as names have them on the wire, and texts as TXT records have them, so that
//! answers are made by copying.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::answers::MAX_TXT;
use crate::store::name::MAX_LABEL;

/// A ready endpoint to be stored in [`Endpoints`]. A snapshot has this form of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint<'a> {
    /// IP address of the endpoint on the slice's network.
    pub address: IpAddr,
    /// Host label as text: the hostname in the slice, or a label made from the address.
    pub host: &'a str,
    /// `true` if `host` is a hostname from the slice, `false` if it was made from the address.
    pub named: bool,
    /// Data of the endpoint's TXT record, in wire format.
    pub txt: &'a [u8],
}

/// A ready endpoint, as [`Endpoints`] store it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedEndpoint<'a> {
    /// IP address of the endpoint on the slice's network.
    pub address: IpAddr,
    /// Label in wire format, lowercased, with its length byte. The length is 0 if DNS cannot
    /// express the label; the endpoint then has an address but no name.
    pub label: &'a [u8],
    /// `true` if the label is a hostname from the slice, `false` if it was made from the address.
    pub named: bool,
    /// Data of the endpoint's TXT record, in wire format.
    pub txt: &'a [u8],
}

/// Ready endpoints of one slice, packed, in the slice's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoints {
    entries: Box<[PackedEntry]>,
    bytes: Box<[u8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PackedEntry {
    address: IpAddr,
    named: bool,
    /// Offset in `Endpoints::bytes` of the endpoint's label, which its TXT data follow.
    offset: u32,
}

impl Endpoints {
    /// Returns the number of endpoints.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tells whether there are no endpoints.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the endpoint at a position below [`len`](Self::len).
    ///
    /// # Panics
    ///
    /// Panics if `position` is not below `len`.
    pub fn get(&self, position: usize) -> PackedEndpoint<'_> {
        let PackedEntry { address, named, offset } = self.entries[position];
        let end = self.entries.get(position + 1).map_or(self.bytes.len(), |next| next.offset as usize);
        let data = &self.bytes[offset as usize..end];
        let (label, txt) = data.split_at(1 + usize::from(data[0]));
        PackedEndpoint { address, label, named, txt }
    }

    /// Returns an iterator over all endpoints.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PackedEndpoint<'_>> {
        (0..self.len()).map(|position| self.get(position))
    }
}

impl PackedEndpoint<'_> {
    /// Tells whether the endpoint has a host name, because DNS can express its label.
    pub fn has_name(&self) -> bool {
        self.label.len() > 1
    }

    /// Returns the label as text. It is empty if the endpoint has no name.
    pub fn host(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.label[1..])
    }
}

/// Builder for [`Endpoints`].
#[derive(Debug, Default)]
pub struct EndpointsBuilder {
    entries: Vec<PackedEntry>,
    bytes: Vec<u8>,
}

impl EndpointsBuilder {
    /// Packs an endpoint behind those added before.
    pub fn push(&mut self, endpoint: &Endpoint<'_>) {
        let &Endpoint { address, host, named, txt } = endpoint;
        // This cannot fail in practice: an object of the API server has at most 3 MiB, and
        // manifests are bounded in the same way.
        let Ok(offset) = u32::try_from(self.bytes.len()) else { return };
        self.entries.push(PackedEntry { address, named, offset });
        let label = if host.len() <= MAX_LABEL { host.as_bytes() } else { &[] };
        self.bytes.push(label.len() as u8); // at most 63
        self.bytes.extend(label.iter().map(u8::to_ascii_lowercase));
        self.bytes.extend_from_slice(if txt.len() <= MAX_TXT { txt } else { &[] });
    }

    /// Returns the endpoints that were added.
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

impl Serialize for Endpoints {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(|endpoint| {
            let PackedEndpoint { address, label, named, txt } = endpoint;
            // The conversion cannot fail: labels are made from strings, and only their case has
            // changed.
            Endpoint { address, host: str::from_utf8(&label[1..]).unwrap_or_default(), named, txt }
        }))
    }
}

impl<'de> Deserialize<'de> for Endpoints {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Endpoint<'de>>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(address: &str, host: &'static str, txt: &'static [u8]) -> Endpoint<'static> {
        Endpoint { address: address.parse().unwrap(), host, named: true, txt }
    }

    #[test]
    fn endpoints_are_read_as_they_were_added_with_lowercased_labels() {
        let all = [endpoint("10.0.0.1", "A", b"\x01x"), endpoint("fd00::1", "b-c", b"")];
        let endpoints: Endpoints = all.into_iter().collect();
        let seen: Vec<_> = endpoints.iter().collect();
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[0].label, seen[0].txt), (&b"\x01a"[..], &b"\x01x"[..]));
        assert_eq!((seen[1].label, seen[1].txt), (&b"\x03b-c"[..], &b""[..]));
        assert_eq!(seen[1].address, "fd00::1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn an_endpoint_whose_label_dns_cannot_express_has_no_name() {
        let long: &'static str = Box::leak("x".repeat(64).into_boxed_str());
        let endpoints: Endpoints =
            [endpoint("10.0.0.1", long, b"\x01x"), endpoint("10.0.0.2", "", b"")].into_iter().collect();
        assert!(endpoints.iter().all(|endpoint| !endpoint.has_name()));
        assert_eq!(endpoints.get(0).txt, b"\x01x");
    }

    #[test]
    fn an_entry_takes_24_bytes() {
        assert_eq!(size_of::<PackedEntry>(), 24);
    }
}
