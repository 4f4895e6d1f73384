//! The least that a round trip over TCP costs a tokio program: a bare echo of 64 bytes.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::roles::{orphaned, say};

/// Of a message.
pub(crate) const SIZE: usize = 64;

/// All round trips together take less.
const BOUND: Duration = Duration::from_secs(60);

pub(crate) async fn serve() -> Result<()> {
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

/// Of so many round trips, in microseconds.
pub(crate) async fn median(server: SocketAddr, trips: usize) -> Result<f64> {
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
    times.sort_unstable();
    Ok(times.get(times.len() / 2).context("no round trip")?.as_secs_f64() * 1e6)
}
