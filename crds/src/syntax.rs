//! Kinds of text: the syntax of names, labels and device addresses.
//!
//! Each kind is one [`TextKind`], which has the pattern that the API server checks next to the
//! equivalent Rust function. A property test checks that the two agree.
//!
//! All kinds are ASCII, so that a length in characters is one in bytes, as DNS counts them. None
//! allows control characters, so that all texts are safe in DNS TXT records.

use std::fmt;

/// Kind of text: a syntax and a length limit.
#[derive(Clone, Copy)]
pub struct TextKind {
    pattern: &'static str,
    max: usize,
    matches: fn(&str) -> bool,
    meaning: &'static str,
}

impl TextKind {
    /// Returns whether `text` is of this kind.
    pub fn accepts(&self, text: &str) -> bool {
        text.chars().count() <= self.max && (self.matches)(text)
    }

    /// Returns the length limit, in characters.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Returns the syntax without the length limit, as a regular expression for the API server. It
    /// has anchors, because RE2 matches substrings otherwise.
    pub fn pattern(&self) -> &'static str {
        self.pattern
    }

    /// Returns this kind with another length limit.
    const fn at_most(self, max: usize) -> Self {
        Self { max, ..self }
    }
}

/// Describes the kind in words: "a DNS label such as rdma-a (a-z, 0-9 and -, …), at most 63
/// characters".
impl fmt::Display for TextKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, at most {} characters", self.meaning, self.max)
    }
}

impl fmt::Debug for TextKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextKind").field("pattern", &self.pattern).field("max", &self.max).finish()
    }
}

/// A DNS label in lower case (RFC 1123): names of services, namespaces, aliases and hosts.
pub const DNS_LABEL: TextKind = TextKind {
    pattern: "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    max: 63,
    matches: is_dns_label,
    meaning: "a DNS label such as rdma-a (a-z, 0-9 and -, first and last not -)",
};

/// DNS labels joined by dots: names of most Kubernetes objects.
pub const DNS_SUBDOMAIN: TextKind = TextKind {
    pattern: r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    max: 253,
    matches: is_dns_subdomain,
    meaning: "a DNS name such as rdma-a or gpu.example.com (a-z, 0-9, - and ., each part beginning and ending with a-z or 0-9)",
};

/// The name of a port. The owner of its SRV record has the label `_name`, which leaves 62 of the 63
/// bytes of a label. An unnamed port has no SRV record.
pub const PORT_NAME: TextKind = TextKind {
    pattern: "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$",
    max: 62,
    matches: |text| text.is_empty() || is_dns_label(text),
    meaning: "empty or a DNS label such as rdma (a-z, 0-9 and -, first and last not -)",
};

/// A qualified name, `[prefix/]name`: label keys, application protocols. Kubernetes limits the
/// prefix to 253 characters and the name to 63. The limit of 253 for both implies that of the
/// prefix.
pub const QUALIFIED_NAME: TextKind = TextKind {
    pattern: concat!(
        r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
        r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
    ),
    max: 253,
    matches: is_qualified_name,
    meaning: "a name such as rdma or example.com/rdma (name: 1 to 63 of A-Z, a-z, 0-9, -, _ and .; prefix: a DNS name)",
};

/// The value of a label, possibly empty: selectors, zones.
pub const LABEL_VALUE: TextKind = TextKind {
    pattern: "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
    max: 63,
    matches: |text| text.is_empty() || is_label_name(text),
    meaning: "empty or a label's value such as infer or v1.2 (A-Z, a-z, 0-9, -, _ and ., beginning and ending with a letter or digit)",
};

/// The name of a Linux network interface: at most IFNAMSIZ less the final zero, without `/`, `:`
/// and spaces (`dev_valid_name` in net/core/dev.c).
pub const INTERFACE: TextKind = TextKind {
    pattern: "^[!-.0-9;-~]+$",
    max: 15,
    matches: |text| {
        !text.is_empty() && text.bytes().all(|b| matches!(b, b'!'..=b'.' | b'0'..=b'9' | b';'..=b'~'))
    },
    meaning: "the name of a network interface such as net1 (printable ASCII without /, : and spaces)",
};

/// A hardware address with colons: EUI-48, EUI-64, or the 20 bytes of IP over InfiniBand.
pub const MAC: TextKind = TextKind {
    pattern: concat!(
        "^([0-9A-Fa-f]{2}:){5}",
        "([0-9A-Fa-f]{2}|([0-9A-Fa-f]{2}:){2}[0-9A-Fa-f]{2}|([0-9A-Fa-f]{2}:){14}[0-9A-Fa-f]{2})$"
    ),
    max: 59,
    matches: is_mac,
    meaning: "a hardware address of 6, 8 or 20 bytes, such as 02:00:00:00:00:01",
};

/// A PCI address with its domain, which has four hexadecimal digits, or more behind a VMD
/// controller.
pub const PCI_ADDRESS: TextKind = TextKind {
    pattern: r"^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\.[0-7]$",
    max: 16,
    matches: is_pci_address,
    meaning: "a PCI address such as 0000:18:00.2",
};

/// Printable ASCII, not empty. A template: each kind made from it sets a length limit.
const PRINTABLE: TextKind = TextKind {
    pattern: "^[ -~]+$",
    max: 0,
    matches: |text| !text.is_empty() && text.bytes().all(|b| matches!(b, b' '..=b'~')),
    meaning: "printable ASCII, not empty",
};

/// Names of RDMA devices, joined by commas as the SR-IOV device plugin writes them.
pub const RDMA_DEVICE: TextKind = PRINTABLE.at_most(64);
/// The kind of a Kubernetes object.
pub const KIND: TextKind = PRINTABLE.at_most(63);
/// The UID of a Kubernetes object, which has 36 characters today.
pub const UID: TextKind = PRINTABLE.at_most(128);

fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    is_bounded_by(text, alphanumeric, |b| alphanumeric(b) || b == b'-')
}

fn is_dns_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

/// Checks the syntax, without length, of the name in a qualified name and of a label value.
fn is_label_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    is_bounded_by(text, |b| b.is_ascii_alphanumeric(), inner)
}

/// Returns whether `text` is not empty, its first and last bytes satisfy `outer`, and all others
/// satisfy `inner`.
fn is_bounded_by(text: &str, outer: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match text.as_bytes() {
        [] => false,
        [only] => outer(*only),
        [first, middle @ .., last] => outer(*first) && outer(*last) && middle.iter().all(|b| inner(*b)),
    }
}

/// Returns whether `text` is a qualified name within Kubernetes' limits: 253 characters for the
/// prefix, 63 for the name.
pub(crate) fn is_qualified_name(text: &str) -> bool {
    let name = match text.split_once('/') {
        Some((prefix, _)) if prefix.len() > DNS_SUBDOMAIN.max || !is_dns_subdomain(prefix) => return false,
        Some((_, name)) => name,
        None => text,
    };
    name.len() <= 63 && is_label_name(name)
}

fn is_mac(text: &str) -> bool {
    let mut bytes = 0;
    let valid = text.split(':').all(|byte| {
        bytes += 1;
        is_hex(byte, 2..=2)
    });
    valid && matches!(bytes, 6 | 8 | 20)
}

fn is_pci_address(text: &str) -> bool {
    let mut parts = text.split(':');
    let (Some(domain), Some(bus), Some(slot), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let Some((device, function)) = slot.split_once('.') else {
        return false;
    };
    is_hex(domain, 4..=8)
        && is_hex(bus, 2..=2)
        && is_hex(device, 2..=2)
        && device.starts_with(['0', '1'])
        && matches!(function.as_bytes(), [b'0'..=b'7'])
}

fn is_hex(text: &str, length: std::ops::RangeInclusive<usize>) -> bool {
    length.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use proptest::string::string_regex;
    use regex::Regex;

    use super::*;

    const ALL: [TextKind; 11] = [
        DNS_LABEL,
        DNS_SUBDOMAIN,
        PORT_NAME,
        QUALIFIED_NAME,
        LABEL_VALUE,
        INTERFACE,
        MAC,
        PCI_ADDRESS,
        RDMA_DEVICE,
        KIND,
        UID,
    ];

    /// Returns whether the API server accepts `text`, by length limit and pattern.
    fn api_server_accepts(kind: &TextKind, text: &str) -> bool {
        static COMPILED: LazyLock<HashMap<&str, Regex>> = LazyLock::new(|| {
            ALL.iter().map(|kind| (kind.pattern, Regex::new(kind.pattern).unwrap())).collect()
        });
        text.chars().count() <= kind.max && COMPILED[kind.pattern].is_match(text)
    }

    /// Generates texts of the kind, some of them changed at one position.
    fn near(kind: TextKind) -> impl Strategy<Value = String> {
        let inside = kind.pattern.trim_start_matches('^').trim_end_matches('$');
        (string_regex(inside).unwrap(), any::<prop::sample::Index>(), prop::option::of("[ -~\n\u{0}é]|"))
            .prop_map(|(text, place, change)| {
                let mut chars: Vec<char> = text.chars().collect();
                if let (Some(change), false) = (change, chars.is_empty()) {
                    let place = place.index(chars.len());
                    chars.splice(place..=place, change.chars());
                }
                chars.into_iter().collect()
            })
    }

    proptest! {
        #[test]
        fn functions_and_patterns_agree(
            (kind, text) in prop::sample::select(ALL.to_vec()).prop_flat_map(|kind| (Just(kind), near(kind)))
        ) {
            prop_assert_eq!(kind.accepts(&text), api_server_accepts(&kind, &text), "{:?} {:?}", kind, text);
        }

        #[test]
        fn lengths_agree(kind in prop::sample::select(ALL.to_vec()), length in 0_usize..300, unit in "[a0é]") {
            let text = unit.repeat(length);
            prop_assert_eq!(kind.accepts(&text), api_server_accepts(&kind, &text), "{:?} {:?}", kind, text);
        }
    }

    #[test]
    fn texts_at_the_edges_of_each_kind_are_accepted_or_refused() {
        let a = |length| "a".repeat(length);
        let cases: [(TextKind, &str, bool); 26] = [
            (DNS_LABEL, "a", true),
            (DNS_LABEL, "0-9", true),
            (DNS_LABEL, "", false),
            (DNS_LABEL, "-a", false),
            (DNS_LABEL, "a-", false),
            (DNS_LABEL, "A", false),
            (DNS_LABEL, "a\n", false),
            (DNS_SUBDOMAIN, "a.b", true),
            (DNS_SUBDOMAIN, "a..b", false),
            (DNS_SUBDOMAIN, ".a", false),
            (PORT_NAME, "", true),
            (QUALIFIED_NAME, "example.com/rdma", true),
            (QUALIFIED_NAME, "/rdma", false),
            (QUALIFIED_NAME, "a/b/c", false),
            (LABEL_VALUE, "", true),
            (LABEL_VALUE, "A_b.c-d", true),
            (LABEL_VALUE, "-", false),
            (INTERFACE, "net1.100", true),
            (INTERFACE, "net1:0", false),
            (MAC, "02:00:00:00:00:01", true),
            (MAC, "02:00:00:00:00:01:02", false),
            (MAC, "2:00:00:00:00:01", false),
            (PCI_ADDRESS, "0000:18:00.2", true),
            (PCI_ADDRESS, "10000:e1:1f.7", true),
            (PCI_ADDRESS, "0000:18:20.0", false),
            (PCI_ADDRESS, "0000:18:00.8", false),
        ];
        for (kind, text, expected) in cases {
            assert_eq!(kind.accepts(text), expected, "{kind:?} {text:?}");
        }
        for (kind, max) in
            [(DNS_LABEL, 63), (PORT_NAME, 62), (DNS_SUBDOMAIN, 253), (INTERFACE, 15), (UID, 128)]
        {
            assert!(kind.accepts(&a(max)), "{kind:?}");
            assert!(!kind.accepts(&a(max + 1)), "{kind:?}");
        }
        assert!(QUALIFIED_NAME.accepts(&format!("{}/{}", a(189), a(63))));
        assert!(!QUALIFIED_NAME.accepts(&format!("{}/{}", a(190), a(63))));
        assert!(!QUALIFIED_NAME.accepts(&a(64)));
    }
}
