//! Round trips of 64 bytes on one connection: a bare echo, the least that one over TCP costs a tokio program; and a frame there, and the
//! acknowledgement of the receiver's code back.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use multinet_client::{Buffer, Delivery, Endpoint, Frame};
use multinet_testing::measure::percentile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::allocations;
use super::roles::{orphaned, say};

/// Of a message.
pub(crate) const SIZE: usize = 64;

/// All round trips together take less.
const BOUND: Duration = Duration::from_secs(60);

/// Serves the bare echo.
pub(crate) async fn echo() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    say(format_args!("{}", listener.local_addr()?));
    let serving = async {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // As in any server, a task of a worker thread.
        tokio::spawn(async move {
            let mut message = [0; SIZE];
            while stream.read_exact(&mut message).await.is_ok() && stream.write_all(&message).await.is_ok() {}
        })
        .await?;
        anyhow::Ok(())
    };
    tokio::select! {
        outcome = serving => outcome,
        () = orphaned() => Ok(()),
    }
}

/// Median of so many round trips to the bare echo, in microseconds.
pub(crate) async fn echoed(server: SocketAddr, trips: usize) -> Result<f64> {
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let mut times = Vec::with_capacity(trips);
    let running = async {
        let mut message = [0xa5; SIZE];
        for _ in 0..trips {
            let start = Instant::now();
            stream.write_all(&message).await?;
            stream.read_exact(&mut message).await?;
            times.push(start.elapsed());
        }
        anyhow::Ok(())
    };
    timeout(BOUND, running).await??;
    Ok(percentile(&times, 50) * 1e3)
}

/// Median of so many frames until their acknowledgement, in microseconds.
pub(crate) async fn acknowledged(server: SocketAddr, trips: usize) -> Result<f64> {
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
    Ok(percentile(&times, 50) * 1e3)
}
