//! The running transfers. Their number is limited, so a transfer whose client stops taking messages
//! may lose its place.

use std::sync::{Arc, OnceLock};

use multinet_runtime::ConnectionCloser;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ZoneVersion;
use crate::limits::transfers::{MAX_TRANSFERS, STALL_TIME};
use crate::store::name::Name;

/// All zone transfers that run at the moment.
#[derive(Debug, Clone, Default)]
pub(super) struct ActiveTransfers(Arc<Mutex<Vec<Arc<ActiveTransfer>>>>);

/// A zone transfer that is running.
#[derive(Debug)]
struct ActiveTransfer {
    /// Time at which the client last took a message of the transfer.
    last_progress: Mutex<Instant>,
    /// Handle that closes the client's connection. Not set before the transfer is sent.
    connection: OnceLock<ConnectionCloser>,
    /// Zone and serial of the zone copy that the transfer holds, if any.
    copy: OnceLock<(Name, u32)>,
}

/// Place of a running transfer among the limited number. Dropping the slot frees the place.
#[derive(Debug)]
pub struct TransferSlot {
    transfer: Arc<ActiveTransfer>,
    active: ActiveTransfers,
}

impl ActiveTransfers {
    /// Takes a place. If all are taken, the transfer that has been stalled for longest is ended for
    /// it. Returns `None` if no transfer is stalled.
    pub(super) fn take(&self, now: Instant) -> Option<TransferSlot> {
        let mut active = self.0.lock();
        if active.len() >= MAX_TRANSFERS {
            let stalled = active.iter().enumerate().filter(|(_, transfer)| transfer.is_stalled(now));
            let (longest, _) = stalled.min_by_key(|(_, transfer)| *transfer.last_progress.lock())?;
            active.swap_remove(longest).evict();
        }
        let (last_progress, connection, copy) = (Mutex::new(now), OnceLock::new(), OnceLock::new());
        let transfer = Arc::new(ActiveTransfer { last_progress, connection, copy });
        active.push(Arc::clone(&transfer));
        drop(active);
        Some(TransferSlot { transfer, active: self.clone() })
    }

    /// Ends all stalled transfers by closing their connections.
    pub(super) fn evict_stalled(&self, now: Instant) {
        for transfer in self.0.lock().extract_if(.., |transfer| transfer.is_stalled(now)) {
            transfer.evict();
        }
    }

    /// Tells whether a running transfer holds a copy of this version of a zone.
    pub(super) fn has_copy_of(&self, version: &ZoneVersion) -> bool {
        let is_it = |(apex, serial): &(Name, u32)| (apex, serial) == (&version.apex, &version.serial);
        self.0.lock().iter().any(|transfer| transfer.copy.get().is_some_and(is_it))
    }
}

impl ActiveTransfer {
    /// Tells whether the transfer is stalled. A transfer without a connection has not sent anything
    /// yet: its client waits for the server.
    fn is_stalled(&self, now: Instant) -> bool {
        self.connection.get().is_some()
            && now.saturating_duration_since(*self.last_progress.lock()) >= STALL_TIME
    }

    /// Ends the transfer by closing the client's connection.
    fn evict(&self) {
        if let Some(connection) = self.connection.get() {
            connection.close();
        }
    }
}

impl TransferSlot {
    /// Records that the client takes a message at `now`, so that the transfer is not stalled.
    pub(super) fn note_progress(&self, now: Instant) {
        *self.transfer.last_progress.lock() = now;
    }

    /// Sets the handle that closes the connection. Only the first call has an effect.
    pub(super) fn set_connection(&self, connection: ConnectionCloser) {
        let _ = self.transfer.connection.set(connection);
    }

    /// Records the version of which the transfer holds a copy. Only the first call has an effect.
    pub(super) fn set_copy(&self, version: &ZoneVersion) {
        let _ = self.transfer.copy.set((version.apex.clone(), version.serial));
    }
}

impl Drop for TransferSlot {
    fn drop(&mut self) {
        self.active.0.lock().retain(|transfer| !Arc::ptr_eq(transfer, &self.transfer));
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use multinet_runtime::{ConnectionLimit, ConnectionSlot};
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    fn is_ended(place: &ConnectionSlot) -> bool {
        pin!(place.evicted()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_stalled_transfer_loses_its_place_to_a_new_one() {
        let (active, begin) = (ActiveTransfers::default(), Instant::now());
        let places = ConnectionLimit::new(100, Counter::default());
        let under_way: Vec<(ConnectionSlot, TransferSlot)> = (0..MAX_TRANSFERS)
            .map(|_| {
                let (place, slot) = (places.admit([10, 0, 0, 1].into()), active.take(begin).unwrap());
                slot.set_connection(place.closer());
                (place, slot)
            })
            .collect();
        let late = begin + STALL_TIME;
        let just_before = late - Duration::from_millis(1);
        assert!(active.take(just_before).is_none());
        // All transfers make progress except the sixth and the seventh. Of these, the seventh made
        // some progress later.
        for (number, (_, slot)) in under_way.iter().enumerate().filter(|(number, _)| *number != 5) {
            slot.note_progress(if number == 6 { begin + Duration::from_millis(1) } else { late });
        }
        let newcomer = active.take(late);
        assert!(newcomer.is_some());
        let ended: Vec<usize> = (0..MAX_TRANSFERS).filter(|&number| is_ended(&under_way[number].0)).collect();
        assert_eq!(ended, [5]);
        // A transfer that has lost its place does not free another.
        drop(under_way.into_iter().nth(5));
        assert_eq!(active.0.lock().len(), 1);
        drop(newcomer);
        assert_eq!(active.0.lock().len(), 0);
    }

    #[test]
    fn a_copy_is_held_as_long_as_its_transfer_runs() {
        let (active, begin) = (ActiveTransfers::default(), Instant::now());
        let version = |serial| ZoneVersion { apex: "z".parse().unwrap(), serial, soa: Vec::new() };
        let place = ConnectionLimit::new(1, Counter::default()).admit([10, 0, 0, 1].into());
        let [still, moving, waiting] = [7, 8, 9].map(|serial| {
            let slot = active.take(begin).unwrap();
            slot.set_copy(&version(serial));
            slot
        });
        [&still, &moving].into_iter().for_each(|slot| slot.set_connection(place.closer()));
        assert!(
            [7, 8, 9].into_iter().all(|serial| active.has_copy_of(&version(serial)))
                && !active.has_copy_of(&version(10))
        );
        moving.note_progress(begin + STALL_TIME);
        active.evict_stalled(begin + STALL_TIME);
        assert_eq!([7, 8, 9].map(|serial| active.has_copy_of(&version(serial))), [false, true, true]);
        drop((still, moving, waiting));
        assert!(!active.has_copy_of(&version(8)));
    }
}
