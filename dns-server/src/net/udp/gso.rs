//! Grouping of a batch's replies into messages that the kernel or the NIC cuts up into datagrams
//! (UDP GSO).
//!
//! Most of the cost of a reply is its path through the kernel: sockets, routes and filters. A
//! message of several replies takes that path once. Its replies all have one size and go to one
//! client port. Clients that send many queries from one port are balancers such as dnsdist, load
//! generators, and resolvers that send several queries at once. Where each query comes from another
//! port, every message holds one reply, and the search for groups costs some nanoseconds per reply.

use std::iter;

use super::BATCH;
use crate::limits::udp::MAX_SEGMENT;

// Linux accepts at least 64 segments per message, and as many bytes as fit into a UDP datagram.
const _: () = assert!(BATCH <= 64 && BATCH * MAX_SEGMENT as usize <= 65_507);

/// Properties by which replies are grouped first: unequal keys never share a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ReplyKey {
    /// Lowest 32 bits of the IP address that the reply goes to.
    pub(super) host: u32,
    pub(super) port: u16,
    pub(super) size: u16,
}

/// The replies of a batch, grouped into messages. A reply is identified by its position in the
/// batch.
#[derive(Debug)]
pub(super) struct Messages {
    /// Positions of the replies in the batch, those of one message behind those of another.
    positions: [u8; BATCH],
    /// For each message, the index in `positions` behind its last reply.
    ends: [u8; BATCH],
    count: usize,
}

impl Messages {
    /// Groups replies that have the same key and are `alike` in all other respects. A position
    /// without a key has no reply.
    pub(super) fn of(
        keys: impl Iterator<Item = Option<ReplyKey>>,
        alike: impl Fn(usize, usize) -> bool,
    ) -> Self {
        // For each message: its key, its first and last reply, and the number of replies. `next`
        // links the replies of a message.
        let mut known = [(ReplyKey::default(), 0_u8, 0_u8, 0_u8); BATCH];
        let (mut next, mut count) = ([0_u8; BATCH], 0);
        for (position, key) in keys.take(BATCH).enumerate() {
            let Some(key) = key else { continue };
            let is_of =
                |&(other, first, ..): &(ReplyKey, u8, u8, u8)| other == key && alike(first.into(), position);
            match known[..count].iter_mut().find(|message| key.size <= MAX_SEGMENT && is_of(message)) {
                Some((_, _, last, length)) => {
                    next[usize::from(*last)] = position as u8;
                    *last = position as u8;
                    *length += 1;
                }
                None => {
                    known[count] = (key, position as u8, position as u8, 1);
                    count += 1;
                }
            }
        }
        let mut messages = Self::empty();
        for &(_, first, _, length) in &known[..count] {
            let positions = iter::successors(Some(first), |&position| Some(next[usize::from(position)]));
            messages.push(positions.take(length.into()));
        }
        messages
    }

    /// Returns messages of one reply each, for all replies of the messages with these numbers.
    pub(super) fn ungrouped(&self, numbers: impl Iterator<Item = usize>) -> Self {
        let mut messages = Self::empty();
        for &position in numbers.flat_map(|number| self.replies(number)) {
            messages.push([position].into_iter());
        }
        messages
    }

    /// Returns the number of messages.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the positions in the batch of the replies that the message `number` holds.
    pub(super) fn replies(&self, number: usize) -> &[u8] {
        &self.positions[self.end(number)..self.end(number + 1)]
    }

    fn empty() -> Self {
        Self { positions: [0; BATCH], ends: [0; BATCH], count: 0 }
    }

    /// Returns the index in `positions` behind the first `count` messages.
    fn end(&self, count: usize) -> usize {
        count.checked_sub(1).map_or(0, |last| self.ends[last].into())
    }

    fn push(&mut self, positions: impl Iterator<Item = u8>) {
        let mut end = self.end(self.count);
        for position in positions {
            self.positions[end] = position;
            end += 1;
        }
        self.ends[self.count] = end as u8;
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups replies that are given as (port, size); size 0 stands for no reply.
    fn messages(replies: &[(u16, u16)], alike: impl Fn(usize, usize) -> bool) -> (Messages, Vec<Vec<u8>>) {
        let key = |&(port, size): &(u16, u16)| (size > 0).then_some(ReplyKey { host: 0, port, size });
        let messages = Messages::of(replies.iter().map(key), alike);
        let listed = (0..messages.count()).map(|number| messages.replies(number).to_vec()).collect();
        (messages, listed)
    }

    #[test]
    fn a_message_holds_replies_of_one_size_to_one_peer() {
        for (replies, expected) in [
            (&[][..], vec![]),
            (&[(7, 50)], vec![vec![0]]),
            (&[(7, 50), (7, 50), (7, 50)], vec![vec![0, 1, 2]]),
            (&[(7, 50), (8, 50), (7, 51), (8, 50), (7, 50)], vec![vec![0, 4], vec![1, 3], vec![2]]),
            (&[(7, 0), (7, 50), (7, 0), (7, 50), (7, 0)], vec![vec![1, 3]]),
            (&[(7, 1232), (7, 1232), (7, 1233), (7, 1233)], vec![vec![0, 1], vec![2], vec![3]]),
        ] {
            assert_eq!(messages(replies, |_, _| true).1, expected, "{replies:?}");
        }
        // The same port of another host, whose address ends in the same bits.
        let (_, listed) = messages(&[(7, 50); 5], |first, position| first % 2 == position % 2);
        assert_eq!(listed, [vec![0, 2, 4], vec![1, 3]]);
        let (_, listed) = messages(&[(7, 50); BATCH], |_, _| true);
        assert_eq!(listed, [(0..BATCH as u8).collect::<Vec<_>>()]);
        let (_, listed) = messages(&[(7, 50); BATCH], |_, _| false);
        assert_eq!(listed.len(), BATCH);
    }

    #[test]
    fn messages_can_be_split_into_single_replies() {
        let (all, _) = messages(&[(7, 50), (8, 50), (7, 50), (9, 50), (9, 50)], |_, _| true);
        let single = all.ungrouped([0, 1].into_iter());
        let listed: Vec<&[u8]> = (0..single.count()).map(|number| single.replies(number)).collect();
        assert_eq!(listed, [[0], [2], [1]]);
        assert_eq!(all.ungrouped([].into_iter()).count(), 0);
    }
}
