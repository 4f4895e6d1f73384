//! Validates addresses and device details that others report, and quotes them safely in messages
//! (pure).
//!
//! Pod annotations and claim statuses may contain anything. Their authors must not be able to make
//! a slice invalid or to forge log lines. All values from there pass through this module.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use multinet_crds::syntax::MAC;
use multinet_runtime::TerminalSafe;

use crate::limits::pods::{MAX_ADDRESSES, MAX_PROBLEMS};
use crate::model::{NoAddressReason, Unreadable};

/// Maximum length of quoted text in a message, in characters.
const QUOTED: usize = 40;

/// Highest NUMA node that the schema of slices allows.
const MAX_NUMA_NODE: i64 = 1023;

/// Problems found in a pod's annotations or in a claim, one line each.
#[derive(Default)]
pub(crate) struct Problems {
    lines: Vec<Unreadable>,
    more: usize,
}

impl Problems {
    /// Adds a problem, or only counts it if there are [`MAX_PROBLEMS`] already.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.lines.len() < MAX_PROBLEMS {
            self.lines.push(Unreadable(line()));
        } else {
            self.more += 1;
        }
    }

    /// Returns the lines. A last line tells how many more problems were found.
    pub(crate) fn into_lines(mut self) -> Vec<Unreadable> {
        if self.more > 0 {
            self.lines.push(Unreadable(format!("{} more problems of the same pod or claim", self.more)));
        }
        self.lines
    }
}

/// Quotes untrusted text for a message: escaped, on one line, and shortened.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", shortened(text, QUOTED))
}

/// Escapes untrusted text and shortens it to about `max` characters.
pub(crate) fn shortened(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", TerminalSafe(&text[..end])),
        None => TerminalSafe(text).to_string(),
    }
}

/// Returns the addresses in `texts` that can be published, each once and in order, or the reason
/// why none can. Reports the others as problems of `whose`. Link-local IPv6 addresses are left out
/// silently, since every interface has one, and it is useless without a zone.
pub(crate) fn addresses<T: AsRef<str>>(
    texts: &[T],
    whose: &dyn fmt::Display,
    problems: &mut Problems,
) -> Result<Vec<IpAddr>, NoAddressReason> {
    let mut addresses = Vec::new();
    let (mut beyond, mut has_link_local) = (0, false);
    for text in texts {
        match address(text.as_ref()) {
            Ok(None) => has_link_local = true,
            Ok(Some(address)) if addresses.contains(&address) => {}
            Ok(Some(_)) if addresses.len() >= MAX_ADDRESSES => beyond += 1,
            Ok(Some(address)) => addresses.push(address),
            Err(problem) => {
                problems.note(|| format!("{} of {whose} is left out: {problem}", quoted(text.as_ref())));
            }
        }
    }
    if beyond > 0 {
        problems.note(|| {
            format!("{whose} has {beyond} addresses beyond the first {MAX_ADDRESSES}; they are left out")
        });
    }
    match (addresses.is_empty(), has_link_local) {
        (false, _) => Ok(addresses),
        (true, true) => Err(NoAddressReason::LinkLocal),
        (true, false) => Err(NoAddressReason::NoAddress),
    }
}

/// Parses an address with an optional prefix length. Returns `None` for a link-local IPv6 address.
fn address(text: &str) -> Result<Option<IpAddr>, &'static str> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let (address, zone) = match address.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (address, None),
    };
    let address: IpAddr = address.parse().map_err(|_| "it is not an IP address")?;
    if !prefix.is_none_or(|prefix| is_prefix_length(prefix, address)) {
        return Err("it is an IP address with a wrong prefix length");
    }
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => return Ok(None),
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
            return Err("it is IPv4-mapped; report the IPv4 address itself");
        }
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => return Err("it is unspecified"),
        IpAddr::V4(address) if address.is_unspecified() => return Err("it is unspecified"),
        IpAddr::V4(address) if address.is_broadcast() => return Err("it is the broadcast address"),
        _ if address.is_loopback() => return Err("it is a loopback address"),
        _ if address.is_multicast() => return Err("it is a multicast address"),
        _ => {}
    }
    match zone {
        Some(_) => Err("it has a zone"),
        None => Ok(Some(address)),
    }
}

fn is_prefix_length(text: &str, address: IpAddr) -> bool {
    let longest = if address.is_ipv4() { 32 } else { 128 };
    text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u8>().is_ok_and(|length| length <= longest)
}

/// Returns the hardware address in lower case with colons, if it is valid.
pub(crate) fn mac(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase().replace('-', ":");
    MAC.accepts(&text).then_some(text)
}

/// Returns the NUMA node if it is valid. The kernel reports -1 for an unknown node.
pub(crate) fn numa_node(number: i64) -> Option<u16> {
    if number > MAX_NUMA_NODE { None } else { u16::try_from(number).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_addresses_are_parsed() {
        let cases = [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1/24", "192.0.2.1"),
            ("192.0.2.0/31", "192.0.2.0"),
            ("169.254.7.1", "169.254.7.1"),
            ("2001:DB8:0::1", "2001:db8::1"),
            ("fd00::1/128", "fd00::1"),
        ];
        for (text, expected) in cases {
            assert_eq!(address(text), Ok(Some(expected.parse().unwrap())), "{text}");
        }
    }

    #[test]
    fn addresses_that_cannot_be_published_are_refused() {
        let cases = [
            ("", "not an IP address"),
            ("<nil>", "not an IP address"),
            ("10.0.0.999", "not an IP address"),
            ("010.0.0.1", "not an IP address"),
            ("10.0.0.1 ", "not an IP address"),
            ("10.0.0.1:80", "not an IP address"),
            ("rail0", "not an IP address"),
            ("10.0.0.1/", "prefix length"),
            ("10.0.0.1/33", "prefix length"),
            ("10.0.0.1/+8", "prefix length"),
            ("10.0.0.1/8/8", "prefix length"),
            ("fd00::1/129", "prefix length"),
            ("::ffff:10.0.0.1", "IPv4-mapped"),
            ("::ffff:127.0.0.1", "IPv4-mapped"),
            ("0.0.0.0", "unspecified"),
            ("::", "unspecified"),
            ("255.255.255.255", "broadcast"),
            ("127.0.0.53/8", "loopback"),
            ("::1", "loopback"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("fd00::1%net1", "zone"),
        ];
        for (text, expected) in cases {
            let problem = address(text).expect_err(text);
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn link_local_ipv6_addresses_are_left_out_silently() {
        for text in ["fe80::1", "fe80::1/64", "fe80::1%net1", "fe80::1%net1/64"] {
            let mut problems = Problems::default();
            assert_eq!(addresses(&[text], &"net1", &mut problems), Err(NoAddressReason::LinkLocal), "{text}");
            assert!(problems.into_lines().is_empty(), "{text}");
        }
    }

    #[test]
    fn each_address_once_and_no_more_than_the_limit() {
        let mut texts = vec!["10.0.0.1", "fd00::1", "10.0.0.1/24", "fd00:0::1", "x"];
        let many: Vec<String> = (0..20).map(|i| format!("10.0.1.{i}")).collect();
        texts.extend(many.iter().map(String::as_str));
        let mut problems = Problems::default();
        let found = addresses(&texts, &"net1", &mut problems).unwrap();
        assert_eq!(found.len(), MAX_ADDRESSES);
        assert_eq!(
            found[..3],
            ["10.0.0.1", "fd00::1", "10.0.1.0"].map(|text| text.parse::<IpAddr>().unwrap())
        );
        let lines: Vec<String> = problems.into_lines().into_iter().map(|line| line.0).collect();
        assert_eq!(
            lines,
            [
                "\"x\" of net1 is left out: it is not an IP address",
                "net1 has 6 addresses beyond the first 16; they are left out"
            ]
        );
    }

    #[test]
    fn problems_above_the_limit_are_only_counted() {
        let mut problems = Problems::default();
        (0..100).for_each(|number| problems.note(|| format!("problem {number}")));
        let lines = problems.into_lines();
        assert_eq!(lines.len(), MAX_PROBLEMS + 1);
        assert_eq!(lines[MAX_PROBLEMS].0, "92 more problems of the same pod or claim");
    }

    #[test]
    fn quoted_text_is_short_and_on_one_line() {
        assert_eq!(quoted("a\nb\u{1b}"), "\"a\\nb\\u{1b}\"");
        assert_eq!(quoted(&"ä".repeat(40)).chars().count(), 42);
        assert_eq!(quoted(&"ä".repeat(41)), format!("\"{}…\"", "ä".repeat(40)));
    }

    #[test]
    fn device_details_are_validated() {
        assert_eq!(mac("AE:11:22:33:44:55").as_deref(), Some("ae:11:22:33:44:55"));
        assert_eq!(mac("AE-11-22-33-44-55").as_deref(), Some("ae:11:22:33:44:55"));
        assert_eq!(mac("ae11.2233.4455"), None);
        assert_eq!(mac(""), None);
        for (number, expected) in [(-1, None), (0, Some(0)), (1023, Some(1023)), (1024, None), (70_000, None)]
        {
            assert_eq!(numa_node(number), expected, "{number}");
        }
    }
}
