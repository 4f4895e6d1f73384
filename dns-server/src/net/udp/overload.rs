//! What a worker passes over when more comes than it can answer.
//!
//! A queue that is always full makes every answer late and loses what is new, although it is the old that
//! nobody waits for any more. So what has waited for longer than [`TARGET`] is passed over, which costs little,
//! and the rest is answered within that time. But a queue that only was long, because the worker was not let
//! run for a while, is answered whole: clients wait for seconds. Which it is shows in time, as in CoDel (RFC
//! 8289): a queue that is never short for an [`INTERVAL`] will not get short by itself.
//!
//! Arrival times cost some nanoseconds in the kernel for each datagram, so they are asked for only while
//! batches are full: nothing is late where a batch is not.

use std::time::{Duration, Instant};

/// What a datagram may wait for under overload: 2 ms, without the time in which the batch that it is in is answered, and some
/// for the way there and back, also on a slow machine.
const TARGET: Duration = Duration::from_micros(1600);

/// How long all must have been late until some are passed over.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long none must have been late until all are answered again. Under overload one is every few milliseconds; less
/// often only where the worker is not let run at times, of which the scheduler's period of 100 ms must not make a lasting
/// overload.
const CALM: Duration = Duration::from_millis(20);

/// How long batches must have been full until arrival times are asked for.
const FULL: Duration = Duration::from_millis(20);

/// How long there must have been no full batch until they are not asked for any more.
const SLACK: Duration = Duration::from_secs(1);

/// Whether datagrams are passed over.
#[derive(Debug)]
pub(super) enum Overload {
    /// All are answered; with the moment from which on all were late.
    No(Option<Instant>),
    /// Those that are late are not; with the moment when one last was.
    Yes(Instant),
}

impl Overload {
    /// Whether to pass over a datagram that has waited that long.
    pub(super) fn sheds(&mut self, waited: Duration, now: Instant) -> bool {
        let is_late = waited >= TARGET;
        if matches!(self, Self::Yes(late_at) if now.duration_since(*late_at) >= CALM) {
            *self = Self::No(None);
        }
        match self {
            Self::No(since) if is_late => {
                if now.duration_since(*since.get_or_insert(now)) < INTERVAL {
                    return false;
                }
                *self = Self::Yes(now);
            }
            Self::No(since) => *since = None,
            Self::Yes(late_at) if is_late => *late_at = now,
            Self::Yes(_) => {}
        }
        is_late
    }

    /// A batch was not full: the queue has got short by itself, however late what was in it.
    pub(super) fn drained(&mut self) {
        if let Self::No(since) = self {
            *since = None;
        }
    }
}

/// Whether arrival times are worth asking for.
#[derive(Debug, Default)]
pub(super) struct TimestampSwitch {
    /// Since when all batches have been full.
    full_since: Option<Instant>,
    /// When one last was, if arrival times are asked for.
    last_full: Option<Instant>,
}

impl TimestampSwitch {
    /// Notes a batch. Says whether to ask for arrival times, or not to any more, if that changes.
    pub(super) fn note_batch(&mut self, is_full: bool, now: Instant) -> Option<bool> {
        if !is_full {
            self.full_since = None;
            let is_over = self.last_full.is_some_and(|full_at| now.duration_since(full_at) >= SLACK);
            return is_over.then(|| {
                self.last_full = None;
                false
            });
        }
        let since = *self.full_since.get_or_insert(now);
        let was_on = self.last_full.is_some();
        if was_on || now.duration_since(since) >= FULL {
            self.last_full = Some(now);
        }
        (!was_on && self.last_full.is_some()).then_some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts datagrams, as (moment, wait) in milliseconds, and gives those that are passed over.
    fn shed(overload: &mut Overload, begun: Instant, datagrams: &[(u64, u64)]) -> Vec<u64> {
        let ms = Duration::from_millis;
        let shed = |&&(at, waited): &&(u64, u64)| overload.sheds(ms(waited), begun + ms(at));
        datagrams.iter().filter(shed).map(|&(at, _)| at).collect()
    }

    #[test]
    fn only_a_queue_that_stays_long_is_cut() {
        let begun = Instant::now();
        for (case, datagrams, passed_over) in [
            ("a short queue", &[(0, 0), (50, 1), (150, 1), (300, 1)][..], &[][..]),
            ("a long one that gets short in time", &[(0, 90), (40, 50), (80, 10), (95, 1), (120, 5)], &[]),
            ("a pause of a second", &[(0, 1000), (50, 900), (99, 800), (100, 1)], &[]),
            ("one that stays long", &[(0, 2), (50, 20), (99, 30), (100, 40), (101, 40)], &[100, 101]),
            ("what is in time is answered", &[(0, 9), (100, 9), (101, 1), (102, 9)], &[100, 102]),
            ("calm again", &[(0, 9), (100, 9), (150, 1), (200, 1), (201, 9), (250, 9)], &[100]),
            (
                "not calm for long enough",
                &[(0, 9), (100, 9), (119, 1), (119, 9), (138, 1), (138, 9)],
                &[100, 119, 138],
            ),
            ("late after a pause", &[(0, 9), (100, 9), (5000, 9), (5001, 9), (5100, 9)], &[100, 5100]),
            (
                "let run for half the time, after an overload",
                &[(0, 9), (100, 9), (101, 1), (149, 1), (200, 50), (201, 1), (249, 1), (300, 50)],
                &[100],
            ),
        ] {
            assert_eq!(shed(&mut Overload::No(None), begun, datagrams), passed_over, "{case}");
        }
    }

    #[test]
    fn a_queue_that_gets_short_by_itself_is_not_cut() {
        let begun = Instant::now();
        let mut overload = Overload::No(None);
        assert!(shed(&mut overload, begun, &[(0, 9), (90, 9)]).is_empty());
        overload.drained();
        assert!(shed(&mut overload, begun, &[(150, 9), (240, 9)]).is_empty(), "all late, but in two bursts");
        assert_eq!(shed(&mut overload, begun, &[(250, 9)]), [250]);
        overload.drained();
        assert_eq!(
            shed(&mut overload, begun, &[(260, 9)]),
            [260],
            "once it is cut, it takes calm to end that"
        );
    }

    #[test]
    fn times_are_asked_for_while_batches_are_full() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut switch = TimestampSwitch::default();
        for (moment, is_full, change) in [
            (0, true, None),
            (19, true, None),
            (19, false, None),
            (25, true, None),
            (44, true, None),
            (45, true, Some(true)),
            (50, true, None),
            (60, false, None),
            (1049, false, None),
            (1050, false, Some(false)),
            (1051, false, None),
            (1100, true, None),
            (1120, true, Some(true)),
        ] {
            assert_eq!(switch.note_batch(is_full, at(moment)), change, "at {moment}");
        }
    }
}
