//! Kinds of text: the syntax of names, labels and device addresses.
//!
//! Each kind is one [`TextKind`] with the pattern that the API server checks. The functions of this
//! crate check the same pattern.
//!
//! All kinds are ASCII, so that a length in characters is one in bytes, as DNS counts them. None
//! allows control characters, so that all texts are safe in DNS TXT records.

use std::fmt;
use std::sync::OnceLock;

use regex::Regex;

/// Kind of text: a syntax and a length limit.
#[derive(Debug)]
pub struct TextKind {
    pattern: &'static str,
    max: usize,
    meaning: &'static str,
    compiled: OnceLock<Regex>,
}

impl TextKind {
    const fn new(pattern: &'static str, max: usize, meaning: &'static str) -> Self {
        Self { pattern, max, meaning, compiled: OnceLock::new() }
    }

    /// Returns whether `text` is of this kind.
    pub fn accepts(&self, text: &str) -> bool {
        text.chars().count() <= self.max && self.matches(text)
    }

    /// Returns whether `text` has the syntax of this kind, in any length.
    pub(crate) fn matches(&self, text: &str) -> bool {
        #[expect(clippy::expect_used, reason = "a test compiles every pattern")]
        let compile = || Regex::new(self.pattern).expect("the pattern is valid");
        self.compiled.get_or_init(compile).is_match(text)
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
}

/// Describes the kind in words: "a DNS label such as rdma-a (a-z, 0-9 and -, …), at most 63
/// characters".
impl fmt::Display for TextKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, at most {} characters", self.meaning, self.max)
    }
}

/// A DNS label in lower case (RFC 1123): names of services, namespaces, aliases and hosts.
pub static DNS_LABEL: TextKind = TextKind::new(
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    63,
    "a DNS label such as rdma-a (a-z, 0-9 and -, first and last not -)",
);

/// DNS labels joined by dots: names of most Kubernetes objects.
pub static DNS_SUBDOMAIN: TextKind = TextKind::new(
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    253,
    "a DNS name such as rdma-a or gpu.example.com (a-z, 0-9, - and ., each part beginning and ending with a-z or 0-9)",
);

/// The name of a port. The owner of its SRV record has the label `_name`, which leaves 62 of the 63
/// bytes of a label. An unnamed port has no SRV record.
pub static PORT_NAME: TextKind = TextKind::new(
    "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$",
    62,
    "empty or a DNS label such as rdma (a-z, 0-9 and -, first and last not -)",
);

/// A qualified name, `[prefix/]name`: label keys, application protocols. Kubernetes limits the
/// prefix to 253 characters and the name to 63. The limit of 253 for both implies that of the
/// prefix.
pub static QUALIFIED_NAME: TextKind = TextKind::new(
    concat!(
        r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
        r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
    ),
    253,
    "a name such as rdma or example.com/rdma (name: 1 to 63 of A-Z, a-z, 0-9, -, _ and .; prefix: a DNS name)",
);

/// The value of a label, possibly empty: selectors, zones.
pub static LABEL_VALUE: TextKind = TextKind::new(
    "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
    63,
    "empty or a label's value such as infer or v1.2 (A-Z, a-z, 0-9, -, _ and ., beginning and ending with a letter or digit)",
);

/// The name of a Linux network interface: at most IFNAMSIZ less the final zero, without `/`, `:`
/// and spaces (`dev_valid_name` in net/core/dev.c).
pub static INTERFACE: TextKind = TextKind::new(
    "^[!-.0-9;-~]+$",
    15,
    "the name of a network interface such as net1 (printable ASCII without /, : and spaces)",
);

/// A hardware address with colons: EUI-48, EUI-64, or the 20 bytes of IP over InfiniBand.
pub static MAC: TextKind = TextKind::new(
    concat!(
        "^([0-9A-Fa-f]{2}:){5}",
        "([0-9A-Fa-f]{2}|([0-9A-Fa-f]{2}:){2}[0-9A-Fa-f]{2}|([0-9A-Fa-f]{2}:){14}[0-9A-Fa-f]{2})$"
    ),
    59,
    "a hardware address of 6, 8 or 20 bytes, such as 02:00:00:00:00:01",
);

/// A PCI address with its domain, which has four hexadecimal digits, or more behind a VMD
/// controller.
pub static PCI_ADDRESS: TextKind = TextKind::new(
    r"^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\.[0-7]$",
    16,
    "a PCI address such as 0000:18:00.2",
);

/// Pattern of printable ASCII, not empty.
const PRINTABLE: &str = "^[ -~]+$";
const PRINTABLE_MEANING: &str = "printable ASCII, not empty";

/// Names of RDMA devices, joined by commas as the SR-IOV device plugin writes them.
pub static RDMA_DEVICE: TextKind = TextKind::new(PRINTABLE, 64, PRINTABLE_MEANING);
/// The kind of a Kubernetes object.
pub static KIND: TextKind = TextKind::new(PRINTABLE, 63, PRINTABLE_MEANING);
/// The UID of a Kubernetes object, which has 36 characters today.
pub static UID: TextKind = TextKind::new(PRINTABLE, 128, PRINTABLE_MEANING);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_at_the_edges_of_each_kind_are_accepted_or_refused() {
        let a = |length| "a".repeat(length);
        let cases: [(&TextKind, &str, bool); 29] = [
            (&DNS_LABEL, "a", true),
            (&DNS_LABEL, "0-9", true),
            (&DNS_LABEL, "", false),
            (&DNS_LABEL, "-a", false),
            (&DNS_LABEL, "a-", false),
            (&DNS_LABEL, "A", false),
            (&DNS_LABEL, "a\n", false),
            (&DNS_SUBDOMAIN, "a.b", true),
            (&DNS_SUBDOMAIN, "a..b", false),
            (&DNS_SUBDOMAIN, ".a", false),
            (&PORT_NAME, "", true),
            (&QUALIFIED_NAME, "example.com/rdma", true),
            (&QUALIFIED_NAME, "/rdma", false),
            (&QUALIFIED_NAME, "a/b/c", false),
            (&LABEL_VALUE, "", true),
            (&LABEL_VALUE, "A_b.c-d", true),
            (&LABEL_VALUE, "-", false),
            (&INTERFACE, "net1.100", true),
            (&INTERFACE, "net1:0", false),
            (&MAC, "02:00:00:00:00:01", true),
            (&MAC, "02:00:00:00:00:01:02", false),
            (&MAC, "2:00:00:00:00:01", false),
            (&PCI_ADDRESS, "0000:18:00.2", true),
            (&PCI_ADDRESS, "10000:e1:1f.7", true),
            (&PCI_ADDRESS, "18:00.2", false),
            (&PCI_ADDRESS, "0000:18:20.0", false),
            (&PCI_ADDRESS, "0000:18:00.8", false),
            (&RDMA_DEVICE, "mlx5_0,mlx5_1", true),
            (&KIND, "é", false),
        ];
        for (kind, text, expected) in cases {
            assert_eq!(kind.accepts(text), expected, "{kind:?} {text:?}");
        }
        for (kind, max) in
            [(&DNS_LABEL, 63), (&PORT_NAME, 62), (&DNS_SUBDOMAIN, 253), (&INTERFACE, 15), (&UID, 128)]
        {
            assert!(kind.accepts(&a(max)), "{kind:?}");
            assert!(!kind.accepts(&a(max + 1)), "{kind:?}");
        }
        assert!(QUALIFIED_NAME.accepts(&format!("{}/{}", a(189), a(63))));
        assert!(!QUALIFIED_NAME.accepts(&format!("{}/{}", a(190), a(63))));
        assert!(!QUALIFIED_NAME.accepts(&a(64)));
    }
}
