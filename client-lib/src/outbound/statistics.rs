//! Statistics of a PeerSet.

/// Counts of frames, peers and connections of a PeerSet.
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
    /// Frames that the PeerSet accepted from the application and assigned to a peer.
    pub frames: u64,
    /// Bytes in the payloads of the accepted frames.
    pub bytes: u64,
    /// Frames that receivers have acknowledged, with at-least-once delivery.
    pub acknowledged: u64,
    /// Frames that were sent again.
    pub repeats: u64,
    /// Frames that a receiver's code dropped without acknowledging them.
    pub rejected: u64,
    /// Frames that were written to a connection which broke before the receiver's code took them,
    /// with at-most-once delivery.
    pub lost: u64,
    /// Frames that could not be delivered: their one peer is gone, or they cannot be read from
    /// their GPU.
    pub undeliverable: u64,
    /// Connections to peers that have ended, for any reason.
    pub disconnects: u64,
    /// Peers that are connected now.
    pub connected: usize,
    /// Connections to peers that are up now. Each peer gets `connections_per_peer` of them.
    pub connections: usize,
    /// Frames that were sent and whose slots the receivers have not freed.
    pub outstanding: u64,
    /// Further frames for which the receivers have room now.
    pub credits: u64,
    /// Frames that wait to be written, or with at-least-once delivery, to be acknowledged.
    pub held: usize,
    /// Frames that wait for a peer, or that a peer's code has not taken. If the count stays above
    /// 0, nothing gets through.
    pub untaken: u64,
}
