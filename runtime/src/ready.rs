//! Readiness of the process: the parts that are not ready yet, and what each waits for.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Readiness of the process, which is ready once all registered parts are.
///
/// Each part that takes time to get ready (a watch, a listener) registers itself before the process
/// starts to serve, and holds the [`ReadyGuard`] until it is ready. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    state: Arc<Mutex<State>>,
    /// Wakes [`until_ready`](Self::until_ready) when a guard is released.
    released: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Name and reason of each part that is not ready.
    waiting: BTreeMap<u64, (String, Option<String>)>,
    notes: BTreeMap<String, String>,
    draining: bool,
}

impl Readiness {
    /// Adds a part that has to be ready before the process is.
    ///
    /// `/readyz` shows its name. Two guards may have the same name.
    pub fn register(&self, name: impl Into<String>) -> ReadyGuard {
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        state.waiting.insert(id, (name.into(), None));
        drop(state);
        ReadyGuard { readiness: self.clone(), id }
    }

    /// Returns name and reason of each part that is not ready, sorted.
    ///
    /// While the process drains, `shutdown: draining` is among them.
    pub fn pending(&self) -> Vec<(String, Option<String>)> {
        let state = self.state.lock();
        let draining = state.draining.then(|| ("shutdown".to_owned(), Some("draining".to_owned())));
        let mut pending: Vec<_> = state.waiting.values().cloned().chain(draining).collect();
        drop(state);
        pending.sort();
        pending
    }

    /// Sets or removes the note of the part `name`: a problem that an operator should know of, but
    /// that does not affect readiness, such as an outage that the part tolerates.
    pub fn note(&self, name: &str, note: Option<String>) {
        let mut state = self.state.lock();
        match note {
            Some(note) => state.notes.insert(name.to_owned(), note),
            None => state.notes.remove(name),
        };
    }

    /// Returns the name of the part and the text of each note, sorted.
    pub fn notes(&self) -> Vec<(String, String)> {
        self.state.lock().notes.clone().into_iter().collect()
    }

    /// Returns whether all parts are ready and the process does not drain.
    pub fn is_ready(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && !state.draining
    }

    /// Waits until the process is ready; for ever if it drains before that.
    pub async fn until_ready(&self) {
        loop {
            // Register for the wake-up before the check: a guard may be released in between.
            let released = self.released.notified();
            if self.is_ready() {
                return;
            }
            released.await;
        }
    }

    /// Makes the process not ready, for good, as it shuts down.
    pub fn start_draining(&self) {
        self.state.lock().draining = true;
    }
}

/// Keeps the process from being ready until [`ready`](Self::ready) is called or the guard is
/// dropped.
///
/// A guard that is dropped by a panic keeps the process not ready, because its part will never
/// work.
#[derive(Debug)]
#[must_use = "dropping the guard says that this part is ready"]
pub struct ReadyGuard {
    readiness: Readiness,
    id: u64,
}

impl ReadyGuard {
    /// Sets the reason that `/readyz` shows for this part, in place of the one before.
    pub fn waiting_for(&self, reason: impl Into<String>) {
        if let Some((_, known)) = self.readiness.state.lock().waiting.get_mut(&self.id) {
            *known = Some(reason.into());
        }
    }

    /// Marks this part as ready.
    pub fn ready(self) {}
}

impl Drop for ReadyGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.waiting_for("it has panicked");
            return;
        }
        self.readiness.state.lock().waiting.remove(&self.id);
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
    fn the_process_is_ready_once_every_guard_is_released() {
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
    fn two_guards_of_one_name_are_released_separately() {
        let readiness = Readiness::default();
        let first = readiness.register("listener");
        let second = readiness.register("listener");
        first.ready();
        assert_eq!(readiness.pending(), [item("listener", None)]);
        second.ready();
        assert!(readiness.is_ready());
    }

    #[test]
    fn a_guard_dropped_by_a_panic_stays_pending() {
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
    async fn until_ready_resolves_when_the_last_guard_is_released() {
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
    fn a_draining_process_is_never_ready_again() {
        let readiness = Readiness::default();
        let guard = readiness.register("slices");
        readiness.clone().start_draining();
        guard.ready();
        assert!(!readiness.is_ready());
        assert_eq!(readiness.pending(), [item("shutdown", Some("draining"))]);
    }
}
