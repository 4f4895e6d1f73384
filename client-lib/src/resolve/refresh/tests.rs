//! The state machine in simulated time: each test passes the clock and the answers of DNS.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::endpoint::{Endpoint, EndpointAddress};

/// Shorter than the time to the seventh query of an outage, whatever the jitter.
const HOLD: Duration = Duration::from_secs(50);

fn set(host: &str, ttl: u64) -> Resolved {
    let ip = "10.0.0.1".parse().unwrap();
    let endpoint = Endpoint {
        host: host.to_owned(),
        target: format!("{host}.s"),
        port: 1,
        addresses: vec![EndpointAddress::new(ip)],
        node: None,
        zone: None,
        pod: None,
    };
    Resolved { name: "s".to_owned(), endpoints: vec![endpoint], ttl: Duration::from_secs(ttl) }
}

fn timeout() -> ResolveError {
    ResolveError::Timeout { name: "s".to_owned(), servers: Vec::new() }
}

fn no_such_name() -> ResolveError {
    ResolveError::NoSuchName {
        name: "s".to_owned(),
        tried: Vec::new(),
        unanswered: Vec::new(),
        wildcard: None,
    }
}

/// State machine with a clock. Its queries take no time.
struct Simulation {
    start: Instant,
    now: Instant,
    machine: Refresh,
}

impl Simulation {
    fn new(hold: Duration, seed: u64) -> Self {
        let now = Instant::now();
        Self { start: now, now, machine: Refresh::new(now, hold, fastrand::Rng::with_seed(seed)) }
    }

    /// Waits for the next query, and gives it this outcome. Returns the changes until then, in
    /// words.
    fn next(&mut self, outcome: Result<Resolved, ResolveError>) -> Vec<String> {
        let mut said = Vec::new();
        while !self.machine.is_due(self.now) {
            self.now = self.machine.wake_at().unwrap();
            said.extend(self.machine.tick(self.now));
        }
        self.machine.on_asked(self.now);
        said.extend(self.machine.on_outcome(self.now, outcome));
        said.iter().map(|change| self.words(change)).collect()
    }

    /// Returns the time to the next query.
    fn interval(&self) -> Duration {
        self.machine.next - self.now
    }

    fn words(&self, change: &Change) -> String {
        match change {
            Change::Endpoints(resolved) => resolved.endpoints[0].host.clone(),
            Change::Held { since, error } => {
                format!("held since {:.0} s: {}", (*since - self.start).as_secs_f64(), kind(error))
            }
            Change::Recovered => "recovered".to_owned(),
            Change::Lost { error } => format!("lost: {}", kind(error)),
        }
    }
}

fn kind(error: &ResolveError) -> &'static str {
    if error.is_negative() { "negative" } else { "timeout" }
}

#[test]
fn only_a_set_that_differs_is_a_change() {
    let mut simulation = Simulation::new(HOLD, 1);
    assert_eq!(simulation.next(Ok(set("a", 5))), ["a"]);
    assert!(simulation.next(Ok(set("a", 5))).is_empty());
    assert!(simulation.next(Ok(set("a", 9))).is_empty(), "another time to live is no news");
    assert_eq!(simulation.next(Ok(set("b", 5))), ["b"]);
}

#[test]
fn an_outage_is_reported_once_for_each_kind_and_the_set_is_lost_when_the_hold_is_over() {
    let mut simulation = Simulation::new(HOLD, 1);
    assert_eq!(simulation.next(Ok(set("a", 0))), ["a"]);
    assert_eq!(simulation.next(Err(timeout())), ["held since 1 s: timeout"]);
    assert!(simulation.next(Err(timeout())).is_empty());
    assert_eq!(simulation.next(Err(no_such_name())), ["held since 1 s: negative"]);
    assert!(simulation.next(Err(timeout())).is_empty());
    assert!(simulation.next(Err(timeout())).is_empty());
    // Queries come after 1, 2, 4, 8, 16, 32 and then about 62 s.
    assert!(simulation.next(Err(no_such_name())).is_empty());
    assert_eq!(simulation.next(Err(no_such_name())), ["lost: negative"]);
    assert_eq!(simulation.next(Err(timeout())), ["lost: timeout"]);
    assert!(simulation.next(Err(no_such_name())).is_empty());
    assert_eq!(simulation.next(Ok(set("a", 0))), ["a"]);
}

#[test]
fn a_set_that_is_held_recovers_with_the_next_answer() {
    let mut simulation = Simulation::new(HOLD, 1);
    assert_eq!(simulation.next(Ok(set("a", 0))), ["a"]);
    assert_eq!(simulation.next(Err(timeout())), ["held since 1 s: timeout"]);
    assert_eq!(simulation.next(Ok(set("a", 0))), ["recovered"]);
    assert_eq!(simulation.next(Err(timeout())), ["held since 3 s: timeout"], "another outage is news again");
    assert_eq!(simulation.next(Ok(set("b", 0))), ["recovered", "b"]);
}

#[test]
fn a_first_failure_is_a_loss_when_there_never_was_a_set() {
    let mut simulation = Simulation::new(HOLD, 1);
    assert_eq!(simulation.next(Err(timeout())), ["lost: timeout"]);
    assert!(simulation.next(Err(timeout())).is_empty());
    assert_eq!(simulation.next(Err(no_such_name())), ["lost: negative"]);
    assert_eq!(simulation.next(Ok(set("a", 0))), ["a"]);
}

#[test]
fn a_failure_without_a_hold_is_a_loss() {
    let mut simulation = Simulation::new(Duration::ZERO, 1);
    assert_eq!(simulation.next(Ok(set("a", 0))), ["a"]);
    assert_eq!(simulation.next(Err(timeout())), ["lost: timeout"]);
    assert_eq!(simulation.next(Ok(set("a", 0))), ["a"]);
}

#[test]
fn a_set_with_an_endless_hold_is_never_lost() {
    let mut simulation = Simulation::new(Duration::MAX, 1);
    assert_eq!(simulation.next(Ok(set("a", 0))), ["a"]);
    assert_eq!(simulation.next(Err(timeout())), ["held since 1 s: timeout"]);
    for _ in 0..1000 {
        assert!(simulation.next(Err(timeout())).is_empty());
    }
    assert_eq!(simulation.next(Ok(set("a", 0))), ["recovered"]);
}

#[test]
fn the_hold_ends_also_while_a_query_is_in_flight() {
    let mut simulation = Simulation::new(HOLD, 1);
    simulation.next(Ok(set("a", 0)));
    simulation.next(Err(timeout()));
    let (now, machine) = (simulation.now, &mut simulation.machine);
    machine.on_asked(now + MIN_INTERVAL);
    assert_eq!(machine.wake_at(), Some(now + HOLD));
    assert_eq!(machine.tick(now + HOLD - Duration::from_millis(1)), None);
    assert!(matches!(machine.tick(now + HOLD), Some(Change::Lost { .. })));
    assert_eq!(machine.tick(now + HOLD), None);
    assert_eq!(machine.wake_at(), None);
}

#[test]
fn queries_follow_the_time_to_live_within_bounds() {
    for (ttl, from, to) in
        [(0, 1.0, 1.1), (1, 1.0, 1.1), (5, 4.5, 5.5), (300, 270.0, 300.0), (3600, 270.0, 300.0)]
    {
        let intervals: Vec<f64> = (0..200)
            .map(|seed| {
                let mut simulation = Simulation::new(HOLD, seed);
                simulation.next(Ok(set("a", ttl)));
                simulation.interval().as_secs_f64()
            })
            .collect();
        assert!(intervals.iter().all(|interval| (from..=to).contains(interval)), "{ttl}: {intervals:?}");
        let spread = |third: f64| from + (to - from) * third;
        assert!(intervals.iter().any(|interval| *interval < spread(0.3)), "{ttl}: {intervals:?}");
        assert!(intervals.iter().any(|interval| *interval > spread(0.7)), "{ttl}: {intervals:?}");
    }
}

#[test]
fn queries_after_failures_back_off() {
    let mut simulation = Simulation::new(HOLD, 1);
    for expected in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0] {
        simulation.next(Err(timeout()));
        let interval = simulation.interval().as_secs_f64();
        assert!((interval / expected - 1.0).abs() <= 0.1001, "{interval} for {expected}");
    }
    simulation.next(Ok(set("a", 5)));
    simulation.next(Err(timeout()));
    assert!(simulation.interval() <= Duration::from_millis(1101), "an answer ends the back-off");
}

#[test]
fn a_refresh_that_is_hurried_keeps_the_shortest_interval() {
    let mut simulation = Simulation::new(HOLD, 1);
    simulation.machine.refresh_soon(simulation.now);
    assert!(simulation.machine.is_due(simulation.now), "the first question does not wait");
    simulation.next(Ok(set("a", 300)));
    let asked = simulation.now;
    simulation.machine.refresh_soon(asked);
    let next = simulation.machine.wake_at().unwrap();
    assert!((MIN_INTERVAL..MIN_INTERVAL + SOON_SPREAD).contains(&(next - asked)), "{:?}", next - asked);
    simulation.machine.refresh_soon(asked + Duration::from_secs(100));
    assert_eq!(simulation.machine.wake_at(), Some(next), "it makes nothing later");
}

#[test]
fn a_refresh_that_is_hurried_during_a_query_causes_another_one() {
    let mut simulation = Simulation::new(HOLD, 1);
    let asked = simulation.now;
    simulation.machine.on_asked(asked);
    simulation.machine.refresh_soon(asked);
    assert!(!simulation.machine.is_due(asked) && simulation.machine.wake_at().is_none(), "one at a time");
    simulation.machine.on_outcome(asked + Duration::from_millis(5), Ok(set("a", 300)));
    let next = simulation.machine.wake_at().unwrap();
    assert!((MIN_INTERVAL..MIN_INTERVAL + SOON_SPREAD).contains(&(next - asked)), "{:?}", next - asked);
    simulation.machine.on_asked(next);
    simulation.machine.on_outcome(next, Ok(set("a", 300)));
    assert!(simulation.machine.wake_at().unwrap() - next > MIN_INTERVAL * 200, "but only one");
}

/// Next event of a random test.
#[derive(Clone, Debug)]
enum Step {
    Answer(u8, u64),
    Fail(bool),
    Hurry,
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u8..3, 0_u64..400).prop_map(|(host, ttl)| Step::Answer(host, ttl)),
        4 => any::<bool>().prop_map(Step::Fail),
        1 => Just(Step::Hurry),
        1 => (0_u64..100_000).prop_map(Step::Wait),
    ]
}

/// Knowledge of a caller that only takes the changes.
#[derive(Default)]
struct Listener {
    set: Option<Resolved>,
    held: bool,
    heard: bool,
}

impl Listener {
    fn hear(&mut self, change: &Change) -> Result<(), TestCaseError> {
        match change {
            Change::Endpoints(resolved) => {
                prop_assert!(!self.held, "what was held recovers first");
                let is_news = self.set.as_ref().is_none_or(|set| set.endpoints != resolved.endpoints);
                prop_assert!(is_news, "a change changes something");
                self.set = Some(resolved.clone());
            }
            Change::Held { .. } => {
                prop_assert!(self.set.is_some(), "what is held is there");
                self.held = true;
            }
            Change::Recovered => {
                prop_assert!(self.held && self.set.is_some());
                self.held = false;
            }
            Change::Lost { .. } => {
                (self.set, self.held) = (None, false);
            }
        }
        self.heard = true;
        Ok(())
    }
}

proptest! {
    #[test]
    fn changes_describe_what_dns_answered_and_the_hold_allows(
        steps in vec(any_step(), 1..60),
        hold in 0_u64..120,
        seed in any::<u64>(),
    ) {
        let hold = Duration::from_secs(hold);
        let mut now = Instant::now();
        let mut machine = Refresh::new(now, hold, fastrand::Rng::with_seed(seed));
        let mut listener = Listener::default();
        let (mut last_good, mut outage, mut asked) = (None::<Resolved>, None::<Instant>, None::<Instant>);

        for step in steps {
            let outcome = match step {
                Step::Answer(host, ttl) => Ok(set(["a", "b", "c"][usize::from(host)], ttl)),
                Step::Fail(negative) => Err(if negative { no_such_name() } else { timeout() }),
                Step::Hurry => {
                    machine.refresh_soon(now);
                    continue;
                }
                Step::Wait(milliseconds) => {
                    // Time passes without a poll of the stream.
                    now += Duration::from_millis(milliseconds);
                    continue;
                }
            };
            if let Some(change) = machine.tick(now) {
                listener.hear(&change)?;
            }
            while !machine.is_due(now) {
                let wake = machine.wake_at().unwrap();
                prop_assert!(wake > now, "it never spins");
                prop_assert!(wake - now <= MAX_INTERVAL);
                now = wake;
                if let Some(change) = machine.tick(now) {
                    listener.hear(&change)?;
                }
            }
            prop_assert!(asked.is_none_or(|asked| now - asked >= MIN_INTERVAL), "no more often than that");
            asked = Some(now);
            machine.on_asked(now);
            match &outcome {
                Ok(resolved) => (last_good, outage) = (Some(resolved.clone()), None),
                Err(_) => outage = outage.or(Some(now)),
            }
            for change in machine.on_outcome(now, outcome) {
                listener.hear(&change)?;
            }

            prop_assert!(listener.heard, "the first outcome is always said");
            if outage.is_some_and(|since| now - since >= hold) {
                last_good = None;
            }
            prop_assert_eq!(
                listener.set.as_ref().map(|set| &set.endpoints),
                last_good.as_ref().map(|set| &set.endpoints),
            );
            prop_assert_eq!(listener.held, outage.is_some() && last_good.is_some());
        }
    }
}
