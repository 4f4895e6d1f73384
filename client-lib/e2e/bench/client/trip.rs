//! A frame there, and the acknowledgement of the receiver's code back, on one connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use multinet_client::{Buffer, Delivery, Endpoint, Frame, Listener};
use tokio::time::timeout;

use crate::allocations;
use crate::echo::SIZE;
use crate::roles::{orphaned, say};

/// All round trips together take less.
const BOUND: Duration = Duration::from_secs(60);

pub(crate) async fn serve() -> Result<()> {
    let listener = Listener::builder().address(Ipv4Addr::LOCALHOST.into()).port(0).bind().await?;
    say(format_args!("{}", listener.local_addresses().first().context("nothing was bound")?));
    let serving = tokio::spawn(async move {
        while let Ok(received) = listener.recv().await {
            received.acknowledge();
        }
    });
    tokio::select! {
        outcome = serving => Ok(outcome?),
        () = orphaned() => Ok(()),
    }
}

/// Of so many round trips, in microseconds.
pub(crate) async fn median(server: SocketAddr, trips: usize) -> Result<f64> {
    let connector = allocations::connector(Delivery::AtLeastOnce)?.build()?;
    let peers = connector.follow("bench", futures::stream::iter([vec![Endpoint::at(server)]]));
    timeout(BOUND, peers.connected(1)).await.context("the receiver was not connected")?;
    let frame = Frame::new(Buffer::from(vec![0xa5; SIZE]));
    let mut times = Vec::with_capacity(trips);
    let running = async {
        for _ in 0..trips {
            let start = Instant::now();
            peers.send(frame.clone()).await?.acknowledged().await?;
            times.push(start.elapsed());
        }
        anyhow::Ok(())
    };
    timeout(BOUND, running).await??;
    times.sort_unstable();
    Ok(times.get(times.len() / 2).context("no round trip")?.as_secs_f64() * 1e6)
}
