//! Why a connection did not come about, as far as the kernel knows more than its error says.

use std::fmt;
use std::io::{self, ErrorKind};

use super::Route;
use super::interfaces::LinkState;
use super::local::local_interfaces;
use super::lookup;

/// An obstacle on the way to a peer, for people.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::nic::{Obstacle, route_to};
///
/// let route = route_to("192.168.111.5".parse()?)?;
/// let refused = route.tcp_socket()?.connect("192.168.111.5:18515".parse()?).await;
/// if let Some(Obstacle::NoHost { interface }) = refused.err().and_then(|error| route.obstacle(&error)) {
///     println!("no host at {interface} has this address");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The host is there, and refuses.
    NotListening,
    /// Nothing has come back.
    Silence,
    /// A firewall or a router says that nothing may pass, or that there is no way.
    Rejected,
    /// No host on the interface's link has the address.
    NoHost {
        /// The interface.
        interface: String,
    },
    /// The interface on the way cannot send.
    Link {
        /// The interface.
        interface: String,
        /// Why.
        state: LinkState,
    },
}

impl Route {
    /// The meaning of an error that a connection by this route has ended with, if that is known.
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
