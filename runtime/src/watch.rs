//! Keeps an index in sync with all objects of a kind: lists them, then watches for changes.
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
//! - A list is a stream where the API server supports that, and pages elsewhere ([`Lists`]). Its
//!   objects go to the index as they arrive. Only their keys are kept, to find deleted objects.
//! - A watch resumes from the last version that it received, over any number of connections. It
//!   lists anew only when the API server no longer has that version, or does not have it yet. In
//!   the latter case its storage was restored from a backup, and the watch would never receive an
//!   event. To notice that, each watch that is opened again asks for the newest version.
//! - Pauses grow from 0.2 s to 5 s, and start over once a watch works. If the API server asks for a
//!   longer pause in its answer, that is granted, up to 30 s.
//! - An object that does not decode does not affect the others ([`Guarded`]).
//! - A problem is logged once per outage, not per attempt, and so is its end.
//!
//! `kube::runtime::watcher` is not used, for three reasons. It does not tell when a watch has been
//! *re*-established, so that neither can the end of an outage be logged nor the back-off be reset
//! before an object changes. It opens a watch that the server ends at once again without a pause.
//! And it waits for the head of an answer for as long as TCP does, a quarter of an hour.
//!
//! # Time to notice a dead connection
//!
//! If a peer vanishes (a dead node, a cut network, an expired NAT entry), its connection stays open
//! but nothing ever arrives. These limits bound the time until the watch notices, with any client:
//!
//! - Each watch asks the API server to end it after [`WATCH_TIME`] (30 s). If nothing has arrived
//!   for [`SILENCE`] (35 s), the connection counts as dead, and the watch is opened again on
//!   another one.
//! - The head of an answer to a watch has to arrive within [`ANSWER_TIME`] (15 s), and a page of a
//!   list within [`LIST_TIME`] (70 s; the API server itself gives up after 60 s).
//!
//! So a dead connection delays changes by 35 s if the API server can be reached over another one,
//! or by less if a [`Refresh`] asks for a list. If it cannot be reached, the problem is logged
//! after 50 s at most, and its return is noticed within 5 s. With a client by
//! [`client::connect`](crate::client::connect), 35 s without a byte end a list as well.

mod backoff;
pub(crate) mod health;
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
use strum::VariantArray as _;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use self::health::Health;
pub use self::health::resource;
pub use self::problem::{NAMESPACE_TERMINATING, Problem, ProblemKind, has_cause};
pub use self::refresh::Refresh;
use self::refresh::RefreshMember;
use self::sink::Sink;
pub use crate::limits::api::ANSWER_TIME;
use crate::limits::api::{HEALTHY_AFTER, LIST_TIME, PAGE, SILENCE, STREAM_TIME, WATCH_TIME};
use crate::{Guarded, Index, ReadyGuard, TerminalSafe, WatchMetrics};

/// Form of lists by default: streams, because then neither side holds more than an object at a
/// time.
///
/// Listing 4000 objects of 27 KB took 23 MB of memory in all, against 44 MB in pages of 100 objects
/// and up to 144 MB in pages of 500, with the same CPU time (Kubernetes 1.35). API servers before
/// 1.34 may not support streams.
pub const DEFAULT_LISTS: Lists = Lists::Stream;

/// Number of calls of the index after which it is committed, even if more events are ready.
const BURST: usize = 1024;

/// Annotation of the bookmark that ends the list within a stream.
const END_OF_LIST: &str = "k8s.io/initial-events-end";

/// Configuration of a watch of the Kubernetes objects of one kind.
#[derive(Clone, Debug)]
pub struct WatchConfig<K> {
    /// API of the watched objects, in all namespaces or in one.
    pub api: Api<Guarded<K>>,
    /// Remedy if the API server does not know the kind, such as `kubectl apply -f deploy/crds`. The
    /// log and `/readyz` show it.
    pub hint: String,
    /// Form in which the objects are listed: as a stream, or in pages.
    pub lists: Lists,
    /// Label selector of the objects to watch; `None` for all. The API server reports an object
    /// that no longer matches as deleted.
    pub labels: Option<String>,
    /// Handle by which callers ask the watch for a new list.
    pub refresh: Refresh,
}

impl<K> WatchConfig<K> {
    /// Returns the default configuration for the objects of `api`.
    pub fn new(api: Api<Guarded<K>>, hint: impl Into<String>) -> Self {
        Self { api, hint: hint.into(), lists: DEFAULT_LISTS, labels: None, refresh: Refresh::default() }
    }
}

/// Form of the list of all objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// A watch that begins with all existing objects (`sendInitialEvents`). The watch falls back to
    /// pages where the API server refuses that, and for one attempt after such a list broke off.
    Stream,
    /// A list in pages, each of which is one answer of the API server.
    Pages,
}

/// Keeps `index` in sync with all objects of kind `K` until `shutdown` is cancelled.
///
/// Releases `ready` once the first list is committed. Until then `ready` shows what the watch waits
/// for: also a kind that the API server does not know, or the permission to list it. For a kind
/// that may be absent, pass the guard of a [`Readiness`](crate::Readiness) of its own.
///
/// The [module](self) describes lists, watches, pauses and limits.
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
    ProblemKind::VARIANTS.iter().for_each(|problem| metrics.may_fail(problem.into()));
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
    /// Whether the last list was a stream that broke off, so that the next one comes in pages.
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
    /// Lists all objects, then watches for changes, again and again. Never returns.
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

    /// Lists all objects into the index. Returns the version of the list, and the stream that goes
    /// on from there if the list was a stream.
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
        // No version asks for a list at least as new as this request. An older one, from an API
        // server that lags behind the one before, could bring back objects that we know to be
        // deleted.
        let mut events = match self.open("", STREAM_TIME, true).await {
            Ok(events) => events,
            Err(problem) if problem.kind == ProblemKind::Refused => {
                let reason = TerminalSafe(&problem.message);
                tracing::debug!("the API server does not stream lists; listing in pages: {reason}");
                self.lists = Lists::Pages;
                return self.list_pages().await.map(|version| (version, None));
            }
            Err(problem) => return Err(problem),
        };
        let version = self.list_events(&mut events).await;
        self.broken_stream = version.is_err();
        Ok((version?, Some(events)))
    }

    /// Reads a stream of events up to the end of its list. Returns the version of the list.
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
                    return Err(Problem::new(ProblemKind::Cut, "the list ended before it was complete"));
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
                    .ok_or_else(|| Problem::new(ProblemKind::Garbled, "the list has no resourceVersion"));
            }
        }
    }

    /// Watches for changes since `version` until a new list is needed or wanted. `events` is a
    /// stream that is already open.
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

    /// Runs one watch until the server ends it, it falls silent, or a list is wanted; none of these
    /// is an error. `is_old` says that `version` does not come from the list just made, and so may
    /// be one from before a restore.
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
                    Err(Problem::new(ProblemKind::Cut, "the watch ended at once"))
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

    /// Passes an event to the index. Returns the version of the index thereafter.
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

/// Returns the current version of the API server's storage, from a list of one object; `None`
/// without an answer, in which case the next watch asks again.
async fn newest_version<K>(api: Api<Guarded<K>>) -> Option<String>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    // No version in the request: a list that names one may come from the API server's cache.
    let list = timeout(ANSWER_TIME, api.list_metadata(&ListParams::default().limit(1))).await.ok()?.ok()?;
    list.metadata.resource_version
}

/// Fails if the storage's version is older than the known one, because the storage was restored.
/// Versions compare as numbers: Kubernetes guarantees it since 1.35, and etcd always made it so.
fn check_version(known: &str, newest: Option<&str>) -> Result<(), Problem> {
    let number = |version: &str| version.parse::<u128>().ok();
    match (newest.and_then(number), number(known)) {
        (Some(newest), Some(known)) if newest < known => {
            let message = format!("it is at version {newest}, after version {known} before; listing anew");
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
