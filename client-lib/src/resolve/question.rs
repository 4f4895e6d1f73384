//! The name of a service and a port, as a caller gives them, and the full names that they may stand
//! for.

use std::net::IpAddr;

use super::error::ResolveError;

/// Longest domain name as text, without the dot at its end (RFC 1035 §2.3.4).
const MAX_NAME: usize = 253;
/// Maximum length of a DNS label, in bytes.
const MAX_LABEL: usize = 63;
/// Maximum length of a port's name, in bytes: its label has a `_` before it.
const MAX_PORT_NAME: usize = MAX_LABEL - 1;
/// Labels between the alias of a network, or a topology zone, and the service's name.
pub(super) const NETWORK: &str = "._net.";
pub(super) const ZONE: &str = "._zone.";
/// Bytes of an SRV record's owner beside the names of the port and of the service: `_` and
/// `._tcp.`.
const SRV_PREFIX: usize = 7;

/// Name of a service and a port, parsed.
///
/// # Examples
///
/// ```
/// use multinet_client::resolve::Question;
///
/// let question = Question::parse("infer.vision.svc.multinet", "rdma")?;
/// assert_ne!(question, Question::parse("infer.vision.svc.multinet", "18515")?);
/// # Ok::<(), multinet_client::ResolveError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub(super) host: Host,
    pub(super) port: Ports,
}

/// Name or address part of a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// Name of a service in lower case, without the dot at its end.
    Name {
        name: String,
        /// Whether it had a dot at its end, so that no domain is appended.
        is_absolute: bool,
    },
    /// IP address in place of a service's name. No query is needed for it.
    Address(IpAddr),
}

/// Port part of a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ports {
    /// Name of a service port, in lower case.
    Named(String),
    Number(u16),
    /// Every named port of the service, given as `*`.
    All,
}

impl Question {
    /// Parses the name of a service, or an IP address, and a port, as
    /// [`Resolver::resolve`](super::Resolver::resolve) takes them. Sends no query.
    ///
    /// ```
    /// use multinet_client::resolve::Question;
    ///
    /// let error = Question::parse("infer.vision.svc.multinet", "70000").unwrap_err();
    /// assert!(error.is_permanent(), "numbers of ports are from 1 to 65535");
    /// ```
    ///
    /// # Errors
    ///
    /// [`ResolveError::BadName`] and [`ResolveError::BadPort`].
    pub fn parse(name: &str, port: &str) -> Result<Self, ResolveError> {
        let question = Self { host: Host::parse(name)?, port: Ports::parse(port)? };
        match question {
            Self { host: Host::Address(_), port: Ports::Named(_) | Ports::All } => {
                Err(ResolveError::BadPort {
                    port: port.to_owned(),
                    reason: "an address has no named ports; give the port's number",
                })
            }
            _ => Ok(question),
        }
    }
}

impl Host {
    fn parse(text: &str) -> Result<Self, ResolveError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let (name, is_absolute) = match text.strip_suffix('.') {
            Some(name) => (name, true),
            None => (text, false),
        };
        match flaw(name) {
            None => Ok(Self::Name { name: name.to_ascii_lowercase(), is_absolute }),
            Some(reason) => Err(ResolveError::BadName { name: text.to_owned(), reason }),
        }
    }
}

/// Returns the service of a name, in lower case and without the alias of a network.
pub(crate) fn service_of(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    name.split_once(NETWORK).map(|(_, service)| service.to_owned()).unwrap_or(name)
}

/// Returns whether a text is a DNS name of the letters that host names have.
pub(super) fn is_name(text: &str) -> bool {
    flaw(text).is_none()
}

/// Returns the reason why a text is no DNS name of letters that host names have. `None` if it is
/// one.
pub(crate) fn flaw(name: &str) -> Option<&'static str> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if name.len() > MAX_NAME {
        Some("it is longer than 253 characters")
    } else if name.split('.').any(str::is_empty) {
        Some("it is empty, or has two dots in a row")
    } else if name.split('.').any(|label| label.len() > MAX_LABEL) {
        Some("a part between two dots is longer than 63 characters")
    } else if !name.bytes().all(|b| b == b'.' || allowed(b)) {
        Some("only letters, digits, '-', '_' and '.' may stand in it, and no port")
    } else {
        None
    }
}

impl Ports {
    /// Parses a port. Digits are always a number, because the name of a port has a letter in
    /// Kubernetes.
    fn parse(text: &str) -> Result<Self, ResolveError> {
        let bad = |reason| Err(ResolveError::BadPort { port: text.to_owned(), reason });
        let is_label = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            match text.parse() {
                Ok(number @ 1..) => Ok(Self::Number(number)),
                _ => bad("numbers of ports are from 1 to 65535"),
            }
        } else if text == "*" {
            Ok(Self::All)
        } else if text.is_empty() || text.len() > MAX_PORT_NAME || !text.bytes().all(is_label) {
            bad(
                "give the name of a service port (letters, digits and '-', at most 62 characters), or a number",
            )
        } else {
            Ok(Self::Named(text.to_ascii_lowercase()))
        }
    }

    /// Returns the length of the labels before the service's name in the longest query, in bytes.
    fn prefix(&self) -> usize {
        match self {
            Self::Named(name) => SRV_PREFIX + name.len(),
            Self::Number(_) | Self::All => 0,
        }
    }
}

/// Returns the full names that `name` may stand for, in the order in which they are tried, without
/// repeats.
///
/// As in resolv.conf(5), a name with fewer dots than `ndots` is tried with the search path first,
/// and any other as it stands first. Only dots of the service's name count, not those of the port's
/// labels, which the resolver adds. A full name is left out if it does not fit into DNS together
/// with them.
pub(super) fn candidates(
    name: &str,
    is_absolute: bool,
    port: &Ports,
    search: &[String],
    ndots: usize,
) -> Vec<String> {
    let itself = || std::iter::once(name.to_owned());
    let searched = search.iter().map(|domain| format!("{name}.{}", domain.to_ascii_lowercase()));
    let all: Vec<String> = if is_absolute {
        itself().collect()
    } else if name.bytes().filter(|b| *b == b'.').count() >= ndots {
        itself().chain(searched).collect()
    } else {
        searched.chain(itself()).collect()
    };
    let mut candidates = Vec::with_capacity(all.len());
    for candidate in all {
        let fits = flaw(&candidate).is_none() && port.prefix() + candidate.len() <= MAX_NAME;
        if fits && !candidates.contains(&candidate) {
            candidates.push(candidate);
        }
    }
    candidates
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(name: &str, is_absolute: bool) -> Host {
        Host::Name { name: name.to_owned(), is_absolute }
    }

    #[test]
    fn a_name_and_a_port_are_parsed() {
        let good = [
            (
                "infer.vision.svc.multinet",
                "rdma",
                name("infer.vision.svc.multinet", false),
                Ports::Named("rdma".into()),
            ),
            ("Infer.Vision.", "RDMA", name("infer.vision", true), Ports::Named("rdma".into())),
            ("rail0._net.infer", "18515", name("rail0._net.infer", false), Ports::Number(18515)),
            ("10.0.0.1", "1", Host::Address("10.0.0.1".parse().unwrap()), Ports::Number(1)),
            ("fd00::1", "65535", Host::Address("fd00::1".parse().unwrap()), Ports::Number(65535)),
            ("1.2.3", "4u", name("1.2.3", false), Ports::Named("4u".into())),
            ("infer.vision", "*", name("infer.vision", false), Ports::All),
        ];
        for (host, port, expected_host, expected_port) in good {
            let expected = Question { host: expected_host, port: expected_port };
            assert_eq!(Question::parse(host, port), Ok(expected), "{host} {port}");
        }
    }

    #[test]
    fn impossible_names_and_ports_are_refused() {
        let long = "x".repeat(64);
        for host in ["", ".", "a..b", ".a", "a b", "infer:18515", "a\n", "ä", &long, &"a.".repeat(128)] {
            assert!(matches!(Question::parse(host, "p"), Err(ResolveError::BadName { .. })), "{host:?}");
        }
        for port in ["", "0", "65536", "99999999999999999999", "a_b", "-1.0", "p\n", &long] {
            assert!(matches!(Question::parse("a", port), Err(ResolveError::BadPort { .. })), "{port:?}");
        }
        for port in ["rdma", "*"] {
            assert!(matches!(Question::parse("10.0.0.1", port), Err(ResolveError::BadPort { .. })), "{port}");
        }
    }

    #[test]
    fn candidates_follow_the_search_path_and_ndots() {
        let search = ["vision.svc.cluster.local", "svc.cluster.local", "cluster.local"].map(str::to_owned);
        let port = Ports::Named("rdma".to_owned());
        let cases: [(&str, bool, usize, &[&str]); 5] = [
            (
                "infer.vision.svc.multinet",
                false,
                5,
                &[
                    "infer.vision.svc.multinet.vision.svc.cluster.local",
                    "infer.vision.svc.multinet.svc.cluster.local",
                    "infer.vision.svc.multinet.cluster.local",
                    "infer.vision.svc.multinet",
                ],
            ),
            // Three dots suffice for ndots:3. The dots of the port's labels do not count.
            (
                "infer.vision.svc.multinet",
                false,
                3,
                &[
                    "infer.vision.svc.multinet",
                    "infer.vision.svc.multinet.vision.svc.cluster.local",
                    "infer.vision.svc.multinet.svc.cluster.local",
                    "infer.vision.svc.multinet.cluster.local",
                ],
            ),
            ("infer.vision.svc.multinet", true, 5, &["infer.vision.svc.multinet"]),
            ("a", true, 0, &["a"]),
            ("a", false, 0, &["a", "a.vision.svc.cluster.local", "a.svc.cluster.local", "a.cluster.local"]),
        ];
        for (name, is_absolute, ndots, expected) in cases {
            assert_eq!(candidates(name, is_absolute, &port, &search, ndots), expected, "{name} {ndots}");
        }
    }

    #[test]
    fn names_that_do_not_fit_are_left_out() {
        let search = ["B", "b", "not a domain", &["x".repeat(63).as_str(); 3].join(".")].map(str::to_owned);
        let long = ["y".repeat(59).as_str(), "a"].join(".");
        assert_eq!(
            candidates(&long, false, &Ports::Number(1), &search, 5),
            [format!("{long}.b"), format!("{long}.{}", search[3]), long.clone()]
        );
        assert_eq!(
            candidates(&long, false, &Ports::Named("p".to_owned()), &search, 5),
            [format!("{long}.b"), long.clone()]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_question_or_an_error(host in "\\PC{0,80}|[a-zA-Z0-9._-]{0,300}", port in "\\PC{0,10}|[a-z0-9-]{0,70}") {
            if let Ok(Question { host: Host::Name { name, is_absolute }, port }) = Question::parse(&host, &port) {
                for candidate in candidates(&name, is_absolute, &port, &["a.b".to_owned()], 2) {
                    prop_assert!(flaw(&candidate).is_none());
                    prop_assert!(candidate.starts_with(&name));
                }
            }
        }
    }
}
