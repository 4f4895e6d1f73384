//! Domain names in the one form that the answer path compares: lowercased, uncompressed wire format
//! (RFC 1035 §3.1), so that a query's name and a stored name are equal exactly when their bytes are.
//!
//! Everything that knows how a Kubernetes object becomes a label is here too: host labels, reverse
//! names, the fixed labels of the schema.

use std::borrow::Borrow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// Longest domain name in wire format, root label included (RFC 1035 §2.3.4).
pub const MAX_NAME: usize = 255;

/// Longest label (RFC 1035 §2.3.4).
pub const MAX_LABEL: usize = 63;

/// The label that separates the names of one network from those of the service.
pub const NETWORKS: &[u8] = b"\x04_net";

/// The label above the names of topology zones below a service.
pub const ZONES: &[u8] = b"\x05_zone";

/// The label between a zone's name and that label, for the endpoints in the zone.
pub const PIN: &[u8] = b"\x03pin";

/// The same, for those of the whole service if there are none in the zone.
pub const PREFER: &[u8] = b"\x06prefer";

/// A lowercased domain name in uncompressed wire format, root label included.
///
/// Cloning shares the bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// The root, `.`.
    pub fn root() -> Self {
        Self(Arc::from([0u8]))
    }

    /// Takes wire format that a parser has already checked and lowercased.
    pub(crate) fn from_checked_wire(wire: &[u8]) -> Self {
        debug_assert!(wire.len() <= MAX_NAME && wire.last() == Some(&0));
        Self(Arc::from(wire))
    }

    /// `label` in front of this name, or nothing where DNS has no such name: an empty label, one of
    /// more than 63 bytes, or a whole of more than 255.
    pub fn child(&self, label: &str) -> Option<Self> {
        let total = 1 + label.len() + self.0.len();
        if label.is_empty() || label.len() > MAX_LABEL || total > MAX_NAME {
            return None;
        }
        let length = label.len() as u8; // at most 63
        Some(Self(
            std::iter::once(length)
                .chain(label.bytes().map(|b| b.to_ascii_lowercase()))
                .chain(self.0.iter().copied())
                .collect(),
        ))
    }

    /// The name without its first label; nothing above the root.
    pub fn parent(&self) -> Option<Self> {
        parent(&self.0).map(Self::from_checked_wire)
    }

    /// The wire format.
    pub fn as_wire(&self) -> &[u8] {
        &self.0
    }

    /// Runs `read` on the name with its labels.
    pub fn with_labels<R>(&self, read: impl FnOnce(Labels<'_>) -> R) -> R {
        read(Labels::new(&self.0, &label_starts(&self.0)))
    }

    /// Whether this name is `other` or below it.
    pub fn is_within(&self, other: &Self) -> bool {
        is_within(&self.0, &other.0)
    }
}

/// The wire format without its first label; nothing above the root.
pub fn parent(wire: &[u8]) -> Option<&[u8]> {
    match wire.first() {
        None | Some(0) => None,
        Some(&length) => wire.get(1 + usize::from(length)..),
    }
}

/// Whether the wire-format name `wire` is `apex` or below it.
pub fn is_within(wire: &[u8], apex: &[u8]) -> bool {
    let mut rest = Some(wire);
    while let Some(name) = rest {
        if name.len() <= apex.len() {
            return name == apex;
        }
        rest = parent(name);
    }
    false
}

/// A lowercased wire-format name with the places at which its labels begin.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a> {
    wire: &'a [u8],
    starts: &'a [u8],
}

/// Most labels that a name can have, without the root.
pub const MAX_LABELS: usize = MAX_NAME / 2;

impl<'a> Labels<'a> {
    /// A name and where its labels begin, without the root, as a parser has found them.
    pub(crate) fn new(wire: &'a [u8], starts: &'a [u8]) -> Self {
        Self { wire, starts }
    }

    /// The whole name.
    pub fn wire(&self) -> &'a [u8] {
        self.wire
    }

    /// How many labels it has, without the root.
    pub fn count(&self) -> usize {
        self.starts.len()
    }

    /// The label at a position below [`count`](Self::count), with its byte of length.
    pub fn label(&self, position: usize) -> &'a [u8] {
        &self.wire[self.start(position)..self.start(position + 1)]
    }

    /// The name from the label at a position on; that at [`count`](Self::count) is the root.
    pub fn from(&self, position: usize) -> &'a [u8] {
        &self.wire[self.start(position)..]
    }

    /// The labels between two positions, without what is behind them.
    pub fn between(&self, begin: usize, end: usize) -> &'a [u8] {
        &self.wire[self.start(begin)..self.start(end)]
    }

    fn start(&self, position: usize) -> usize {
        self.starts.get(position).map_or(self.wire.len() - 1, |&start| usize::from(start))
    }
}

/// Where the labels of a well-formed wire-format name begin, without the root.
pub fn label_starts(wire: &[u8]) -> Vec<u8> {
    let mut starts = Vec::new();
    let mut at = 0;
    while let Some(&length) = wire.get(at).filter(|&&length| length != 0) {
        starts.push(at as u8); // below 255
        at += 1 + usize::from(length);
    }
    starts
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Presented(&self.0), f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Shows a wire-format name in presentation format (RFC 1035 §5.1): bytes that are not printable
/// ASCII as `\DDD`, so that a name from the network is safe in a log.
pub struct Presented<'a>(pub &'a [u8]);

impl fmt::Display for Presented<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        if rest.first().is_none_or(|&length| length == 0) {
            return f.write_str(".");
        }
        while let Some((&length, tail)) = rest.split_first() {
            if length == 0 {
                break;
            }
            let (label, tail) = tail.split_at(usize::from(length).min(tail.len()));
            for &byte in label {
                match byte {
                    b'.' | b'\\' | b'"' | b'(' | b')' | b';' | b'@' | b'$' => {
                        write!(f, "\\{}", char::from(byte))?;
                    }
                    0x21..=0x7e => write!(f, "{}", char::from(byte))?,
                    _ => write!(f, "\\{byte:03}")?,
                }
            }
            f.write_str(".")?;
            rest = tail;
        }
        Ok(())
    }
}

/// Why a text is not a domain name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing at all, or two dots in a row.
    #[error("a name is labels separated by single dots")]
    EmptyLabel,
    /// A label of more than 63 bytes.
    #[error("the label {0:?} is longer than 63 characters")]
    LongLabel(String),
    /// A character other than a letter, digit, `-` or `_`.
    #[error("{0:?} may not stand in a zone name: use letters, digits, '-' and '_'")]
    BadCharacter(char),
    /// More than 255 bytes in wire format.
    #[error("the name is longer than 253 characters")]
    TooLong,
}

impl FromStr for Name {
    type Err = NameError;

    /// Reads a name as people write zones: `multinet.cluster.local`, with or without the last dot.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let mut name = Self::root();
        for label in text.rsplit('.') {
            if label.is_empty() {
                return Err(NameError::EmptyLabel);
            }
            if let Some(bad) = label.chars().find(|c| !(c.is_ascii_alphanumeric() || *c == '-' || *c == '_'))
            {
                return Err(NameError::BadCharacter(bad));
            }
            if label.len() > MAX_LABEL {
                return Err(NameError::LongLabel(label.to_owned()));
            }
            name = name.child(label).ok_or(NameError::TooLong)?;
        }
        Ok(name)
    }
}

/// The label of an endpoint that has no hostname: its address with `-` for every `.` and `:`, and a
/// `0` where that would begin or end the label with `-` (as CoreDNS does at the end; `::1` needs it
/// at the beginning too).
pub fn address_label(address: IpAddr) -> String {
    let mut label = address.to_string().replace(['.', ':'], "-");
    if label.starts_with('-') {
        label.insert(0, '0');
    }
    if label.ends_with('-') {
        label.push('0');
    }
    label
}

/// The name that a PTR query for `address` asks for (RFC 1035 §3.5, RFC 3596 §2.5).
pub fn reverse_name(address: IpAddr) -> Name {
    let mut wire = Vec::with_capacity(74);
    match address {
        IpAddr::V4(v4) => {
            for byte in v4.octets().iter().rev() {
                let digits = byte.to_string();
                wire.push(digits.len() as u8); // one to three digits
                wire.extend_from_slice(digits.as_bytes());
            }
            wire.extend_from_slice(b"\x07in-addr\x04arpa\0");
        }
        IpAddr::V6(v6) => {
            for byte in v6.octets().iter().rev() {
                for nibble in [byte & 0xf, byte >> 4] {
                    wire.extend_from_slice(&[1, b"0123456789abcdef"[usize::from(nibble)]]);
                }
            }
            wire.extend_from_slice(b"\x03ip6\x04arpa\0");
        }
    }
    Name::from_checked_wire(&wire)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_lowercased_and_dot_agnostic() {
        assert_eq!(n("Cluster.LOCAL."), n("cluster.local"));
        assert_eq!(n("cluster.local").as_wire(), b"\x07cluster\x05local\0");
        assert_eq!(n("a.b").to_string(), "a.b.");
        assert_eq!(Name::root().to_string(), ".");
    }

    #[test]
    fn bad_names_say_why() {
        assert_eq!("".parse::<Name>(), Err(NameError::EmptyLabel));
        assert_eq!("a..b".parse::<Name>(), Err(NameError::EmptyLabel));
        assert_eq!("a b".parse::<Name>(), Err(NameError::BadCharacter(' ')));
        assert!(matches!("x".repeat(64).parse::<Name>(), Err(NameError::LongLabel(_))));
        assert_eq!(["x"; 128].join(".").parse::<Name>(), Err(NameError::TooLong));
        assert!(["x"; 127].join(".").parse::<Name>().is_ok());
    }

    #[test]
    fn within_respects_label_boundaries() {
        assert!(n("a.cluster.local").is_within(&n("cluster.local")));
        assert!(n("cluster.local").is_within(&n("cluster.local")));
        assert!(!n("xcluster.local").is_within(&n("cluster.local")));
        assert!(!n("local").is_within(&n("cluster.local")));
        assert!(n("local").is_within(&Name::root()));
    }

    #[test]
    fn within_is_not_fooled_by_octets_that_look_like_labels() {
        // One label whose bytes end in the wire form of `cluster.local`.
        let label = b"x\x07cluster\x05local";
        let mut wire = vec![label.len() as u8];
        wire.extend_from_slice(label);
        wire.push(0);
        assert!(!is_within(&wire, n("cluster.local").as_wire()));
    }

    #[test]
    fn children_that_dns_cannot_name_do_not_exist() {
        assert_eq!(n("a").child("B"), Some(n("b.a")));
        assert_eq!(n("a").child(""), None);
        assert_eq!(n("a").child(&"x".repeat(64)), None);
        let long = n(&["x".repeat(63).as_str(); 3].join("."));
        assert!(long.child(&"y".repeat(61)).is_some());
        assert_eq!(long.child(&"y".repeat(62)), None);
        assert_eq!(n("b.a").parent(), Some(n("a")));
        assert_eq!(n("a").parent(), Some(Name::root()));
        assert_eq!(Name::root().parent(), None);
    }

    #[test]
    fn address_labels_never_begin_or_end_with_a_dash() {
        for (address, label) in [
            ("192.168.111.5", "192-168-111-5"),
            ("fd00::5", "fd00--5"),
            ("fd00::", "fd00--0"),
            ("::1", "0--1"),
            ("::", "0--0"),
        ] {
            assert_eq!(address_label(address.parse().unwrap()), label);
        }
    }

    #[test]
    fn reverse_names() {
        assert_eq!(reverse_name("192.0.2.10".parse().unwrap()), n("10.2.0.192.in-addr.arpa"));
        assert_eq!(
            reverse_name("2001:db8::1".parse().unwrap()),
            n("1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"),
        );
    }

    #[test]
    fn presentation_escapes_what_is_not_plain() {
        assert_eq!(Presented(b"\x04a.\n\xff\x01b\0").to_string(), "a\\.\\010\\255.b.");
    }
}
