//! Readiness: who still has to say that it is ready, and what it waits for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Everything that has to be ready before the process is.
///
/// Every part that takes time to get ready (a watch, a listener) registers itself before the process starts
/// to serve, and holds the [`ReadyGuard`] until it is done. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    state: Arc<Mutex<State>>,
    /// A guard is gone.
    released: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    waiting: BTreeMap<u64, Item>,
    notes: BTreeMap<String, String>,
    draining: bool,
}

#[derive(Debug)]
struct Item {
    name: String,
    reason: Option<String>,
}

impl Readiness {
    /// Adds something that has to be ready first.
    ///
    /// The name is what `/readyz` shows; two guards may have the same.
    pub fn register(&self, name: impl Into<String>) -> ReadyGuard {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.waiting.insert(id, Item { name: name.into(), reason: None });
        drop(state);
        ReadyGuard { readiness: self.clone(), id }
    }

    /// Name and reason of everything that is still waited for, sorted.
    ///
    /// While the process drains, that is among it, as `shutdown: draining`.
    pub fn pending(&self) -> Vec<(String, Option<String>)> {
        let state = self.lock();
        let draining = state.draining.then(|| ("shutdown".to_owned(), Some("draining".to_owned())));
        let waiting = state.waiting.values().map(|item| (item.name.clone(), item.reason.clone()));
        let mut pending: Vec<_> = waiting.chain(draining).collect();
        drop(state);
        pending.sort();
        pending
    }

    /// Sets what an operator should know of the part `name`, though the process is ready all the same: an outage that it
    /// rides out. None takes the note away.
    pub fn note(&self, name: &str, note: Option<String>) {
        let mut state = self.lock();
        match note {
            Some(note) => state.notes.insert(name.to_owned(), note),
            None => state.notes.remove(name),
        };
    }

    /// Name and text of every note, sorted.
    pub fn notes(&self) -> Vec<(String, String)> {
        self.lock().notes.clone().into_iter().collect()
    }

    /// Whether nothing is waited for.
    pub fn is_ready(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && !state.draining
    }

    /// Resolves once nothing is waited for. (Never, if the process drains before that.)
    pub async fn until_ready(&self) {
        loop {
            let released = self.released.notified();
            if self.is_ready() {
                return;
            }
            released.await;
        }
    }

    /// From now on the process is not ready, and never will be again.
    pub fn start_draining(&self) {
        self.lock().draining = true;
    }

    /// No code panics while it holds the lock, and every state in between is a valid one.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the process from being ready until [`ready`](Self::ready) is called or the guard is dropped.
///
/// A guard that is dropped by a panic stays in the way: the part that held it will never work.
#[derive(Debug)]
#[must_use = "dropping the guard says that this part is ready"]
pub struct ReadyGuard {
    readiness: Readiness,
    id: u64,
}

impl ReadyGuard {
    /// Says what is being waited for, in words for whoever asks `/readyz`; replaces the reason before.
    pub fn waiting_for(&self, reason: impl Into<String>) {
        if let Some(item) = self.readiness.lock().waiting.get_mut(&self.id) {
            item.reason = Some(reason.into());
        }
    }

    /// This part is ready.
    pub fn ready(self) {}
}

impl Drop for ReadyGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.waiting_for("it has panicked");
            return;
        }
        self.readiness.lock().waiting.remove(&self.id);
        self.readiness.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, reason: Option<&str>) -> (String, Option<String>) {
        (name.to_owned(), reason.map(str::to_owned))
    }

    #[test]
    fn ready_when_every_guard_is_gone() {
        let readiness = Readiness::default();
        assert!(readiness.is_ready());

        let slices = readiness.register("slices");
        let services = readiness.register("services");
        services.waiting_for("first");
        services.waiting_for("the CRD");
        assert!(!readiness.is_ready());
        assert_eq!(readiness.pending(), [item("services", Some("the CRD")), item("slices", None)]);

        services.ready();
        assert_eq!(readiness.pending(), [item("slices", None)]);
        drop(slices);
        assert!(readiness.is_ready());
        assert_eq!(readiness.pending(), []);
    }

    #[test]
    fn two_guards_of_one_name_are_two() {
        let readiness = Readiness::default();
        let first = readiness.register("listener");
        let second = readiness.register("listener");
        first.ready();
        assert_eq!(readiness.pending(), [item("listener", None)]);
        second.ready();
        assert!(readiness.is_ready());
    }

    #[test]
    fn a_panic_does_not_make_ready() {
        let readiness = Readiness::default();
        let guard = readiness.register("slices");
        let panicked = std::thread::spawn(move || {
            let _guard = guard;
            panic!("for the test");
        });
        assert!(panicked.join().is_err());
        assert_eq!(readiness.pending(), [item("slices", Some("it has panicked"))]);
    }

    #[tokio::test]
    async fn whoever_waits_is_told() {
        let readiness = Readiness::default();
        readiness.until_ready().await;
        let (first, second) = (readiness.register("services"), readiness.register("slices"));
        let waiting = tokio::spawn({
            let readiness = readiness.clone();
            async move { readiness.until_ready().await }
        });
        first.ready();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        second.ready();
        waiting.await.unwrap();
    }

    #[test]
    fn draining_is_for_good() {
        let readiness = Readiness::default();
        let guard = readiness.register("slices");
        readiness.clone().start_draining();
        guard.ready();
        assert!(!readiness.is_ready());
        assert_eq!(readiness.pending(), [item("shutdown", Some("draining"))]);
    }
}
