//! One large frame over several queue pairs of a connection: how it is cut, and when all of it is there.
//!
//! ```text
//!   pair 0:     | key, metadata, header, first part ──── Divided(slot) |
//!   pair 1:                            | second part ──── Part(slot)    |     a frame is there when all pairs have told,
//!   pair 2:                            | third part ───── Part(slot)    |     and those before it have been delivered
//! ```
//!
//! Each pair tells of its own part. That a pair's completion has come says that what this pair has written is there, and nothing of what others have: so
//! nobody waits for an acknowledgement before the last part goes out, and nothing depends on how devices order packets of different pairs.
//! Switches choose a way by the pair (of RoCE, by the UDP source port), so a frame takes several ways at once.
//!
//! Pure.

use std::collections::VecDeque;
use std::ops::Range;

use super::accounts::Violation;

/// From here on a payload is cut: to tell of parts of a shorter one takes longer than is gained.
pub(crate) const WORTH_CUTTING: usize = 256 << 10;

/// Parts begin on cache lines.
const LINE: usize = 64;

/// What a completion is of, as the number of its request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ticket {
    /// All requests of the first pair up to this one have been done.
    Sent(u64),
    /// All parts of a further pair, from 0, up to this one.
    Part { pair: u8, number: u64 },
    /// The other side has told something by this pair, from 0.
    Received(u8),
}

/// Nobody counts so far.
const NUMBER: u64 = (1 << 56) - 1;

impl Ticket {
    pub(crate) fn encode(self) -> u64 {
        match self {
            Self::Sent(number) => number & NUMBER,
            Self::Part { pair, number } => u64::from(pair + 1) << 56 | number & NUMBER,
            Self::Received(pair) => u64::from(0x80 | pair) << 56,
        }
    }

    pub(crate) fn decode(id: u64) -> Self {
        match ((id >> 56) as u8, id & NUMBER) {
            (0, number) => Self::Sent(number),
            (pair @ 1..0x80, number) => Self::Part { pair: pair - 1, number },
            (pair, _) => Self::Received(pair & 0x7f),
        }
    }
}

/// One of so many parts of a payload, from 0.
pub(crate) fn part(length: usize, count: usize, number: usize) -> Range<usize> {
    let size = length.div_ceil(count.max(1)).next_multiple_of(LINE);
    let at = |number: usize| number.saturating_mul(size).min(length);
    at(number)..at(number + 1)
}

/// Frames of which not all has come, and those after them.
#[derive(Debug)]
pub(crate) struct Gathering {
    /// A bit for each further pair.
    all: u8,
    /// By slot, the pairs that have told of their parts.
    came: Vec<u8>,
    /// The slots that have been told of and not been delivered, and whether there are parts to wait for.
    waiting: VecDeque<(u16, bool)>,
}

impl Gathering {
    /// For so many slots, beside so many further pairs.
    pub(crate) fn new(slots: u16, further: usize) -> Self {
        let all = (1_u16 << further.min(8)) - 1;
        // Eight bits at most.
        Self { all: all as u8, came: vec![0; slots.into()], waiting: VecDeque::with_capacity(slots.into()) }
    }

    /// A further pair, from 0, tells of its part.
    pub(crate) fn part(&mut self, slot: u16, pair: u8) -> Result<(), Violation> {
        let place = slot.into();
        let came = self.came.get_mut(usize::from(slot));
        let came = came.ok_or(Violation::Place { place, why: "there is not" })?;
        let bit = 1_u8.checked_shl(pair.into()).unwrap_or_default() & self.all;
        if bit == 0 || *came & bit != 0 {
            return Err(Violation::Part { slot, pair: pair + 1 });
        }
        *came |= bit;
        Ok(())
    }

    /// The first pair tells of a frame in a slot that its sender may write to.
    pub(crate) fn told(&mut self, slot: u16, is_divided: bool) {
        self.waiting.push_back((slot, is_divided));
    }

    /// The next frame that is there, in the order in which they were told of.
    pub(crate) fn next(&mut self) -> Option<u16> {
        let &(slot, is_divided) = self.waiting.front()?;
        let came = self.came.get_mut(usize::from(slot)).filter(|came| !is_divided || **came == self.all);
        if let Some(came) = came {
            if is_divided {
                *came = 0;
            }
            self.waiting.pop_front();
            return Some(slot);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transport::Rdma;

    #[test]
    fn tickets_are_told_apart() {
        for ticket in [
            Ticket::Sent(0),
            Ticket::Sent(NUMBER),
            Ticket::Part { pair: 0, number: 1 },
            Ticket::Part { pair: Rdma::MOST_STRIPES, number: NUMBER },
            Ticket::Received(0),
            Ticket::Received(Rdma::MOST_STRIPES),
        ] {
            assert_eq!(Ticket::decode(ticket.encode()), ticket);
        }
    }

    #[test]
    fn a_frame_is_there_when_all_pairs_have_told() {
        let mut gathering = Gathering::new(4, 2);
        gathering.told(2, true);
        gathering.told(0, false);
        assert_eq!(gathering.next(), None);
        gathering.part(2, 1).unwrap();
        assert_eq!(gathering.next(), None, "one is missing, and the other frame comes after");
        gathering.part(2, 0).unwrap();
        assert_eq!((gathering.next(), gathering.next(), gathering.next()), (Some(2), Some(0), None));
        // Parts may come before the first one does.
        gathering.part(2, 0).unwrap();
        gathering.part(2, 1).unwrap();
        assert_eq!(gathering.next(), None);
        gathering.told(2, true);
        assert_eq!(gathering.next(), Some(2));
    }

    #[test]
    fn what_the_other_side_must_not_is_noticed() {
        let mut gathering = Gathering::new(4, 2);
        gathering.part(3, 1).unwrap();
        assert_eq!(gathering.part(3, 1), Err(Violation::Part { slot: 3, pair: 2 }));
        for (slot, pair) in [(4, 0), (u16::MAX, 1), (0, 2), (0, 7), (0, 8), (0, 200)] {
            assert!(gathering.part(slot, pair).is_err(), "{slot} {pair}");
        }
        assert!(Gathering::new(4, 0).part(0, 0).is_err());
        assert!(Gathering::new(4, 8).part(0, 7).is_ok());
    }

    proptest! {
        #[test]
        fn parts_are_all_of_it(length in WORTH_CUTTING..20_000_000_usize, count in 1..=usize::from(Rdma::MOST_STRIPES)) {
            let mut end = 0;
            for number in 0..count {
                let part = part(length, count, number);
                prop_assert_eq!(part.start, end);
                // None of no length, which devices take for another one.
                prop_assert!(part.start.is_multiple_of(LINE) && part.end > part.start);
                end = part.end;
            }
            prop_assert_eq!(end, length);
        }
    }
}
