//! A million endpoints from a real API server: start, memory, changes, a new list, a restart from
//! the snapshot, and an outage of the API server under load.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use multinet_testing::cluster::Cluster;
use multinet_testing::dns::{Query, udp_socket};
use multinet_testing::objects::Objects;
use multinet_testing::proxy::{Link, Proxy};
use multinet_testing::replica::{Options, Replica};
use multinet_testing::usage::{peak_mebibytes, resident_mebibytes};
use multinet_testing::wait::eventually;
use tempfile::TempDir;

use crate::data::{self, NAMESPACE, Set};
use crate::{Round, milliseconds, report};

/// Memory limit per endpoint, with its names and texts, in bytes.
const PER_ENDPOINT: f64 = 600.0;

/// Memory limit of the program without endpoints, in MiB.
const BARE: f64 = 24.0;

/// Time limit for any step with a million endpoints.
const BOUND: Duration = Duration::from_secs(300);

/// Service whose slice changes.
const PROBE: Set = Set { prefix: "probe-", services: 1, slices_each: 1, first: 0xf0_0000 };

/// Number of its endpoints after a change.
const PROBED: u32 = 3;

#[derive(Debug, Clone, Copy)]
struct Size {
    /// Services with a thousand endpoints, including the probe.
    few: Set,
    many: Set,
    large: Set,
    changes: u32,
    outage: Duration,
}

impl Size {
    fn of(round: Round) -> Self {
        let few = Set { prefix: "few-", services: 9, slices_each: 1, first: 0 };
        let (services, slices_each, large, changes, outage) = match round {
            Round::Short => (4, 3, 10, 5, Duration::from_secs(3)),
            Round::Full => (1000, 10, 100, 100, Duration::from_secs(600)),
        };
        let many = Set { prefix: "many-", services, slices_each, first: 0x1_0000 };
        let large = Set { prefix: "large-", services: 1, slices_each: large, first: 0xe0_0000 };
        Self { few, many, large, changes, outage }
    }

    fn endpoints(self) -> u32 {
        [self.few, self.many, self.large].iter().map(|set| set.endpoints()).sum::<u32>() + PROBED
    }
}

#[tokio::test]
async fn many_endpoints_survive_a_restart_a_relist_and_an_outage() -> Result<()> {
    run(Round::Short).await
}

#[tokio::test]
#[ignore = "takes half an hour and 16 GiB: make soak"]
async fn soak_a_million_endpoints_stay_within_their_bounds() -> Result<()> {
    run(Round::Full).await
}

async fn run(round: Round) -> Result<()> {
    let size = Size::of(round);
    let mut cluster = Cluster::start().await?;
    cluster.apply_crds().await?;
    cluster.apply_rbac().await?;
    let objects = cluster.objects().await?;
    data::create(&objects, size.few).await?;
    data::create(&objects, PROBE).await?;
    let folder = TempDir::new()?;
    let snapshot = folder.path().join("dns.snapshot");
    let proxy = Proxy::start(cluster.address()).await?;
    let options =
        Options::new(&cluster.dns_server_kubeconfig(proxy.address()).await?).flag("--snapshot", &snapshot);

    let replica = options.start_ready().await?;
    let at_first = changes(&objects, replica.dns(), PROBE.first + 1000, size.changes).await?;
    data::create(&objects, size.many).await?;
    data::create(&objects, size.large).await?;
    drop(replica);
    if snapshot.exists() {
        fs::remove_file(&snapshot)?;
    }

    let (replica, resident) = start(&options, round, size).await?;
    let at_last = changes(&objects, replica.dns(), PROBE.first + 2000, size.changes).await?;
    let ratio = at_last.as_secs_f64() / at_first.as_secs_f64();
    let figure = format!("{} and {}: {ratio:.2}", milliseconds(at_first), milliseconds(at_last));
    report("change to answer, median, with 1,000 endpoints and with all; ratio (bound: 1.5)", &figure)?;
    ensure!(round == Round::Short || ratio <= 1.5, "{figure}");

    relist(&mut cluster, &proxy, &replica, round, size, resident).await?;
    let replica = restart(replica, &options, &proxy, &snapshot, round, size).await?;
    outage(&replica, &proxy, round, size).await
}

/// Starts a replica with all endpoints. Returns it with its resident memory in MiB.
async fn start(options: &Options, round: Round, size: Size) -> Result<(Replica, f64)> {
    let begun = Instant::now();
    let replica = options.start().await?;
    eventually("all endpoints to be known", BOUND, async || {
        let (status, body) = replica.readyz().await?;
        ensure!(status.is_success(), "{body}");
        Ok(())
    })
    .await?;
    let took = begun.elapsed();
    ensure!(replica.metric("multinet_dns_endpoints").await? == u64::from(size.endpoints()));
    check(&replica, size).await?;
    let resident = resident_mebibytes(replica.pid())?;
    let each = (resident - BARE) * f64::from(1 << 20) / f64::from(size.endpoints());
    report(
        &format!("start to ready with {} endpoints", size.endpoints()),
        &format!("{:.1} s", took.as_secs_f64()),
    )?;
    report(
        &format!("resident memory; of it per endpoint beyond {BARE:.0} MiB (bound: {PER_ENDPOINT:.0})"),
        &format!("{resident:.0} MiB; {each:.0} bytes"),
    )?;
    ensure!(round == Round::Short || each <= PER_ENDPOINT, "{each} bytes per endpoint");
    Ok((replica, resident))
}

/// Waits for the A and PTR records of one endpoint of a service of each kind.
async fn check(replica: &Replica, size: Size) -> Result<()> {
    for (set, service) in
        [(size.few, 0), (size.many, 0), (size.many, size.many.services - 1), (size.large, 0)]
    {
        let number = set.address(service);
        let (host, address) = (format!("worker-{number}.{}", set.name(service)), data::address(number));
        replica.answers(&host, "A", &[&address.to_string()]).await?;
        let [a, b, c, d] = address.octets();
        replica.answers(&format!("{d}.{c}.{b}.{a}.in-addr.arpa"), "PTR", &[&format!("{host}.")]).await?;
    }
    Ok(())
}

/// Changes the probe's slice `count` times, to addresses from `first` on. Returns the median time
/// from the change to its answer.
async fn changes(objects: &Objects, server: SocketAddr, first: u32, count: u32) -> Result<Duration> {
    let slices = data::slices(objects).await?;
    let mut times = Vec::new();
    for change in 0..count {
        // Every change uses addresses that the slice has not had before.
        let number = first + change * PROBED;
        let begun = Instant::now();
        let seen = tokio::task::spawn_blocking(move || asked_until(server, data::address(number), begun));
        data::change(&slices, &format!("{}0-0000", PROBE.prefix), data::endpoints(number, PROBED)).await?;
        times.push(seen.await??);
    }
    times.sort_unstable();
    times.get(times.len() / 2).copied().context("no change was made")
}

/// Queries the probe until the answer has this address. Returns the time since `begun`.
fn asked_until(server: SocketAddr, address: Ipv4Addr, begun: Instant) -> Result<Duration> {
    let socket = udp_socket(server)?;
    let query = Query::new(&PROBE.name(0), "A").to_wire();
    while begun.elapsed() < BOUND {
        if socket.exchange(&query)?.windows(4).any(|octets| octets == address.octets()) {
            return Ok(begun.elapsed());
        }
        thread::sleep(Duration::from_micros(200));
    }
    anyhow::bail!("the probe did not become {address}")
}

/// Makes the replica list everything again, because the API server no longer has its revision.
async fn relist(
    cluster: &mut Cluster,
    proxy: &Proxy,
    replica: &Replica,
    round: Round,
    size: Size,
    before: f64,
) -> Result<()> {
    let metric = r#"multinet_watch_relists_total{kind="MultiNetworkEndpointSlice"}"#;
    let relists = replica.metric(metric).await?;
    // This resets the peak of the resident memory (proc(5), clear_refs).
    fs::write(format!("/proc/{}/clear_refs", replica.pid()), "5")?;
    let load = Load::start(replica.dns(), size)?;
    proxy.set(Link::Reset);
    // After this change, the revision of the interrupted watch is an old one.
    let slices = data::slices(&cluster.objects().await?).await?;
    data::change(&slices, &format!("{}0-0000", PROBE.prefix), data::endpoints(PROBE.first, PROBED)).await?;
    cluster.compact_etcd().await?;
    cluster.kill_apiserver()?;
    cluster.start_apiserver().await?;
    proxy.set(Link::Up);
    eventually("all slices to be listed again", BOUND, async || {
        let now = replica.metric(metric).await?;
        ensure!(now > relists, "there are still {now} relists");
        Ok(())
    })
    .await?;
    load.stop()?;
    let peak = peak_mebibytes(replica.pid())?;
    let ratio = peak / before;
    let figure = format!("{before:.0} and {peak:.0} MiB: {ratio:.2}");
    report("memory before a relist and at its peak; ratio (bound: 1.3)", &figure)?;
    ensure!(round == Round::Short || ratio <= 1.3, "{figure}");
    check(replica, size).await
}

/// Kills the replica, and starts it again while the API server is unavailable.
async fn restart(
    mut replica: Replica,
    options: &Options,
    proxy: &Proxy,
    snapshot: &Path,
    round: Round,
    size: Size,
) -> Result<Replica> {
    let written = replica.metric("multinet_dns_snapshots_written_total").await?;
    eventually("a snapshot to be written", BOUND, async || {
        ensure!(
            snapshot.exists()
                && replica.metric("multinet_dns_snapshots_written_total").await? >= written.max(1)
        );
        Ok(())
    })
    .await?;
    replica.process().kill()?;
    drop(replica);
    proxy.set(Link::Reset);
    let begun = Instant::now();
    let replica = options.start().await?;
    check(&replica, size).await?;
    let took = begun.elapsed();
    report(
        "kill -9 to the first answers from the snapshot (bound: 2 s)",
        &format!("{:.2} s; the file has {} MiB", took.as_secs_f64(), fs::metadata(snapshot)?.len() >> 20),
    )?;
    ensure!(round == Round::Short || took <= Duration::from_secs(2), "{took:?}");
    proxy.set(Link::Up);
    eventually("the replica to be ready", BOUND, async || {
        let (status, body) = replica.readyz().await?;
        ensure!(status.is_success(), "{body}");
        Ok(())
    })
    .await?;
    Ok(replica)
}

/// Cuts the API server off for a long time under load. Checks that no answer is wrong, and that the
/// memory does not grow.
async fn outage(replica: &Replica, proxy: &Proxy, round: Round, size: Size) -> Result<()> {
    check(replica, size).await?;
    let load = Load::start(replica.dns(), size)?;
    proxy.set(Link::Reset);
    tokio::time::sleep(size.outage / 10).await;
    let before = resident_mebibytes(replica.pid())?;
    tokio::time::sleep(size.outage * 9 / 10).await;
    let after = resident_mebibytes(replica.pid())?;
    let answers = load.stop()?;
    report(
        &format!(
            "API server away for {:.0} s: answers, all right; memory before and after",
            size.outage.as_secs_f64()
        ),
        &format!("{answers}; {before:.0} and {after:.0} MiB"),
    )?;
    ensure!(
        round == Round::Short || after <= before * 1.02 + 2.0,
        "memory grew from {before} to {after} MiB"
    );
    proxy.set(Link::Up);
    Ok(())
}

/// Thread that queries one host after the other, and checks the answers.
struct Load {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Load {
    fn start(server: SocketAddr, size: Size) -> Result<Self> {
        let socket = udp_socket(server)?;
        let (stop, answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&answers));
        let thread = thread::spawn(move || {
            let set = size.many;
            for turn in 0u32.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let service = turn % set.services;
                let number = set.address(service) + turn % (set.slices_each * data::ENDPOINTS);
                let name = format!("worker-{number}.{}", set.name(service));
                let reply = socket.exchange(&Query::new(&name, "A").to_wire())?;
                let address = data::address(number).octets();
                ensure!(
                    reply[3] & 15 == 0 && reply[7] == 1 && reply.ends_with(&address),
                    "{name}: {reply:?}"
                );
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Ok(Self { stop, answers, thread })
    }

    /// Stops the thread. Returns the number of answers; fails if one was wrong.
    fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the load panicked in {NAMESPACE}"))??;
        Ok(self.answers.load(Ordering::Relaxed))
    }
}
