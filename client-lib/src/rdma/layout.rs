//! The layout of the memory that the other side writes to, and the encoding of immediates.
//!
//! ```text
//!   slot:        | unused ... | key | metadata | header (40) | payload ........... |
//!                                              ^ a fixed offset; the payload begins on a line
//!
//!   ring entry:                                | header (40) | sequences, slots    |
//! ```
//!
//! The header and the payload have fixed offsets; key and metadata end where the header begins. So
//! a message is contiguous and takes one write, and its payload is aligned whatever its key and
//! metadata. A payload for a GPU lies in memory of its own, and takes a second write.

use std::ops::Range;

use super::ledger::Violation;
use crate::stream::SHORT;
use crate::wire::{HEADER, MAX_KEY, MAX_METADATA};

/// The size of a cache line in bytes, to which slots and payloads are aligned.
const LINE: usize = 64;

/// The number of entries in the ring to which a receiver writes its messages.
const RING: u16 = 64;

/// The most frame slots of one connection.
const MAX_SLOTS: u16 = 4096;

/// The most bytes that are registered for the slots of one connection. The memory is locked even
/// while no frame arrives. Frames too large for it go by TCP.
pub(crate) const MAX_MEMORY: usize = 256 << 20;

/// The layout of the array of slots or ring entries that the other side writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The number of slots or ring entries.
    pub(crate) count: u16,
    /// The distance from the beginning of one slot to that of the next, in bytes.
    pub(crate) stride: usize,
    /// The offset within a slot of what follows the header, usually the payload, in bytes.
    pub(crate) prefix: usize,
}

impl Layout {
    /// Returns the layout of frame slots: `wanted` of them, or as many as one connection may have.
    pub(crate) fn slots(wanted: u32, frame_size: u32) -> Self {
        let prefix = (MAX_KEY + MAX_METADATA + HEADER).next_multiple_of(LINE);
        let stride = (prefix + frame_size as usize).next_multiple_of(LINE);
        let count = u16::try_from(wanted).unwrap_or(u16::MAX).min(MAX_SLOTS);
        let fitting = u16::try_from(MAX_MEMORY / stride).unwrap_or(u16::MAX);
        Self { count: count.min(fitting).max(1), stride, prefix }
    }

    /// Returns the layout of frame slots whose payloads lie in separate memory, with the stride of
    /// that memory.
    pub(crate) fn split(wanted: u32, frame_size: u32) -> (Self, usize) {
        let stride = (frame_size as usize).max(1).next_multiple_of(LINE);
        let fitting = u32::try_from(MAX_MEMORY / stride).unwrap_or(u32::MAX);
        (Self::slots(wanted.min(fitting), 0), stride)
    }

    /// Returns the layout of the sender's ring, to which a receiver writes its messages.
    pub(crate) fn ring() -> Self {
        Self { count: RING, stride: (HEADER + SHORT).next_multiple_of(LINE), prefix: HEADER }
    }

    /// Returns the size of all slots or ring entries together, in bytes.
    pub(crate) fn size(&self) -> usize {
        usize::from(self.count) * self.stride
    }

    /// Returns the offset in the array of what follows the header of a slot, usually the payload.
    pub(crate) fn body(&self, slot: u16) -> usize {
        usize::from(slot) * self.stride + self.prefix
    }

    /// Returns the offset in the array of the header of a slot.
    pub(crate) fn header(&self, slot: u16) -> usize {
        self.body(slot) - HEADER
    }

    /// Returns where a message with `prefix` bytes of key and metadata lies: their range, and that
    /// of the payload. With `split`, the payload's range is within separate memory of that stride.
    /// Returns `None` if the message does not fit.
    pub(crate) fn message(
        &self,
        slot: u16,
        split: Option<usize>,
        (prefix, payload): (usize, usize),
    ) -> Option<[Range<usize>; 2]> {
        let (begin, room) = match split {
            Some(stride) => (usize::from(slot) * stride, stride),
            None => (self.body(slot), self.stride - self.prefix),
        };
        if prefix + HEADER > self.prefix || payload > room {
            return None;
        }
        let header = self.header(slot);
        Some([header - prefix..header, begin..begin + payload])
    }
}

/// The meaning of an immediate that a sender writes. A receiver writes the number of a ring entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Immediate {
    /// A whole frame is in the slot with this number.
    Frame(u16),
    /// The sender has read another half of its ring, which the receiver may write to again.
    RingCredit,
    /// A test write of a new connection, which carries no frame.
    Ping,
    /// The first stripe of a frame is in this slot. Each extra queue pair writes another stripe.
    Striped(u16),
    /// The stripe that an extra queue pair carries is in the slot with this number.
    Stripe(u16),
}

impl Immediate {
    pub(crate) fn encode(self) -> u32 {
        match self {
            Self::Frame(slot) => slot.into(),
            Self::RingCredit => 1 << 24,
            Self::Ping => 2 << 24,
            Self::Striped(slot) => 3 << 24 | u32::from(slot),
            Self::Stripe(slot) => 4 << 24 | u32::from(slot),
        }
    }

    pub(crate) fn decode(immediate: u32) -> Result<Self, Violation> {
        match (immediate >> 24, u16::try_from(immediate & 0x00ff_ffff)) {
            (0, Ok(slot)) => Ok(Self::Frame(slot)),
            (1, Ok(0)) => Ok(Self::RingCredit),
            (2, Ok(0)) => Ok(Self::Ping),
            (3, Ok(slot)) => Ok(Self::Striped(slot)),
            (4, Ok(slot)) => Ok(Self::Stripe(slot)),
            _ => Err(Violation::Immediate(immediate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_laid_out_in_its_slot_if_it_fits() {
        let (slots, ring) = (Layout::slots(3, 1000), Layout::ring());
        let most = MAX_KEY + MAX_METADATA;
        // Slot 1 begins at 5440, its header at 9816, its payload at 9856.
        let cases = [
            (slots, None, (0, 0), Some([9816..9816, 9856..9856])),
            (slots, None, (7, 1000), Some([9809..9816, 9856..10_856])),
            (slots, None, (most + 25, 1024), Some([5440..9816, 9856..10_880])),
            (slots, None, (most + 26, 0), None),
            (slots, None, (0, 1025), None),
            (slots, Some(64), (7, 64), Some([9809..9816, 64..128])),
            (slots, Some(64), (7, 65), None),
            (ring, None, (0, 152), Some([192..192, 232..384])),
            (ring, None, (1, 0), None),
        ];
        for (layout, split, lengths, expected) in cases {
            assert_eq!(layout.message(1, split, lengths), expected, "{layout:?} {split:?} {lengths:?}");
        }
        assert_eq!(ring.header(1), 192);
    }

    /// Peers of other versions rely on these numbers.
    #[test]
    fn the_layout_and_the_immediates_never_change() {
        assert_eq!(Layout::slots(3, 1000), Layout { count: 3, stride: 5440, prefix: 4416 });
        assert_eq!(Layout::ring(), Layout { count: 64, stride: 192, prefix: 40 });
        assert_eq!(Layout::slots(3, 1000).body(2), 2 * 5440 + 4416);
        let counts = [(1 << 20, 1), (5000, 4), (4, 8 << 20), (128, 8 << 20), (16, 1 << 29)]
            .map(|(wanted, frame_size)| Layout::slots(wanted, frame_size).count);
        assert_eq!(counts, [4096, 4096, 4, 31, 1]);
        assert_eq!(Layout::split(3, 1000), (Layout { count: 3, stride: 4416, prefix: 4416 }, 1024));
        assert_eq!(Layout::split(1000, 8 << 20), (Layout { count: 32, stride: 4416, prefix: 4416 }, 8 << 20));
        let immediates = [
            (Immediate::Frame(0x1234), 0x1234),
            (Immediate::RingCredit, 0x0100_0000),
            (Immediate::Ping, 0x0200_0000),
            (Immediate::Striped(0x1234), 0x0300_1234),
            (Immediate::Stripe(0xffff), 0x0400_ffff),
        ];
        for (immediate, number) in immediates {
            assert_eq!((immediate.encode(), Immediate::decode(number)), (number, Ok(immediate)));
        }
        for number in [0x0001_0000, 0x0100_0001, 0x0301_0000, 0x0500_0000, u32::MAX] {
            assert_eq!(Immediate::decode(number), Err(Violation::Immediate(number)));
        }
    }
}
