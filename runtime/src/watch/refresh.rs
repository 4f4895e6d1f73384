//! Lists on demand.
//!
//! A watch whose connection has died without a word goes on believing for up to [`SILENCE`](super::SILENCE) that nothing
//! has changed. Who is about to act on everything that several watches know, like a new leader, cannot have that: it has them
//! all list once more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Watches that can be had to list anew. Clones are of the same watches.
#[derive(Clone, Debug)]
pub struct Refresh {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// For each watch, when its last complete list began.
    lists: Mutex<(u64, HashMap<u64, Option<Instant>>)>,
    /// When lists have to have begun. It changes as well when a list is complete or a watch ends.
    wanted: watch::Sender<Option<Instant>>,
}

impl Default for Refresh {
    fn default() -> Self {
        Self { shared: Arc::new(Shared { lists: Mutex::default(), wanted: watch::Sender::new(None) }) }
    }
}

impl Refresh {
    /// Has every watch list anew, unless its last list is younger than `age`; returns once all have, however long that
    /// takes.
    pub async fn refresh(&self, age: Duration) {
        let Some(since) = Instant::now().checked_sub(age) else { return };
        self.shared
            .wanted
            .send_modify(|wanted| *wanted = Some(wanted.map_or(since, |known| known.max(since))));
        let mut changes = self.shared.wanted.subscribe();
        // The sender lives as long as this.
        let _ = changes.wait_for(|_| self.shared.lists().1.values().all(|list| *list >= Some(since))).await;
    }

    /// A watch that listens from now on.
    pub(super) fn join(&self) -> Member {
        let mut lists = self.shared.lists();
        lists.0 += 1;
        let id = lists.0;
        lists.1.insert(id, None);
        drop(lists);
        Member { id, shared: Arc::clone(&self.shared), listed: None }
    }
}

impl Shared {
    /// No code panics while it holds the lock.
    fn lists(&self) -> MutexGuard<'_, (u64, HashMap<u64, Option<Instant>>)> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the watches.
#[derive(Debug)]
pub(super) struct Member {
    id: u64,
    shared: Arc<Shared>,
    listed: Option<Instant>,
}

impl Member {
    /// A list that began at that time is complete.
    pub(super) fn listed(&mut self, begun: Instant) {
        self.listed = Some(begun);
        self.shared.lists().1.insert(self.id, self.listed);
        self.shared.wanted.send_modify(|_| ());
    }

    /// Whether a list is wanted that is younger than the last one.
    pub(super) fn is_wanted(&self) -> bool {
        *self.shared.wanted.borrow() > self.listed
    }

    /// Waits until there is.
    pub(super) async fn wanted(&self) {
        let mut wanted = self.shared.wanted.subscribe();
        // The sender lives as long as this.
        let _ = wanted.wait_for(|wanted| *wanted > self.listed).await;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.lists().1.remove(&self.id);
        self.shared.wanted.send_modify(|_| ());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const AGE: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn waits_for_all_that_have_no_young_list() {
        let refresh = Refresh::default();
        let (mut old, mut young, gone) = (refresh.join(), refresh.join(), refresh.join());
        old.listed(Instant::now());
        tokio::time::advance(2 * AGE).await;
        young.listed(Instant::now());
        assert!(!old.is_wanted());

        let mut done = std::pin::pin!(refresh.refresh(AGE));
        assert!(done.as_mut().now_or_never().is_none());
        assert!(old.is_wanted() && old.wanted().now_or_never().is_some());
        assert!(!young.is_wanted() && young.wanted().now_or_never().is_none());
        old.listed(Instant::now());
        assert!(done.as_mut().now_or_never().is_none(), "one has never listed");
        drop(gone);
        assert!(done.as_mut().now_or_never().is_some());
        assert!(!old.is_wanted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_began_before_does_not_count() {
        let refresh = Refresh::default();
        let mut watch = refresh.join();
        let begun = Instant::now();
        tokio::time::advance(2 * AGE).await;
        let mut done = std::pin::pin!(refresh.refresh(AGE));
        assert!(done.as_mut().now_or_never().is_none());
        watch.listed(begun);
        assert!(watch.is_wanted() && done.as_mut().now_or_never().is_none());
        watch.listed(Instant::now());
        assert!(done.as_mut().now_or_never().is_some());
    }
}
