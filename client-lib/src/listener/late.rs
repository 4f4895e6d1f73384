//! Memory that a slow device had ready when its sender was not waiting any more: the next one gets it, so that some get on however slow the device
//! is. If none comes it is let go of, for a device that is taken away may wait for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::slots::{Memory, Newcomer, Slots};
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

    /// Keeps memory for a newcomer. One that waits for slots already gets it at once.
    pub(super) fn keep(&self, now: Instant, slots: Slots, spare: S) {
        let mut kept = self.lock();
        if kept.len() < MOST {
            let memory = Arc::clone(slots.memory());
            kept.push(Kept { until: now + KEPT, slots, spare });
            drop(kept);
            memory.released().notify_waiters();
        }
    }

    /// What nobody has come for in time. To let go of it may take long.
    pub(super) fn overdue(&self, now: Instant) -> Vec<(Slots, S)> {
        let overdue = self.lock().extract_if(.., |kept| kept.until <= now).collect::<Vec<_>>();
        overdue.into_iter().map(|Kept { slots, spare, .. }| (slots, spare)).collect()
    }

    /// Takes slots of this memory that are ready.
    pub(super) fn take(&self, memory: &Arc<Memory>) -> Option<(Slots, Option<S>)> {
        let mut kept = self.lock();
        let at = kept.iter().rposition(|kept| Arc::ptr_eq(kept.slots.memory(), memory))?;
        let Kept { slots, spare, .. } = kept.swap_remove(at);
        Some((slots, Some(spare)))
    }

    /// Grants slots of this memory to a newcomer, or takes those that are ready, which may be why
    /// there are no others.
    pub(super) fn grant(
        &self,
        memory: &Arc<Memory>,
        Newcomer { address, wanted, is_lasting }: Newcomer,
    ) -> Result<(Slots, Option<S>), Refusal> {
        let granted = memory.grant(address, wanted, is_lasting).map(|slots| (slots, None));
        granted.or_else(|refusal| self.take(memory).ok_or(refusal))
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<Kept<S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::super::budget::Budget;
    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn memory(connections: usize) -> Arc<Memory> {
        Arc::new(Memory::new(Budget::given(1000), 10, connections))
    }

    fn grant(memory: &Arc<Memory>, wanted: u32) -> Result<Slots, Refusal> {
        memory.grant(HERE, wanted, false)
    }

    #[test]
    fn what_is_kept_keeps_no_newcomer_out() {
        let (memory, late) = (memory(2), Late::new());
        let newcomer = Newcomer { address: HERE, wanted: 4, is_lasting: false };
        let spare = || late.grant(&memory, newcomer).map(|(_, spare)| spare);
        late.keep(Instant::now(), grant(&memory, 4).unwrap(), "first");
        assert_eq!(spare().unwrap(), None, "there are others");
        late.keep(Instant::now(), grant(&memory, 4).unwrap(), "second");
        assert!(grant(&memory, 1).is_err(), "there are only two connections");
        assert_eq!(spare().unwrap(), Some("second"));
        assert_eq!((late.count(), memory.connections()), (1, 1));
    }

    #[test]
    fn what_is_kept_stays_what_it_is_accounted_as() {
        let (host, gpu, late) = (memory(2), memory(2), Late::new());
        late.keep(Instant::now(), grant(&gpu, 4).unwrap(), "a GPU's");
        assert!(late.take(&host).is_none());
        let _all = [grant(&host, 4).unwrap(), grant(&host, 4).unwrap()];
        let newcomer = Newcomer { address: HERE, wanted: 4, is_lasting: false };
        assert!(late.grant(&host, newcomer).is_err(), "the slots of a GPU are none of the host's");
        assert_eq!(late.take(&gpu).and_then(|(_, spare)| spare), Some("a GPU's"));
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
