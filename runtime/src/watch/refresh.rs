//! Lists on demand.
//!
//! A watch with a dead connection misses changes for up to
//! [`SILENCE`](crate::limits::api::SILENCE). A caller that is about to act on the state of several
//! watches, such as a new leader, cannot accept that. It asks all of them for a new list first.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Handle to ask a group of watches for new lists. Clones are for the same group.
#[derive(Clone, Debug)]
pub struct Refresh {
    shared: Arc<RefreshState>,
}

#[derive(Debug)]
struct RefreshState {
    lists: Mutex<ListTimes>,
    /// Earliest start of a list that is young enough. Also notifies of complete lists and ended
    /// watches.
    wanted: watch::Sender<Option<Instant>>,
}

#[derive(Debug, Default)]
struct ListTimes {
    next_id: u64,
    of: HashMap<u64, LastList>,
}

/// Last complete list of one watch in the group.
#[derive(Debug)]
struct LastList {
    /// `plural.group` of the watched kind.
    resource: String,
    /// Start of the last complete list; `None` before the first one.
    begun: Option<Instant>,
}

impl Default for Refresh {
    fn default() -> Self {
        Self { shared: Arc::new(RefreshState { lists: Mutex::default(), wanted: watch::Sender::new(None) }) }
    }
}

impl Refresh {
    /// Asks every watch whose last list is older than `age` for a new one. Returns once all have
    /// listed, or after `limit`: the resources that have not been listed by then. Their watches go
    /// on trying.
    pub async fn refresh(&self, age: Duration, limit: Duration) -> Vec<String> {
        let Some(since) = Instant::now().checked_sub(age) else { return Vec::new() };
        self.shared
            .wanted
            .send_modify(|wanted| *wanted = Some(wanted.map_or(since, |known| known.max(since))));
        let mut changes = self.shared.wanted.subscribe();
        // It fails only by the timeout, because `self.shared` keeps the sender alive.
        let _ =
            timeout(limit, changes.wait_for(|_| self.shared.resources_older_than(since).is_empty())).await;
        self.shared.resources_older_than(since)
    }

    /// Adds a watch of `resource` to the group.
    pub(super) fn join(&self, resource: String) -> RefreshMember {
        let mut lists = self.shared.lists.lock();
        lists.next_id += 1;
        let id = lists.next_id;
        lists.of.insert(id, LastList { resource, begun: None });
        drop(lists);
        RefreshMember { id, shared: Arc::clone(&self.shared), listed: None }
    }
}

impl RefreshState {
    /// Returns the resources without a list that began at `since` or later, sorted.
    fn resources_older_than(&self, since: Instant) -> Vec<String> {
        let lists = self.lists.lock();
        let old = lists.of.values().filter(|list| list.begun < Some(since));
        let mut resources: Vec<String> = old.map(|list| list.resource.clone()).collect();
        resources.sort_unstable();
        resources
    }
}

/// Membership of a watch in the group of a [`Refresh`], which dropping it ends.
#[derive(Debug)]
pub(super) struct RefreshMember {
    id: u64,
    shared: Arc<RefreshState>,
    listed: Option<Instant>,
}

impl RefreshMember {
    /// Records that this watch has completed a list, which began at this time.
    pub(super) fn listed(&mut self, begun: Instant) {
        self.listed = Some(begun);
        if let Some(list) = self.shared.lists.lock().of.get_mut(&self.id) {
            list.begun = self.listed;
        }
        self.shared.wanted.send_modify(|_| ());
    }

    /// Returns whether a list is wanted that is younger than the last one of this watch.
    pub(super) fn is_wanted(&self) -> bool {
        *self.shared.wanted.borrow() > self.listed
    }

    /// Waits until a list is wanted that is younger than the last one of this watch.
    pub(super) async fn wanted(&self) {
        let mut wanted = self.shared.wanted.subscribe();
        // It cannot fail: `self.shared` keeps the sender alive.
        let _ = wanted.wait_for(|wanted| *wanted > self.listed).await;
    }
}

impl Drop for RefreshMember {
    fn drop(&mut self) {
        self.shared.lists.lock().of.remove(&self.id);
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
    async fn a_refresh_waits_for_every_watch_without_a_young_list() {
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
    async fn a_list_that_began_too_early_does_not_count() {
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
    async fn a_refresh_returns_the_resources_not_listed_in_time() {
        let refresh = Refresh::default();
        let (mut good, _bad) = (refresh.join("pods".to_owned()), refresh.join("nodes".to_owned()));
        good.listed(Instant::now());
        assert_eq!(refresh.refresh(AGE, LIMIT).await, ["nodes"]);
    }
}
