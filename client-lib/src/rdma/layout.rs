//! Where things lie in memory that the other side writes to, and what an immediate means.
//!
//! ```text
//!   slot:  | room ... | key | metadata | header (40) | payload ............ |
//!                                      ^ always at the same offset, and the payload after it on a cache line
//!
//!   entry of the ring:                 | header (40) | sequences, slots     |
//! ```
//!
//! So a message is one write, wherever its header begins, and the payload is aligned whatever comes before it. Payloads that are to be in a GPU have a place
//! of their own, and are a write of their own.

use std::ops::Range;

use super::accounts::Violation;
use crate::stream::SHORT;
use crate::wire::{HEADER, MAX_KEY, MAX_METADATA};

/// A cache line.
const LINE: usize = 64;

/// How many entries the ring has in which a receiver answers.
pub(crate) const RING: u16 = 64;

/// The most slots of one connection.
const MAX_SLOTS: u16 = 4096;

/// So much memory is registered for the slots of one connection, at most: it cannot be used for anything else, whether frames come or not. Larger
/// frames go by TCP.
pub(crate) const MOST_MEMORY: usize = 256 << 20;

/// The form of places that are written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// How many there are.
    pub(crate) count: u16,
    /// From the beginning of one to that of the next, in bytes.
    pub(crate) stride: usize,
    /// From the beginning of one to what follows its header.
    pub(crate) prefix: usize,
}

impl Layout {
    /// Slots for frames: as many as are wanted, or as one connection may have.
    pub(crate) fn slots(wanted: u32, frame_size: u32) -> Self {
        let prefix = (MAX_KEY + MAX_METADATA + HEADER).next_multiple_of(LINE);
        let stride = (prefix + frame_size as usize).next_multiple_of(LINE);
        let count = u16::try_from(wanted).unwrap_or(u16::MAX).min(MAX_SLOTS);
        let fitting = u16::try_from(MOST_MEMORY / stride).unwrap_or(u16::MAX);
        Self { count: count.min(fitting).max(1), stride, prefix }
    }

    /// Slots whose payloads have a place of their own, and from one such place to the next.
    pub(crate) fn split(wanted: u32, frame_size: u32) -> (Self, usize) {
        let stride = (frame_size as usize).max(1).next_multiple_of(LINE);
        let fitting = u32::try_from(MOST_MEMORY / stride).unwrap_or(u32::MAX);
        (Self::slots(wanted.min(fitting), 0), stride)
    }

    /// The ring for answers.
    pub(crate) fn ring() -> Self {
        Self { count: RING, stride: (HEADER + SHORT).next_multiple_of(LINE), prefix: HEADER }
    }

    /// Bytes of all.
    pub(crate) fn size(&self) -> usize {
        usize::from(self.count) * self.stride
    }

    /// Where what follows the header begins.
    pub(crate) fn body(&self, place: u16) -> usize {
        usize::from(place) * self.stride + self.prefix
    }

    /// Where a header begins.
    pub(crate) fn header(&self, place: u16) -> usize {
        self.body(place) - HEADER
    }

    /// Where key and metadata lie, and where the payload, of a message with so many bytes of both: `split` is the stride of payloads that have places of
    /// their own. `None` if they do not fit.
    pub(crate) fn message(
        &self,
        place: u16,
        split: Option<usize>,
        (prefix, payload): (usize, usize),
    ) -> Option<[Range<usize>; 2]> {
        let (begin, room) = match split {
            Some(stride) => (usize::from(place) * stride, stride),
            None => (self.body(place), self.stride - self.prefix),
        };
        if prefix + HEADER > self.prefix || payload > room {
            return None;
        }
        let header = self.header(place);
        Some([header - prefix..header, begin..begin + payload])
    }
}

/// What a sender tells by an immediate. What a receiver tells is the number of an entry of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Immediate {
    /// A frame is in this slot.
    Frame(u16),
    /// It has read another half of the ring.
    Heard,
    /// Nothing: it tries the way.
    Ping,
    /// A frame is in this slot once every further pair has told of its part.
    Divided(u16),
    /// A part of the frame in this slot, told by a further pair.
    Part(u16),
}

impl Immediate {
    pub(crate) fn encode(self) -> u32 {
        match self {
            Self::Frame(slot) => slot.into(),
            Self::Heard => 1 << 24,
            Self::Ping => 2 << 24,
            Self::Divided(slot) => 3 << 24 | u32::from(slot),
            Self::Part(slot) => 4 << 24 | u32::from(slot),
        }
    }

    pub(crate) fn decode(immediate: u32) -> Result<Self, Violation> {
        match (immediate >> 24, u16::try_from(immediate & 0x00ff_ffff)) {
            (0, Ok(slot)) => Ok(Self::Frame(slot)),
            (1, Ok(0)) => Ok(Self::Heard),
            (2, Ok(0)) => Ok(Self::Ping),
            (3, Ok(slot)) => Ok(Self::Divided(slot)),
            (4, Ok(slot)) => Ok(Self::Part(slot)),
            _ => Err(Violation::Immediate(immediate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_lies_in_its_place_if_it_fits() {
        let (slots, ring) = (Layout::slots(3, 1000), Layout::ring());
        let most = MAX_KEY + MAX_METADATA;
        // The place begins at 5440, its header at 9816, its payload at 9856.
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

    /// Other versions count on it.
    #[test]
    fn the_layout_never_changes() {
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
            (Immediate::Heard, 0x0100_0000),
            (Immediate::Ping, 0x0200_0000),
            (Immediate::Divided(0x1234), 0x0300_1234),
            (Immediate::Part(0xffff), 0x0400_ffff),
        ];
        for (immediate, number) in immediates {
            assert_eq!((immediate.encode(), Immediate::decode(number)), (number, Ok(immediate)));
        }
        for number in [0x0001_0000, 0x0100_0001, 0x0301_0000, 0x0500_0000, u32::MAX] {
            assert_eq!(Immediate::decode(number), Err(Violation::Immediate(number)));
        }
    }
}
