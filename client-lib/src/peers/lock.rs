//! The lock around the state that a PeerSet's handles and tasks share. It drops frames that the
//! state has released only after it is free: their memory may be the caller's, whose code then
//! runs, and may call the PeerSet.

use std::mem;
use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

use crate::frame::Frame;

/// State behind the lock, which collects frames to be dropped after unlocking.
pub(crate) trait Releases {
    /// Returns the frames that the state no longer needs. The lock takes and drops them.
    fn released(&mut self) -> &mut Vec<Frame>;
}

pub(super) struct Lock<S> {
    state: Mutex<S>,
    /// Empty list with capacity for released frames: allocating one each time would cost more than
    /// the frames do.
    spare: Mutex<Vec<Frame>>,
}

/// Access to the state. Fields are dropped in their order: `state` is unlocked before the frames in
/// `released` are dropped.
pub(crate) struct Guard<'l, S: Releases> {
    state: MutexGuard<'l, S>,
    released: Released<'l>,
}

/// Frames that are dropped once the state is unlocked.
struct Released<'l> {
    frames: Vec<Frame>,
    spare: &'l Mutex<Vec<Frame>>,
}

impl<S: Releases> Lock<S> {
    pub(super) fn new(state: S) -> Self {
        Self { state: Mutex::new(state), spare: Mutex::default() }
    }

    pub(super) fn lock(&self) -> Guard<'_, S> {
        Guard { state: self.state.lock(), released: Released { frames: Vec::new(), spare: &self.spare } }
    }
}

impl<S: Releases> Deref for Guard<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S: Releases> DerefMut for Guard<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}

impl<S: Releases> Drop for Guard<'_, S> {
    fn drop(&mut self) {
        let released = self.state.released();
        if !released.is_empty() {
            self.released.frames = mem::replace(released, mem::take(&mut *self.released.spare.lock()));
        }
    }
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        if !self.frames.is_empty() {
            self.frames.clear();
            *self.spare.lock() = mem::take(&mut self.frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Instant;

    use bytes::Bytes;

    use super::super::shared::PeerSetState;
    use super::*;
    use crate::choose::Choice;
    use crate::handshake::Delivery;
    use crate::outbound::{Action, Outbound, PeerInfo, SendSettings};

    /// Owner of a frame's memory, which reports on drop whether the lock was free.
    struct Owner(Arc<PeerSetState>, mpsc::Sender<bool>);

    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            b"a frame"
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.send(self.0.state.state.try_lock().is_some()).unwrap();
        }
    }

    #[test]
    fn frames_that_are_released_are_dropped_outside_of_the_lock() {
        let delivery = Delivery::AtLeastOnce;
        let settings = SendSettings { delivery, choice: Choice::RoundRobin, replay: 10, connections: 1 };
        let shared = Arc::new(PeerSetState::new(Outbound::new(settings, 1), None));
        let (was_free, ended) = mpsc::channel();
        let now = Instant::now();
        let link = {
            let outbound = &mut shared.state().outbound;
            outbound.set_endpoints(now, vec![PeerInfo { target: "a".into(), uid: None, distance: 0 }]);
            outbound.tick(now);
            let Some(Action::Connect(link)) = outbound.next_action() else { panic!("nothing to do") };
            outbound.on_up(now, link, 4, 100);
            link
        };
        let mut places = Vec::new();
        for sequence in 1..=5 {
            let frame = Frame::new(Bytes::from_owner(Owner(Arc::clone(&shared), was_free.clone())));
            shared.state().outbound.submit(frame, 7, 0, None).unwrap();
            drop(shared.state().outbound.take(link));
            assert!(ended.try_recv().is_err(), "it is kept");
            let told = (sequence, sequence);
            let acked = std::iter::once(sequence);
            shared.state().outbound.on_control(now, link, told, acked, std::iter::empty()).unwrap();
            assert_eq!(ended.try_recv(), Ok(true));
            places.push(shared.state().outbound.released().as_ptr());
        }
        // Two lists take turns, without a further allocation.
        assert_eq!(places[1..3], places[3..]);
    }
}
