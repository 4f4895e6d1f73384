//! The contents of `resolv.conf`, as resolv.conf(5) and the C library define them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

/// Limit of the C library on servers (`MAXNS`). Other programs of the pod query no further ones,
/// either.
const MAX_SERVERS: usize = 3;
/// Limits of the C library on the options of `resolv.conf` (`RES_MAXNDOTS`, `RES_MAXRETRANS` in
/// seconds, `RES_MAXRETRY`).
const MAX_NDOTS: usize = 15;
const MAX_TIMEOUT: u64 = 30;
const MAX_ATTEMPTS: usize = 5;
/// Maximum number of domains in the search path: Kubernetes allows 32.
const MAX_SEARCH: usize = 32;

/// Default port of DNS servers.
pub(super) const DNS_PORT: u16 = 53;

/// Settings of a `resolv.conf`, with the C library's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conf {
    /// DNS servers, in the order in which they are queried.
    pub(super) servers: Vec<SocketAddr>,
    /// Domains of the search path, to append in this order to a name that is not absolute.
    pub(super) search: Vec<String>,
    /// Number of dots from which on a name is tried as it stands before the search path.
    pub(super) ndots: usize,
    /// Time to wait for an answer of one server. `None` if the file does not set it.
    pub(super) timeout: Option<Duration>,
    /// Maximum number of rounds in which all servers are queried.
    pub(super) attempts: usize,
}

impl Default for Conf {
    fn default() -> Self {
        Self { servers: Vec::new(), search: Vec::new(), ndots: 1, timeout: None, attempts: 2 }
    }
}

impl Conf {
    /// Parses a file. Lines that are not understood are skipped, as by the C library. `index_of`
    /// returns the index of an interface, for addresses such as `fe80::1%eth0`.
    pub(super) fn parse(text: &str, index_of: impl Fn(&str) -> Option<u32>) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => conf.add_server(words.next(), &index_of),
                // The last line of the kind counts.
                Some("search") => conf.search = words.take(MAX_SEARCH).filter_map(domain).collect(),
                Some("domain") => conf.search = words.take(1).filter_map(domain).collect(),
                Some("options") => words.for_each(|word| conf.set_option(word)),
                _ => {}
            }
        }
        conf
    }

    fn add_server(&mut self, word: Option<&str>, index_of: impl Fn(&str) -> Option<u32>) {
        let Some(server) = word.and_then(|word| server(word, index_of)) else { return };
        if self.servers.len() < MAX_SERVERS {
            self.servers.push(server);
        }
    }

    fn set_option(&mut self, word: &str) {
        let Some((option, value)) = word.split_once(':') else { return };
        match (option, value.parse::<usize>()) {
            ("ndots", Ok(ndots)) => self.ndots = ndots.min(MAX_NDOTS),
            ("timeout", Ok(seconds)) => {
                self.timeout = Some(Duration::from_secs((seconds as u64).clamp(1, MAX_TIMEOUT)));
            }
            ("attempts", Ok(attempts)) => self.attempts = attempts.clamp(1, MAX_ATTEMPTS),
            _ => {}
        }
    }
}

/// Parses an address. An IPv6 address may have an interface after a `%`.
fn server(word: &str, index_of: impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let Some((ip, interface)) = word.split_once('%') else {
        return Some(SocketAddr::new(word.parse::<IpAddr>().ok()?, DNS_PORT));
    };
    let index = index_of(interface).or_else(|| interface.parse().ok())?;
    Some(SocketAddrV6::new(ip.parse::<Ipv6Addr>().ok()?, DNS_PORT, 0, index).into())
}

/// Returns a domain of the search path without the dot at its end. The root is left out, since it
/// adds nothing to a name.
fn domain(word: &str) -> Option<String> {
    let domain = word.strip_suffix('.').unwrap_or(word);
    (!domain.is_empty()).then(|| domain.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Conf {
        Conf::parse(text, |interface| (interface == "eth0").then_some(2))
    }

    fn servers(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_pods_resolv_conf_is_read() {
        let conf = parse(
            "search vision.svc.cluster.local svc.cluster.local cluster.local\n\
             nameserver 10.96.0.10\n\
             options ndots:5\n",
        );
        assert_eq!(
            conf,
            Conf {
                servers: servers(&["10.96.0.10:53"]),
                search: ["vision.svc.cluster.local", "svc.cluster.local", "cluster.local"]
                    .map(str::to_owned)
                    .to_vec(),
                ndots: 5,
                timeout: None,
                attempts: 2,
            }
        );
    }

    #[test]
    fn lines_that_are_not_understood_are_skipped() {
        let cases: [(&str, Conf); 9] = [
            ("", Conf::default()),
            ("# nameserver 10.0.0.1\n; nameserver 10.0.0.1\nsortlist 1.2.3.4\nnameserver\n", Conf::default()),
            (
                "nameserver fd00::a # cluster\nnameserver nonsense\nnameserver 10.0.0.1%eth0\nnameserver fe80::1%eth7\n",
                Conf { servers: servers(&["[fd00::a]:53"]), ..Conf::default() },
            ),
            (
                "nameserver fe80::1%eth0\nnameserver fe80::1%3\n",
                Conf { servers: servers(&["[fe80::1%2]:53", "[fe80::1%3]:53"]), ..Conf::default() },
            ),
            (
                "nameserver 10.0.0.1\r\nnameserver 10.0.0.2\nnameserver 10.0.0.3\nnameserver 10.0.0.4",
                Conf { servers: servers(&["10.0.0.1:53", "10.0.0.2:53", "10.0.0.3:53"]), ..Conf::default() },
            ),
            ("search a b\nsearch c.\n", Conf { search: vec!["c".to_owned()], ..Conf::default() }),
            ("search a\ndomain b c\n", Conf { search: vec!["b".to_owned()], ..Conf::default() }),
            ("search .\n", Conf::default()),
            (
                "options ndots:99 timeout:0 attempts:0 rotate edns0 ndots:x\noptions attempts:9 trust-ad",
                Conf {
                    ndots: MAX_NDOTS,
                    timeout: Some(Duration::from_secs(1)),
                    attempts: MAX_ATTEMPTS,
                    ..Conf::default()
                },
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_bounded_configuration(
            text in "((nameserver|search|domain|options|[a-z]{1,3})[ \t](([0-9.]{1,9}|[a-z.:%]{1,9}|ndots:[0-9]{1,20}) ?){0,5}\n|\\PC{0,20}){0,20}"
        ) {
            let conf = parse(&text);
            prop_assert!(conf.servers.len() <= MAX_SERVERS && conf.search.len() <= MAX_SEARCH);
            prop_assert!(conf.ndots <= MAX_NDOTS && (1..=MAX_ATTEMPTS).contains(&conf.attempts));
        }
    }
}
