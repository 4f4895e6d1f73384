//! What is told of peers and frames.

use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::error::DialError;
use crate::handshake::TransportKind;

/// What a PeerSet has done so far.
///
/// # Examples
///
/// ```no_run
/// # async fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// loop {
///     tokio::time::sleep(Duration::from_secs(10)).await;
///     let now = peers.statistics();
///     println!("{} frames to {} peers, {} of them lost", now.frames, now.connected, now.lost);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Frames that a peer was chosen for.
    pub frames: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Frames that receivers have acknowledged (at least once).
    pub acknowledged: u64,
    /// Frames that were sent again.
    pub repeats: u64,
    /// Frames that a receiver's code dropped without acknowledging them.
    pub rejected: u64,
    /// Frames that had been written to a connection that broke before the receiver said that its code took them (at most once).
    pub lost: u64,
    /// Frames for one peer only that has gone, or in a GPU that they cannot be read from.
    pub undeliverable: u64,
    /// Connections that have ended, in whatever way.
    pub disconnects: u64,
    /// Peers that are connected now.
    pub connected: usize,
    /// Connections to them: of each as many as the PeerSet's `connections_per_peer`, once all have come.
    pub connections: usize,
    /// Frames that have been sent and whose slots the receivers have not freed.
    pub outstanding: u64,
    /// Frames that the receivers have room for.
    pub credits: u64,
    /// Frames that wait to be written, or to be acknowledged.
    pub held: usize,
    /// Frames that wait for a peer, or whose peer's code has not taken them: if there are some for long, nothing gets through.
    pub untaken: u64,
}

/// What a PeerSet was closed with.
///
/// # Examples
///
/// ```no_run
/// # async fn example(peers: multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// // Within the pod's terminationGracePeriodSeconds.
/// let left = peers.close(Duration::from_secs(25)).await;
/// if left.unfinished > 0 {
///     println!("{} frames are lost", left.unfinished);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// Frames that had not been written (at most once) or acknowledged (at least once) in time, and that are lost now.
    pub unfinished: usize,
}

/// A peer, and how it is doing.
///
/// # Examples
///
/// ```no_run
/// # fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
/// for status in peers.status() {
///     let way = status.transport.map_or("not connected".to_owned(), |transport| transport.to_string());
///     println!("{}: {way}, {} frames under way", status.endpoint, status.outstanding);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerStatus {
    /// What DNS says of it.
    pub endpoint: Arc<Endpoint>,
    /// Whether it is connected.
    pub is_connected: bool,
    /// How frames travel to it, if it is connected.
    pub transport: Option<TransportKind>,
    /// Why that is not RDMA.
    pub instead_of_rdma: Option<String>,
    /// Frames under way to it.
    pub outstanding: u64,
    /// Why it could not be connected, most recently.
    pub last_error: Option<Arc<DialError>>,
    /// Why a connection to it has broken, most recently; it may have been made again since.
    pub last_disconnect: Option<String>,
}
