//! Simulation of several candidates for an hour: their links change quality, candidates are killed
//! and restarted, and the lease is edited and deleted. No two of them may ever write at the same
//! time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use multinet_runtime::Leadership;
use multinet_testing::fake_api::{Fate, LeaseLink, LeaseServer};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::candidate::{Candidate, SECOND, server};

const SEEDS: u64 = 6;
const CANDIDATES: usize = 3;
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn no_two_candidates_ever_write_at_the_same_time() {
    let mut led = Duration::ZERO;
    let mut changes = 0;
    for seed in 1..=SEEDS {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let writes = runtime.unwrap().block_on(hour(seed));
        check(seed, &writes);
        led += writes.iter().map(|write| write.end - write.begin).sum::<Duration>();
        changes += writes.windows(2).filter(|pair| pair[0].process != pair[1].process).count();
    }
    // Without leaders, the check above would pass, too.
    let share = led.as_secs_f64() / (HOUR.as_secs_f64() * SEEDS as f64);
    assert!(share > 0.2, "candidates wrote for only {share} of the time");
    assert!(changes > 10 * SEEDS as usize, "there were only {changes} changes");
}

/// A write, from its beginning until it was done or abandoned.
#[derive(Clone, Debug)]
struct Write {
    process: usize,
    term: u64,
    begin: Instant,
    end: Instant,
}

type Ledger = Arc<Mutex<Vec<Write>>>;

fn check(seed: u64, writes: &[Write]) {
    let mut writes = writes.to_vec();
    writes.sort_by_key(|write| write.begin);
    let mut last: Option<&Write> = None;
    for write in &writes {
        if let Some(last) = last
            && last.process != write.process
        {
            let overlap = last.end.saturating_duration_since(write.begin);
            assert_eq!(overlap, Duration::ZERO, "seed {seed}: {last:?}, {write:?}");
        }
        last = Some(write);
    }
    for process in 0..writes.last().map_or(0, |write| write.process) {
        let terms: Vec<u64> =
            writes.iter().filter(|write| write.process == process).map(|write| write.term).collect();
        assert!(terms.is_sorted(), "seed {seed}: {terms:?}");
    }
}

async fn hour(seed: u64) -> Vec<Write> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let start = Instant::now();
    let mut world = World::new(&mut random);
    while start.elapsed() < HOUR {
        // Long enough for a deleted lease to be created again before the next candidate starts.
        sleep(random.seconds(30.0, 120.0)).await;
        world.disturb(&mut random).await;
    }
    for host in &world.hosts {
        *host.quality.lock().unwrap() = Quality::Good;
    }
    sleep(60 * SECOND).await;
    let leaders = || world.hosts.iter().filter(|host| host.candidate.leadership.is_leader()).count();
    assert_eq!(leaders(), 1, "seed {seed}: with good links");
    world.ledger.lock().unwrap().clone()
}

struct World {
    server: LeaseServer,
    ledger: Ledger,
    /// Hosts that run one process each.
    hosts: Vec<Host>,
    /// Number of processes started so far.
    processes: usize,
}

struct Host {
    quality: Arc<Mutex<Quality>>,
    identity: String,
    candidate: Candidate,
    writer: JoinHandle<()>,
}

/// Quality of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Quality {
    Good,
    /// Many requests are late, lost, or refused.
    Bad,
    /// No request is answered. Some are carried out, much later.
    Cut,
}

impl World {
    fn new(random: &mut Random) -> Self {
        let mut world = Self { server: server(), ledger: Ledger::default(), hosts: Vec::new(), processes: 0 };
        for _ in 0..CANDIDATES {
            let host = world.process(None, random);
            world.hosts.push(host);
        }
        world
    }

    /// Starts a process, with an identity of its own if none is given.
    fn process(&mut self, identity: Option<String>, random: &mut Random) -> Host {
        let process = self.processes;
        self.processes += 1;
        let identity = identity.unwrap_or_else(|| format!("process-{process}"));
        let quality = Arc::new(Mutex::new(Quality::Good));
        let link = LeaseLink::new({
            let (quality, mut random) = (Arc::clone(&quality), random.fork());
            move |_| random.fate(*quality.lock().unwrap())
        });
        let candidate = Candidate::start(&self.server, &identity, link);
        let (leadership, ledger) = (candidate.leadership.clone(), Arc::clone(&self.ledger));
        let (shutdown, stopped) = (candidate.shutdown.clone(), candidate.stopped.clone());
        let random = random.fork();
        let writer = tokio::spawn(async move {
            shutdown.run_until_cancelled(write(process, leadership, ledger, random)).await;
            stopped.cancel();
        });
        Host { quality, identity, candidate, writer }
    }

    /// Changes a link, restarts a process, or edits or deletes the lease, at random.
    async fn disturb(&mut self, random: &mut Random) {
        let host = random.below(CANDIDATES as u64) as usize;
        let identity = self.hosts[host].identity.clone();
        match random.below(14) {
            0..=2 => self.set_quality(host, Quality::Cut),
            3..=5 => self.set_quality(host, Quality::Bad),
            6..=8 => self.set_quality(host, Quality::Good),
            9 => self.restart(host, Some(identity), random),
            10 => self.restart(host, None, random),
            11 => {
                self.hosts[host].candidate.shutdown.cancel();
                sleep(random.seconds(0.0, 30.0)).await;
                self.restart(host, None, random);
            }
            12 => self.server.delete(),
            _ => self.server.edit(|lease| lease["spec"]["holderIdentity"] = json!(identity)),
        }
    }

    fn set_quality(&self, host: usize, quality: Quality) {
        *self.hosts[host].quality.lock().unwrap() = quality;
    }

    /// Kills the process of a host, and starts another there.
    fn restart(&mut self, host: usize, identity: Option<String>, random: &mut Random) {
        let old = &self.hosts[host];
        old.writer.abort();
        self.hosts[host] = self.process(identity, random);
    }
}

/// Writes all the time while this process leads. One write in eight takes until its deadline.
async fn write(process: usize, mut leadership: Leadership, ledger: Ledger, mut random: Random) {
    loop {
        leadership.changed(false).await;
        while let Some(limit) = leadership.write_deadline() {
            let (begin, term) = (Instant::now(), leadership.term());
            let end = if random.below(8) == 0 { limit } else { limit.min(begin + random.seconds(0.0, 2.0)) };
            let under_way = UnderWay { write: Write { process, term, begin, end }, ledger: &ledger };
            sleep_until(end).await;
            drop(under_way);
            sleep(random.seconds(0.0, 0.2)).await;
        }
    }
}

/// A write under way, which ends at its end or with its process. Dropping it records it.
struct UnderWay<'a> {
    write: Write,
    ledger: &'a Ledger,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let end = self.write.end.min(Instant::now());
        self.ledger.lock().unwrap().push(Write { end, ..self.write.clone() });
    }
}

/// Pseudo-random numbers by the algorithm xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn fork(&mut self) -> Self {
        Self(self.next() | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 32) % limit
    }

    fn seconds(&mut self, from: f64, to: f64) -> Duration {
        Duration::from_secs_f64(from + (to - from) * (self.below(1 << 20) as f64 / f64::from(1 << 20)))
    }

    fn fate(&mut self, quality: Quality) -> Fate {
        let quick = Fate::Answered { there: self.seconds(0.0, 0.02), back: self.seconds(0.0, 0.02) };
        match (quality, self.below(10)) {
            (Quality::Good, _) | (Quality::Bad, 0..=3) => quick,
            (Quality::Bad, 4) => {
                Fate::Answered { there: self.seconds(0.0, 5.0), back: self.seconds(0.0, 5.0) }
            }
            (Quality::Bad, 5) => Fate::AnswerLost { there: self.seconds(0.0, 20.0) },
            (Quality::Bad, 6) => Fate::Refused(500),
            (Quality::Bad, 7) => Fate::Refused(429),
            (Quality::Bad, 8) => Fate::Unreachable,
            (Quality::Cut, 0..=1) => Fate::AnswerLost { there: self.seconds(0.0, 60.0) },
            (Quality::Bad | Quality::Cut, _) => Fate::Lost,
        }
    }
}
