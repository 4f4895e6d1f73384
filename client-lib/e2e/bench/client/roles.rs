//! What this program is when a measurement needs another process.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use multinet_client::{Delivery, Endpoint, Listener};
use multinet_testing::measure::Process;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{allocations, trips};

/// Nothing here takes longer to be set up.
const BOUND: Duration = Duration::from_secs(60);

/// A process beside the measuring one. Each prints a line when it is ready, and ends when its standard input does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Receives, and prints when a frame has come that another peer had before. So many frames it keeps before it acknowledges the
    /// first of them.
    Receiver {
        kept: usize,
    },
    /// Listens on so many addresses.
    Listeners(usize),
    /// Has connections to so many of them.
    Sender {
        port: u16,
        peers: usize,
    },
    EchoServer,
    /// Prints the median of so many round trips of 64 bytes, in microseconds.
    EchoClient {
        server: SocketAddr,
        trips: usize,
    },
    /// Prints the median of so many frames of 64 bytes until their acknowledgement, in microseconds.
    Asker {
        server: SocketAddr,
        trips: usize,
    },
}

impl Role {
    /// Parses the argument of a process that was started for a role; `None` if it is another one.
    pub(crate) fn parse(argument: &str) -> Option<Self> {
        serde_json::from_str(argument).ok()
    }

    /// This program in that role, and the line that it says when it is ready.
    pub(crate) fn start(&self) -> Result<(Process, String)> {
        let role = serde_json::to_string(self)?;
        let mut process = Process::start(Command::new(std::env::current_exe()?).arg(role))?;
        let line = process.line()?;
        Ok((process, line))
    }

    pub(crate) async fn play(self) -> Result<()> {
        match self {
            Self::Receiver { kept } => receive(kept).await,
            Self::Listeners(count) => listen(count).await,
            Self::Sender { port, peers } => hold(port, peers).await,
            Self::EchoServer => trips::echo().await,
            Self::EchoClient { server, trips } => {
                // On a worker thread, as the server's side.
                say(format_args!("{}", tokio::spawn(trips::echoed(server, trips)).await??));
                Ok(())
            }
            Self::Asker { server, trips } => {
                say(format_args!("{}", tokio::spawn(trips::acknowledged(server, trips)).await??));
                Ok(())
            }
        }
    }
}

/// Addresses of the loopback interface, all different.
fn addresses(count: usize) -> impl Iterator<Item = IpAddr> {
    let first = u32::from(Ipv4Addr::new(127, 1, 0, 1));
    (first..).take(count).map(|address| Ipv4Addr::from(address).into())
}

async fn receive(most: usize) -> Result<()> {
    let listener = Listener::builder().address(Ipv4Addr::LOCALHOST.into()).port(0).bind().await?;
    say(format_args!("{}", listener.local_addresses().first().context("nothing was bound")?));
    // On a worker thread, as in any program.
    let receiving = tokio::spawn(async move {
        let mut kept = VecDeque::new();
        while let Ok(received) = listener.recv().await {
            if received.is_repeat() {
                say(format_args!("{}", now().as_nanos()));
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
    // One for each address, as each would be a pod: a listener takes a sender for one and the same whatever address it comes to.
    for ip in addresses(count) {
        let listener = Listener::builder().address(ip).port(port).bind().await?;
        port = listener.local_addresses().first().context("nothing was bound")?.port();
        listeners.push(listener);
    }
    say(format_args!("{port}"));
    orphaned().await;
    Ok(())
}

async fn hold(port: u16, count: usize) -> Result<()> {
    as_many_files_as_allowed()?;
    let endpoints = addresses(count).map(|ip| Endpoint::at((ip, port).into())).collect();
    let connector = allocations::connector(Delivery::AtMostOnce)?.build()?;
    let peers = connector.follow("bench", futures::stream::iter([endpoints]));
    timeout(BOUND, peers.connected(count)).await.context("not all peers were connected")?;
    say(format_args!("ready"));
    orphaned().await;
    Ok(())
}

/// Completes when whoever started this process has ended, or wants it to.
pub(crate) async fn orphaned() {
    let (say, hear) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        drop(say);
    });
    let _ = hear.await;
}

/// One line on standard output. If nobody reads it, nobody waits for it.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Since 1970: a clock that processes share.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn as_many_files_as_allowed() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(())
}
