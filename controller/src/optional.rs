//! Watches API groups that a cluster may lack. Starts the watches when a group appears, and ends
//! them when it disappears.
//!
//! ```text
//!            every 5 s: GET /apis
//!                    │
//!    not there ──────┼── listed ──────────────────────────> watched, in the best listed version
//!        ▲           │                                          │
//!        └───────────┴── not listed for 30 s, three times ──────┘   (then in another version)
//! ```
//!
//! An API server that has just started may not list all groups yet. A group that was there is
//! therefore given up only after a while. At the start, no group counts as absent before the API
//! server reports that it is ready.

mod presence;

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use kube::{Client, Resource};
use multinet_runtime::watch::{ANSWER_TIME, Problem, ProblemKind};
use multinet_runtime::{Index, Readiness, ReadyGuard, TerminalSafe, Watches, random_fraction};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::presence::{Change, Presence};
use crate::index::ClusterIndex;
use crate::limits::discovery::{POLL, RETRY};
use crate::metrics::ApiMetrics;
use crate::views::{
    DeviceClass, NetworkAttachmentDefinition, ResourceClaim, ResourceClaimTemplate, ResourceSlice, V1,
    V1Beta1, V1Beta2, Version,
};
use crate::work::OptionalApi;

/// Starts and ends the watches of the optional API groups.
pub struct OptionalApis {
    watches: Watches<ClusterIndex>,
    metrics: ApiMetrics,
    shutdown: CancellationToken,
    multus: GroupWatcher,
    dra: GroupWatcher,
}

struct GroupWatcher {
    api: OptionalApi,
    presence: Presence,
    /// Readiness of watches that began after the start, with the version that they watch. The index
    /// learns of the group when all of them have listed their objects. Otherwise it would take
    /// objects that are not listed yet for missing ones.
    listing: Option<(Readiness, &'static str)>,
    /// Whether the absence of the group has been logged.
    absence_logged: bool,
    stop: CancellationToken,
    watches: JoinSet<()>,
}

impl OptionalApis {
    /// Creates the watcher. It sends no requests before [`run`](Self::run).
    pub fn new(watches: Watches<ClusterIndex>, metrics: ApiMetrics, shutdown: CancellationToken) -> Self {
        let watcher = |api| GroupWatcher {
            api,
            presence: Presence::default(),
            listing: None,
            absence_logged: false,
            stop: shutdown.child_token(),
            watches: JoinSet::new(),
        };
        Self {
            multus: watcher(OptionalApi::Multus),
            dra: watcher(OptionalApi::Dra),
            watches,
            metrics,
            shutdown,
        }
    }

    /// Follows the API groups until the shutdown. Watches that exist from the start register with
    /// `readiness`; then this releases `asked`. Watches that begin later do not affect readiness.
    ///
    /// Returns earlier only if a watch ends, which means that the watch has panicked.
    pub async fn run(mut self, readiness: Readiness, asked: ReadyGuard) {
        let shutdown = self.shutdown.clone();
        let follow = async {
            let found = self.first_groups(&asked).await;
            self.apply_groups(&found, Some(&readiness)).await;
            asked.ready();
            let mut next = Instant::now() + POLL;
            loop {
                let event = tokio::select! {
                    () = sleep_until(next) => Event::Poll,
                    event = self.multus.event() => event,
                    event = self.dra.event() => event,
                };
                match event {
                    Event::Poll => {
                        // After a failed request, the state stays as it was.
                        if let Ok(found) = groups(&self.watches.client).await {
                            self.apply_groups(&found, None).await;
                        }
                        next = Instant::now() + POLL;
                    }
                    Event::Listed(api, version) => self.watches.index.set_served(api, Some(version)),
                    Event::Died => return,
                }
            }
        };
        shutdown.run_until_cancelled(follow).await;
    }

    /// Requests the API groups until a ready API server answers. Returns its groups.
    async fn first_groups(&self, asked: &ReadyGuard) -> APIGroupList {
        let mut is_said = false;
        loop {
            let found = async {
                ready(&self.watches.client).await?;
                groups(&self.watches.client).await
            };
            let problem = match found.await {
                Ok(found) => return found,
                Err(problem) => problem,
            };
            let text = format!("cannot list the API groups: {}: {}", problem.kind, problem.message);
            asked.waiting_for(&text);
            if !std::mem::replace(&mut is_said, true) {
                tracing::warn!("{}; retrying", TerminalSafe(&text));
            }
            sleep(problem.retry_after.unwrap_or(RETRY).mul_f64(1.0 + random_fraction() / 2.0)).await;
        }
    }

    /// Starts and ends watches to match the served groups. At the start, `readiness` is that of the
    /// process.
    async fn apply_groups(&mut self, found: &APIGroupList, readiness: Option<&Readiness>) {
        let index = &self.watches.index;
        for watcher in [&mut self.multus, &mut self.dra] {
            let api = watcher.api;
            let listed = found.groups.iter().filter(|group| group.name == api.group());
            let listed: Vec<&str> =
                listed.flat_map(|group| &group.versions).map(|version| version.version.as_str()).collect();
            let change = watcher.presence.observe(api.versions(), &listed, Instant::now());
            match change {
                Some(Change::Served(version)) => {
                    watcher.stop().await;
                    watcher.stop = self.shutdown.child_token();
                    let own = Readiness::default();
                    watcher.start(&self.watches, readiness.unwrap_or(&own), version);
                    if readiness.is_some() {
                        // At the start nothing is written before everything has been listed, so the
                        // index may know already.
                        index.set_served(api, Some(version));
                    } else {
                        watcher.listing = Some((own, version));
                    }
                    tracing::info!("watching {}/{version}", api.group());
                }
                Some(Change::Gone) => watcher.stop().await,
                None => {}
            }
            let is_served = watcher.presence.served().is_some();
            self.metrics.set_served(api, is_served);
            if !is_served && !std::mem::replace(&mut watcher.absence_logged, true) {
                index.set_served(api, None);
                tracing::warn!("{}", api.absence());
            }
            watcher.absence_logged &= !is_served;
        }
    }
}

/// Event that the main loop of [`OptionalApis::run`] handles.
enum Event {
    /// The next request for the list of API groups is due.
    Poll,
    /// All watches of a group have listed their objects. Contains the group and the watched
    /// version.
    Listed(OptionalApi, &'static str),
    /// A watch has ended unexpectedly.
    Died,
}

impl GroupWatcher {
    /// Waits for the next event of the group's watches.
    async fn event(&mut self) -> Event {
        let api = self.api;
        let listed = async {
            match &self.listing {
                Some((readiness, version)) => {
                    readiness.until_ready().await;
                    *version
                }
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            Some(_) = self.watches.join_next() => Event::Died,
            version = listed => Event::Listed(api, version),
        };
        if matches!(event, Event::Listed(..)) {
            self.listing = None;
        }
        event
    }

    /// Starts the watches of the group in this version.
    fn start(&mut self, watches: &Watches<ClusterIndex>, readiness: &Readiness, version: &str) {
        match (self.api, version) {
            (OptionalApi::Multus, _) => self.watch::<NetworkAttachmentDefinition>(watches, readiness),
            (OptionalApi::Dra, "v1beta1") => self.watch_dra::<V1Beta1>(watches, readiness),
            (OptionalApi::Dra, "v1beta2") => self.watch_dra::<V1Beta2>(watches, readiness),
            (OptionalApi::Dra, _) => self.watch_dra::<V1>(watches, readiness),
        }
    }

    fn watch_dra<V: Version>(&mut self, watches: &Watches<ClusterIndex>, readiness: &Readiness) {
        self.watch::<ResourceSlice<V>>(watches, readiness);
        self.watch::<ResourceClaim<V>>(watches, readiness);
        self.watch::<DeviceClass<V>>(watches, readiness);
        self.watch::<ResourceClaimTemplate<V>>(watches, readiness);
    }

    fn watch<K>(&mut self, watches: &Watches<ClusterIndex>, readiness: &Readiness)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
        ClusterIndex: Index<K>,
    {
        self.watches.spawn(watches.watch::<K>(readiness, self.api.hint(), None, &self.stop));
    }

    /// Ends the watches and waits for them, so that they feed nothing into the index afterwards.
    async fn stop(&mut self) {
        self.listing = None;
        self.stop.cancel();
        while self.watches.join_next().await.is_some() {}
    }
}

impl OptionalApi {
    /// Returns the versions of the group that the controller can read, best first.
    fn versions(self) -> &'static [&'static str] {
        match self {
            Self::Multus => &["v1"],
            Self::Dra => &["v1", "v1beta2", "v1beta1"],
        }
    }

    /// Returns a message that tells what does not work without the group.
    fn absence(self) -> &'static str {
        match self {
            Self::Multus => {
                "the API server has no k8s.cni.cncf.io/v1: networks of kind NetworkAttachmentDefinition do not work until Multus is installed"
            }
            Self::Dra => {
                "the API server has none of resource.k8s.io/v1, v1beta2 and v1beta1: networks of kind DeviceClass and ResourceClaimTemplate do not work until dynamic resource allocation is enabled"
            }
        }
    }

    /// Returns advice for a group that lacks one of its kinds.
    fn hint(self) -> &'static str {
        match self {
            Self::Multus => {
                "install the CustomResourceDefinition network-attachment-definitions.k8s.cni.cncf.io"
            }
            Self::Dra => "enable all of resource.k8s.io (--runtime-config of kube-apiserver)",
        }
    }
}

/// Asks whether the API server is ready. An API server that refuses the question counts as ready.
async fn ready(client: &Client) -> Result<(), Problem> {
    let request = http::Request::get("/readyz").body(Vec::new()).map_err(kube::Error::HttpError)?;
    let answer = within(client.request_text(request)).await;
    match answer {
        Err(problem) if !matches!(problem.kind, ProblemKind::Forbidden | ProblemKind::Missing) => {
            Err(problem)
        }
        _ => Ok(()),
    }
}

/// Requests the list of API groups with their versions.
async fn groups(client: &Client) -> Result<APIGroupList, Problem> {
    within(client.list_api_groups()).await
}

async fn within<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, Problem> {
    let silent =
        |_| Problem::new(ProblemKind::Silent, format!("nothing has arrived for {} s", ANSWER_TIME.as_secs()));
    Ok(timeout(ANSWER_TIME, answer).await.map_err(silent)??)
}
