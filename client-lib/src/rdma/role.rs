//! The role of one end of a connection, and the queue pairs and capacities that follow from it.
//!
//! Nothing here touches a device.

use std::sync::Arc;

use multinet_memory::Gpu;
use multinet_verbs::Capacities;

use super::layout::Layout;
use super::stripes::STRIPE_THRESHOLD;
use crate::transport::Rdma;

/// The most writes that a sender has in flight on one queue pair.
const MAX_SENDS: u16 = 128;

/// Receive requests beside those for frames: two for ring credits and one for the ping.
const EXTRA_RECEIVES: u16 = 3;

/// The role of an end, with what it needs to know of frames.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// Sends frames, and receives credits and acknowledgements in a ring.
    Sender,
    /// Receives frames of up to `frame_size` bytes in `slots` slots, and stripes of large frames on
    /// `extra_pairs` queue pairs beside the first. With `gpu`, payloads are to arrive in that GPU,
    /// which has memory for that many slots.
    Receiver { slots: u32, frame_size: u32, extra_pairs: usize, gpu: Option<(Arc<dyn Gpu>, u32)> },
}

impl Role {
    pub(super) fn is_sender(&self) -> bool {
        matches!(self, Self::Sender)
    }

    /// Returns the GPU in which payloads are to arrive, if any; a sender has none.
    pub(super) fn gpu(&self) -> Option<&Arc<dyn Gpu>> {
        match self {
            Self::Sender => None,
            Self::Receiver { gpu, .. } => gpu.as_ref().map(|(gpu, _)| gpu),
        }
    }

    /// Returns the number of queue pairs beside the first. A sender learns the frame size only
    /// after it has created its queue pairs, so it creates all that it may need; they cost little.
    pub(super) fn extra_pairs(&self, stripes: u8) -> usize {
        let wanted = match self {
            Self::Sender => usize::from(stripes.saturating_sub(1)),
            // No frame is long enough to be striped.
            Self::Receiver { frame_size, .. } if (*frame_size as usize) < STRIPE_THRESHOLD => 0,
            Self::Receiver { extra_pairs, .. } => *extra_pairs,
        };
        wanted.min(usize::from(Rdma::MOST_STRIPES) - 1)
    }

    /// Returns the most requests in flight on the queue pair with this number, where 0 is the
    /// first, and the others only carry stripes. The other side writes to memory of this layout.
    pub(super) fn capacities(&self, Layout { count, .. }: Layout, pair: usize) -> Capacities {
        let (send, receive) = match (self, pair) {
            // One more than the ring has entries: an entry is acknowledged before the receive
            // request that it has used is posted again.
            (Self::Sender, 0) => (MAX_SENDS, count + 1),
            (Self::Sender, _) => (MAX_SENDS, 1),
            (Self::Receiver { .. }, 0) => (Layout::ring().count, count + EXTRA_RECEIVES),
            // One stripe for each slot, and a ping.
            (Self::Receiver { .. }, _) => (1, count + 1),
        };
        Capacities { send, receive }
    }

    /// Returns the most completions that the first queue pair and `extra_pairs` others can have at
    /// a time. That is 8200 or so: a connection whose frames are striped has at most a thousand
    /// slots.
    pub(super) fn completions(&self, layout: Layout, extra_pairs: usize) -> u16 {
        let all = (0..=extra_pairs).map(|pair| self.capacities(layout, pair));
        all.map(|Capacities { send, receive }| send + receive).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit of soft-RoCE. Hardware has far more.
    const MAX_COMPLETIONS: u16 = 32_767;

    #[test]
    fn completion_queues_are_no_longer_than_devices_allow() {
        for frame_size in
            [0, 60_000, STRIPE_THRESHOLD as u32 - 1, STRIPE_THRESHOLD as u32, 1 << 20, 200 << 20]
        {
            let role = Role::Receiver { slots: 4096, frame_size, extra_pairs: 7, gpu: None };
            for layout in [Layout::slots(4096, frame_size), Layout::split(4096, frame_size).0] {
                let completions = role.completions(layout, role.extra_pairs(1));
                assert!(completions <= MAX_COMPLETIONS, "{completions} for frames of {frame_size} bytes");
            }
        }
    }

    #[test]
    fn extra_pairs_exist_only_where_frames_may_be_striped() {
        let receiver = |frame_size, extra_pairs| {
            Role::Receiver { slots: 1, frame_size, extra_pairs, gpu: None }.extra_pairs(1)
        };
        let least = STRIPE_THRESHOLD as u32;
        assert_eq!([receiver(least - 1, 7), receiver(least, 7), receiver(least, 200)], [0, 7, 7]);
        assert_eq!([1, 3, 8, 200].map(|stripes| Role::Sender.extra_pairs(stripes)), [0, 2, 7, 7]);
    }
}
