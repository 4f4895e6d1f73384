//! Programs that start others while frames are in flight: a child gets a copy of the memory, and
//! the pages of the device stay with the parent.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use multinet_client::{Acknowledge, Buffer, Connector, Endpoint, Listener, PeerSet, Transport};
use multinet_testing::in_guest;

use super::{BOUND, HERE, amount, follow, no_resolver};

const SIZE: usize = 100_000;
const FRAMES: u8 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_arrive_whole_while_children_are_forked() -> Result<()> {
    in_guest!();
    let listener =
        Listener::builder().address(HERE.into()).port(0).transport(Transport::Rdma).frame_size(SIZE as u32);
    let listener = listener.acknowledge(Acknowledge::OnDrop).patience(BOUND).bind().await?;
    let connector = Connector::builder().resolver(no_resolver()?).transport(Transport::Rdma).patience(BOUND);
    let peers = follow(connector, vec![Endpoint::at(listener.local_addresses()[0])])?;
    tokio::time::timeout(BOUND, peers.connected(1)).await.with_context(|| format!("{:?}", peers.status()))?;
    let at_least = amount(20, 100);
    let (children, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, stop) = (Arc::clone(&children), Arc::clone(&is_over));
    let forking = tokio::task::spawn_blocking(move || {
        while !stop.load(Ordering::Relaxed) {
            // A command with a user is started by fork(2); others are started by vfork(2).
            let status = Command::new("true").uid(0).status()?;
            ensure!(status.success(), "{status}");
            count.fetch_add(1, Ordering::Relaxed);
        }
        anyhow::Ok(())
    });
    let goes_on = || !forking.is_finished() && children.load(Ordering::Relaxed) < at_least;
    let sent = send(&listener, &peers, goes_on).await;
    is_over.store(true, Ordering::Relaxed);
    forking.await??;
    sent?;
    ensure!(peers.statistics().disconnects == 0, "{:?}", peers.statistics());
    Ok(())
}

/// Sends some frames, and more while `goes_on` holds.
async fn send(listener: &Listener, peers: &PeerSet, goes_on: impl Fn() -> bool) -> Result<()> {
    // The same pages each time, so that they are written to while children have copies of them.
    let mut buffer = Buffer::host(SIZE);
    let mut number = 0_u8;
    while number < FRAMES || goes_on() {
        number = number.checked_add(1).unwrap_or(FRAMES);
        // The last frame holds the buffer until its completion is handled.
        while buffer.as_mut().is_none() {
            tokio::task::yield_now().await;
        }
        buffer.as_mut().context("another has it")?.fill(number);
        tokio::time::timeout(BOUND, peers.send(buffer.clone())).await??;
        let frame = tokio::time::timeout(BOUND, listener.recv()).await??;
        ensure!(frame.bytes() == [number; SIZE], "frame {number} is another");
        drop(frame);
        peers.flush().await?;
    }
    Ok(())
}
