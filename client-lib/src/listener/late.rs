//! Memory that a slow device had ready when its sender was not waiting any more: the next one gets it, so that some get on however slow the device
//! is. If none comes it is let go of, for a device that is taken away may wait for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::slots::Slots;
use crate::handshake::Refusal;
use crate::rdma::ReceiveMemory;

/// Of so many, at most.
const MOST: usize = 2;

/// For so long: senders try again every ten seconds at least.
pub(super) const KEPT: Duration = Duration::from_secs(30);

/// What is kept, with the slots that it is accounted as.
pub(super) struct Late<S = ReceiveMemory>(Mutex<Vec<Kept<S>>>);

struct Kept<S> {
    until: Instant,
    slots: Slots,
    spare: S,
}

impl<S> Late<S> {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn keep(&self, now: Instant, slots: Slots, spare: S) {
        let mut kept = self.lock();
        if kept.len() < MOST {
            kept.push(Kept { until: now + KEPT, slots, spare });
        }
    }

    /// What nobody has come for in time. To let go of it may take long.
    pub(super) fn overdue(&self, now: Instant) -> Vec<(Slots, S)> {
        let overdue = self.lock().extract_if(.., |kept| kept.until <= now).collect::<Vec<_>>();
        overdue.into_iter().map(|Kept { slots, spare, .. }| (slots, spare)).collect()
    }

    /// Slots for a sender: those whose memory is ready, if it may use that, or if what is kept is why there are no others.
    pub(super) fn slots(
        &self,
        uses_memory: bool,
        grant: impl FnOnce() -> Result<Slots, Refusal>,
    ) -> Result<(Slots, Option<S>), Refusal> {
        let take = || self.lock().pop().map(|Kept { slots, spare, .. }| (slots, Some(spare)));
        if uses_memory && let Some(kept) = take() {
            return Ok(kept);
        }
        grant().map(|slots| (slots, None)).or_else(|refusal| take().ok_or(refusal))
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<Kept<S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use std::net::{IpAddr, Ipv4Addr};

    use super::super::budget::Budget;
    use super::super::slots::Memory;
    use super::*;

    fn memory(connections: usize) -> Arc<Memory> {
        Arc::new(Memory::new(Budget::given(1000), 10, connections))
    }

    fn grant(memory: &Arc<Memory>, wanted: u32) -> Result<Slots, Refusal> {
        memory.grant(IpAddr::V4(Ipv4Addr::LOCALHOST), wanted, false)
    }

    #[test]
    fn what_is_kept_goes_to_who_can_use_it_and_keeps_nobody_out() {
        let (memory, late) = (memory(2), Late::new());
        let slots = |uses_memory| late.slots(uses_memory, || grant(&memory, 4)).map(|(_, spare)| spare);
        assert_eq!(slots(true).unwrap(), None);

        late.keep(Instant::now(), grant(&memory, 4).unwrap(), "first");
        assert_eq!(slots(false).unwrap(), None, "there are others");
        assert_eq!(slots(true).unwrap(), Some("first"));
        assert_eq!((late.count(), memory.connections()), (0, 0));

        late.keep(Instant::now(), grant(&memory, 4).unwrap(), "first");
        late.keep(Instant::now(), grant(&memory, 4).unwrap(), "second");
        assert!(grant(&memory, 1).is_err(), "there are only two connections");
        assert_eq!(slots(false).unwrap(), Some("second"));
        assert_eq!((late.count(), memory.connections()), (1, 1));
    }

    #[test]
    fn what_nobody_comes_for_is_let_go_of() {
        let (memory, late, begin) = (memory(10), Late::new(), Instant::now());
        late.keep(begin, grant(&memory, 1).unwrap(), "first");
        late.keep(begin + KEPT / 2, grant(&memory, 1).unwrap(), "second");
        assert!(late.overdue(begin + KEPT / 2).is_empty());
        let overdue = late.overdue(begin + KEPT);
        assert_eq!(overdue.iter().map(|(_, spare)| *spare).collect::<Vec<_>>(), ["first"]);
        drop(overdue);
        assert_eq!((late.count(), memory.connections()), (1, 1));
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let (memory, late) = (memory(10), Late::new());
        (0..10).for_each(|number| late.keep(Instant::now(), grant(&memory, 1).unwrap(), number));
        assert_eq!((late.count(), memory.connections()), (MOST, MOST));
    }
}
