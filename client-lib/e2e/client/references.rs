//! Payloads whose references go through a queue, between real processes that are killed with
//! SIGKILL at any moment.
//!
//! ```text
//!   upstream ── messages ──> offer ── references ──> downstream ── references ──> fetch
//!      ^                       │                         ^                          │
//!      └──────── taken ────────┘                         └──────── fetched ─────────┘
//! ```
//!
//! Both queues are JetStream's: a message that is not acknowledged in time is delivered again, and
//! a second message with the id of an earlier one is dropped within a window. A reference that
//! leads nowhere is not acknowledged: its message may come again.

mod hostile;
mod queue;
mod worker;

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use multinet_testing::process::free_port;
use multinet_testing::server::{Flags, Manifests, Server};

use self::queue::Queue;
use self::worker::{Event, Program, Worker};
use crate::multinet::{CHANGEABLE, SERVICE, slice};

/// Length of a payload.
const SIZE: usize = 4096;

/// How often queues and deaths are looked after.
const TICK: Duration = Duration::from_millis(5);

/// Extent of a run.
struct Extent {
    messages: usize,
    producers: usize,
    consumers: usize,
    /// Most messages that one queue has delivered, and that are not acknowledged.
    in_flight: usize,
    /// Time after which a queue delivers a message again.
    redelivery: Duration,
    /// Time in which a queue drops a second message with the same id.
    window: Duration,
    /// Seconds for which a payload is looked for: more than `redelivery` and `window` together.
    wait: u64,
    /// Seconds for which a payload is on offer.
    deadline: u64,
    /// Number of deaths, in the middle of the work.
    deaths: usize,
    bound: Duration,
}

const SHORT: Extent = Extent {
    messages: 1000,
    producers: 3,
    consumers: 3,
    in_flight: 100,
    redelivery: Duration::from_millis(1000),
    window: Duration::from_millis(1000),
    wait: 3,
    deadline: 4,
    deaths: 30,
    bound: Duration::from_secs(120),
};

/// With the times of Numaflow's buffers.
const LONG: Extent = Extent {
    messages: 100_000,
    producers: 4,
    consumers: 4,
    in_flight: 1000,
    redelivery: Duration::from_secs(60),
    window: Duration::from_secs(60),
    wait: 150,
    deadline: 300,
    deaths: 100,
    bound: Duration::from_secs(3600),
};

#[test]
fn the_payload_of_every_reference_is_processed_though_processes_are_killed() -> Result<()> {
    run(&SHORT)
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_the_payload_of_every_reference_is_processed_though_processes_are_killed() -> Result<()> {
    run(&LONG)
}

/// The processes, and what the outside knows of their work.
struct World<'e> {
    extent: &'e Extent,
    programs: Vec<Program>,
    workers: Vec<Worker>,
    /// Messages for producers: the ids of payloads.
    upstream: Queue,
    /// References for consumers.
    downstream: Queue,
    /// How often the payload of each id was processed.
    processed: HashMap<String, usize>,
    /// Ids whose payloads were taken, which upstream was told.
    taken: HashSet<String>,
    /// References that came again after their payloads had been processed.
    repeats: usize,
    /// Times that a reference led nowhere.
    dead_ends: usize,
}

fn run(extent: &Extent) -> Result<()> {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (_manifests, _dns, programs) = programs(extent)?;
    let (events, inbox) = channel();
    let workers = programs.iter().map(|program| program.start(&events)).collect::<Result<_>>()?;
    let mut world = World {
        extent,
        programs,
        workers,
        upstream: Queue::new(extent.redelivery, extent.window),
        downstream: Queue::new(extent.redelivery, extent.window),
        processed: HashMap::new(),
        taken: HashSet::new(),
        repeats: 0,
        dead_ends: 0,
    };
    let begin = Instant::now();
    for number in 0..extent.messages {
        let id = format!("camera/{number}");
        world.upstream.publish(begin, &id, &id);
    }
    // Each message has three events or more.
    let pause = 3 * extent.messages / extent.deaths;
    let (mut deaths, mut until_death) = (0, pause);
    while !world.upstream.is_empty() {
        if let Ok(event) = inbox.recv_timeout(TICK) {
            world.handle(event)?;
            until_death = until_death.saturating_sub(1);
        }
        let now = Instant::now();
        world.deliver(now, &mut random)?;
        if until_death == 0 && deaths < extent.deaths {
            let victim = random.usize(..world.workers.len());
            // Without a word, and with whatever it was doing.
            world.workers[victim].kill()?;
            world.workers[victim] = world.programs[victim].start(&events)?;
            deaths += 1;
            until_death = random.usize(1..2 * pause);
        }
        ensure!(
            begin.elapsed() < extent.bound,
            "{} of {} messages were acknowledged within {} s",
            world.taken.len(),
            extent.messages,
            extent.bound.as_secs()
        );
    }
    // What was printed before a payload was acknowledged may still be in a pipe.
    world.workers.iter_mut().try_for_each(Worker::kill)?;
    drop(events);
    inbox.iter().try_for_each(|event| world.handle(event))?;
    let twice = world.processed.values().filter(|&&count| count > 1).count();
    eprintln!(
        "{} references in {:.1} s; {deaths} deaths; {twice} payloads processed more than once; {} references repeated; {} led nowhere",
        extent.messages,
        begin.elapsed().as_secs_f64(),
        world.repeats,
        world.dead_ends
    );
    let lost = world.taken.iter().find(|id| !world.processed.contains_key(*id));
    ensure!(lost.is_none(), "{lost:?} was acknowledged upstream, and never processed");
    ensure!(world.taken.len() == extent.messages, "{} messages were acknowledged", world.taken.len());
    Ok(())
}

/// Returns the programs, and a DNS server that knows where the producers are.
fn programs(extent: &Extent) -> Result<(Manifests, Server, Vec<Program>)> {
    let (manifests, port) = (Manifests::new()?, free_port()?.to_string());
    let hosts: Vec<(String, String)> = (1..=extent.producers)
        .map(|number| (format!("decode-{number}"), format!("127.1.0.{number}")))
        .collect();
    let endpoints: Vec<_> = hosts.iter().map(|(host, address)| (&**host, &**address, "gpu-1")).collect();
    manifests.write("service.yaml", &CHANGEABLE.replace("18515", &port))?;
    manifests.write("slice.yaml", &slice(&endpoints).replace("18515", &port))?;
    let server = Flags::new().start(manifests.path())?;
    let producers = hosts.iter().map(|(host, address)| {
        let (size, deadline) = (SIZE.to_string(), extent.deadline.to_string());
        Program::new(
            "offer",
            [port.as_str(), "--address", address, "--host", host, "--size", &size, "--deadline", &deadline],
        )
    });
    let consumers = (0..extent.consumers).map(|_| {
        let (dns, wait, at_once) =
            (server.dns().to_string(), extent.wait.to_string(), extent.in_flight.to_string());
        Program::new(
            "fetch",
            [SERVICE, "--port", "rdma", "--server", &dns, "--wait", &wait, "--at-once", &at_once],
        )
    });
    let programs = producers.chain(consumers).collect::<Result<_>>()?;
    Ok((manifests, server, programs))
}

impl World<'_> {
    fn handle(&mut self, event: Event) -> Result<()> {
        let now = Instant::now();
        match event {
            Event::Offered(reference) => self.downstream.publish(now, id(&reference), &reference),
            Event::Taken(id) => {
                self.upstream.acknowledge(&id);
                self.taken.insert(id);
            }
            Event::NotTaken(id) => self.upstream.give_back(&id),
            Event::Fetched(reference) => {
                *self.processed.entry(id(&reference).to_owned()).or_default() += 1;
                self.downstream.acknowledge(&reference);
            }
            Event::Repeated(reference) => {
                self.repeats += 1;
                self.downstream.acknowledge(&reference);
            }
            Event::NotFetched(reference, reason) => {
                ensure!(reason.contains("no pod"), "{reference}: {reason}");
                self.dead_ends += 1;
                self.downstream.give_back(&reference);
            }
        }
        Ok(())
    }

    /// Delivers messages to producers, and references to consumers.
    fn deliver(&mut self, now: Instant, random: &mut fastrand::Rng) -> Result<()> {
        let Self { extent, workers, upstream, downstream, .. } = self;
        let (producers, consumers) = workers.split_at_mut(extent.producers);
        for (queue, workers) in [(upstream, producers), (downstream, consumers)] {
            while let Some(message) = queue.next(now, extent.in_flight) {
                let worker = random.usize(..workers.len());
                workers[worker].write(&message)?;
            }
        }
        Ok(())
    }
}

/// Returns the id of a reference.
fn id(reference: &str) -> &str {
    reference.split_once('/').map_or(reference, |(_, id)| id)
}
