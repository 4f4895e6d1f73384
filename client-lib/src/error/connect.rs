//! Errors of connecting to the peers of a service.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

use crate::handshake::{HandshakeError, RefusalCode};
use crate::nic::{Obstacle, RouteError};
use crate::resolve::ResolveError;
use crate::tls::TlsError;

/// Error of [`Connector::connect`](crate::Connector::connect).
///
/// # Examples
///
/// ```no_run
/// # async fn example(connector: &multinet_client::Connector)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::ConnectError;
///
/// match connector.connect("infer.vision.svc.multinet", "rdma").await {
///     Ok(peers) => println!("{:?}", peers.peers()),
///     // The service may be scaled to zero.
///     Err(ConnectError::NoEndpoint { waited, .. }) => println!("no pod within {waited:?}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The service's name or port, or the resolver's configuration, is wrong.
    #[error("cannot resolve {name}: {source}")]
    Resolve {
        /// Service's name, as the caller gave it to `connect`.
        name: String,
        /// Error of the resolver.
        source: ResolveError,
    },
    /// DNS named no endpoint of the service within the time limit.
    #[error("{name} had no endpoint within {} s: {last}", waited.as_secs())]
    NoEndpoint {
        /// Service's name, as the caller gave it to `connect`.
        name: String,
        /// Time waited for an endpoint.
        waited: Duration,
        /// Latest answer or error of DNS, in words.
        last: String,
    },
    /// None of the peers can be connected, and waiting would not change that
    /// ([`DialError::is_lasting`]).
    #[error("no peer of {name} can be connected: {last}")]
    Lasting {
        /// Service's name, as the caller gave it to `connect`.
        name: String,
        /// Reason why one of the peers cannot be connected.
        last: Arc<DialError>,
    },
    /// DNS named endpoints, but none could be connected within the time limit.
    #[error("could not connect to any of {count} peers of {name} within {} s; one of them: {}", waited.as_secs(), or_connecting(.last))]
    NoPeer {
        /// Service's name, as the caller gave it to `connect`.
        name: String,
        /// Number of endpoints that DNS named.
        count: usize,
        /// Time waited for a connection.
        waited: Duration,
        /// Latest reason for one of them. `None` if no attempt has ended yet.
        last: Option<Arc<DialError>>,
    },
}

/// Reason why one peer could not be connected, as in
/// [`PeerStatus::last_error`](crate::PeerStatus::last_error) and in the log.
///
/// # Examples
///
/// ```no_run
/// # fn example(peers: &multinet_client::PeerSet) {
/// use multinet_client::{DialError, RefusalCode};
///
/// for status in peers.status() {
///     match status.last_error.as_deref() {
///         Some(DialError::Refused { code: RefusalCode::Full, name, .. }) => {
///             println!("{name} has too many senders");
///         }
///         Some(error) => println!("{error}; tried again"),
///         None => {}
///     }
/// }
/// # }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DialError {
    /// No permitted route leads to the peer.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The endpoint has no address on the wanted network.
    #[error("the endpoint has no address on the network {network}; its networks: {has}")]
    Network {
        /// Alias of the wanted network.
        network: String,
        /// Aliases of the networks that the endpoint has addresses on, for people.
        has: String,
    },
    /// The TCP connection failed: the kernel reported an error, or no host answered.
    #[error("{peer} from {from}: {source}{}", in_brackets(obstacle.as_ref()))]
    Connect {
        /// Address of the peer.
        peer: SocketAddr,
        /// Local address that the connection was attempted from.
        from: IpAddr,
        /// Error of the kernel.
        source: io::Error,
        /// Likely cause of the failure. `None` if nothing suggests one.
        obstacle: Option<Obstacle>,
    },
    /// The peer did not finish a step of connecting within the time limit.
    #[error("{peer} did not {what} within {} s{}", after.as_secs(), in_brackets(obstacle.as_ref()))]
    Timeout {
        /// Address of the peer.
        peer: SocketAddr,
        /// Step that the peer did not finish, such as `finish the handshake`.
        what: &'static str,
        /// Time limit for the step.
        after: Duration,
        /// Likely cause of the delay. `None` if nothing suggests one.
        obstacle: Option<Obstacle>,
    },
    /// The TLS handshake with the peer failed.
    #[error("{peer}: {source}")]
    Tls {
        /// Address of the peer.
        peer: SocketAddr,
        /// Error of the TLS handshake.
        source: TlsError,
    },
    /// The peer answered with something else than multinet's handshake.
    #[error("{peer} answered with something else than a handshake: {source}")]
    Handshake {
        /// Address of the peer.
        peer: SocketAddr,
        /// Fault in the peer's answer.
        source: HandshakeError,
    },
    /// The peer closed the connection during the handshake.
    #[error(
        "{peer} closed the connection during the handshake: it is stopping, full, or no peer of multinet"
    )]
    Closed {
        /// Address of the peer.
        peer: SocketAddr,
    },
    /// This side or the peer allows only RDMA, but RDMA between them does not work.
    #[error("{peer} cannot be reached by RDMA: {reason}")]
    Rdma {
        /// Address of the peer.
        peer: SocketAddr,
        /// Reason why RDMA does not work, with what to do about it.
        reason: String,
        /// Whether further attempts are expected to fail for the same reason.
        is_lasting: bool,
    },
    /// The peer refused the connection in its answer to the handshake.
    #[error("{peer} ({name}) refuses: {message}")]
    Refused {
        /// Address of the peer.
        peer: SocketAddr,
        /// Endpoint that refused: first label of its DNS name, and its port.
        name: String,
        /// Peer's reason for the refusal, for programs.
        code: RefusalCode,
        /// Peer's reason for the refusal, for people.
        message: String,
    },
    /// The peer is another pod than DNS names.
    #[error(
        "{peer} is pod {found} with uid {uid}, not {expected}: the address has a new owner; DNS will follow soon"
    )]
    WrongPeer {
        /// Address of the peer.
        peer: SocketAddr,
        /// Pod name that the peer gave in the handshake.
        found: String,
        /// Uid of the pod that answered.
        uid: String,
        /// Uid of the pod that DNS names at this address.
        expected: String,
    },
}

impl DialError {
    /// Returns whether further attempts are expected to fail, too: for example a refused
    /// certificate, a missing permission, a route by the default network, or a peer that is another
    /// program.
    ///
    /// ```
    /// use multinet_client::{DialError, HandshakeError};
    ///
    /// let peer = "192.168.111.5:80".parse()?;
    /// assert!(DialError::Handshake { peer, source: HandshakeError::Magic }.is_lasting());
    /// assert!(!DialError::Closed { peer }.is_lasting(), "it may be restarting");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_lasting(&self) -> bool {
        match self {
            // A NIC that is down may come up.
            Self::Route(error) => {
                matches!(error, RouteError::DefaultNetwork { down: None, .. } | RouteError::LinkLocal { .. })
            }
            // EPERM comes from this host's own firewall. A reject from the network, which may pass,
            // is EACCES by IPv6.
            Self::Connect { source, .. } => source.raw_os_error() == Some(Errno::EPERM as i32),
            Self::Tls { source, .. } => source.is_lasting(),
            Self::Handshake { .. } => true,
            Self::Rdma { is_lasting, .. } => *is_lasting,
            Self::Refused { code, .. } => {
                let lasting =
                    [RefusalCode::Version, RefusalCode::Service, RefusalCode::Malformed, RefusalCode::Role];
                lasting.contains(code)
            }
            // Pods come and go, and the next one may be the right one.
            Self::Network { .. } | Self::Timeout { .. } | Self::Closed { .. } | Self::WrongPeer { .. } => {
                false
            }
        }
    }
}

fn or_connecting(last: &Option<Arc<DialError>>) -> String {
    last.as_ref().map_or_else(|| "still connecting".to_owned(), ToString::to_string)
}

fn in_brackets(obstacle: Option<&Obstacle>) -> String {
    obstacle.map_or_else(String::new, |obstacle| format!(" ({obstacle})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_waiting_does_not_change_are_lasting() {
        let (peer, from) = (SocketAddr::from(([192, 168, 111, 5], 18515)), IpAddr::from([192, 168, 111, 4]));
        let connect = |errno: Errno| DialError::Connect { peer, from, source: errno.into(), obstacle: None };
        let default_network = |down: Option<&str>| {
            DialError::from(RouteError::DefaultNetwork {
                peer: from,
                interface: "eth0".to_owned(),
                source_address: from,
                down: down.map(str::to_owned),
            })
        };
        let tls = |source| DialError::Tls { peer, source };
        let refused = |code| {
            let (name, message) = ("infer-0".to_owned(), String::new());
            DialError::Refused { peer, name, code, message }
        };
        let lasting = [
            connect(Errno::EPERM),
            tls(TlsError::NoCertificate),
            tls(TlsError::PlainListener),
            refused(RefusalCode::Service),
            DialError::Handshake { peer, source: HandshakeError::Version(9) },
            RouteError::LinkLocal { peer: from }.into(),
            default_network(None),
        ];
        assert!(lasting.iter().all(DialError::is_lasting), "{lasting:?}");
        let passing = [
            connect(Errno::ECONNREFUSED),
            connect(Errno::EHOSTUNREACH),
            connect(Errno::EACCES),
            tls(TlsError::Closed),
            refused(RefusalCode::Full),
            refused(RefusalCode::Pod),
            DialError::Closed { peer },
            default_network(Some("net1 is down")),
        ];
        assert!(!passing.iter().any(DialError::is_lasting), "{passing:?}");
    }

    #[test]
    fn messages_name_the_peer_the_cause_and_the_remedy() {
        let (peer, from) = (SocketAddr::from(([192, 168, 111, 5], 18515)), IpAddr::from([192, 168, 111, 4]));
        let (source, obstacle) = (io::ErrorKind::ConnectionRefused.into(), Some(Obstacle::NotListening));
        let refused = DialError::Connect { peer, from, source, obstacle };
        let reason = "192.168.111.5:18515 from 192.168.111.4: connection refused (nothing listens there, or a firewall or \
                      NetworkPolicy rejects it: has the pod's program started, on this port and this NIC?)";
        assert_eq!(refused.to_string(), reason);
        for (last, expected) in [(None, "still connecting"), (Some(Arc::new(refused)), reason)] {
            let (name, waited) = ("infer".to_owned(), Duration::from_secs(30));
            let error = ConnectError::NoPeer { name, count: 2, waited, last };
            let said = "could not connect to any of 2 peers of infer within 30 s; one of them: ";
            assert_eq!(error.to_string(), format!("{said}{expected}"));
        }
    }
}
