//! Round trips of 64 bytes on one connection: a bare echo, which is the least that TCP costs a
//! tokio program; and a frame and its acknowledgement by the receiver's code.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use multinet_client::{Buffer, Delivery, Endpoint, Frame};
use multinet_testing::measure::percentile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::allocations;
use super::roles::{orphaned, print};

/// Size of a message.
pub(crate) const SIZE: usize = 64;

/// Time limit for all round trips together.
const BOUND: Duration = Duration::from_secs(60);

/// Serves the bare echo.
pub(crate) async fn echo() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    print(format_args!("{}", listener.local_addr()?));
    let serving = async {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // As in any server, a worker thread runs the task.
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

/// Returns the median of this many round trips to the bare echo, in microseconds.
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

/// Returns the median time from sending a frame to its acknowledgement, in microseconds.
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
