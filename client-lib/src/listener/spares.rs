//! Registered memory that a slow device had ready too late for its sender. The next sender gets it,
//! so that some succeed however slow the device is. If none comes it is freed, as the removal of a
//! device may wait for that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::control::Connection;
use super::slots::{Memory, Newcomer, Slots};
use crate::handshake::Refusal;
use crate::rdma::ReceiveMemory;

/// Most spares that a listener keeps at a time.
const MOST: usize = 2;

/// Time after which a spare is freed. Senders try again at least every ten seconds.
pub(super) const KEPT: Duration = Duration::from_secs(30);

/// Registered memory that is kept for the next senders by RDMA, each with its slots.
pub(super) struct Spares<S = ReceiveMemory>(Mutex<Vec<Kept<S>>>);

struct Kept<S> {
    until: Instant,
    // Given back after the memory is free.
    spare: S,
    slots: Slots<Connection>,
}

impl<S> Spares<S> {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    pub(super) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Keeps memory for the next sender. One that waits for slots already gets it at once.
    pub(super) fn keep(&self, now: Instant, slots: Slots<Connection>, spare: S) {
        let mut kept = self.0.lock();
        if kept.len() < MOST {
            let memory = Arc::clone(slots.memory());
            kept.push(Kept { until: now + KEPT, slots, spare });
            drop(kept);
            memory.released().notify_waiters();
        }
    }

    /// Removes the spares whose time is over. To drop them may take long.
    pub(super) fn overdue(&self, now: Instant) -> Vec<(S, Slots<Connection>)> {
        let overdue = self.0.lock().extract_if(.., |kept| kept.until <= now).collect::<Vec<_>>();
        overdue.into_iter().map(|Kept { slots, spare, .. }| (spare, slots)).collect()
    }

    /// Takes a spare whose slots are of this memory, or returns `None` if there is none.
    pub(super) fn take(&self, memory: &Arc<Memory<Connection>>) -> Option<(Slots<Connection>, Option<S>)> {
        let mut kept = self.0.lock();
        let at = kept.iter().rposition(|kept| Arc::ptr_eq(kept.slots.memory(), memory))?;
        let Kept { slots, spare, .. } = kept.swap_remove(at);
        Some((slots, Some(spare)))
    }

    /// Grants slots of this memory to a newcomer. If none are left, takes those of a spare.
    pub(super) fn grant(
        &self,
        memory: &Arc<Memory<Connection>>,
        newcomer: Newcomer,
    ) -> Result<(Slots<Connection>, Option<S>), Refusal> {
        let granted = memory.grant(newcomer).map(|slots| (slots, None));
        granted.or_else(|refusal| self.take(memory).ok_or(refusal))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::super::budget::Budget;
    use super::*;

    fn memory(connections: usize) -> Arc<Memory<Connection>> {
        Arc::new(Memory::new(Budget::given(1000), 10, connections))
    }

    fn newcomer(wanted: u32) -> Newcomer {
        Newcomer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), wanted, is_lasting: false }
    }

    fn grant(memory: &Arc<Memory<Connection>>, wanted: u32) -> Slots<Connection> {
        memory.grant(newcomer(wanted)).unwrap()
    }

    #[test]
    fn spares_keep_no_newcomer_out() {
        let (memory, spares) = (memory(2), Spares::new());
        let spare = || spares.grant(&memory, newcomer(4)).map(|(_, spare)| spare);
        spares.keep(Instant::now(), grant(&memory, 4), "first");
        assert_eq!(spare().unwrap(), None, "other slots are left");
        spares.keep(Instant::now(), grant(&memory, 4), "second");
        assert!(memory.grant(newcomer(1)).is_err(), "only two connections are allowed");
        assert_eq!(spare().unwrap(), Some("second"));
        assert_eq!((spares.count(), memory.connections()), (1, 1));
    }

    #[test]
    fn a_spare_of_a_gpu_is_not_given_out_as_host_memory() {
        let (host, gpu, spares) = (memory(2), memory(2), Spares::new());
        spares.keep(Instant::now(), grant(&gpu, 4), "a GPU's");
        let _all = [grant(&host, 4), grant(&host, 4)];
        assert!(spares.take(&host).is_none() && spares.grant(&host, newcomer(4)).is_err());
        assert_eq!(spares.take(&gpu).and_then(|(_, spare)| spare), Some("a GPU's"));
    }

    #[test]
    fn a_spare_is_freed_when_its_time_is_over() {
        let (memory, spares, begin) = (memory(10), Spares::new(), Instant::now());
        spares.keep(begin, grant(&memory, 1), "first");
        spares.keep(begin + KEPT / 2, grant(&memory, 1), "second");
        assert!(spares.overdue(begin + KEPT / 2).is_empty());
        let overdue = spares.overdue(begin + KEPT);
        assert_eq!(overdue.iter().map(|(spare, _)| *spare).collect::<Vec<_>>(), ["first"]);
        drop(overdue);
        assert_eq!((spares.count(), memory.connections()), (1, 1));
    }

    #[test]
    fn spares_beyond_the_limit_are_freed_at_once() {
        let (memory, spares) = (memory(10), Spares::new());
        (0..10).for_each(|number| spares.keep(Instant::now(), grant(&memory, 1), number));
        assert_eq!((spares.count(), memory.connections()), (MOST, MOST));
    }
}
