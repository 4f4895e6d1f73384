//! Offsets that were acknowledged a short time ago.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// Time for which an offset is known. It is that of the buffers' window: a Pipeline that is created
/// anew may use the same ids for other messages later.
const TIME: Duration = Duration::from_secs(60);

/// The most offsets that are known.
const MOST: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Recent {
    offsets: HashSet<Vec<u8>>,
    /// Offsets in the order in which they were added.
    order: VecDeque<(Instant, Vec<u8>)>,
}

impl Recent {
    pub(super) fn add(&mut self, offset: Vec<u8>) {
        self.forget();
        if self.offsets.insert(offset.clone()) {
            self.order.push_back((Instant::now(), offset));
        }
    }

    pub(super) fn has(&mut self, offset: &[u8]) -> bool {
        self.forget();
        self.offsets.contains(offset)
    }

    fn forget(&mut self) {
        while self.order.len() > MOST || self.order.front().is_some_and(|(added, _)| added.elapsed() >= TIME)
        {
            let Some((_, old)) = self.order.pop_front() else { return };
            self.offsets.remove(&old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_offset_is_known_for_a_time_and_up_to_a_number() {
        let mut recent = Recent::default();
        recent.add(b"a".to_vec());
        assert!(recent.has(b"a") && !recent.has(b"b"));
        tokio::time::advance(TIME).await;
        assert!(!recent.has(b"a"));
        (0..=MOST).for_each(|number| recent.add(number.to_be_bytes().to_vec()));
        assert!(!recent.has(&0_usize.to_be_bytes()) && recent.has(&MOST.to_be_bytes()));
    }
}
