//! Which replies of a batch go out together, as one piece that the kernel, or the NIC, cuts up (UDP GSO).
//!
//! Most of what a reply costs is the kernel's way through sockets, routes and filters, and a piece goes that way once.
//! Its replies are all of one size and for one peer: those that ask much from one port are balancers such as dnsdist,
//! load generators, and who sends several queries at once. Where each query comes from a port of its own there are no
//! messages, and looking for them costs some nanoseconds a reply.

use std::iter;

use super::BATCH;

/// What a reply in a piece may have: what fits into IPv6's least MTU of 1280. A longer one may have to be sent in
/// fragments, which messages do not allow.
const MAX_SEGMENT: u16 = 1232;

// Linux takes so many segments in a piece at least, and so many octets.
const _: () = assert!(BATCH <= 64 && BATCH * MAX_SEGMENT as usize <= 65_507);

/// What mostly tells replies single.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ReplyKey {
    /// The end of the peer's address.
    pub(super) host: u32,
    /// The peer's port.
    pub(super) port: u16,
    pub(super) size: u16,
}

/// Replies of a batch, by messages. They are named by their positions in the batch.
#[derive(Debug)]
pub(super) struct Messages {
    /// The replies, piece by piece.
    positions: [u8; BATCH],
    /// Where in `positions` each piece ends.
    ends: [u8; BATCH],
    count: usize,
}

impl Messages {
    /// Puts together what has the same key and is `alike` in all else. What has no key is no reply.
    pub(super) fn of(
        keys: impl Iterator<Item = Option<ReplyKey>>,
        alike: impl Fn(usize, usize) -> bool,
    ) -> Self {
        // Of each piece its key, its first and last reply and their number; of each reply the next one of its piece.
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

    /// Each reply of those messages by itself.
    pub(super) fn ungrouped(&self, numbers: impl Iterator<Item = usize>) -> Self {
        let mut messages = Self::empty();
        for &position in numbers.flat_map(|number| self.replies(number)) {
            messages.push([position].into_iter());
        }
        messages
    }

    /// How many messages there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The replies of one.
    pub(super) fn replies(&self, number: usize) -> &[u8] {
        &self.positions[self.end(number)..self.end(number + 1)]
    }

    fn empty() -> Self {
        Self { positions: [0; BATCH], ends: [0; BATCH], count: 0 }
    }

    /// Where the first so many messages end.
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

    /// The messages of replies to (port, size), of which those of size 0 are none.
    fn messages(replies: &[(u16, u16)], alike: impl Fn(usize, usize) -> bool) -> (Messages, Vec<Vec<u8>>) {
        let key = |&(port, size): &(u16, u16)| (size > 0).then_some(ReplyKey { host: 0, port, size });
        let messages = Messages::of(replies.iter().map(key), alike);
        let listed = (0..messages.count()).map(|number| messages.replies(number).to_vec()).collect();
        (messages, listed)
    }

    #[test]
    fn a_piece_is_of_one_peer_and_one_size() {
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
        // The same port of another host, whose address ends alike.
        let (_, listed) = messages(&[(7, 50); 5], |first, position| first % 2 == position % 2);
        assert_eq!(listed, [vec![0, 2, 4], vec![1, 3]]);
        let (_, listed) = messages(&[(7, 50); BATCH], |_, _| true);
        assert_eq!(listed, [(0..BATCH as u8).collect::<Vec<_>>()]);
        let (_, listed) = messages(&[(7, 50); BATCH], |_, _| false);
        assert_eq!(listed.len(), BATCH);
    }

    #[test]
    fn pieces_are_taken_apart() {
        let (all, _) = messages(&[(7, 50), (8, 50), (7, 50), (9, 50), (9, 50)], |_, _| true);
        let single = all.ungrouped([0, 1].into_iter());
        let listed: Vec<&[u8]> = (0..single.count()).map(|number| single.replies(number)).collect();
        assert_eq!(listed, [[0], [2], [1]]);
        assert_eq!(all.ungrouped([].into_iter()).count(), 0);
    }
}
