//! Reasons why a service could not be resolved, in words for those who can mend it.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::advice;
use super::list::List;

/// Reason why a service could not be resolved.
///
/// Each message is one line that names the cause and what to do.
/// [`is_permanent`](Self::is_permanent) returns whether a later try may succeed.
///
/// # Examples
///
/// ```no_run
/// # async fn example(
/// #     resolver: &multinet_client::Resolver,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::ResolveError;
///
/// match resolver.resolve("infer.vision.svc.multinet", "rdma").await {
///     Ok(found) => println!("{:?}", found.endpoints),
///     Err(ResolveError::NoSuchName { tried, .. }) => println!("DNS knows none of {tried:?}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// No name of the search path exists (NXDOMAIN). The service does not exist, or none of its
    /// endpoints is ready: DNS does not tell the two apart.
    #[error(
        "{name}: no such service, or none of its endpoints is ready (DNS knows none of {}{}{}): {}",
        List(&absent(tried, unanswered)),
        unanswered_note(unanswered),
        wildcard_note(wildcard),
        advice::of_name(name, tried)
    )]
    NoSuchName {
        /// Service's name, as the caller gave it to the resolver.
        name: String,
        /// Full names that were tried in the search path, in order.
        tried: Vec<String>,
        /// Full names that were tried and have no answer. Either no service can have them, or the
        /// zone that knows the service has denied another one.
        unanswered: Vec<String>,
        /// First tried name that only a wildcard record answers for, so that it counts as absent.
        wildcard: Option<String>,
    },

    /// Some names of the search path do not exist, and DNS fails for one that the service may have.
    #[error("{failure} (these names do not exist: {})", List(absent))]
    Inconclusive {
        /// Service's name, as the caller gave it to the resolver.
        name: String,
        /// Full names in the search path that do not exist, or that only a wildcard answers for.
        absent: Vec<String>,
        /// Failure of DNS for another full name.
        failure: Box<Self>,
    },

    /// The service has endpoints, but none on the network that the caller wants.
    #[error(
        "{name} has no endpoint on the network {network}, only on {}: use an alias from the service's \
         spec.networks",
        List(networks)
    )]
    NoSuchNetwork {
        /// Full name of the service.
        name: String,
        /// Alias of the network that the caller wants.
        network: String,
        /// Aliases of the networks on which the service has endpoints.
        networks: Vec<String>,
    },

    /// The service exists, but has no port of the name that the caller wants.
    #[error("{}", advice::of_port(name, port, ports))]
    NoSuchPort {
        /// Full name of the service.
        name: String,
        /// Name of the port that the caller wants.
        port: String,
        /// Numbers of the named ports that the service has.
        ports: Vec<u16>,
    },

    /// The name exists in DNS, but has no address that can be connected to.
    #[error(
        "{name} exists, but has no address that can be connected to: if this lasts, its records are at fault, \
         see `multinet doctor`"
    )]
    NoAddress {
        /// Full name of the service.
        name: String,
    },

    /// A server answered with an error: SERVFAIL and the like (RFC 1035 §4.1.1).
    #[error(
        "{server} cannot answer for {name} ({code}): it, or a server behind it, is not ready or does not reach what \
         it needs; see its log"
    )]
    ServFail {
        /// DNS name that was queried.
        name: String,
        /// DNS server that answered with the error.
        server: SocketAddr,
        /// Response code of the server, in words.
        code: String,
    },

    /// A server refused the query (REFUSED): it does not serve this name, or not this client.
    #[error(
        "{server} refuses to answer for {name}: it is not responsible for this name; give the name in full \
         (….svc.multinet.cluster.local), ask the cluster's DNS, or have this server forward the zone"
    )]
    Refused {
        /// DNS name that was queried.
        name: String,
        /// DNS server that refused the query.
        server: SocketAddr,
    },

    /// No DNS server answered in time.
    #[error(
        "no answer for {name} from {}: is DNS up, and reachable from here (network policies, firewalls)?",
        List(servers)
    )]
    Timeout {
        /// DNS name that was queried.
        name: String,
        /// DNS servers that were queried.
        servers: Vec<SocketAddr>,
    },

    /// A server could not be queried at all, or its answer was no DNS message.
    #[error("cannot ask {server} for {name}: {reason}: is this the address of a DNS server?")]
    Unreachable {
        /// DNS name that was queried.
        name: String,
        /// DNS server that was queried last.
        server: SocketAddr,
        /// Cause of the failure, in words.
        reason: String,
    },

    /// The answer is too long for UDP, and the server cannot be reached over TCP.
    #[error(
        "the answer of {server} for {name} is too long for UDP, and TCP does not get through ({reason}): let TCP port \
         {} of the DNS server pass (network policies, firewalls)",
        server.port()
    )]
    NoTcp {
        /// DNS name that was queried.
        name: String,
        /// DNS server that truncated the answer.
        server: SocketAddr,
        /// Cause of the failure over TCP, in words.
        reason: String,
    },

    /// The answer is too long for a DNS message, which ends at 64 KiB: it is truncated over TCP,
    /// too.
    #[error(
        "the answer of {server} for {name} does not fit into a DNS message: ask for one network at a time \
         (<alias>._net.<service>), or spread the endpoints over several services"
    )]
    TooLarge {
        /// DNS name that was queried.
        name: String,
        /// DNS server that truncated the answer.
        server: SocketAddr,
    },

    /// The service has more than 10,000 endpoints, or more than 65,536 addresses in all.
    #[error(
        "{name} leads to more than 10,000 endpoints, or to more than 65,536 addresses of them: ask for one network at a \
         time (<alias>._net.<service>), or spread the endpoints over several services"
    )]
    TooMany {
        /// Full name of the service.
        name: String,
    },

    /// The DNS configuration names no server.
    #[error("{} names no DNS server: add a `nameserver` line, or name a server to ask", path.display())]
    NoServers {
        /// Configuration file that names no server, such as `/etc/resolv.conf`.
        path: PathBuf,
    },

    /// The text that the caller gave cannot be the name of a service.
    #[error("{name:?} is not the name of a service: {reason}")]
    BadName {
        /// Text that the caller gave as the service's name.
        name: String,
        /// Reason why the text is no name, in words.
        reason: &'static str,
    },

    /// The text that the caller gave is neither the name nor the number of a port.
    #[error("{port:?} is not a port: {reason}")]
    BadPort {
        /// Text that the caller gave as the port.
        port: String,
        /// Reason why the text is no port, in words.
        reason: &'static str,
    },

    /// The resolver's configuration file cannot be used.
    #[error("cannot use {} as DNS configuration: {reason}", path.display())]
    BadConfig {
        /// Configuration file, such as `/etc/resolv.conf`.
        path: PathBuf,
        /// Reason why the file cannot be used, in words.
        reason: String,
    },
}

impl ResolveError {
    /// Returns whether a later try fails as well, unless the query or the configuration is changed.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Resolver;
    ///
    /// let resolver = Resolver::builder().servers(["127.0.0.1:53".parse()?]).build()?;
    /// let wrong = resolver.resolve("infer.vision.svc.multinet", "no name of a port").await;
    /// // A later try fails as well.
    /// assert!(wrong.is_err_and(|error| error.is_permanent()));
    /// # Ok(()) }
    /// ```
    pub fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::NoServers { .. } | Self::BadName { .. } | Self::BadPort { .. } | Self::BadConfig { .. }
        )
    }

    /// Returns whether this is an answer, and not a failure: DNS knows that nothing is there.
    ///
    /// ```
    /// use multinet_client::ResolveError;
    ///
    /// let name = || "infer.vision.svc.multinet".to_owned();
    /// // DNS has answered that no endpoint is there; or it has not answered.
    /// assert!(ResolveError::NoAddress { name: name() }.is_negative());
    /// assert!(!ResolveError::Timeout { name: name(), servers: Vec::new() }.is_negative());
    /// ```
    pub fn is_negative(&self) -> bool {
        matches!(
            self,
            Self::NoSuchName { .. }
                | Self::NoSuchNetwork { .. }
                | Self::NoSuchPort { .. }
                | Self::NoAddress { .. }
        )
    }
}

impl ResolveError {
    /// Returns the failure of DNS that an [`Inconclusive`](Self::Inconclusive) outcome contains, or
    /// this error itself.
    pub(super) fn cause(&self) -> &Self {
        match self {
            Self::Inconclusive { failure, .. } => failure,
            error => error,
        }
    }
}

fn absent<'a>(tried: &'a [String], unanswered: &[String]) -> Vec<&'a str> {
    tried.iter().filter(|name| !unanswered.contains(name)).map(String::as_str).collect()
}

fn unanswered_note(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; it fails for {}", List(names)) }
}

fn wildcard_note(candidate: &Option<String>) -> String {
    candidate.as_ref().map_or_else(String::new, |name| format!("; only a wildcard record answers for {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> SocketAddr {
        "10.96.0.10:53".parse().unwrap()
    }

    #[test]
    fn messages_name_the_cause_in_one_line() {
        let name = || "infer.vision.svc.multinet".to_owned();
        let cases = [
            (
                ResolveError::NoTcp { name: name(), server: server(), reason: "refused".to_owned() },
                "the answer of 10.96.0.10:53 for infer.vision.svc.multinet is too long for UDP, and TCP does not get \
                 through (refused): let TCP port 53 of the DNS server pass (network policies, firewalls)",
            ),
            (
                ResolveError::NoSuchName {
                    name: "infer".to_owned(),
                    tried: ["infer.x.svc.multinet.cluster.local", "infer.corp.test"]
                        .map(str::to_owned)
                        .to_vec(),
                    unanswered: vec!["infer.corp.test".to_owned()],
                    wildcard: None,
                },
                "infer: no such service, or none of its endpoints is ready (DNS knows none of \
                 infer.x.svc.multinet.cluster.local; it fails for infer.corp.test): check name and namespace, and that \
                 its pods are ready and attached to the network",
            ),
            (
                ResolveError::Inconclusive {
                    name: "infer".to_owned(),
                    absent: vec!["infer.corp.test".to_owned()],
                    failure: Box::new(ResolveError::Timeout { name: name(), servers: vec![server()] }),
                },
                "no answer for infer.vision.svc.multinet from 10.96.0.10:53: is DNS up, and reachable from here \
                 (network policies, firewalls)? (these names do not exist: infer.corp.test)",
            ),
            (
                ResolveError::NoSuchNetwork {
                    name: name(),
                    network: "rail7".to_owned(),
                    networks: vec!["rail0".to_owned(), "rail1".to_owned()],
                },
                "infer.vision.svc.multinet has no endpoint on the network rail7, only on rail0, rail1: use an alias from \
                 the service's spec.networks",
            ),
            (
                ResolveError::ServFail { name: name(), server: server(), code: "Server Failure".to_owned() },
                "10.96.0.10:53 cannot answer for infer.vision.svc.multinet (Server Failure): it, or a server behind \
                 it, is not ready or does not reach what it needs; see its log",
            ),
            (
                ResolveError::Timeout { name: name(), servers: vec![server()] },
                "no answer for infer.vision.svc.multinet from 10.96.0.10:53: is DNS up, and reachable from here \
                 (network policies, firewalls)?",
            ),
            (
                ResolveError::BadName { name: "a\nb".to_owned(), reason: "no" },
                "\"a\\nb\" is not the name of a service: no",
            ),
        ];
        for (error, message) in cases {
            assert_eq!(error.to_string(), message);
        }
    }
}
