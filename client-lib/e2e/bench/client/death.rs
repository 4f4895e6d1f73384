//! Time from the death of a peer until another peer gets the first of its frames.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::channel::mpsc::unbounded;
use multinet_client::{Buffer, Delivery, Endpoint, Frame, PeerSet};
use multinet_testing::measure::PipedProcess;
use tokio::time::{interval, sleep, timeout};

use super::allocations;
use super::roles::{Role, now};

/// Number of receivers.
const RECEIVERS: usize = 3;

/// Number of unacknowledged frames at each receiver, so that a death always affects some.
const KEPT: usize = 4;

/// Time between two frames.
const PACE: Duration = Duration::from_millis(1);

/// Size of a frame.
const SIZE: usize = 4096;

/// Time between the connection of a new receiver and the next death.
const SETTLE: Duration = Duration::from_millis(100);

/// Time limit of each step.
const BOUND: Duration = Duration::from_secs(20);

/// Receiver in a process of its own. A thread reads the times at which it got repeated frames.
struct Victim {
    process: PipedProcess,
    address: SocketAddr,
}

/// Returns the times from SIGKILL to the first repeated frame.
pub(crate) async fn measure(deaths: usize) -> Result<Vec<Duration>> {
    let (repeated, repeats) = channel();
    let mut victims = Vec::new();
    for _ in 0..RECEIVERS {
        victims.push(Victim::start(repeated.clone())?);
    }
    let (known, changes) = unbounded();
    announce(&known, &victims)?;
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
        times.push(tokio::task::block_in_place(|| first_after(&repeats, death))?);
        // The new receiver has another address, so that the pauses between attempts to reach the
        // dead one do not apply.
        victims.insert(round % RECEIVERS, Victim::start(repeated.clone())?);
        announce(&known, &victims)?;
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

fn announce(
    known: &futures::channel::mpsc::UnboundedSender<Vec<Endpoint>>,
    victims: &[Victim],
) -> Result<()> {
    let endpoints = victims.iter().map(|victim| Endpoint::at(victim.address)).collect();
    known.unbounded_send(endpoints).context("the PeerSet has been dropped")
}

/// Waits for the first repeated frame after a death. Returns the time between them.
fn first_after(repeats: &Receiver<Duration>, death: Duration) -> Result<Duration> {
    loop {
        match repeats.recv_timeout(BOUND) {
            Ok(time) if time < death => {}
            Ok(time) => return Ok(time - death),
            Err(_) => bail!("no frame of the dead receiver was sent again within {} s", BOUND.as_secs()),
        }
    }
}

impl Victim {
    fn start(repeated: Sender<Duration>) -> Result<Self> {
        let (mut process, address) = Role::Receiver { kept: KEPT }.start()?;
        let mut lines = process.take_stdout()?;
        std::thread::spawn(move || {
            let mut line = String::new();
            while std::io::BufRead::read_line(&mut lines, &mut line).is_ok_and(|read| read > 0) {
                let time = line.trim().parse().map(Duration::from_nanos);
                line.clear();
                if time.is_ok_and(|time| repeated.send(time).is_err()) {
                    return;
                }
            }
        });
        Ok(Self { process, address: address.parse()? })
    }
}
