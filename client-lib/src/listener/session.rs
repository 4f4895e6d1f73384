//! State that all connections of one sender share.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::handshake::SessionId;
use crate::inbound::{Arrival, Reporter, Seen};
use crate::wire::Data;

/// A session, and the names that its sender's certificate is for, if there is one. Other receivers
/// know the session's id, too; with another certificate, it is another session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    pub(super) id: SessionId,
    pub(super) owner: Arc<[String]>,
}

/// State that all connections of one sender's session, of type `C`, share.
pub(super) struct SessionState<C> {
    seen: Mutex<Seen>,
    /// The latest connection of each lane, with its epoch. It also reports on frames that earlier
    /// connections of the lane have brought.
    latest: Mutex<BTreeMap<u16, (u64, Weak<C>)>>,
    /// Notified when another connection of the session has been let in.
    pub(super) admitted: Notify,
}

impl<C> Default for SessionState<C> {
    fn default() -> Self {
        Self { seen: Mutex::default(), latest: Mutex::default(), admitted: Notify::new() }
    }
}

impl<C> SessionState<C> {
    /// Announces the next connection of a lane, so that frames which the one before still brings
    /// are ignored. If it is refused after all, the sender gives its frames to other lanes.
    pub(super) fn supersede(&self, lane: u16, epoch: u64) {
        self.set_latest(lane, epoch, Weak::new());
        self.admitted.notify_waiters();
    }

    /// Enters a connection as the latest of its lane, unless a later one has been faster in its
    /// handshake.
    pub(super) fn set_latest(&self, lane: u16, epoch: u64, connection: Weak<C>) {
        let mut latest = self.latest.lock();
        if latest.get(&lane).is_none_or(|&(latest, _)| latest <= epoch) {
            latest.insert(lane, (epoch, connection));
        }
    }

    /// Returns whether a later connection of the lane, with a higher epoch, has been announced.
    pub(super) fn is_superseded(&self, lane: u16, epoch: u64) -> bool {
        self.latest.lock().get(&lane).is_some_and(|&(latest, _)| latest > epoch)
    }

    /// Calls `deliver` for a frame of a lane's connection, unless that is not the latest one. The
    /// lock is held meanwhile: a frame of a later connection must not be delivered before one of an
    /// earlier connection.
    pub(super) fn while_latest<T>(
        &self,
        (lane, epoch): (u16, u64),
        deliver: impl FnOnce() -> T,
    ) -> Option<T> {
        let latest = self.latest.lock();
        let &(latest, _) = latest.get(&lane)?;
        (latest == epoch).then(deliver)
    }

    /// Returns whether a frame that a lane brings goes to the program, or has come before.
    pub(super) fn arrived(&self, lane: u16, data: &Data) -> Arrival {
        self.seen.lock().arrived_by(lane, data.sequence, data.floor)
    }

    /// Records the program's decision on a frame. Returns the connections that report it to
    /// the sender, and the sender's floor. Without any, the sender asks by sending the frame again.
    pub(super) fn decided(
        &self,
        sequence: u64,
        is_acknowledged: bool,
    ) -> (impl Iterator<Item = Arc<C>> + use<C>, u64) {
        let (reporter, floor) = {
            let mut seen = self.seen.lock();
            (seen.decided(sequence, is_acknowledged), seen.floor())
        };
        let latest = self.latest.lock();
        let upgrade = |(_, latest): &(u64, Weak<C>)| latest.upgrade();
        let (one, all) = match reporter {
            None => (None, Vec::new()),
            Some(Reporter::Lane(lane)) => (latest.get(&lane).and_then(upgrade), Vec::new()),
            Some(Reporter::All) => (None, latest.values().filter_map(upgrade).collect()),
        };
        (one.into_iter().chain(all), floor)
    }

    /// Gives back memory when no connection is left. Returns how many bytes are still used.
    pub(super) fn shrink(&self) -> usize {
        self.latest.lock().retain(|_, (_, latest)| latest.strong_count() > 0);
        self.seen.lock().shrink()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(sequence: u64) -> Data {
        Data { sequence, floor: 1, ..Data::default() }
    }

    #[test]
    fn a_frame_of_a_connection_that_is_not_the_latest_is_not_delivered() {
        let session = SessionState::default();
        let [first, second] = [1, 2].map(Arc::new);
        session.set_latest(0, 1, Arc::downgrade(&first));
        assert!(!session.is_superseded(0, 1));
        assert_eq!(session.while_latest((0, 1), || "delivered"), Some("delivered"));
        session.supersede(0, 2);
        assert!(session.is_superseded(0, 1) && !session.is_superseded(0, 2) && !session.is_superseded(1, 1));
        assert_eq!(session.while_latest((0, 1), || "delivered"), None);
        // The handshake of the earlier one ends last.
        session.set_latest(0, 2, Arc::downgrade(&second));
        session.set_latest(0, 1, Arc::downgrade(&first));
        assert_eq!(session.while_latest((0, 2), || "delivered"), Some("delivered"));
    }

    #[test]
    fn the_latest_connections_of_the_lanes_that_brought_a_frame_report_on_it() {
        let session = SessionState::default();
        let connections = [10, 20, 21].map(Arc::new);
        for (connection, (lane, epoch)) in connections.iter().zip([(0, 1), (1, 1), (1, 2)]) {
            session.set_latest(lane, epoch, Arc::downgrade(connection));
        }
        let reporters = |sequence| {
            let (reporters, floor) = session.decided(sequence, true);
            (reporters.map(|connection| *connection).collect::<Vec<_>>(), floor)
        };
        assert_eq!(session.arrived(1, &data(5)), Arrival::Deliver);
        assert_eq!(reporters(5), (vec![21], 1));
        assert_eq!(reporters(5), (vec![], 1), "it has been reported");
        session.arrived(0, &data(6));
        session.arrived(1, &data(6));
        assert_eq!(reporters(6), (vec![10, 21], 1));
    }
}
