//! Keeps an index in step with all objects of a kind: list, then watch, whatever happens.
//!
//! ```text
//!     ┌─────────── pause <── expired, unknown kind, refused, unreadable ──────────┐
//!     v                                                                           │
//!   list ──> start, apply…, reset, commit ──> watch ──> apply, delete…, commit ───┤
//!    ^ │                                       ^ ^                                │
//!    │ └── failed ──> pause ┐                  │ └───── pause <── other failure ──┤
//!    └──────────────────────┘                  └───────── ended or fell silent ───┘
//! ```
//!
//! - A list is a stream where the API server has that, and pages elsewhere ([`Lists`]). Its objects go to the index
//!   as they arrive; only their keys are kept, to tell what is gone.
//! - A watch goes on from the last version that it told, over any number of connections. A list is made only when
//!   the API server no longer knows that version, or has not got there yet: then its storage has been restored from a
//!   backup, and the watch would wait in silence. Each watch that is opened again asks for the newest version.
//! - Pauses grow from 0.2 s to 5 s, and shrink again once a watch works. An API server that asks for a longer
//!   one in its answer gets it, up to 30 s.
//! - An object that does not decode costs nobody else anything ([`Guarded`]).
//! - A problem is logged once per outage, not per attempt, and so is its end.
//!
//! This is not `kube::runtime::watcher`, for three reasons that matter here: that one keeps to itself that
//! a watch has been *re*-established, so nobody can be told of the end of an outage, nor the back-off be
//! reset, before something changes; it opens a watch that the server ends at once again without
//! any pause; and it waits for the head of an answer for as long as TCP does, a quarter of an hour.
//!
//! # How long a silent cut can go unnoticed
//!
//! A peer that vanishes without a word (a dead node, a cut network, a forgotten NAT entry) leaves a connection on
//! which nothing ever arrives. These limits bound that, whatever the client:
//!
//! - The API server is asked to end every watch after [`WATCH_TIME`] (30 s). If nothing has arrived for
//!   [`SILENCE`] (35 s), the connection is taken for dead, and the watch opened again on another one.
//! - The head of an answer has to arrive within [`ANSWER_TIME`] (15 s) for a watch, and a page of a list as a
//!   whole within [`LIST_TIME`] (70 s; the API server gives up after 60 s itself).
//!
//! So a cut costs 35 s if the API server can be reached over another connection (less for who asks for a [`Refresh`]), and is
//! reported after 50 s at most if it cannot. An API server that is back is noticed within 5 s. With a client by
//! [`client::connect`](crate::client::connect), a silence of 35 s ends lists as well.

mod backoff;
mod health;
pub(crate) mod problem;
mod refresh;
mod sink;

use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{FusedFuture as _, OptionFuture};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use kube::Resource;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use self::health::{Health, resource};
pub use self::problem::{NAMESPACE_TERMINATING, Problem, ProblemKind, has_cause};
pub use self::refresh::Refresh;
use self::refresh::RefreshMember;
use self::sink::Sink;
use crate::client::SILENCE;
use crate::{Guarded, Index, ReadyGuard, TerminalSafe, WatchMetrics};

/// How lists are asked for by default.
///
/// As streams, because neither side then holds more than an object at a time. Listing 4000 objects of 27 KB took 23 MB of
/// memory in all, against 44 MB in pages of 100 objects and up to 144 MB in pages of 500, with the same CPU time
/// (Kubernetes 1.35). The streams are off or unknown in some API servers before 1.34.
pub const DEFAULT_LISTS: Lists = Lists::Stream;

/// After how long the API server ends a watch, by our request.
pub const WATCH_TIME: Duration = Duration::from_secs(30);

/// How long the API server may take to begin its answer to a watch.
pub const ANSWER_TIME: Duration = Duration::from_secs(15);

/// How long a page of a list may take as a whole. The API server's own limit is 60 s.
pub const LIST_TIME: Duration = Duration::from_secs(70);

/// After how long the API server ends a watch that began with a list. A long list should not be cut off.
const STREAM_TIME: Duration = Duration::from_secs(290);

/// Objects per page. A page is in memory as a whole, as text and as objects; see [`DEFAULT_LISTS`].
const PAGE: u32 = 100;

/// After how many calls of the index there is a commit, even if more events are ready.
const BURST: usize = 1024;

/// A watch that has been open for this long without an error works, even if nothing has been told.
const HEALTHY_AFTER: Duration = Duration::from_secs(1);

/// The bookmark that ends a list within a stream.
const END_OF_LIST: &str = "k8s.io/initial-events-end";

/// What to watch.
#[derive(Clone, Debug)]
pub struct WatchConfig<K> {
    /// The objects, of all namespaces or of one.
    pub api: Api<Guarded<K>>,
    /// What to do if the API server does not know the kind: `kubectl apply -f deploy/crds`. It is shown in the log
    /// and by `/readyz`.
    pub hint: String,
    /// How to ask for lists.
    pub lists: Lists,
    /// A label selector; only objects that match are listed and watched. None: all of them. The API server tells
    /// of an object that no longer matches as of one that is gone.
    pub labels: Option<String>,
    /// Has the watch list anew on demand.
    pub refresh: Refresh,
}

impl<K> WatchConfig<K> {
    /// Watches what `api` sees, in the default manner.
    pub fn new(api: Api<Guarded<K>>, hint: impl Into<String>) -> Self {
        Self { api, hint: hint.into(), lists: DEFAULT_LISTS, labels: None, refresh: Refresh::default() }
    }

    /// The same, but only the objects whose labels match `selector`: `app=web,tier!=cache`.
    #[must_use]
    pub fn labelled(self, selector: impl Into<String>) -> Self {
        Self { labels: Some(selector.into()), ..self }
    }

    /// The same, but listing anew when `refresh` says so.
    #[must_use]
    pub fn refreshed_by(self, refresh: &Refresh) -> Self {
        Self { refresh: refresh.clone(), ..self }
    }
}

/// How to ask for the list of all objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// As a watch that begins with every object there is (`sendInitialEvents`). Pages are asked for instead where the
    /// API server refuses that, and for the next attempt after such a list has broken off.
    Stream,
    /// In pages.
    Pages,
}

/// Keeps `index` in step with all objects of kind `K` until `shutdown` is cancelled.
///
/// `ready` is released once the first list is in the index and committed; until then it says what is being
/// waited for. A kind that the API server does not know, or whose list it does not allow, is waited for like
/// everything else. (For a kind that may be absent, give the guard of a [`Readiness`](crate::Readiness) of its own.)
///
/// See the [module](self) for what happens when.
pub async fn watch<K, I>(
    config: WatchConfig<K>,
    index: Arc<I>,
    ready: ReadyGuard,
    metrics: WatchMetrics,
    shutdown: CancellationToken,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    I: Index<K> + ?Sized,
{
    let kind = K::kind(&());
    let span = tracing::info_span!("watch", %kind);
    let metrics = metrics.of_kind(kind);
    ProblemKind::ALL.iter().for_each(|problem| metrics.may_fail(problem.label()));
    let watch = async move {
        let mut watch = Watch {
            api: config.api,
            lists: config.lists,
            labels: config.labels,
            broken_stream: false,
            refresh: config.refresh.join(resource::<K>()),
            health: Health::new::<K>(config.hint, ready, metrics.clone()),
            sink: Sink::new(index, metrics),
        };
        watch.run().await;
    };
    shutdown.run_until_cancelled(watch.instrument(span)).await;
}

type Events<K> = BoxStream<'static, kube::Result<WatchEvent<Guarded<K>>>>;

struct Watch<K, I: ?Sized> {
    api: Api<Guarded<K>>,
    lists: Lists,
    labels: Option<String>,
    /// The last list was a stream, and broke off.
    broken_stream: bool,
    refresh: RefreshMember,
    health: Health,
    sink: Sink<K, I>,
}

impl<K, I> Watch<K, I>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    I: Index<K> + ?Sized,
{
    /// Lists and follows, for ever.
    async fn run(&mut self) {
        loop {
            match self.list().await {
                Ok((version, events)) => self.follow_from(version, events).await,
                Err(problem) => self.pause(&problem).await,
            }
        }
    }

    async fn pause(&mut self, problem: &Problem) {
        let pause = self.health.failed(problem);
        tokio::time::sleep(pause).await;
    }

    /// Brings the index in step. Returns the version of the list, and the stream that goes on from there, if the
    /// list came as one.
    async fn list(&mut self) -> Result<(String, Option<Events<K>>), Problem> {
        let begun = Instant::now();
        self.sink.start_list();
        let broken_stream = std::mem::take(&mut self.broken_stream);
        let listed = match self.lists {
            Lists::Stream if !broken_stream => self.list_stream().await,
            _ => self.list_pages().await.map(|version| (version, None)),
        };
        match &listed {
            Ok(_) => {
                self.sink.end_list();
                self.refresh.listed(begun);
                self.health.listed();
            }
            Err(_) => self.sink.abandon_list(),
        }
        listed
    }

    async fn list_stream(&mut self) -> Result<(String, Option<Events<K>>), Problem> {
        // No version: a list that is at least as new as this request. (Any older one could bring back what
        // we know to be gone, if this API server lags behind the one that we asked before.)
        let mut events = match self.open("", STREAM_TIME, true).await {
            Ok(events) => events,
            Err(problem) if problem.kind == ProblemKind::Refused => {
                let reason = TerminalSafe(&problem.message);
                tracing::debug!("the API server has no streamed lists, asking for pages: {reason}");
                self.lists = Lists::Pages;
                return self.list_pages().await.map(|version| (version, None));
            }
            Err(problem) => return Err(problem),
        };
        let version = self.list_events(&mut events).await;
        self.broken_stream = version.is_err();
        Ok((version?, Some(events)))
    }

    /// Reads a stream up to the end of its list.
    async fn list_events(&mut self, events: &mut Events<K>) -> Result<String, Problem> {
        loop {
            match within(SILENCE, events.next()).await? {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => self.sink.apply(object),
                Some(Ok(WatchEvent::Deleted(object))) => self.sink.delete(&object),
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    if bookmark.metadata.annotations.contains_key(END_OF_LIST) {
                        return Ok(bookmark.metadata.resource_version);
                    }
                }
                Some(Ok(WatchEvent::Error(status))) => return Err(status.into()),
                Some(Err(error)) => return Err(error.into()),
                None => {
                    return Err(Problem::new(ProblemKind::Cut, "a list ended before it was complete"));
                }
            }
        }
    }

    async fn list_pages(&mut self) -> Result<String, Problem> {
        let mut params =
            ListParams { label_selector: self.labels.clone(), limit: Some(PAGE), ..ListParams::default() };
        loop {
            let page = within(LIST_TIME, self.api.list(&params)).await??;
            for object in page.items {
                self.sink.apply(object);
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                let version = page.metadata.resource_version.filter(|version| !version.is_empty());
                return version
                    .ok_or_else(|| Problem::new(ProblemKind::Garbled, "a list without a resourceVersion"));
            }
        }
    }

    /// Follows the changes since `version` until only a list can tell how to go on. `events`: a stream that is
    /// already there.
    async fn follow_from(&mut self, mut version: String, mut events: Option<Events<K>>) {
        let mut is_listed = true;
        while !self.refresh.is_wanted() {
            let ended = self.follow(&mut version, events.take(), !is_listed).await;
            is_listed = false;
            self.sink.commit();
            if let Err(problem) = ended {
                self.pause(&problem).await;
                if problem.kind.needs_list() {
                    return;
                }
            }
        }
    }

    /// One watch, from its beginning until it ends, falls silent, or a list is wanted, all of which is as it should be.
    /// `is_old`: the version is not that of a list that was just made, so that it may be one from before a restore.
    async fn follow(
        &mut self,
        version: &mut String,
        events: Option<Events<K>>,
        is_old: bool,
    ) -> Result<(), Problem> {
        let mut events = match events {
            Some(events) => events,
            None => self.open(version, WATCH_TIME, false).await?,
        };
        let known = version.clone();
        let mut newest = pin!(OptionFuture::from(is_old.then(|| newest_version(self.api.clone()))).fuse());
        let opened = Instant::now();
        let mut last = opened;
        let mut is_healthy = false;
        loop {
            if self.sink.uncommitted() >= BURST {
                self.sink.commit();
                tokio::task::yield_now().await;
                if self.refresh.is_wanted() {
                    return Ok(());
                }
            }
            let event = match events.next().now_or_never() {
                Some(event) => event,
                None => {
                    self.sink.commit();
                    let wait = if is_healthy { last + SILENCE } else { opened + HEALTHY_AFTER };
                    let next = tokio::select! {
                        next = timeout_at(wait, events.next()) => next,
                        () = self.refresh.wanted() => return Ok(()),
                        newest = &mut newest, if !newest.is_terminated() => {
                            check_version(&known, newest.flatten().as_deref())?;
                            continue;
                        }
                    };
                    match next {
                        Ok(event) => event,
                        Err(_) if is_healthy => return Ok(()),
                        Err(_) => {
                            is_healthy = true;
                            self.health.healthy();
                            continue;
                        }
                    }
                }
            };
            let Some(event) = event else {
                return if is_healthy {
                    Ok(())
                } else {
                    Err(Problem::new(ProblemKind::Cut, "a watch ended as soon as it had begun"))
                };
            };
            if let Some(newer) = self.apply_event(event?)? {
                *version = newer;
            }
            last = Instant::now();
            if !is_healthy {
                is_healthy = true;
                self.health.healthy();
            }
        }
    }

    /// Hands an event to the index. Returns the version that the index has now.
    fn apply_event(&mut self, event: WatchEvent<Guarded<K>>) -> Result<Option<String>, Problem> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let version = object.meta().resource_version.clone();
                self.sink.apply(object);
                Ok(version)
            }
            WatchEvent::Deleted(object) => {
                self.sink.delete(&object);
                Ok(object.meta().resource_version.clone())
            }
            WatchEvent::Bookmark(bookmark) => Ok(Some(bookmark.metadata.resource_version)),
            WatchEvent::Error(status) => Err(status.into()),
        }
    }

    async fn open(&self, version: &str, time: Duration, with_list: bool) -> Result<Events<K>, Problem> {
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let params = WatchParams {
            label_selector: self.labels.clone(),
            send_initial_events: with_list,
            ..WatchParams::default().timeout(seconds)
        };
        Ok(within(ANSWER_TIME, self.api.watch(&params, version)).await??.boxed())
    }
}

/// The version that the API server's storage is at, as the shortest list says. None without an answer: the next watch asks
/// again.
async fn newest_version<K>(api: Api<Guarded<K>>) -> Option<String>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    // No version: what the storage itself says. A list that names one may come out of a cache.
    let list = timeout(ANSWER_TIME, api.list_metadata(&ListParams::default().limit(1))).await.ok()?.ok()?;
    list.metadata.resource_version
}

/// Notices a storage that is not yet where it has been. Versions can be compared as numbers (Kubernetes says so since 1.35, and
/// etcd has always made it so).
fn check_version(known: &str, newest: Option<&str>) -> Result<(), Problem> {
    let number = |version: &str| version.parse::<u128>().ok();
    match (newest.and_then(number), number(known)) {
        (Some(newest), Some(known)) if newest < known => {
            let message = format!("it is at version {newest} and was at {known} before; listing anew");
            Err(Problem::new(ProblemKind::Restored, message))
        }
        _ => Ok(()),
    }
}

async fn within<T>(limit: Duration, answer: impl Future<Output = T>) -> Result<T, Problem> {
    let silent =
        |_| Problem::new(ProblemKind::Silent, format!("nothing has arrived for {} s", limit.as_secs()));
    timeout(limit, answer).await.map_err(silent)
}
