//! State of a PeerSet's peers, and the result of closing it.

use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::error::DialError;
use crate::handshake::TransportKind;

/// Result of closing a PeerSet.
///
/// # Examples
///
/// ```no_run
/// # async fn example(peers: multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// // Less than the pod's terminationGracePeriodSeconds.
/// let left = peers.close(Duration::from_secs(25)).await;
/// if left.unfinished > 0 {
///     println!("{} frames are lost", left.unfinished);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// Frames that are lost, because they were not written (at most once) or acknowledged (at least
    /// once) in time.
    pub unfinished: usize,
}

/// State of a peer.
///
/// # Examples
///
/// ```no_run
/// # fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
/// for status in peers.status() {
///     let transport = status.transport.map(|transport| transport.to_string());
///     let transport = transport.unwrap_or_else(|| "not connected".to_owned());
///     println!("{}: {transport}, {} frames under way", status.endpoint, status.outstanding);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerStatus {
    /// The peer's endpoint, as DNS describes it.
    pub endpoint: Arc<Endpoint>,
    /// Whether a connection to the peer is up.
    pub is_connected: bool,
    /// Transport of the frames to this peer. `None` if it is not connected.
    pub transport: Option<TransportKind>,
    /// Reason why frames to this peer do not go by RDMA. `None` if they do, or TCP was chosen.
    pub instead_of_rdma: Option<String>,
    /// Frames under way to this peer.
    pub outstanding: u64,
    /// Reason why the latest attempt to connect to this peer failed. `None` if none has failed
    /// since a connection was up.
    pub last_error: Option<Arc<DialError>>,
    /// Last reason why a connection broke. The library may have connected again since.
    pub last_disconnect: Option<String>,
}
