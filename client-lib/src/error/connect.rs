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

/// Why [`Connector::connect`](crate::Connector::connect) gave nothing.
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
///     // It may have been scaled down to nothing.
///     Err(ConnectError::NoEndpoint { waited, .. }) => println!("no pod of it for {} s", waited.as_secs()),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name or the resolver's configuration is wrong.
    #[error("cannot resolve {name}: {source}")]
    Resolve {
        /// The name that was asked for.
        name: String,
        /// What DNS said.
        source: ResolveError,
    },
    /// DNS named no peer in time.
    #[error("{name} had no endpoint within {} s: {last}", waited.as_secs())]
    NoEndpoint {
        /// The name that was asked for.
        name: String,
        /// How long has been waited.
        waited: Duration,
        /// What DNS said last.
        last: String,
    },
    /// None of the peers can be connected, and waiting would not change that ([`DialError::is_lasting`]).
    #[error("no peer of {name} can be connected: {last}")]
    Lasting {
        /// The name that was asked for.
        name: String,
        /// What is in the way to one of them.
        last: Arc<DialError>,
    },
    /// There are peers, but none could be connected in time.
    #[error("none of {count} peers of {name} could be connected within {} s; one of them: {}", waited.as_secs(), or_connecting(.last))]
    NoPeer {
        /// The name that was asked for.
        name: String,
        /// How many peers there are.
        count: usize,
        /// How long has been waited.
        waited: Duration,
        /// Why one of them could not be connected, most recently; `None` if none has been given up yet.
        last: Option<Arc<DialError>>,
    },
}

/// Why one peer could not be connected: what [`PeerStatus::last_error`](crate::PeerStatus::last_error) has, and the log says.
///
/// # Examples
///
/// ```no_run
/// # fn example(peers: &multinet_client::PeerSet) {
/// use multinet_client::{DialError, RefusalCode};
///
/// for status in peers.status() {
///     match status.last_error.as_deref() {
///         Some(DialError::Refused { code: RefusalCode::Full, name, .. }) => println!("{name} has too many senders"),
///         Some(error) => println!("{error}; tried again"),
///         None => {}
///     }
/// }
/// # }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DialError {
    /// No way leads there that may be taken.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// It has no address on the wanted network.
    #[error("it has no address on the network {network}; it has {has}")]
    Network {
        /// Alias of the wanted network.
        network: String,
        /// The aliases that it has addresses on.
        has: String,
    },
    /// The kernel refused, or nobody answered.
    #[error("{peer} from {from}: {source}{}", in_brackets(obstacle.as_ref()))]
    Connect {
        /// Whom we wanted to reach.
        peer: SocketAddr,
        /// The local address.
        from: IpAddr,
        /// What the kernel said.
        source: io::Error,
        /// The likely cause, if it is known.
        obstacle: Option<Obstacle>,
    },
    /// It took too long.
    #[error("{peer} did not {what} within {} s{}", after.as_secs(), in_brackets(obstacle.as_ref()))]
    Timeout {
        /// Whom we wanted to reach.
        peer: SocketAddr,
        /// What it should have done.
        what: &'static str,
        /// How long has been waited.
        after: Duration,
        /// The likely cause, if it is known.
        obstacle: Option<Obstacle>,
    },
    /// TLS failed.
    #[error("{peer}: {source}")]
    Tls {
        /// Whom we wanted to reach.
        peer: SocketAddr,
        /// Why.
        source: TlsError,
    },
    /// It does not speak our protocol.
    #[error("{peer} answered with something else than a handshake: {source}")]
    Handshake {
        /// Whom we reached.
        peer: SocketAddr,
        /// What is wrong with it.
        source: HandshakeError,
    },
    /// It ended the connection during the handshake.
    #[error(
        "{peer} closed the connection during the handshake: it is stopping, full, or no peer of multinet"
    )]
    Closed {
        /// Whom we reached.
        peer: SocketAddr,
    },
    /// Only RDMA may be used, and it cannot be.
    #[error("{peer} cannot be reached by RDMA: {reason}")]
    Rdma {
        /// Whom we wanted to reach.
        peer: SocketAddr,
        /// What is in the way, and what to do.
        reason: String,
        /// Whether it will be so the next time, too, as far as can be told.
        is_lasting: bool,
    },
    /// It does not want us.
    #[error("{peer} ({name}) refuses: {message}")]
    Refused {
        /// Whom we reached.
        peer: SocketAddr,
        /// What DNS calls it.
        name: String,
        /// Why, for programs.
        code: RefusalCode,
        /// Why, for people.
        message: String,
    },
    /// It is another pod than DNS says.
    #[error(
        "{peer} is pod {found} with uid {uid}, not {expected}: the address has a new owner; DNS will say so soon"
    )]
    WrongPeer {
        /// Whom we reached.
        peer: SocketAddr,
        /// What it calls itself.
        found: String,
        /// Its uid.
        uid: String,
        /// The uid that DNS has.
        expected: String,
    },
}

impl DialError {
    /// Whether trying again cannot help, as far as can be told: a certificate that is refused, a permission that lacks, a way
    /// by the default network, a peer that is something else.
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
            // This host's own firewall. A reject from the network may pass, and by IPv6 it is EACCES.
            Self::Connect { source, .. } => source.raw_os_error() == Some(Errno::EPERM as i32),
            Self::Tls { source, .. } => source.is_lasting(),
            Self::Handshake { .. } => true,
            Self::Rdma { is_lasting, .. } => *is_lasting,
            Self::Refused { code, .. } => {
                matches!(code, RefusalCode::Version | RefusalCode::Service | RefusalCode::Malformed)
            }
            // Pods come and go, and each may be the one.
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
    fn what_waiting_does_not_change_is_lasting() {
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
    fn messages_say_what_to_do() {
        let (peer, from) = (SocketAddr::from(([192, 168, 111, 5], 18515)), IpAddr::from([192, 168, 111, 4]));
        let (source, obstacle) = (io::ErrorKind::ConnectionRefused.into(), Some(Obstacle::NotListening));
        let refused = DialError::Connect { peer, from, source, obstacle };
        let reason = "192.168.111.5:18515 from 192.168.111.4: connection refused (nothing listens there, or a firewall or \
                      NetworkPolicy rejects it: has the pod's program started, on this port and this NIC?)";
        assert_eq!(refused.to_string(), reason);
        for (last, expected) in [(None, "still connecting"), (Some(Arc::new(refused)), reason)] {
            let (name, waited) = ("infer".to_owned(), Duration::from_secs(30));
            let error = ConnectError::NoPeer { name, count: 2, waited, last };
            let said = "none of 2 peers of infer could be connected within 30 s; one of them: ";
            assert_eq!(error.to_string(), format!("{said}{expected}"));
        }
    }
}
