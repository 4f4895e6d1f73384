//! Transfers under way: a limited number, each of which keeps its place only as long as its client takes messages.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use multinet_runtime::ConnectionCloser;
use tokio::time::Instant;

use super::Version;
use crate::store::name::Name;

/// Transfers at one time.
pub(super) const TRANSFERS: usize = 32;

/// A client that has taken no message, of 64 KiB, for so long makes room for one that has come.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// All that are under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns(Arc<Mutex<Vec<Arc<Turn>>>>);

#[derive(Debug)]
struct Turn {
    /// When its client last took a message.
    moved: Mutex<Instant>,
    /// Ends its connection.
    connection: OnceLock<ConnectionCloser>,
    /// The zone and version of which it has a copy.
    copy: OnceLock<(Name, u32)>,
}

/// Place of a transfer; free again when it is dropped.
#[derive(Debug)]
pub struct Slot {
    turn: Arc<Turn>,
    turns: Turns,
}

impl Turns {
    /// A place, if need be that of the transfer that has stood still for longest.
    pub(super) fn take(&self, now: Instant) -> Option<Slot> {
        let mut turns = lock(&self.0);
        if turns.len() >= TRANSFERS {
            let still = turns.iter().enumerate().filter(|(_, turn)| turn.stands_still(now));
            let (longest, _) = still.min_by_key(|(_, turn)| *lock(&turn.moved))?;
            turns.swap_remove(longest).end();
        }
        let (moved, connection, copy) = (Mutex::new(now), OnceLock::new(), OnceLock::new());
        let turn = Arc::new(Turn { moved, connection, copy });
        turns.push(Arc::clone(&turn));
        drop(turns);
        Some(Slot { turn, turns: self.clone() })
    }

    /// Ends all transfers that stand still.
    pub(super) fn end_still(&self, now: Instant) {
        for turn in lock(&self.0).extract_if(.., |turn| turn.stands_still(now)) {
            turn.end();
        }
    }

    /// Whether a transfer under way has a copy of this version.
    pub(super) fn hold(&self, version: &Version) -> bool {
        let is_it = |(apex, serial): &(Name, u32)| (apex, serial) == (&version.apex, &version.serial);
        lock(&self.0).iter().any(|turn| turn.copy.get().is_some_and(is_it))
    }
}

impl Turn {
    /// Whether the client has taken nothing for long. One that has been sent nothing yet waits for the server.
    fn stands_still(&self, now: Instant) -> bool {
        self.connection.get().is_some() && now.saturating_duration_since(*lock(&self.moved)) >= PATIENCE
    }

    fn end(&self) {
        if let Some(connection) = self.connection.get() {
            connection.close();
        }
    }
}

impl Slot {
    /// Notes that the client takes a message.
    pub(super) fn moved(&self, now: Instant) {
        *lock(&self.turn.moved) = now;
    }

    /// Notes what ends the connection. The first time counts.
    pub(super) fn belongs_to(&self, connection: ConnectionCloser) {
        let _ = self.turn.connection.set(connection);
    }

    /// Notes of which version the transfer has a copy. The first time counts.
    pub(super) fn holds(&self, version: &Version) {
        let _ = self.turn.copy.set((version.apex.clone(), version.serial));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.turns.0).retain(|turn| !Arc::ptr_eq(turn, &self.turn));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is held is whole at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use multinet_runtime::{ConnectionLimit, ConnectionSlot};
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    fn is_ended(place: &ConnectionSlot) -> bool {
        pin!(place.evicted()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_transfer_that_stands_still_loses_its_place_to_a_newcomer() {
        let (turns, begin) = (Turns::default(), Instant::now());
        let places = ConnectionLimit::new(100, Counter::default());
        let under_way: Vec<(ConnectionSlot, Slot)> = (0..TRANSFERS)
            .map(|_| {
                let (place, slot) = (places.admit([10, 0, 0, 1].into()), turns.take(begin).unwrap());
                slot.belongs_to(place.closer());
                (place, slot)
            })
            .collect();
        let late = begin + PATIENCE;
        let just_before = late - Duration::from_millis(1);
        assert!(turns.take(just_before).is_none());
        // All go on but the sixth and the seventh, of which one had gone on for longer.
        for (number, (_, slot)) in under_way.iter().enumerate().filter(|(number, _)| *number != 5) {
            slot.moved(if number == 6 { begin + Duration::from_millis(1) } else { late });
        }
        let newcomer = turns.take(late);
        assert!(newcomer.is_some());
        let ended: Vec<usize> = (0..TRANSFERS).filter(|&number| is_ended(&under_way[number].0)).collect();
        assert_eq!(ended, [5]);
        // What has lost its place gives none back.
        drop(under_way.into_iter().nth(5));
        assert_eq!(lock(&turns.0).len(), 1);
        drop(newcomer);
        assert_eq!(lock(&turns.0).len(), 0);
    }

    #[test]
    fn a_copy_is_held_as_long_as_its_transfer_goes_on() {
        let (turns, begin) = (Turns::default(), Instant::now());
        let version = |serial| Version { apex: "z".parse().unwrap(), serial, soa: Vec::new() };
        let place = ConnectionLimit::new(1, Counter::default()).admit([10, 0, 0, 1].into());
        let [still, moving, waiting] = [7, 8, 9].map(|serial| {
            let slot = turns.take(begin).unwrap();
            slot.holds(&version(serial));
            slot
        });
        [&still, &moving].into_iter().for_each(|slot| slot.belongs_to(place.closer()));
        assert!(
            [7, 8, 9].into_iter().all(|serial| turns.hold(&version(serial))) && !turns.hold(&version(10))
        );
        moving.moved(begin + PATIENCE);
        turns.end_still(begin + PATIENCE);
        assert_eq!([7, 8, 9].map(|serial| turns.hold(&version(serial))), [false, true, true]);
        drop((still, moving, waiting));
        assert!(!turns.hold(&version(8)));
    }
}
