//! Domain names in lowercased, uncompressed wire format (RFC 1035 §3.1). Two names are equal
//! exactly if their bytes are, so the answer path compares bytes only.
//!
//! This module also makes the labels that come from Kubernetes objects: host labels, reverse names,
//! and the fixed labels of the schema.

use std::borrow::Borrow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// Length of the longest domain name in wire format, with the root label (RFC 1035 §2.3.4).
pub const MAX_NAME: usize = 255;

/// Length in bytes of the longest label, without its length byte (RFC 1035 §2.3.4).
pub const MAX_LABEL: usize = 63;

/// Label `_net` in wire format, between a network's alias and the name of the service.
pub const NETWORKS: &[u8] = b"\x04_net";

/// Label `_zone`, below the name of a service and above the names of its topology zones.
pub const ZONES: &[u8] = b"\x05_zone";

/// Label `pin`, between a topology zone's name and `_zone`: only the endpoints in that zone.
pub const PIN: &[u8] = b"\x03pin";

/// Label `prefer`, in the place of `pin`: the endpoints in that zone, or all endpoints of the
/// service if the zone has none.
pub const PREFER: &[u8] = b"\x06prefer";

/// A domain name, lowercased, in uncompressed wire format, with the root label.
///
/// Clones share their bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// Returns the name of the DNS root, `.`.
    pub fn root() -> Self {
        Self(Arc::from([0u8]))
    }

    /// Copies a name that a parser has already checked and lowercased.
    pub(crate) fn from_checked_wire(wire: &[u8]) -> Self {
        debug_assert!(wire.len() <= MAX_NAME && wire.last() == Some(&0));
        Self(Arc::from(wire))
    }

    /// Returns `label` in front of this name. Returns `None` if DNS has no such name: if the label
    /// is empty or longer than 63 bytes, or the name is longer than 255 bytes.
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

    /// Returns the name without its first label, or `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        parent(&self.0).map(Self::from_checked_wire)
    }

    /// Returns the name's bytes in wire format, with the root label.
    pub fn as_wire(&self) -> &[u8] {
        &self.0
    }

    /// Calls `read` with the name and the offsets at which its labels begin.
    pub fn with_labels<R>(&self, read: impl FnOnce(Labels<'_>) -> R) -> R {
        read(Labels::new(&self.0, &label_starts(&self.0)))
    }

    /// Tells whether this name is equal to `other` or below it.
    pub fn is_within(&self, other: &Self) -> bool {
        is_within(&self.0, &other.0)
    }
}

/// Returns a wire-format name without its first label, or `None` for the root.
pub fn parent(wire: &[u8]) -> Option<&[u8]> {
    match wire.first() {
        None | Some(0) => None,
        Some(&length) => wire.get(1 + usize::from(length)..),
    }
}

/// Tells whether the name `wire` is equal to `apex` or below it. Both are in wire format.
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

/// A lowercased wire-format name with the positions at which its labels begin.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a> {
    wire: &'a [u8],
    starts: &'a [u8],
}

/// Number of labels that the longest name has, without the root.
pub const MAX_LABELS: usize = MAX_NAME / 2;

impl<'a> Labels<'a> {
    /// Wraps a name and the positions of its labels (without the root) as a parser has found them.
    pub(crate) fn new(wire: &'a [u8], starts: &'a [u8]) -> Self {
        Self { wire, starts }
    }

    /// Returns the whole name in wire format, with the root label.
    pub fn wire(&self) -> &'a [u8] {
        self.wire
    }

    /// Returns the number of labels, without the root.
    pub fn count(&self) -> usize {
        self.starts.len()
    }

    /// Returns the label at `position`, with its length byte. `position` is below
    /// [`count`](Self::count).
    pub fn label(&self, position: usize) -> &'a [u8] {
        &self.wire[self.start(position)..self.start(position + 1)]
    }

    /// Returns the name from the label at `position` on. At [`count`](Self::count) that is the
    /// root.
    pub fn from(&self, position: usize) -> &'a [u8] {
        &self.wire[self.start(position)..]
    }

    /// Returns the labels, in wire format, from position `begin` up to, but without, position
    /// `end`.
    pub fn between(&self, begin: usize, end: usize) -> &'a [u8] {
        &self.wire[self.start(begin)..self.start(end)]
    }

    fn start(&self, position: usize) -> usize {
        self.starts.get(position).map_or(self.wire.len() - 1, |&start| usize::from(start))
    }
}

/// Returns the positions at which the labels of a well-formed wire-format name begin, without the
/// root.
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

/// Displays a wire-format name in presentation format (RFC 1035 §5.1). Bytes that are not printable
/// ASCII become `\DDD`, so that a name from the network is safe in a log.
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

impl FromStr for Name {
    type Err = String;

    /// Parses a name as people write zones: `multinet.cluster.local`, with or without the last dot.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let mut name = Self::root();
        for label in text.rsplit('.') {
            if label.is_empty() {
                return Err("a name is labels separated by single dots".to_owned());
            }
            if let Some(bad) = label.chars().find(|c| !(c.is_ascii_alphanumeric() || *c == '-' || *c == '_'))
            {
                return Err(format!(
                    "{bad:?} may not stand in a zone name: use letters, digits, '-' and '_'"
                ));
            }
            if label.len() > MAX_LABEL {
                return Err(format!("the label {label:?} is longer than 63 characters"));
            }
            name = name.child(label).ok_or("the name is longer than 253 characters")?;
        }
        Ok(name)
    }
}

/// Makes a lowercased label in wire format. Returns `None` if DNS cannot express the label.
pub fn wire_label(text: &str) -> Option<Box<[u8]>> {
    let length = u8::try_from(text.len()).ok().filter(|&length| (1..=MAX_LABEL as u8).contains(&length))?;
    Some(std::iter::once(length).chain(text.bytes().map(|byte| byte.to_ascii_lowercase())).collect())
}

/// Returns the label of an endpoint without a hostname: its address with `-` for each `.` and `:`.
/// If that begins or ends with `-`, a `0` is added there. (CoreDNS adds it at the end; `::1` needs
/// one at the beginning too.)
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

/// Returns the name that a PTR query for `address` asks for (RFC 1035 §3.5, RFC 3596 §2.5).
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
    fn parsed_names_are_lowercased_and_need_no_last_dot() {
        assert_eq!(n("Cluster.LOCAL."), n("cluster.local"));
        assert_eq!(n("cluster.local").as_wire(), b"\x07cluster\x05local\0");
        assert_eq!(n("a.b").to_string(), "a.b.");
        assert_eq!(Name::root().to_string(), ".");
    }

    #[test]
    fn parsing_a_bad_name_fails_with_the_reason() {
        for (text, reason) in [
            ("", "single dots"),
            ("a..b", "single dots"),
            ("a b", "' ' may not stand"),
            (&"x".repeat(64), "xxx\" is longer than 63"),
            (&["x"; 128].join("."), "longer than 253"),
        ] {
            let error = text.parse::<Name>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(["x"; 127].join(".").parse::<Name>().is_ok());
    }

    #[test]
    fn a_name_is_within_another_only_at_a_label_boundary() {
        assert!(n("a.cluster.local").is_within(&n("cluster.local")));
        assert!(n("cluster.local").is_within(&n("cluster.local")));
        assert!(!n("xcluster.local").is_within(&n("cluster.local")));
        assert!(!n("local").is_within(&n("cluster.local")));
        assert!(n("local").is_within(&Name::root()));
    }

    #[test]
    fn bytes_of_a_label_that_look_like_labels_do_not_match_an_apex() {
        // One label whose bytes end in the wire form of `cluster.local`.
        let label = b"x\x07cluster\x05local";
        let mut wire = vec![label.len() as u8];
        wire.extend_from_slice(label);
        wire.push(0);
        assert!(!is_within(&wire, n("cluster.local").as_wire()));
    }

    #[test]
    fn a_child_exists_only_if_dns_can_express_its_name() {
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
    fn reverse_names_have_the_form_of_their_family() {
        assert_eq!(reverse_name("192.0.2.10".parse().unwrap()), n("10.2.0.192.in-addr.arpa"));
        assert_eq!(
            reverse_name("2001:db8::1".parse().unwrap()),
            n("1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"),
        );
    }

    #[test]
    fn presentation_escapes_bytes_that_are_not_printable() {
        assert_eq!(Presented(b"\x04a.\n\xff\x01b\0").to_string(), "a\\.\\010\\255.b.");
    }
}
