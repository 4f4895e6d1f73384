//! Load shedding: decides which queries a worker drops when more come than it can answer.
//!
//! A queue that is always full delays every answer, and loses new queries although the clients of
//! the old ones have given up. Under overload a worker therefore drops queries that have waited
//! longer than [`TARGET`], which is cheap, and answers the rest within that time. A queue that is
//! long only because the worker was not scheduled for a while is answered whole, since clients wait
//! for seconds. Time tells the two apart, as in CoDel (RFC 8289): a queue that is never short for
//! an [`INTERVAL`] will not become short by itself.
//!
//! Arrival times cost the kernel some nanoseconds per datagram. They are asked for only while
//! batches are full, since no query is late otherwise.

use std::time::{Duration, Instant};

use crate::limits::overload::{CALM, FULL, INTERVAL, SLACK, TARGET};

/// State of a worker's load shedding: whether it drops late queries.
#[derive(Debug)]
pub(super) enum Overload {
    /// All queries are answered. Holds the time since which all queries have been late.
    No(Option<Instant>),
    /// Late queries are dropped. Holds the time of the last late query.
    Yes(Instant),
}

impl Overload {
    /// Tells whether the worker should drop a query that has waited in the socket for `waited`.
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

    /// Notes that a batch was not full: the queue became short by itself, however late its queries
    /// were.
    pub(super) fn drained(&mut self) {
        if let Self::No(since) = self {
            *since = None;
        }
    }
}

/// Decides when a worker asks the kernel for arrival times: while its batches are full.
#[derive(Debug, Default)]
pub(super) struct TimestampSwitch {
    /// Time since which all batches have been full; `None` if the last one was not.
    full_since: Option<Instant>,
    /// Time of the last full batch while arrival times are on; `None` while they are off.
    last_full: Option<Instant>,
}

impl TimestampSwitch {
    /// Notes a batch. Returns whether arrival times should be on, if that changes.
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

    /// Passes datagrams, given as (time, wait) in milliseconds, and returns the times of those that
    /// are dropped.
    fn shed(overload: &mut Overload, begun: Instant, datagrams: &[(u64, u64)]) -> Vec<u64> {
        let ms = Duration::from_millis;
        let shed = |&&(at, waited): &&(u64, u64)| overload.sheds(ms(waited), begun + ms(at));
        datagrams.iter().filter(shed).map(|&(at, _)| at).collect()
    }

    #[test]
    fn only_a_queue_that_stays_long_is_shed() {
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
    fn a_queue_that_gets_short_by_itself_is_not_shed() {
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
            "once queries are dropped, only calm ends that"
        );
    }

    #[test]
    fn arrival_times_are_on_while_batches_are_full() {
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
