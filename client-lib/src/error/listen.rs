//! Errors of a listener.

use std::io;
use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use crate::reference::ReferenceError;

/// Error of [`ListenerBuilder::bind`](crate::ListenerBuilder::bind).
///
/// # Examples
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{BindError, Listener};
///
/// let taken = Listener::builder().address("127.0.0.1".parse()?).port(0).bind().await?;
/// let port = taken.local_addresses()[0].port();
/// match Listener::builder().address("127.0.0.1".parse()?).port(port).bind().await {
///     Err(BindError::Bind { address, source }) => println!("not at {address}: {source}"),
///     other => panic!("{other:?}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// The host has no second NIC with an address to listen on.
    #[error(
        "this host has no second NIC to listen on ({why}): name the address to listen on, or allow the default network"
    )]
    NoSecondNic {
        /// State of the host's NICs, such as `net1 is down`.
        why: String,
    },
    /// The local addresses cannot be listed.
    #[error("cannot list the local addresses: {0}")]
    Interfaces(io::Error),
    /// The kernel refused to bind a socket to the address.
    #[error("cannot listen on {address}: {source}{}", hint(source))]
    Bind {
        /// Address to listen on.
        address: SocketAddr,
        /// Error of the kernel.
        source: io::Error,
    },
    /// Duplicate address detection failed: another host on the network has the same address.
    #[error(
        "cannot listen on {address}: another host on its network has this address (duplicate address detection has failed); give this one another"
    )]
    Duplicate {
        /// Address to listen on.
        address: IpAddr,
    },
    /// The address to listen on is an IPv6 link-local one.
    #[error(
        "cannot listen on {address}: link-local addresses are not supported, for they do not say on which link they are: \
         name another address of that NIC, IPv4 or of fd00::/8"
    )]
    LinkLocal {
        /// Address to listen on.
        address: IpAddr,
    },
    /// The kernel does not tell its host name.
    #[error("cannot read this host's name from /proc/sys/kernel/hostname: {0}; set OffersBuilder::host")]
    HostName(io::Error),
    /// The host name cannot stand in references.
    #[error("{0}: set OffersBuilder::host")]
    Host(ReferenceError),
    /// A limit that the caller set on the builder is invalid. The text says which, and why.
    #[error("{0}")]
    Limit(&'static str),
    /// The listener's memory for frames is too small for one frame of the largest size.
    #[error(
        "a frame of frame_size ({frame_size} bytes) does not fit in the memory for frames ({memory}): raise memory, or lower frame_size"
    )]
    Memory {
        /// Largest payload of a frame that the listener is set to accept, in bytes.
        frame_size: u32,
        /// Amount of memory for frames and its origin, in words.
        memory: String,
    },
}

/// Error that says that the listener has been closed.
///
/// # Examples
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Listener, ListenerClosed};
///
/// let listener = Listener::builder().address("127.0.0.1".parse()?).port(0).bind().await?;
/// let worker = tokio::spawn({
///     let listener = listener.clone();
///     async move { listener.recv().await.map(|frame| frame.len()) }
/// });
/// listener.close().await;
/// assert_eq!(worker.await?, Err(ListenerClosed));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the listener is closed")]
pub struct ListenerClosed;

/// Returns advice on an address that cannot be listened on; empty if there is none.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another program listens there)",
        io::ErrorKind::AddrNotAvailable => " (no interface has this address)",
        io::ErrorKind::PermissionDenied => " (ports below 1024 need a privilege)",
        _ => "",
    }
}
