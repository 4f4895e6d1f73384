//! Several processes for an hour, over links of changing quality, while they are killed and restarted, and the lease is
//! meddled with. Whatever happens, no two of them write at the same time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use multinet_runtime::Leadership;
use multinet_testing::fake_api::{Fate, LeaseServer, Link};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::candidate::{Candidate, SECOND, server};

const SEEDS: u64 = 6;
const CANDIDATES: usize = 3;
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn no_two_ever_write_at_the_same_time() {
    let mut led = Duration::ZERO;
    let mut changes = 0;
    for seed in 1..=SEEDS {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let writes = runtime.unwrap().block_on(hour(seed));
        check(seed, &writes);
        led += writes.iter().map(|write| write.end - write.begin).sum::<Duration>();
        changes += writes.windows(2).filter(|pair| pair[0].process != pair[1].process).count();
    }
    // Safety is cheap where nobody ever leads.
    let share = led.as_secs_f64() / (HOUR.as_secs_f64() * SEEDS as f64);
    assert!(share > 0.2, "they have written for {share} of the time only");
    assert!(changes > 10 * SEEDS as usize, "there were {changes} changes only");
}

/// A write, from its beginning until it was done or given up.
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
        // Long enough for a lease that is deleted to be there again before the next process begins.
        sleep(random.seconds(30.0, 120.0)).await;
        world.meddle(&mut random).await;
    }
    for place in &world.places {
        *place.weather.lock().unwrap() = Weather::Good;
    }
    sleep(60 * SECOND).await;
    let leaders = || world.places.iter().filter(|place| place.candidate.leadership.is_leader()).count();
    assert_eq!(leaders(), 1, "seed {seed}: when all is well");
    world.ledger.lock().unwrap().clone()
}

struct World {
    server: LeaseServer,
    ledger: Ledger,
    /// Where a process runs at a time.
    places: Vec<Place>,
    /// How many processes there have been.
    processes: usize,
}

struct Place {
    weather: Arc<Mutex<Weather>>,
    identity: String,
    candidate: Candidate,
    writer: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Weather {
    Good,
    /// Much is late, lost, or refused.
    Bad,
    /// Nothing is answered; some of it arrives, much later.
    Cut,
}

impl World {
    fn new(random: &mut Random) -> Self {
        let mut world =
            Self { server: server(), ledger: Ledger::default(), places: Vec::new(), processes: 0 };
        for _ in 0..CANDIDATES {
            let place = world.process(None, random);
            world.places.push(place);
        }
        world
    }

    /// A process that begins; under the name of another one, if that is given.
    fn process(&mut self, identity: Option<String>, random: &mut Random) -> Place {
        let process = self.processes;
        self.processes += 1;
        let identity = identity.unwrap_or_else(|| format!("process-{process}"));
        let weather = Arc::new(Mutex::new(Weather::Good));
        let link = Link::new({
            let (weather, mut random) = (Arc::clone(&weather), random.fork());
            move |_| random.fate(*weather.lock().unwrap())
        });
        let candidate = Candidate::start(&self.server, &identity, link);
        let (leadership, ledger) = (candidate.leadership.clone(), Arc::clone(&self.ledger));
        let (shutdown, stopped) = (candidate.shutdown.clone(), candidate.stopped.clone());
        let random = random.fork();
        let writer = tokio::spawn(async move {
            shutdown.run_until_cancelled(write(process, leadership, ledger, random)).await;
            stopped.cancel();
        });
        Place { weather, identity, candidate, writer }
    }

    /// Something happens.
    async fn meddle(&mut self, random: &mut Random) {
        let place = random.below(CANDIDATES as u64) as usize;
        let identity = self.places[place].identity.clone();
        match random.below(14) {
            0..=2 => self.weather(place, Weather::Cut),
            3..=5 => self.weather(place, Weather::Bad),
            6..=8 => self.weather(place, Weather::Good),
            9 => self.restart(place, Some(identity), random),
            10 => self.restart(place, None, random),
            11 => {
                self.places[place].candidate.shutdown.cancel();
                sleep(random.seconds(0.0, 30.0)).await;
                self.restart(place, None, random);
            }
            12 => self.server.delete(),
            _ => self.server.edit(|lease| lease["spec"]["holderIdentity"] = json!(identity)),
        }
    }

    fn weather(&self, place: usize, weather: Weather) {
        *self.places[place].weather.lock().unwrap() = weather;
    }

    /// Kills a process, and starts another in its place.
    fn restart(&mut self, place: usize, identity: Option<String>, random: &mut Random) {
        let old = &self.places[place];
        old.writer.abort();
        self.places[place] = self.process(identity, random);
    }
}

/// Writes all the time, as far as it may. Every now and then a write takes until the very end.
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

/// A write that is over at its end, or when its process is.
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

/// xorshift64*
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

    fn fate(&mut self, weather: Weather) -> Fate {
        let quick = Fate::Answered { there: self.seconds(0.0, 0.02), back: self.seconds(0.0, 0.02) };
        match (weather, self.below(10)) {
            (Weather::Good, _) | (Weather::Bad, 0..=3) => quick,
            (Weather::Bad, 4) => {
                Fate::Answered { there: self.seconds(0.0, 5.0), back: self.seconds(0.0, 5.0) }
            }
            (Weather::Bad, 5) => Fate::Unheard { there: self.seconds(0.0, 20.0) },
            (Weather::Bad, 6) => Fate::Refused(500),
            (Weather::Bad, 7) => Fate::Refused(429),
            (Weather::Bad, 8) => Fate::Unreachable,
            (Weather::Cut, 0..=1) => Fate::Unheard { there: self.seconds(0.0, 60.0) },
            (Weather::Bad | Weather::Cut, _) => Fate::Lost,
        }
    }
}
