//! At-least-once delivery over RDMA while receivers are killed and the link changes: no frame is
//! lost, and no receiver gets one twice.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_client::{Connector, Delivery, Endpoint, Frame, PeerSet, Transport, TransportKind};
use multinet_testing::in_guest;
use multinet_testing::multus::ip;
use multinet_testing::process::{Process, workspace_example};
use multinet_testing::wait::eventually;
use tempfile::TempDir;

use super::{amount, follow, no_resolver};

/// The longest time that one step may take.
const BOUND: Duration = Duration::from_secs(300);

const SINKS: [&str; 3] = ["10.9.0.2", "10.9.0.3", "10.9.0.4"];

/// A receiving process, `frames_sink`.
struct Sink {
    process: Process,
    address: &'static str,
    folder: TempDir,
}

impl Sink {
    async fn start(address: &'static str) -> Result<Self> {
        let folder = TempDir::new()?;
        let mut command = Command::new(workspace_example("frames_sink")?);
        command
            .args(["18515", "--address", address, "--silence", "4", "--slots", "4"])
            .env("HOSTNAME", address);
        let mut process = Process::spawn(&mut command, &folder.path().join("log"))?;
        process.logged("listening on ", BOUND).await?;
        Ok(Self { process, address, folder })
    }

    /// Returns the numbers of the frames that it has received.
    fn frames(&self) -> Result<Vec<u64>> {
        let log = std::fs::read_to_string(self.folder.path().join("log"))?;
        let complete = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let frames = complete.lines().filter_map(|line| line.strip_prefix("frame "));
        let number = |line: &str| {
            let number = line.split(' ').next().unwrap_or_default();
            number.parse().with_context(|| format!("{} has had: {line}", self.address))
        };
        frames.map(number).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_nothing_comes_twice() -> Result<()> {
    in_guest!();
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    // At least this many, and on until the last fault is over.
    let frames = amount(800, 20_000) as u64;
    for address in &SINKS[1..] {
        ip(&["address", "add", &format!("{address}/24"), "dev", "rdma0"])?;
    }
    let mut sinks = Vec::new();
    for address in SINKS {
        sinks.push(Sink::start(address).await?);
    }
    let peers = follow_all()?;
    all_by_rdma(&peers).await.context("at the beginning")?;
    let is_over = Arc::new(AtomicBool::new(false));
    let sender = tokio::spawn({
        let (peers, is_over) = (peers.clone(), Arc::clone(&is_over));
        async move {
            let mut sent = 0;
            while sent < frames || !is_over.load(Ordering::Relaxed) {
                sent += 1;
                peers.send(Frame::new(payload(sent))).await?;
            }
            peers.flush().await?;
            anyhow::Ok(sent)
        }
    });

    let mut gone = Vec::new();
    for round in 1..=2 {
        has_sent(&peers, round * frames / 8).await?;
        let mut killed = sinks.remove(0);
        killed.process.kill()?;
        sinks.push(Sink::start(killed.address).await?);
        gone.push(killed);
        all_by_rdma(&peers).await.with_context(|| format!("after kill {round}"))?;
    }

    has_sent(&peers, frames * 3 / 8).await?;
    let before = peers.statistics();
    ip(&["link", "set", "rdma0", "down"])?;
    let broken = || ensure_that(peers.statistics().disconnects >= before.disconnects + 3, "connected");
    eventually("the connections to break", BOUND, async || broken()).await?;
    ip(&["link", "set", "rdma0", "up"])?;
    // The kernel drops IPv6 addresses then, which are not used here.
    all_by_rdma(&peers).await.context("after the link was down")?;

    has_sent(&peers, frames * 4 / 8).await?;
    ip(&["link", "set", "rdma0", "mtu", "1500"])?;
    let before = peers.statistics();
    has_sent(&peers, frames * 5 / 8).await?;
    all_by_rdma(&peers).await.context("after the MTU has changed")?;
    eprintln!("a smaller MTU has broken {} connections", peers.statistics().disconnects - before.disconnects);

    // One address loses its GID index, and gets another.
    for step in ["del 10.9.0.3/24", "add 10.9.0.77/24", "add 10.9.0.3/24"] {
        let words: Vec<&str> =
            ["address"].into_iter().chain(step.split(' ')).chain(["dev", "rdma0"]).collect();
        ip(&words)?;
    }
    has_sent(&peers, frames * 7 / 8).await?;
    all_by_rdma(&peers).await.context("after a GID has moved")?;

    is_over.store(true, Ordering::Relaxed);
    let sent = tokio::time::timeout(BOUND, sender).await.context("sending")???;
    let statistics = peers.statistics();
    eprintln!("{statistics:?}");
    ensure!(statistics.acknowledged == sent && statistics.held == 0, "{statistics:?}");
    let mut all = BTreeSet::new();
    for sink in gone.iter().chain(&sinks) {
        let frames = sink.frames()?;
        let different: BTreeSet<u64> = frames.iter().copied().collect();
        ensure!(different.len() == frames.len(), "{} has had frames twice", sink.address);
        eprintln!("{}: {} frames", sink.address, frames.len());
        all.extend(different);
    }
    ensure!(all.iter().copied().eq(1..=sent), "{} of {sent} frames have arrived", all.len());
    Ok(())
}

/// Returns a PeerSet with all sinks.
fn follow_all() -> Result<PeerSet> {
    let connector = Connector::builder()
        .resolver(no_resolver()?)
        .transport(Transport::Rdma)
        .delivery(Delivery::AtLeastOnce)
        .silence(Duration::from_secs(4));
    let mut all = Vec::new();
    for address in SINKS {
        all.push(Endpoint::at(SocketAddr::new(address.parse::<IpAddr>()?, 18515)));
    }
    follow(connector, all)
}

async fn all_by_rdma(peers: &PeerSet) -> Result<()> {
    eventually("all to be connected by RDMA", BOUND, async || {
        let status = peers.status();
        let is_so = status.iter().all(|peer| peer.transport == Some(TransportKind::Rdma));
        ensure_that(is_so && status.len() == SINKS.len(), &format!("{status:#?}"))
    })
    .await
}

async fn has_sent(peers: &PeerSet, count: u64) -> Result<()> {
    eventually(&format!("{count} frames to be acknowledged"), BOUND, async || {
        let statistics = peers.statistics();
        ensure_that(statistics.acknowledged >= count, &format!("{statistics:?} {:#?}", peers.status()))
    })
    .await
}

fn ensure_that(is_so: bool, otherwise: &str) -> Result<()> {
    ensure!(is_so, "{otherwise}");
    Ok(())
}

/// Returns a payload as `frames_source` does: the number, filling, a checksum.
fn payload(number: u64) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    let mut filling = fastrand::Rng::with_seed(number);
    let length = filling.usize(0..3000);
    payload.extend(std::iter::repeat_with(|| filling.u8(..)).take(length));
    let checksum = crc32fast::hash(&payload);
    payload.extend(checksum.to_be_bytes());
    payload
}
