//! Who is written to.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::stream::{self, SelectAll, StreamExt as _};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::super::ServerArgs;
use super::{Answer, Ask, Connected, MOST_PAIRS, Prepared, Setup, VERSION, hear, latency, say};
use crate::output::print;

/// Clients at a time, at most; each has memory of the size that it wants.
const MOST_CLIENTS: usize = 8;

/// How long a client may take until it is ready, and says what it wants: as long as it waits for us.
const READY: Duration = Duration::from_secs(60);

/// How long a client may take to hear something.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a client may be silent before it is looked whether its host is there, and between two such looks.
const SILENCE: Duration = Duration::from_secs(5);

/// How long nobody is let in when somebody could not be.
const PAUSE: Duration = Duration::from_millis(100);

/// How many answers may be under way.
const DEPTH: u16 = 16;

pub(crate) async fn run(args: ServerArgs) -> anyhow::Result<ExitCode> {
    // Before anybody is told that it listens.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let setup = Setup::new(args.device, args.listen.transport)?;
    let mut clients = SelectAll::new();
    for listener in args.listen.listener()?.port(args.port).sockets()? {
        print(&format!("listening on {}\n", listener.local_addr()?))?;
        clients.push(Box::pin(stream::unfold(listener, async |listener| {
            Some((listener.accept().await, listener))
        })));
    }
    let (size, places) = (args.size, Arc::new(Semaphore::new(MOST_CLIENTS)));
    // Those that are served end with it.
    let mut serving = JoinSet::new();
    loop {
        tokio::select! {
            Some(client) = clients.next() => {
                let (stream, client) = match client {
                    Ok(client) => client,
                    Err(error) => {
                        // It may last: files that this process may not open.
                        warn!("no client can be let in: {error}");
                        sleep(PAUSE).await;
                        continue;
                    }
                };
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    warn!(%client, "turned away: {MOST_CLIENTS} clients are served already");
                    continue;
                };
                let setup = setup.clone();
                serving.spawn(async move {
                    match serve(stream, size, setup).await {
                        Ok(()) => info!(%client, "served"),
                        Err(error) => warn!(%client, "{error:#}"),
                    }
                    drop(place);
                });
            }
            Some(_) = serving.join_next() => {}
            _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
            _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Has the answering end, also if nobody waits for it any more.
#[derive(Default)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One client, until it ends the connection.
async fn serve(mut stream: TcpStream, most: u32, setup: Setup) -> anyhow::Result<()> {
    // One whose host is gone must not keep its place.
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE).with_retries(3);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    let ask: Ask = timeout(READY, hear(&mut stream)).await.context("it does not say what it wants")??;
    let (ours, theirs) = (stream.local_addr()?.ip().to_canonical(), stream.peer_addr()?.ip());
    let is_latency = ask.is_latency;
    let made = spawn_blocking(move || -> anyhow::Result<(Connected, Answer)> {
        let Ask { multinet_verbs, size, side, .. } = ask;
        ensure!(multinet_verbs == VERSION, "it speaks version {VERSION}, not {multinet_verbs}");
        ensure!((1..=most).contains(&size), "it takes messages of 1 to {most} bytes (--size)");
        ensure!((1..=MOST_PAIRS).contains(&side.pairs.len()), "it has 1 to {MOST_PAIRS} queue pairs");
        ensure!(side.mtu.is_power_of_two(), "there is no such MTU");
        let prepared = Prepared::new(ours, &setup, size, side.pairs.len(), DEPTH)?;
        let answer = Answer::Ready(prepared.side.clone());
        Ok((prepared.connect(&side, theirs, size)?, answer))
    });
    let (connected, answer) = match made.await? {
        Ok(made) => made,
        Err(error) => {
            timeout(PATIENCE, say(&mut stream, &Answer::Refused(format!("{error:#}")))).await??;
            return Err(error);
        }
    };
    timeout(PATIENCE, say(&mut stream, &answer)).await??;
    let stop = Stop::default();
    let stopped = Arc::clone(&stop.0);
    let answering = spawn_blocking(move || match is_latency {
        true => latency::echo(&connected, &stopped).map(|()| connected),
        false => Ok(connected),
    });
    // It says nothing more: this is its end.
    let _ = stream.read(&mut [0]).await;
    drop(stop);
    let connected = answering.await??;
    spawn_blocking(move || drop(connected)).await?;
    Ok(())
}
