//! Permits for limited resources, which are given out by a [fair queue](crate::fair_queue).

use std::sync::Arc;

use multinet_runtime::ObjectKey;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::fair_queue::{FairQueue, Limits};

/// Source of a limited number of permits, which it gives out to namespaces in turn.
#[derive(Debug)]
pub(super) struct Permits {
    turns: Mutex<FairQueue<oneshot::Sender<Permit>>>,
}

/// Permit to work for a service. Dropping the permit returns it to its source.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub(super) struct Permit {
    permits: Arc<Permits>,
    service: ObjectKey,
}

impl Permits {
    /// Creates a source of permits with these limits.
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { turns: Mutex::new(FairQueue::new(limits)) })
    }

    /// Waits for a permit. It never returns `None` in practice, which would mean that the sender
    /// was dropped.
    pub(super) async fn acquire(self: &Arc<Self>, service: &ObjectKey) -> Option<Permit> {
        let (send, permit) = oneshot::channel();
        self.turns.lock().push(service, send);
        self.hand_out();
        permit.await.ok()
    }

    /// Gives permits to the next waiting tasks, as far as the limits allow.
    fn hand_out(self: &Arc<Self>) {
        loop {
            let next = self.turns.lock().begin();
            let Some((service, waiting)) = next else { return };
            if waiting.is_closed() {
                self.turns.lock().end(&service);
            } else {
                // If the task stops waiting right now, the permit comes back by being dropped.
                drop(waiting.send(Permit { permits: Arc::clone(self), service }));
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.turns.lock().end(&self.service);
        self.permits.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_dropped_permit_goes_to_the_next_waiting_task() {
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
        // The permit was sent to `third`, which is dropped without having received it.
        drop(third);
        assert!(acquire().now_or_never().flatten().is_some());
        assert_eq!(permits.turns.lock().waiting(), 0);
    }
}
