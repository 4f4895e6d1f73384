//! The adapters for Numaflow's user-defined functions, as real processes that are killed with
//! SIGKILL at any moment, while vertices are scaled.
//!
//! ```text
//! claim check:  input ──> decode ── references ──> output ──> infer     payloads: decode ──> infer
//! boundary:     input ──> send ═════ frames ═════> receive ──> output
//! ```
//!
//! The buffers and the data planes stand in for Numaflow's. Data planes and functions speak over
//! Unix sockets, with the protocol buffers of Numaflow's SDK.

mod buffer;
mod plane;
mod pod;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use multinet_testing::process::free_port;
use multinet_testing::server::{Flags, Manifests, Server};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use self::buffer::{Buffer, Message, Settings};
use self::plane::{Flow, Tally};
use self::pod::{Death, Pod, Role};

/// Length of a payload.
const SIZE: usize = 4096;

/// How often the run is looked after.
const TICK: Duration = Duration::from_millis(5);

/// Numbers of pods of each vertex: at first, in the middle, and at the end.
const PODS: [usize; 3] = [2, 5, 2];

/// Extent of a run.
struct Extent {
    messages: usize,
    /// The most messages that a buffer holds.
    capacity: usize,
    /// The most messages that a data plane has in progress.
    at_once: usize,
    /// Number of payloads that a pod's budget has room for: fewer than `at_once`.
    offers: usize,
    /// Time after which the messages of a dead data plane are delivered again.
    redelivery: Duration,
    /// Time in which a buffer drops a second message with the same id.
    window: Duration,
    /// Seconds for which a payload is looked for: more than `redelivery` and `window` together.
    wait: u64,
    /// Seconds after which the reference of a payload that was not taken is emitted again.
    repeat: u64,
    deaths: usize,
    bound: Duration,
}

const SHORT: Extent = Extent {
    messages: 2000,
    capacity: 300,
    at_once: 50,
    offers: 20,
    redelivery: Duration::from_millis(500),
    window: Duration::from_millis(500),
    wait: 2,
    repeat: 3,
    deaths: 15,
    bound: Duration::from_secs(60),
};

/// A boundary is faster, since nothing waits there for what is delivered again.
const SHORT_BOUNDARY: Extent = Extent { messages: 10_000, ..SHORT };

/// With the times of Numaflow's buffers, and the defaults of the library.
const LONG: Extent = Extent {
    messages: 100_000,
    capacity: 30_000,
    at_once: 500,
    offers: 200,
    redelivery: Duration::from_secs(60),
    window: Duration::from_secs(60),
    wait: 150,
    repeat: 120,
    deaths: 60,
    bound: Duration::from_secs(5400),
};

#[tokio::test(flavor = "multi_thread")]
async fn the_payload_of_every_message_is_processed_though_pods_are_killed_and_scaled() -> Result<()> {
    run(Role::Decode, Role::Infer, &SHORT).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_crosses_the_boundary_though_pods_are_killed_and_scaled() -> Result<()> {
    run(Role::Send, Role::Receive, &SHORT_BOUNDARY).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes an hour: make soak"]
async fn soak_the_payload_of_every_message_is_processed_though_pods_are_killed_and_scaled() -> Result<()> {
    run(Role::Decode, Role::Infer, &LONG).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make soak"]
async fn soak_every_message_crosses_the_boundary_though_pods_are_killed_and_scaled() -> Result<()> {
    run(Role::Send, Role::Receive, &LONG).await
}

/// Surroundings of all pods.
struct Site {
    dns: SocketAddr,
    /// Port of the direct edge.
    port: u16,
    /// Sockets and logs.
    folder: TempDir,
}

impl Site {
    fn log(&self, role: Role, number: usize) -> PathBuf {
        self.folder.path().join(format!("{}.log", pod::host(role, number)))
    }
}

/// The vertices at both ends of a direct edge.
struct World<'e> {
    extent: &'e Extent,
    site: Arc<Site>,
    manifests: Manifests,
    _server: Server,
    flow: Arc<Flow>,
    from: Role,
    to: Role,
    senders: Vec<Pod>,
    receivers: Vec<Pod>,
}

async fn run(from: Role, to: Role, extent: &Extent) -> Result<()> {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new(from, to, extent).await?;
    let begin = Instant::now();
    world.scale(true, PODS[0]).await?;
    let source = tokio::spawn(produce(Arc::clone(&world.flow.input), extent.messages));
    // Nothing takes the payloads, so the source has to wait.
    timeout(extent.bound, world.flow.input.full()).await.context("the source never waits")?;
    ensure!(!source.is_finished() && world.flow.input.count() == 0, "messages are acknowledged already");
    world.scale(false, PODS[0]).await?;
    let (mut deaths, mut scaled) = (0, 1);
    while world.flow.input.count() < extent.messages {
        sleep(TICK).await;
        world.check().await?;
        let (count, all) = (world.flow.input.count(), extent.messages);
        if scaled < PODS.len() && count * PODS.len() >= all * scaled {
            world.scale(true, PODS[scaled]).await?;
            world.scale(false, PODS[scaled]).await?;
            scaled += 1;
        }
        if deaths < extent.deaths && count * extent.deaths >= all * deaths {
            world.kill_one(&mut random).await?;
            deaths += 1;
        }
        ensure!(
            begin.elapsed() < extent.bound,
            "{count} of {all} messages are acknowledged: {}",
            world.summary()
        );
    }
    source.await?;
    eprintln!(
        "{} messages in {:.1} s; {deaths} deaths; {}",
        extent.messages,
        begin.elapsed().as_secs_f64(),
        world.summary()
    );
    world.end().await
}

/// Stands for the source of the Pipeline, which waits while the buffer is full.
async fn produce(input: Arc<Buffer>, count: usize) {
    for number in 0..count {
        let message = Message {
            offset: 0,
            id: format!("camera-{number}-0"),
            keys: vec![format!("camera-{}", number % 7)],
            value: name(number).into_bytes(),
            headers: vec![("lens".to_owned(), "wide".to_owned())],
            time: 1_700_000_000 + number as i64 / 30,
        };
        input.publish(message).await;
    }
}

/// Returns the value of a message.
fn name(number: usize) -> String {
    format!("picture-{number}")
}

impl<'e> World<'e> {
    async fn new(from: Role, to: Role, extent: &'e Extent) -> Result<Self> {
        let (manifests, port) = (Manifests::new()?, free_port()?);
        let folder = manifests.path().to_owned();
        // Its start waits without giving way to other tasks.
        let start = move || Flags::new().words("--vertex-zone vertexdomain.local").start(&folder);
        let server = tokio::task::spawn_blocking(start).await??;
        let settings =
            Settings { capacity: extent.capacity, redelivery: extent.redelivery, window: extent.window };
        // What is behind the boundary is no part of the test.
        let behind = Settings { capacity: usize::MAX, ..settings };
        let flow = Arc::new(Flow {
            input: Buffer::new(settings),
            output: Buffer::new(if to == Role::Receive { behind } else { settings }),
            at_once: extent.at_once,
            tally: Mutex::new(Tally::default()),
        });
        let site = Arc::new(Site { dns: server.dns(), port, folder: TempDir::new()? });
        let (senders, receivers) = (Vec::new(), Vec::new());
        Ok(Self { extent, site, manifests, _server: server, flow, from, to, senders, receivers })
    }

    /// Brings the number of a vertex' pods to `count`. Surplus pods are killed.
    async fn scale(&mut self, senders: bool, count: usize) -> Result<()> {
        let (role, pods) =
            if senders { (self.from, &mut self.senders) } else { (self.to, &mut self.receivers) };
        if role.is_in_dns() {
            self.manifests.replace("vertex.yaml", &manifest(role, self.site.port, count))?;
        }
        while pods.len() > count {
            pods.pop().context("a pod")?.end().await?;
        }
        while pods.len() < count {
            pods.push(Pod::start(role, pods.len(), &self.site, &self.flow, self.extent).await?);
        }
        Ok(())
    }

    async fn kill_one(&mut self, random: &mut fastrand::Rng) -> Result<()> {
        let pods = self.senders.len() + self.receivers.len();
        let victim = self.senders.iter_mut().chain(&mut self.receivers).nth(random.usize(..pods));
        let death = [Death::Function, Death::Plane, Death::Pod][random.usize(..3)];
        victim.context("a pod")?.die(death, self.extent).await
    }

    async fn check(&mut self) -> Result<()> {
        for pod in self.senders.iter_mut().chain(&mut self.receivers) {
            pod.check().await?;
        }
        Ok(())
    }

    fn summary(&self) -> String {
        let tally = self.flow.tally.lock();
        format!(
            "{} outputs; {} repeats dropped by the buffer; {} duplicates in progress; {} rejected; {} fell back",
            self.flow.output.count(),
            self.flow.output.dropped(),
            tally.duplicates,
            tally.rejected,
            tally.fallen_back.len()
        )
    }

    /// Kills all pods, and checks that no message was lost, and that each has one id.
    async fn end(mut self) -> Result<()> {
        for pod in self.senders.drain(..).chain(self.receivers.drain(..)) {
            pod.end().await?;
        }
        let wanted: BTreeSet<String> = (0..self.extent.messages).map(name).collect();
        let tally = self.flow.tally.lock();
        if self.to == Role::Infer {
            let processed = self.processed()?;
            let lost = wanted.iter().find(|name| !processed.contains_key(*name));
            ensure!(lost.is_none(), "{lost:?} was acknowledged, and never processed");
            let repeats = processed.values().filter(|&&count| count > 1).count();
            eprintln!("{repeats} payloads were processed more than once");
            let several = tally.ids.iter().find(|(_, ids)| ids.len() != 1);
            ensure!(several.is_none(), "{several:?}");
        } else {
            let lost = wanted.iter().find(|name| !tally.offsets.contains_key(*name));
            ensure!(lost.is_none(), "{lost:?} was acknowledged, and has never come");
            let several = tally.offsets.iter().find(|(_, offsets)| offsets.len() != 1);
            ensure!(several.is_none(), "{several:?}");
        }
        Ok(())
    }

    /// Returns how often each payload was processed, as the logs of `infer` say.
    fn processed(&self) -> Result<HashMap<String, usize>> {
        let mut processed = HashMap::new();
        for number in 0..PODS.into_iter().max().unwrap_or_default() {
            let log = fs::read_to_string(self.site.log(Role::Infer, number))?;
            for name in log.lines().filter_map(|line| line.strip_prefix("processed ")?.split(' ').next()) {
                *processed.entry(name.to_owned()).or_default() += 1;
            }
        }
        Ok(processed)
    }
}

/// Returns the manifests of a vertex' service and of its pods.
fn manifest(role: Role, port: u16, pods: usize) -> String {
    let vertex = role.vertex();
    let labels = format!(
        "{{numaflow.numaproj.io/pipeline-name: frames, numaflow.numaproj.io/vertex-name: {vertex}, \
         multinetwork.numaproj.io/service-name: frames-{vertex}, multinetwork.numaproj.io/managed-by: test}}"
    );
    let mut text = format!(
        "\
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkService
metadata: {{name: frames-{vertex}, namespace: vision}}
spec:
  networks: [{{name: rdma-a, alias: rail0}}]
  ports: [{{name: multinet, port: {port}}}]
  ttlSeconds: 1
---
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkEndpointSlice
metadata: {{name: frames-{vertex}-0, namespace: vision, labels: {labels}}}
spec:
  addressType: IPv4
  network: {{kind: NetworkAttachmentDefinition, name: rdma-a, namespace: vision, alias: rail0}}
  ports: [{{name: multinet, port: {port}, protocol: TCP}}]
  endpoints:
"
    );
    for number in 0..pods {
        let (host, address) = (pod::host(role, number), pod::address(number));
        text.push_str(&format!(
            "  - {{addresses: [{address}], hostname: {host}, nodeName: gpu-1, \
             targetRef: {{kind: Pod, namespace: vision, name: {host}, uid: uid-of-{host}}}}}\n"
        ));
    }
    text
}
