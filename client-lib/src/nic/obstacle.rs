//! Causes of failed connections that the kernel knows, but does not put into its error.

use std::fmt;
use std::io::{self, ErrorKind};

use multinet_rails::nic::{LinkState, local_interfaces, lookup};

use super::Route;

/// Cause of a failed connection, for people.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::nic::{Obstacle, route_to};
///
/// let route = route_to("192.168.111.5".parse()?)?;
/// let connecting = route.tcp_socket()?.connect("192.168.111.5:18515".parse()?);
/// let obstacle = connecting.await.err().and_then(|error| route.obstacle(&error));
/// if let Some(Obstacle::NoHost { interface }) = obstacle {
///     println!("no host at {interface} has this address");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The peer's host answers, but nothing listens on the port.
    NotListening,
    /// No answer comes back from the peer's address.
    Silence,
    /// A firewall or a router rejects the connection, or the router has no route.
    Rejected,
    /// No host on the interface's link has the peer's address.
    NoHost {
        /// Outgoing interface of the route, such as `net1`.
        interface: String,
    },
    /// The outgoing interface cannot send, because its link is not up.
    Link {
        /// Outgoing interface of the route, such as `net1`.
        interface: String,
        /// State of the interface's link.
        state: LinkState,
    },
}

impl Route {
    /// Returns the cause of an error that a connection by this route has ended with, if it is
    /// known.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::nic::route_to;
    ///
    /// let route = route_to("192.168.111.5".parse()?)?;
    /// if let Err(error) = route.tcp_socket()?.connect("192.168.111.5:18515".parse()?).await {
    ///     let reason = route.obstacle(&error).map(|obstacle| obstacle.to_string());
    ///     println!("{error}: {}", reason.unwrap_or_default());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn obstacle(&self, error: &io::Error) -> Option<Obstacle> {
        let is_silence = match error.kind() {
            ErrorKind::ConnectionRefused => return Some(Obstacle::NotListening),
            ErrorKind::TimedOut => true,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::PermissionDenied => false,
            _ => return None,
        };
        let interfaces = local_interfaces().unwrap_or_default();
        let interface = self.interface.clone();
        Some(match interfaces.iter().find(|its| its.name == interface) {
            Some(its) if its.link != LinkState::Up => Obstacle::Link { interface, state: its.link },
            Some(its) if lookup::is_missing(self.peer, its.index) => Obstacle::NoHost { interface },
            _ if is_silence => Obstacle::Silence,
            _ => Obstacle::Rejected,
        })
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotListening => f.write_str(
                "nothing listens there, or a firewall or NetworkPolicy rejects it: has the pod's program started, on this port \
                 and this NIC?",
            ),
            Self::Silence => f.write_str(
                "nothing comes back: does a firewall or NetworkPolicy drop it, and are the two NICs on one network?",
            ),
            Self::Rejected => f.write_str(
                "a firewall or NetworkPolicy rejects it, or a router on the way finds no host",
            ),
            Self::NoHost { interface } => {
                write!(f, "no host on {interface} has this address: is the pod gone, or its second NIC not connected to ours?")
            }
            Self::Link { interface, state } => write!(f, "{interface} {state}"),
        }
    }
}
