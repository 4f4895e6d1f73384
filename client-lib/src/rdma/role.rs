//! What an end is for, and so how many pairs it has, and how deep they are. Pure.

use std::sync::Arc;

use multinet_memory::Gpu;
use multinet_verbs::Depths;

use super::layout::Layout;
use super::stripes::WORTH_CUTTING;
use crate::transport::Rdma;

/// How many writes a sender has under way at most.
const SENDS: u16 = 128;

/// So many immediates come beside frames: two halves of the ring that have been heard, and a ping.
const BESIDE: u16 = 3;

/// What the end is for.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// It sends frames, and gets answers.
    Sender,
    /// It receives frames of so many bytes in so many slots, large ones by so many further pairs, too; their payloads are wanted in this GPU, with so many slots
    /// if they come there.
    Receiver { slots: u32, frame_size: u32, further: usize, gpu: Option<(Arc<dyn Gpu>, u32)> },
}

impl Role {
    /// Where payloads are wanted, if that is a GPU.
    pub(super) fn gpu(&self) -> Option<&Arc<dyn Gpu>> {
        match self {
            Self::Sender => None,
            Self::Receiver { gpu, .. } => gpu.as_ref().map(|(gpu, _)| gpu),
        }
    }

    /// How many pairs it has beside the first one. A sender is not told how large frames may be before it is connected; its further pairs take little.
    pub(super) fn further(&self, stripes: u8) -> usize {
        let wanted = match self {
            Self::Sender => usize::from(stripes.saturating_sub(1)),
            // No frame is ever cut.
            Self::Receiver { frame_size, .. } if (*frame_size as usize) < WORTH_CUTTING => 0,
            Self::Receiver { further, .. } => *further,
        };
        wanted.min(usize::from(Rdma::MOST_STRIPES) - 1)
    }

    /// Of the first pair, and of a further one.
    pub(super) fn depths(&self, Layout { count, .. }: Layout) -> [Depths; 2] {
        match self {
            // One more than there are entries: what has been read is said before its request is posted again.
            Self::Sender => [count + 1, 1].map(|receive| Depths { send: SENDS, receive }),
            Self::Receiver { .. } => [
                Depths { send: Layout::ring().count, receive: count + BESIDE },
                // A part for each slot, and a ping.
                Depths { send: 1, receive: count + 1 },
            ],
        }
    }
}

/// How many completions there can be at a time, of the first pair and so many further ones: 8.2 thousand at most, as slots for frames that are cut are a
/// thousand at most.
pub(super) fn completions([first, further]: [Depths; 2], count: usize) -> u16 {
    std::iter::once(first)
        .chain(std::iter::repeat_n(further, count))
        .map(|Depths { send, receive }| send + receive)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What soft-RoCE has at most; devices of hardware have far more.
    const MOST_COMPLETIONS: u16 = 32_767;

    #[test]
    fn a_completion_queue_is_no_longer_than_devices_have() {
        for frame_size in [0, 60_000, WORTH_CUTTING as u32 - 1, WORTH_CUTTING as u32, 1 << 20, 200 << 20] {
            let role = Role::Receiver { slots: 4096, frame_size, further: 7, gpu: None };
            for layout in [Layout::slots(4096, frame_size), Layout::split(4096, frame_size).0] {
                let completions = completions(role.depths(layout), role.further(1));
                assert!(completions <= MOST_COMPLETIONS, "{completions} for frames of {frame_size} bytes");
            }
        }
    }

    #[test]
    fn there_are_further_pairs_where_frames_may_be_cut() {
        let receiver =
            |frame_size, further| Role::Receiver { slots: 1, frame_size, further, gpu: None }.further(1);
        let least = WORTH_CUTTING as u32;
        assert_eq!([receiver(least - 1, 7), receiver(least, 7), receiver(least, 200)], [0, 7, 7]);
        assert_eq!([1, 3, 8, 200].map(|stripes| Role::Sender.further(stripes)), [0, 2, 7, 7]);
    }
}
