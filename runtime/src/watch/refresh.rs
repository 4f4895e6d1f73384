//! ListTimes on demand.
//!
//! A watch whose connection has died without a word goes on believing for up to [`SILENCE`](crate::client::SILENCE) that nothing
//! has changed. Who is about to act on everything that several watches know, like a new leader, cannot have that: it has them
//! all list once more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Watches that can be had to list anew. Clones are of the same watches.
#[derive(Clone, Debug)]
pub struct Refresh {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    lists: Mutex<ListTimes>,
    /// When lists have to have begun. It changes as well when a list is complete or a watch ends.
    wanted: watch::Sender<Option<Instant>>,
}

#[derive(Debug, Default)]
struct ListTimes {
    next_id: u64,
    of: HashMap<u64, LastList>,
}

/// The last complete list of a watch.
#[derive(Debug)]
struct LastList {
    /// What the watch is of: `plural.group`.
    resource: String,
    begun: Option<Instant>,
}

impl Default for Refresh {
    fn default() -> Self {
        Self { shared: Arc::new(Shared { lists: Mutex::default(), wanted: watch::Sender::new(None) }) }
    }
}

impl Refresh {
    /// Has every watch list anew, unless its last list is younger than `age`. Returns once all have, or after `limit`, with the
    /// resources that have not been listed by then; their watches go on trying.
    pub async fn refresh(&self, age: Duration, limit: Duration) -> Vec<String> {
        let Some(since) = Instant::now().checked_sub(age) else { return Vec::new() };
        self.shared
            .wanted
            .send_modify(|wanted| *wanted = Some(wanted.map_or(since, |known| known.max(since))));
        let mut changes = self.shared.wanted.subscribe();
        // The sender lives as long as this.
        let _ =
            timeout(limit, changes.wait_for(|_| self.shared.resources_older_than(since).is_empty())).await;
        self.shared.resources_older_than(since)
    }

    /// A watch of that resource, which listens from now on.
    pub(super) fn join(&self, resource: String) -> RefreshMember {
        let mut lists = self.shared.lists();
        lists.next_id += 1;
        let id = lists.next_id;
        lists.of.insert(id, LastList { resource, begun: None });
        drop(lists);
        RefreshMember { id, shared: Arc::clone(&self.shared), listed: None }
    }
}

impl Shared {
    /// No code panics while it holds the lock.
    fn lists(&self) -> MutexGuard<'_, ListTimes> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has no list that is as young as that.
    fn resources_older_than(&self, since: Instant) -> Vec<String> {
        let lists = self.lists();
        let old = lists.of.values().filter(|list| list.begun < Some(since));
        let mut resources: Vec<String> = old.map(|list| list.resource.clone()).collect();
        resources.sort_unstable();
        resources
    }
}

/// One of the watches.
#[derive(Debug)]
pub(super) struct RefreshMember {
    id: u64,
    shared: Arc<Shared>,
    listed: Option<Instant>,
}

impl RefreshMember {
    /// A list that began at that time is complete.
    pub(super) fn listed(&mut self, begun: Instant) {
        self.listed = Some(begun);
        if let Some(list) = self.shared.lists().of.get_mut(&self.id) {
            list.begun = self.listed;
        }
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

impl Drop for RefreshMember {
    fn drop(&mut self) {
        self.shared.lists().of.remove(&self.id);
        self.shared.wanted.send_modify(|_| ());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const AGE: Duration = Duration::from_secs(1);
    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn waits_for_all_that_have_no_young_list() {
        let refresh = Refresh::default();
        let [mut old, mut young, gone] = ["old", "young", "gone"].map(|name| refresh.join(name.to_owned()));
        old.listed(Instant::now());
        tokio::time::advance(2 * AGE).await;
        young.listed(Instant::now());
        assert!(!old.is_wanted());

        let mut done = std::pin::pin!(refresh.refresh(AGE, LIMIT));
        assert!(done.as_mut().now_or_never().is_none());
        assert!(old.is_wanted() && old.wanted().now_or_never().is_some());
        assert!(!young.is_wanted() && young.wanted().now_or_never().is_none());
        old.listed(Instant::now());
        assert!(done.as_mut().now_or_never().is_none(), "one has never listed");
        drop(gone);
        assert_eq!(done.as_mut().now_or_never(), Some(Vec::new()));
        assert!(!old.is_wanted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_began_before_does_not_count() {
        let refresh = Refresh::default();
        let mut watch = refresh.join("pods".to_owned());
        let begun = Instant::now();
        tokio::time::advance(2 * AGE).await;
        let mut done = std::pin::pin!(refresh.refresh(AGE, LIMIT));
        assert!(done.as_mut().now_or_never().is_none());
        watch.listed(begun);
        assert!(watch.is_wanted() && done.as_mut().now_or_never().is_none());
        watch.listed(Instant::now());
        assert!(done.as_mut().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_listed_is_named_after_a_while() {
        let refresh = Refresh::default();
        let (mut good, _bad) = (refresh.join("pods".to_owned()), refresh.join("nodes".to_owned()));
        good.listed(Instant::now());
        assert_eq!(refresh.refresh(AGE, LIMIT).await, ["nodes"]);
    }
}
