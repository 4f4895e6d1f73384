//! How long it takes from a peer's death until another has the first of its frames.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::channel::mpsc::unbounded;
use multinet_client::{Buffer, Delivery, Endpoint, Frame, PeerSet};
use multinet_testing::measure::Process;
use tokio::time::{interval, sleep, timeout};

use super::allocations;
use super::roles::{Role, now};

/// Receivers at a time.
const RECEIVERS: usize = 3;

/// Frames that a receiver has not acknowledged, so that there is always something to lose.
const KEPT: usize = 4;

/// Between frames.
const PACE: Duration = Duration::from_millis(1);

/// Of a frame.
const SIZE: usize = 4096;

/// Between a new receiver and the next death.
const SETTLE: Duration = Duration::from_millis(100);

/// Nothing takes longer.
const BOUND: Duration = Duration::from_secs(20);

/// A receiver in a process of its own. A thread reads when it got frames that another had before.
struct Victim {
    process: Process,
    address: SocketAddr,
}

/// Times from `kill -9` to the first frame that was sent again.
pub(crate) async fn measure(deaths: usize) -> Result<Vec<Duration>> {
    let (say, hear) = channel();
    let mut victims = Vec::new();
    for _ in 0..RECEIVERS {
        victims.push(Victim::start(say.clone())?);
    }
    let (known, changes) = unbounded();
    tell(&known, &victims)?;
    let connector = allocations::connector(Delivery::AtLeastOnce)?.build()?;
    let peers = connector.follow("bench", changes);
    timeout(BOUND, peers.connected(RECEIVERS)).await.context("not all receivers were connected")?;
    let sending = tokio::spawn(send(peers.clone()));
    let mut times = Vec::new();
    for round in 0..deaths {
        sleep(SETTLE).await;
        let mut victim = victims.remove(round % RECEIVERS);
        let death = now();
        victim.process.kill()?;
        times.push(tokio::task::block_in_place(|| first_after(&hear, death))?);
        victims.insert(round % RECEIVERS, Victim::start(say.clone())?);
        // At another address, so that the dead one's pauses between attempts do not count for the new one.
        tell(&known, &victims)?;
        timeout(BOUND, peers.connected(RECEIVERS)).await.context("the new receiver was not connected")?;
    }
    sending.abort();
    Ok(times)
}

async fn send(peers: PeerSet) -> Result<()> {
    let frame = Frame::new(Buffer::from(vec![0xa5; SIZE]));
    let mut pace = interval(PACE);
    loop {
        pace.tick().await;
        peers.send(frame.clone()).await?;
    }
}

fn tell(known: &futures::channel::mpsc::UnboundedSender<Vec<Endpoint>>, victims: &[Victim]) -> Result<()> {
    let endpoints = victims.iter().map(|victim| Endpoint::at(victim.address)).collect();
    known.unbounded_send(endpoints).context("the PeerSet no longer listens")
}

/// Repeats of earlier deaths are not news.
fn first_after(hear: &Receiver<Duration>, death: Duration) -> Result<Duration> {
    loop {
        match hear.recv_timeout(BOUND) {
            Ok(time) if time < death => {}
            Ok(time) => return Ok(time - death),
            Err(_) => bail!("no frame of the dead receiver was sent again within {} s", BOUND.as_secs()),
        }
    }
}

impl Victim {
    fn start(say: Sender<Duration>) -> Result<Self> {
        let (mut process, address) = Role::Receiver { kept: KEPT }.start()?;
        let mut lines = process.take_stdout()?;
        std::thread::spawn(move || {
            let mut line = String::new();
            while std::io::BufRead::read_line(&mut lines, &mut line).is_ok_and(|read| read > 0) {
                let time = line.trim().parse().map(Duration::from_nanos);
                line.clear();
                if time.is_ok_and(|time| say.send(time).is_err()) {
                    return;
                }
            }
        });
        Ok(Self { process, address: address.parse()? })
    }
}
