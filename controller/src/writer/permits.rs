//! Permits to do something now, given out in [turns](crate::fair_queue).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use multinet_runtime::ObjectKey;
use tokio::sync::oneshot;

use crate::fair_queue::{FairQueue, Limits};

/// Permits, of which there are only so many at a time.
#[derive(Debug)]
pub(super) struct Permits {
    turns: Mutex<FairQueue<oneshot::Sender<Permit>>>,
}

/// Leave to do something for a service, until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub(super) struct Permit {
    permits: Arc<Permits>,
    service: ObjectKey,
}

impl Permits {
    /// As many as that.
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { turns: Mutex::new(FairQueue::new(limits)) })
    }

    /// Waits for a permit. (There always is one in the end: `None` would mean that nobody is left to give it.)
    pub(super) async fn acquire(self: &Arc<Self>, service: &ObjectKey) -> Option<Permit> {
        let (send, permit) = oneshot::channel();
        self.lock().push(service, send);
        self.hand_out();
        permit.await.ok()
    }

    /// Gives out what there is.
    fn hand_out(self: &Arc<Self>) {
        loop {
            let next = self.lock().begin();
            let Some((service, waiting)) = next else { return };
            if waiting.is_closed() {
                self.lock().end(&service);
            } else {
                // If nobody waits any more, it comes back by being dropped.
                drop(waiting.send(Permit { permits: Arc::clone(self), service }));
            }
        }
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, FairQueue<oneshot::Sender<Permit>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.lock().end(&self.service);
        self.permits.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_permit_goes_to_the_next_when_it_is_dropped_and_past_those_who_have_gone() {
        let permits = Permits::new(Limits::ONE);
        let service = ObjectKey { namespace: "vision".into(), name: "infer".into() };
        let acquire = || Box::pin(permits.acquire(&service));
        let first = acquire().now_or_never().flatten().expect("there is one");
        let (mut gone, mut second) = (acquire(), acquire());
        assert!((&mut gone).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        drop(gone);
        drop(first);
        let second = second.now_or_never().flatten().expect("it has come free");
        let mut third = acquire();
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        // It has come, and is dropped before anybody has looked.
        drop(third);
        assert!(acquire().now_or_never().flatten().is_some());
        assert_eq!(permits.lock().waiting(), 0);
    }
}
