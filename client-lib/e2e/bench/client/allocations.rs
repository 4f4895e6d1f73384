//! Number of memory allocations per frame.

// GlobalAlloc is an unsafe trait. All calls are passed on to the system's allocator.
#![expect(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use multinet_client::{Buffer, Connector, Delivery, Endpoint, Frame, Listener, PeerSet, Resolver};
use multinet_testing::bench::{Table, figure, text};
use tokio::time::timeout;

/// Size of a frame's payload.
const SIZE: usize = 4096;

/// Time limit of the measurement.
const BOUND: Duration = Duration::from_secs(60);

/// Number of allocations per frame below which the target of zero is met. Occasional allocations
/// have nothing to do with frames.
const NONE: f64 = 0.001;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator with a counter of allocations.
pub(crate) struct Counting;

// SAFETY: every call is passed to `System` with its arguments, and counting touches no allocated
// memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc_zeroed`, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `realloc`, which is the same, and `place` is
        // from `System`.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`, which is the same, and `place` is
        // from `System`.
        unsafe { System.dealloc(place, layout) }
    }
}

/// Returns the allocations per frame of sender and receiver, which both run in this process. Some
/// frames before the measurement are not counted.
pub(crate) async fn table(frames: u64) -> Result<Table> {
    let note = format!("Of {frames} frames.");
    let mut table = Table::new("Allocations", note, "delivery | allocations per frame | target");
    for (name, delivery) in [("at most once", Delivery::AtMostOnce), ("at least once", Delivery::AtLeastOnce)]
    {
        let count = one(delivery, frames).await?;
        let verdict = if count < NONE { "0: met" } else { "0: **missed**" };
        table.row([text(name), figure([count], 4), text(verdict)]);
    }
    Ok(table)
}

async fn one(delivery: Delivery, frames: u64) -> Result<f64> {
    let listener = Listener::builder().address(IpAddr::V4(Ipv4Addr::LOCALHOST)).port(0).bind().await?;
    let address = *listener.local_addresses().first().context("nothing was bound")?;
    let receiving = tokio::spawn(async move {
        while let Ok(received) = listener.recv().await {
            received.acknowledge();
        }
    });
    let peers =
        connector(delivery)?.build()?.follow("bench", futures::stream::iter([vec![Endpoint::at(address)]]));
    timeout(BOUND, peers.connected(1)).await?;
    let frame = Frame::new(Buffer::from(vec![0xa5; SIZE])).key("key").metadata("metadata");
    send(&peers, &frame, frames / 5).await?;
    let before = COUNT.load(Ordering::Relaxed);
    send(&peers, &frame, frames).await?;
    let count = COUNT.load(Ordering::Relaxed) - before;
    peers.close(BOUND).await;
    receiving.abort();
    Ok(count as f64 / frames as f64)
}

async fn send(peers: &PeerSet, frame: &Frame, count: u64) -> Result<()> {
    let sending = async {
        for _ in 0..count {
            peers.send(frame.clone()).await?;
        }
        peers.flush().await?;
        anyhow::Ok(())
    };
    timeout(BOUND, sending).await?
}

/// Returns the builder of a connector that resolves no names.
pub(crate) fn connector(delivery: Delivery) -> Result<multinet_client::ConnectorBuilder> {
    let nobody = Resolver::builder().servers([(Ipv4Addr::LOCALHOST, 53).into()]).build()?;
    Ok(Connector::builder().resolver(nobody).delivery(delivery))
}
