//! Measures latency: a message there, one of the same size back, and again.
//!
//! A connection carries frames one way only. So the client listens, too, on the address that leads
//! to the server, at a port that the kernel chooses. The metadata of its first message asks for
//! echoes at that port ([`EchoRequest`]). The server connects back to the address that the client
//! came from, and to no other, so that a client cannot make it connect to third parties. Then it
//! answers each message of the session, the first one included, with one of the same length. With
//! TLS, the server expects the client's listener to have the client's certificate.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use multinet_client::{Buffer, Frame, Listener, Peer, PeerSet, nic};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use super::figures::Latency;
use super::memory::Memory;
use super::{ClientArgs, Extent};
use crate::common::LOST_PACKETS;

/// How long the server may take to connect back, and to answer a message by its echo.
const PATIENCE: Duration = Duration::from_secs(10);

/// Messages of this many bytes or more may be too large for a packet.
const LARGE: usize = 1200;

/// Round trips before the measurement, so that both sides' memory and routes are warm.
const WARM_UP: u64 = 20;

/// Metadata of the first message of a client that wants echoes, and of its last one.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct EchoRequest {
    /// Port on which the client listens, at the address that it comes from; 0 when it wants no more
    /// echoes.
    pub(super) echo_to_port: u16,
}

/// Client of a latency test, to which the server sends back each of its messages.
pub(super) struct PingPong<'p> {
    peers: &'p PeerSet,
    peer: Peer,
    listener: Listener,
    memory: &'p Memory,
}

impl EchoRequest {
    pub(super) fn encode(self) -> Vec<u8> {
        // A number in a struct is always JSON.
        serde_json::to_vec(&self).unwrap_or_default()
    }

    pub(super) fn decode(metadata: &[u8]) -> Option<Self> {
        serde_json::from_slice(metadata).ok()
    }
}

impl<'p> PingPong<'p> {
    /// Asks the first connected server to connect back to this host for the echoes, and waits until
    /// it has.
    pub(super) async fn begin(
        peers: &'p PeerSet,
        args: &ClientArgs,
        largest: u32,
        memory: &'p Memory,
    ) -> anyhow::Result<Self> {
        let status = peers.status().into_iter().find(|status| status.is_connected);
        let endpoint = status.context("the server has gone")?.endpoint;
        let peer = peers.peers().into_iter().find(|peer| *peer.endpoint() == *endpoint);
        let peer = peer.context("the server has gone")?;
        let wanted = |alias: &Option<String>| {
            args.connect.network.network.is_none() || args.connect.network.network == *alias
        };
        // The server connects back to the address that the client comes from, which depends on the
        // server's address.
        let addresses = endpoint.addresses.iter().filter(|address| wanted(&address.network));
        let sources: BTreeSet<IpAddr> =
            addresses.filter_map(|address| Some(nic::route_to(address.ip).ok()?.source)).collect();
        ensure!(!sources.is_empty(), "there is no route to the server on that network");

        let transport = args.connect.transport;
        let mut builder = Listener::builder()
            .port(0)
            .frame_size(largest.max(1))
            .transport(transport.transport())
            .rdma(args.device.rdma(transport));
        if let Some(gpu) = memory.gpu() {
            builder = builder.gpu(Arc::clone(gpu));
        }
        for source in &sources {
            builder = builder.address(*source);
        }
        if let Some(tls) = args.connect.tls.tls()? {
            builder = builder.tls(tls);
        }
        let listener = builder.bind().await?;
        let port = listener.local_addresses().first().context("nothing was bound")?.port();

        let hello = Frame::new(Bytes::new()).metadata(EchoRequest { echo_to_port: port }.encode());
        let this = Self { peers, peer, listener, memory };
        if !matches!(timeout(PATIENCE, this.round_trip(hello, 0)).await, Ok(Ok(()))) {
            bail!(
                "the server did not connect back to {sources:?} port {port} within {} s: is it multinet bench server, and may it connect here? Its log says more",
                PATIENCE.as_secs()
            );
        }
        Ok(this)
    }

    pub(super) async fn measure(&self, message: Buffer, extent: Extent) -> anyhow::Result<Latency> {
        let bytes = u32::try_from(message.len()).context("the message is too long")?;
        let length = message.len();
        let frame = Frame::new(message);
        let Extent { count, time } = extent;
        // One timer for all round trips: one for each would be measured, too.
        let made = AtomicU64::new(0);
        let running = async {
            for _ in 0..WARM_UP {
                self.round_trip(frame.clone(), length).await?;
                made.fetch_add(1, Ordering::Relaxed);
            }
            let mut round_trips = Vec::new();
            let begin = Instant::now();
            while (round_trips.len() as u64) < count && begin.elapsed() < time {
                let start = Instant::now();
                self.round_trip(frame.clone(), length).await?;
                round_trips.push(start.elapsed());
                made.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(round_trips)
        };
        let round_trips = tokio::select! {
            biased;
            round_trips = running => round_trips?,
            () = stalled(&made) => {
                let likely = match made.load(Ordering::Relaxed) {
                    0 if length >= LARGE => format!(". {LOST_PACKETS}; multinet doctor says so"),
                    _ => String::new(),
                };
                bail!("the server has not answered within {} s{likely}", PATIENCE.as_secs())
            }
        };
        Latency::of(bytes, round_trips).context("no round trip was measured")
    }

    /// Asks the server for no more echoes, so that it does not take the client's end for a failure.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        let goodbye = Frame::new(Bytes::new()).metadata(EchoRequest { echo_to_port: 0 }.encode());
        self.peers.send_to(&self.peer, goodbye).await?;
        let _ = timeout(PATIENCE, self.peers.outstanding_at_most(0)).await;
        Ok(())
    }

    async fn round_trip(&self, frame: Frame, length: usize) -> anyhow::Result<()> {
        self.peers.send_to(&self.peer, frame).await?;
        let echo = self.listener.recv().await?;
        ensure!(echo.len() == length, "the server answered {length} bytes by {}", echo.len());
        self.memory.receive(&echo)?;
        Ok(())
    }
}

/// Completes when the count of round trips has not changed for [`PATIENCE`].
async fn stalled(count: &AtomicU64) {
    let mut last = None;
    loop {
        let now = count.load(Ordering::Relaxed);
        if last.replace(now) == Some(now) {
            return;
        }
        sleep(PATIENCE).await;
    }
}
