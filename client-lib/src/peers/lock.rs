//! The lock of what a PeerSet's handles and tasks share. Frames that the state machine lets go of are dropped when it is free: their memory may be the caller's,
//! whose code then runs, and may call the PeerSet.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::shared::State;
use crate::frame::Frame;

pub(super) struct Lock {
    state: Mutex<State>,
    /// Empty, with room for what is let go of: memory of its own for that each time would cost more than the frames do.
    spare: Mutex<Vec<Frame>>,
}

/// Whoever has this may look and change. Its fields are dropped in their order.
pub(crate) struct Guard<'l> {
    state: MutexGuard<'l, State>,
    gone: Gone<'l>,
}

struct Gone<'l> {
    frames: Vec<Frame>,
    spare: &'l Mutex<Vec<Frame>>,
}

impl Lock {
    pub(super) fn new(state: State) -> Self {
        Self { state: Mutex::new(state), spare: Mutex::default() }
    }

    pub(super) fn lock(&self) -> Guard<'_> {
        Guard { state: lock(&self.state), gone: Gone { frames: Vec::new(), spare: &self.spare } }
    }
}

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let gone = self.state.outbound.released();
        if !gone.is_empty() {
            self.gone.frames = mem::replace(gone, mem::take(&mut *lock(self.gone.spare)));
        }
    }
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        if !self.frames.is_empty() {
            self.frames.clear();
            *lock(self.spare) = mem::take(&mut self.frames);
        }
    }
}

/// No code panics while it holds one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Instant;

    use bytes::Bytes;

    use super::super::shared::Shared;
    use super::*;
    use crate::choose::Choice;
    use crate::handshake::Delivery;
    use crate::outbound::{Action, Outbound, PeerInfo, Settings};

    /// Says, when it ends, whether the lock was free.
    struct Owner(Arc<Shared>, mpsc::Sender<bool>);

    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            b"a frame"
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.send(self.0.state.state.try_lock().is_ok()).unwrap();
        }
    }

    #[test]
    fn what_is_let_go_of_may_use_the_lock() {
        let delivery = Delivery::AtLeastOnce;
        let settings = Settings { delivery, choice: Choice::RoundRobin, replay: 10, connections: 1 };
        let shared = Arc::new(Shared::new(Outbound::new(settings, 1)));
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
        // Two lists take turns.
        assert_eq!(places[1..3], places[3..]);
    }
}
