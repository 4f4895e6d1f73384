//! Striping: one large frame over several queue pairs of a connection.
//!
//! ```text
//!   pair 0:  | key, metadata, header, first stripe ── Striped(slot) |
//!   pair 1:                         | second stripe ─ Stripe(slot)  |  a frame is complete when
//!   pair 2:                         | third stripe ── Stripe(slot)  |  each pair has sent its own
//! ```
//!
//! Each queue pair sends an immediate for its own stripe. A pair's immediate only proves that the
//! stripe of that pair has arrived. So the sender need not wait for acknowledgements before it
//! posts the last stripe, and the order in which devices deliver packets of different pairs does
//! not matter. Switches choose a path by the pair (under RoCE by the UDP source port), so one frame
//! uses several paths at once.
//!
//! Nothing here touches a device.

use std::collections::VecDeque;
use std::ops::Range;

use super::ledger::Violation;

/// The length from which a payload is striped. For shorter ones, the additional immediates cost
/// more than the additional paths save.
pub(crate) const STRIPE_THRESHOLD: usize = 256 << 10;

/// Stripes of a frame's payload begin at multiples of this many bytes, the size of a cache line.
const LINE: usize = 64;

/// The kind and number of the request that a completion belongs to, encoded in its `wr_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkRequestId {
    /// A message on the first queue pair, by the number of its request.
    Message(u64),
    /// A stripe, by its number, on an extra queue pair, counted from 0.
    Stripe { pair: u8, number: u64 },
    /// A receive request of the queue pair with this number, where 0 is the first.
    Receive(u8),
}

/// The bits of a `wr_id` that hold a request's number. No counter reaches 2^56.
const NUMBER_MASK: u64 = (1 << 56) - 1;

impl WorkRequestId {
    pub(crate) fn encode(self) -> u64 {
        match self {
            Self::Message(number) => number & NUMBER_MASK,
            Self::Stripe { pair, number } => u64::from(pair + 1) << 56 | number & NUMBER_MASK,
            Self::Receive(pair) => u64::from(0x80 | pair) << 56,
        }
    }

    pub(crate) fn decode(id: u64) -> Self {
        match ((id >> 56) as u8, id & NUMBER_MASK) {
            (0, number) => Self::Message(number),
            (pair @ 1..0x80, number) => Self::Stripe { pair: pair - 1, number },
            (pair, _) => Self::Receive(pair & 0x7f),
        }
    }
}

/// Returns the range of one of `count` stripes of a payload, counted from 0.
pub(crate) fn stripe_range(length: usize, count: usize, number: usize) -> Range<usize> {
    let size = length.div_ceil(count.max(1)).next_multiple_of(LINE);
    let at = |number: usize| number.saturating_mul(size).min(length);
    at(number)..at(number + 1)
}

/// The frames of a connection that are not complete yet, and those that wait behind them.
#[derive(Debug)]
pub(crate) struct StripeAssembly {
    /// The bits of all extra queue pairs, one for each.
    all: u8,
    /// The bits of the extra queue pairs whose stripe has arrived, by slot.
    arrived: Vec<u8>,
    /// The slots of announced frames in order, and whether each frame is striped.
    announced: VecDeque<(u16, bool)>,
}

impl StripeAssembly {
    /// Creates an empty assembly for a connection with `extra_pairs` queue pairs beside the first.
    pub(crate) fn new(slots: u16, extra_pairs: usize) -> Self {
        let all = (1_u16 << extra_pairs.min(8)) - 1;
        let (arrived, announced) = (vec![0; slots.into()], VecDeque::with_capacity(slots.into()));
        // At most 8 bits are set.
        Self { all: all as u8, arrived, announced }
    }

    /// Notes that the stripe of an extra queue pair, counted from 0, has arrived.
    pub(crate) fn add_stripe(&mut self, slot: u16, pair: u8) -> Result<(), Violation> {
        let Some(arrived) = self.arrived.get_mut(usize::from(slot)) else {
            return Err(Violation::Slot { slot: slot.into(), why: "does not exist" });
        };
        let bit = 1_u8.checked_shl(pair.into()).unwrap_or_default() & self.all;
        if bit == 0 || *arrived & bit != 0 {
            return Err(Violation::Stripe { slot, pair: pair + 1 });
        }
        *arrived |= bit;
        Ok(())
    }

    /// Notes the immediate of the first queue pair for a frame. The caller has checked that the
    /// sender may write to the slot.
    pub(crate) fn announce(&mut self, slot: u16, is_striped: bool) {
        self.announced.push_back((slot, is_striped));
    }

    /// Returns the slot of the next complete frame, in the order of the announcements.
    pub(crate) fn next_complete(&mut self) -> Option<u16> {
        let &(slot, is_striped) = self.announced.front()?;
        let arrived = self.arrived.get_mut(usize::from(slot))?;
        if is_striped {
            if *arrived != self.all {
                return None;
            }
            *arrived = 0;
        }
        self.announced.pop_front();
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transport::Rdma;

    #[test]
    fn work_request_ids_survive_encoding() {
        for id in [
            WorkRequestId::Message(0),
            WorkRequestId::Message(NUMBER_MASK),
            WorkRequestId::Stripe { pair: 0, number: 1 },
            WorkRequestId::Stripe { pair: Rdma::MOST_STRIPES, number: NUMBER_MASK },
            WorkRequestId::Receive(0),
            WorkRequestId::Receive(Rdma::MOST_STRIPES),
        ] {
            assert_eq!(WorkRequestId::decode(id.encode()), id);
        }
    }

    #[test]
    fn a_frame_is_complete_when_all_its_stripes_have_arrived() {
        let mut assembly = StripeAssembly::new(4, 2);
        assembly.announce(2, true);
        assembly.announce(0, false);
        assert_eq!(assembly.next_complete(), None);
        assembly.add_stripe(2, 1).unwrap();
        assert_eq!(assembly.next_complete(), None, "one stripe is missing, and the other frame comes after");
        assembly.add_stripe(2, 0).unwrap();
        let slots = [assembly.next_complete(), assembly.next_complete(), assembly.next_complete()];
        assert_eq!(slots, [Some(2), Some(0), None]);
        // Stripes may arrive before the announcement.
        assembly.add_stripe(2, 0).unwrap();
        assembly.add_stripe(2, 1).unwrap();
        assert_eq!(assembly.next_complete(), None);
        assembly.announce(2, true);
        assert_eq!(assembly.next_complete(), Some(2));
    }

    #[test]
    fn a_stripe_that_must_not_come_is_an_error() {
        let mut assembly = StripeAssembly::new(4, 2);
        assembly.add_stripe(3, 1).unwrap();
        assert_eq!(assembly.add_stripe(3, 1), Err(Violation::Stripe { slot: 3, pair: 2 }));
        for (slot, pair) in [(4, 0), (u16::MAX, 1), (0, 2), (0, 7), (0, 8), (0, 200)] {
            assert!(assembly.add_stripe(slot, pair).is_err(), "{slot} {pair}");
        }
        assert!(StripeAssembly::new(4, 0).add_stripe(0, 0).is_err());
        assert!(StripeAssembly::new(4, 8).add_stripe(0, 7).is_ok());
    }

    proptest! {
        #[test]
        fn stripes_cover_the_payload_and_none_is_empty(
            length in STRIPE_THRESHOLD..20_000_000_usize,
            count in 1..=usize::from(Rdma::MOST_STRIPES),
        ) {
            let mut end = 0;
            for number in 0..count {
                let stripe = stripe_range(length, count, number);
                prop_assert_eq!(stripe.start, end);
                // Some devices take a length of zero for another length.
                prop_assert!(stripe.start.is_multiple_of(LINE) && stripe.end > stripe.start);
                end = stripe.end;
            }
            prop_assert_eq!(end, length);
        }
    }
}
