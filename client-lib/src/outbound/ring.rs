//! Frames that the sender keeps, by sequence.

use std::collections::VecDeque;
use std::time::Instant;

use super::{LinkId, PeerId};

/// Frame that the sender keeps until it is acknowledged or given up, with its assignment.
#[derive(Debug)]
pub(crate) struct Entry<F> {
    pub(crate) frame: F,
    /// Hash of the frame's key, which chooses the peer.
    pub(crate) key: u64,
    /// Length of the frame's payload, in bytes.
    pub(crate) length: usize,
    /// The only peer that may have the frame, if the caller named one.
    pub(crate) only: Option<PeerId>,
    /// Peer whose application rejected the frame last. Other peers are preferred.
    pub(crate) avoid: Option<PeerId>,
    /// Connection that the frame is assigned to. `None` while it waits for one.
    pub(crate) link: Option<LinkId>,
    /// Whether the frame has left the queue of the connection `link` to be written.
    pub(crate) is_handed: bool,
    /// Peer that may have received the frame over a connection that broke. If set, the next
    /// transmission is a repeat.
    pub(crate) previous_peer: Option<PeerId>,
    /// Number of times that receivers' applications rejected the frame.
    pub(crate) rejections: u32,
    /// End of the frame's pause after a rejection. `None` if it is not paused.
    pub(crate) not_before: Option<Instant>,
}

impl<F> Entry<F> {
    /// Creates an entry for a frame that is not assigned to a connection yet.
    pub(crate) fn new(frame: F, length: usize, key: u64, only: Option<PeerId>) -> Self {
        Self {
            frame,
            key,
            length,
            only,
            avoid: None,
            link: None,
            is_handed: false,
            previous_peer: None,
            rejections: 0,
            not_before: None,
        }
    }

    /// Returns whether the frame was taken to be written to this peer, on its current connection.
    pub(crate) fn is_with(&self, peer: PeerId) -> bool {
        self.is_handed && self.link.is_some_and(|link| link.peer == peer)
    }

    /// Returns whether a peer can have received the frame, and so may acknowledge it.
    pub(crate) fn is_known_to(&self, peer: PeerId) -> bool {
        self.is_with(peer) || self.previous_peer == Some(peer)
    }

    /// Takes the frame from its connection, and remembers the peer that may have received it.
    pub(crate) fn release(&mut self) {
        let link = self.link.take();
        if std::mem::take(&mut self.is_handed) {
            self.previous_peer = link.map(|link| link.peer);
        }
    }
}

/// Frames that the sender keeps, in the order of their sequences, which count from 1.
#[derive(Debug)]
pub(crate) struct Ring<F> {
    entries: VecDeque<Option<Entry<F>>>,
    floor: u64,
    count: usize,
}

impl<F> Default for Ring<F> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), floor: 1, count: 0 }
    }
}

impl<F> Ring<F> {
    /// Returns the oldest sequence that is kept, or the next one if none is.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns the sequence that the next pushed frame gets.
    pub(crate) fn next(&self) -> u64 {
        self.floor + self.entries.len() as u64
    }

    /// Returns the number of frames that are kept.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn push(&mut self, entry: Entry<F>) -> u64 {
        let sequence = self.next();
        self.entries.push_back(Some(entry));
        self.count += 1;
        sequence
    }

    pub(crate) fn get(&self, sequence: u64) -> Option<&Entry<F>> {
        self.entries.get(self.index_of(sequence)?)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, sequence: u64) -> Option<&mut Entry<F>> {
        let index = self.index_of(sequence)?;
        self.entries.get_mut(index)?.as_mut()
    }

    pub(crate) fn remove(&mut self, sequence: u64) -> Option<Entry<F>> {
        let index = self.index_of(sequence)?;
        let entry = self.entries.get_mut(index)?.take()?;
        self.count -= 1;
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.floor += 1;
        }
        Some(entry)
    }

    /// Returns the sequences of kept frames for which `fulfils` is true, oldest first.
    pub(crate) fn sequences(&self, fulfils: impl Fn(&Entry<F>) -> bool) -> Vec<u64> {
        let numbered = (self.floor..).zip(&self.entries);
        numbered
            .filter(|(_, entry)| entry.as_ref().is_some_and(&fulfils))
            .map(|(sequence, _)| sequence)
            .collect()
    }

    /// Returns whether `fulfils` is true for any kept frame.
    pub(crate) fn any(&self, fulfils: impl Fn(&Entry<F>) -> bool) -> bool {
        self.entries.iter().flatten().any(fulfils)
    }

    fn index_of(&self, sequence: u64) -> Option<usize> {
        usize::try_from(sequence.checked_sub(self.floor)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn entry(frame: u64) -> Entry<u64> {
        Entry::new(frame, 0, 0, None)
    }

    proptest! {
        /// Compares the ring with a set of sequences.
        #[test]
        fn a_ring_after_any_removals_begins_at_its_oldest_frame(removed in prop::collection::vec(prop::option::of(0..20_u64), 0..200)) {
            let (mut ring, mut model, mut next) = (Ring::default(), BTreeSet::new(), 1);
            for removed in removed {
                match removed {
                    None => {
                        prop_assert_eq!(ring.push(entry(next)), next);
                        model.insert(next);
                        next += 1;
                    }
                    Some(back) => {
                        let sequence = next.saturating_sub(back);
                        let entry = ring.remove(sequence);
                        prop_assert_eq!(entry.map(|entry| entry.frame), model.take(&sequence));
                    }
                }
                prop_assert_eq!(ring.floor(), model.first().copied().unwrap_or(next));
                prop_assert_eq!((ring.next(), ring.len()), (next, model.len()));
                prop_assert_eq!(ring.sequences(|_| true), model.iter().copied().collect::<Vec<_>>());
                prop_assert!((0..=next).all(|at| ring.get(at).is_some() == model.contains(&at)));
            }
        }
    }
}
