//! A burst in flight on one socket or connection, and counts of the outcomes.

use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::questions::{Burst, id};

/// Allowed losses per million, because the machine may be busy.
pub(crate) const FEW: u64 = 1000;

/// A burst that was sent.
#[derive(Debug)]
pub(crate) struct Flight<'l> {
    burst: &'l Burst,
    /// The id of its first packet; the others count up from it.
    first_id: u16,
    /// A bit for each unanswered packet.
    missing: u64,
    sent: Instant,
}

/// Outcome of queries, as counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) answered: u64,
    pub(crate) lost: u64,
    /// Replies without an open query: late, or repeated.
    stray: u64,
    wrong: u64,
    first_wrong: Option<String>,
}

/// Error: too many queries were lost. It happens to any server on a busy machine.
#[derive(Debug)]
pub(crate) struct Lost {
    answered: u64,
    lost: u64,
    stray: u64,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lost, {} stray, {} answered", self.lost, self.stray, self.answered)
    }
}

impl Error for Lost {}

impl<'l> Flight<'l> {
    /// Writes the first `count` packets with ids from `first_id` on to `out`; if `framed`, each
    /// after its length.
    pub(crate) fn start(
        burst: &'l Burst,
        count: usize,
        first_id: u16,
        framed: bool,
        out: &mut Vec<u8>,
    ) -> Self {
        let count = count.min(burst.len()).min(64);
        out.clear();
        for (place, packet) in burst.packets().take(count).enumerate() {
            if framed {
                out.extend_from_slice(&(packet.len() as u16).to_be_bytes());
            }
            out.extend_from_slice(&first_id.wrapping_add(place as u16).to_be_bytes());
            out.extend_from_slice(&packet[2..]);
        }
        Self { burst, first_id, missing: u64::MAX >> (64 - count), sent: Instant::now() }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.missing == 0
    }

    /// Matches a reply to its query.
    pub(crate) fn take(&mut self, reply: &[u8], tally: &mut Tally) {
        let place = id(reply).map(|id| usize::from(id.wrapping_sub(self.first_id)));
        let open = place.filter(|&place| place < 64 && self.missing & 1 << place != 0);
        let Some((place, (query, expected))) = open.and_then(|place| Some((place, self.burst.at(place)?)))
        else {
            tally.stray += 1;
            return;
        };
        self.missing &= !(1 << place);
        tally.count(expected.fault(query, reply));
    }

    /// Counts the missing replies as lost if they are late, and returns whether they are.
    pub(crate) fn expire(&mut self, now: Instant, patience: Duration, tally: &mut Tally) -> bool {
        let is_late = !self.is_over() && now.saturating_duration_since(self.sent) > patience;
        if is_late {
            tally.lost += u64::from(self.missing.count_ones());
            self.missing = 0;
        }
        is_late
    }
}

impl Tally {
    /// Counts one reply, with its fault if it has one.
    pub(crate) fn count(&mut self, fault: Option<String>) {
        self.answered += 1;
        if fault.is_some() {
            self.wrong += 1;
            self.first_wrong = self.first_wrong.take().or(fault);
        }
    }

    pub(crate) fn count_stray(&mut self) {
        self.stray += 1;
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.lost += other.lost;
        self.stray += other.stray;
        self.wrong += other.wrong;
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
    }

    /// Fails if a reply was wrong, and fails with [`Lost`] if more than `may_be_lost` of a million
    /// did not arrive.
    pub(crate) fn check(&self, may_be_lost: u64) -> Result<()> {
        ensure!(self.wrong == 0, "{} wrong replies, the first: {:?}", self.wrong, self.first_wrong);
        if (self.lost + self.stray) * 1_000_000 > self.answered * may_be_lost {
            return Err(Lost { answered: self.answered, lost: self.lost, stray: self.stray }.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::questions::Question;
    use super::*;

    #[test]
    fn every_packet_is_answered_once() {
        // An echo reply is the query with QR set.
        let load = Question::A.load("cluster.local", true).unwrap();
        let burst = load.ring().next().unwrap();
        let (mut out, mut tally) = (Vec::new(), Tally::default());
        // The ids wrap around.
        let mut flight = Flight::start(burst, 3, 0xffff, false, &mut out);
        let mut replies: Vec<Vec<u8>> = out.chunks(burst.size()).map(<[u8]>::to_vec).collect();
        replies.iter_mut().for_each(|reply| reply[2] |= 0x80);
        for reply in [2, 0, 0].map(|place: usize| &replies[place]) {
            flight.take(reply, &mut tally);
        }
        assert!(!flight.is_over() && tally.check(FEW).unwrap_err().is::<Lost>(), "{tally:?}");
        assert!(flight.expire(Instant::now(), Duration::ZERO, &mut tally) && flight.is_over());
        assert_eq!((tally.answered, tally.stray, tally.lost, tally.wrong), (2, 1, 1, 0));

        flight = Flight::start(burst, 1, 7, false, &mut out);
        flight.take(&out, &mut tally);
        assert!(flight.is_over() && tally.wrong == 1, "a query is no reply: {tally:?}");
        assert!(!tally.check(1_000_000).unwrap_err().is::<Lost>());
    }

    #[test]
    fn packets_are_framed_for_streams() {
        let load = Question::A.load("cluster.local", false).unwrap();
        let burst = load.ring().next().unwrap();
        let mut out = Vec::new();
        Flight::start(burst, 2, 0x0102, true, &mut out);
        assert_eq!(out.len(), 2 * (2 + burst.size()));
        assert_eq!(out[..4], [0, burst.size() as u8, 1, 2]);
    }
}
