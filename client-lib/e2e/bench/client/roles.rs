//! Roles of this program in the processes beside a measurement.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use multinet_client::{Delivery, Endpoint, Listener};
use multinet_testing::measure::PipedProcess;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{allocations, fetches, trips};

/// Time limit for the start of a role.
const BOUND: Duration = Duration::from_secs(60);

/// Role of a process beside the measuring one. Each prints a line when it is ready, and ends when
/// its standard input does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Receives frames, and prints the time of each that another peer had before. Acknowledges a
    /// frame once it holds more than `kept` frames.
    Receiver {
        kept: usize,
    },
    /// Listens on this many addresses.
    Listeners(usize),
    /// Connects to this many of these addresses.
    Sender {
        port: u16,
        peers: usize,
    },
    EchoServer,
    /// Prints the median of this many round trips of 64 bytes, in microseconds.
    EchoClient {
        server: SocketAddr,
        trips: usize,
    },
    /// Offers a payload of this length.
    Offers {
        size: u32,
    },
    /// Fetches it for this time, and prints the bytes a second.
    Fetcher {
        pod: SocketAddr,
        size: u32,
        seconds: u64,
    },
    /// Prints the median time of a fetch of 64 KiB, in microseconds.
    FetchTrips {
        pod: SocketAddr,
        trips: usize,
    },
    /// Prints the median time from sending a frame of 64 bytes to its acknowledgement, in
    /// microseconds.
    Asker {
        server: SocketAddr,
        trips: usize,
    },
}

impl Role {
    /// Parses the argument of a process that was started for a role; `None` for other arguments.
    pub(crate) fn parse(argument: &str) -> Option<Self> {
        serde_json::from_str(argument).ok()
    }

    /// Starts this program in the role. Returns the process and its first line.
    pub(crate) fn start(&self) -> Result<(PipedProcess, String)> {
        let role = serde_json::to_string(self)?;
        let mut process = PipedProcess::start(Command::new(std::env::current_exe()?).arg(role))?;
        let line = process.line()?;
        Ok((process, line))
    }

    /// Runs the role until standard input ends.
    pub(crate) async fn run(self) -> Result<()> {
        match self {
            Self::Receiver { kept } => receive(kept).await,
            Self::Listeners(count) => listen(count).await,
            Self::Sender { port, peers } => hold(port, peers).await,
            Self::EchoServer => trips::echo().await,
            Self::EchoClient { server, trips } => {
                // The client runs on a worker thread, as the server does.
                print(format_args!("{}", tokio::spawn(trips::echoed(server, trips)).await??));
                Ok(())
            }
            Self::Offers { size } => fetches::offer(size).await,
            Self::Fetcher { pod, size, seconds } => {
                print(format_args!("{}", tokio::spawn(fetches::fetch_for(pod, size, seconds)).await??));
                Ok(())
            }
            Self::FetchTrips { pod, trips } => {
                print(format_args!("{}", tokio::spawn(fetches::fetch_trips(pod, trips)).await??));
                Ok(())
            }
            Self::Asker { server, trips } => {
                print(format_args!("{}", tokio::spawn(trips::acknowledged(server, trips)).await??));
                Ok(())
            }
        }
    }
}

/// Returns different addresses of the loopback interface.
fn addresses(count: usize) -> impl Iterator<Item = IpAddr> {
    let first = u32::from(Ipv4Addr::new(127, 1, 0, 1));
    (first..).take(count).map(|address| Ipv4Addr::from(address).into())
}

async fn receive(most: usize) -> Result<()> {
    let listener = Listener::builder().address(Ipv4Addr::LOCALHOST.into()).port(0).bind().await?;
    print(format_args!("{}", listener.local_addresses().first().context("nothing was bound")?));
    // The receiver runs on a worker thread, as in any program.
    let receiving = tokio::spawn(async move {
        let mut kept = VecDeque::new();
        while let Ok(received) = listener.recv().await {
            if received.is_repeat() {
                print(format_args!("{}", now().as_nanos()));
            }
            kept.push_back(received);
            if kept.len() > most
                && let Some(first) = kept.pop_front()
            {
                first.acknowledge();
            }
        }
    });
    tokio::select! {
        outcome = receiving => Ok(outcome?),
        () = orphaned() => Ok(()),
    }
}

async fn listen(count: usize) -> Result<()> {
    as_many_files_as_allowed()?;
    let mut port = 0;
    let mut listeners = Vec::new();
    // Each address has its own listener, as in a pod. A single listener would take all connections
    // for those of one sender.
    for ip in addresses(count) {
        let listener = Listener::builder().address(ip).port(port).bind().await?;
        port = listener.local_addresses().first().context("nothing was bound")?.port();
        listeners.push(listener);
    }
    print(format_args!("{port}"));
    orphaned().await;
    Ok(())
}

async fn hold(port: u16, count: usize) -> Result<()> {
    as_many_files_as_allowed()?;
    let endpoints = addresses(count).map(|ip| Endpoint::at((ip, port).into())).collect();
    let connector = allocations::connector(Delivery::AtMostOnce)?.build()?;
    let peers = connector.follow("bench", futures::stream::iter([endpoints]));
    timeout(BOUND, peers.connected(count)).await.context("not all peers were connected")?;
    print(format_args!("ready"));
    orphaned().await;
    Ok(())
}

/// Completes when standard input ends, because the starting process has ended or closed it.
pub(crate) async fn orphaned() {
    let (open, end) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        drop(open);
    });
    let _ = end.await;
}

/// Prints a line to standard output. Ignores errors, because the reader may have ended.
pub(crate) fn print(line: std::fmt::Arguments<'_>) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Returns the time since 1970, a clock that all processes share.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn as_many_files_as_allowed() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(())
}
