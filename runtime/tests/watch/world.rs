//! A running watch with its fake API server, index, readiness, metrics and logs.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use multinet_runtime::watch::Lists;
use multinet_runtime::{Index, ObjectKey, Readiness, WatchConfig, WatchMetrics, watch};
use multinet_testing::fake_api::FakeApi;
use multinet_testing::logs::Logs;
use multinet_testing::metrics::sample;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

/// Remedy that the watch names for a missing kind.
pub(crate) const HINT: &str = "kubectl apply -f deploy/crds";

/// Time limit for an expected call, on the paused clock. No test takes this long.
const PATIENCE: Duration = Duration::from_secs(3600);

pub(crate) struct World {
    pub(crate) api: FakeApi,
    pub(crate) calls: Calls,
    pub(crate) readiness: Readiness,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: JoinHandle<()>,
    registry: Registry,
    logs: Logs,
    _logger: DefaultGuard,
}

impl World {
    /// Starts a watch of all ConfigMaps.
    pub(crate) fn start(lists: Lists) -> Self {
        Self::start_with(|config| WatchConfig { lists, ..config })
    }

    /// Starts a watch of all ConfigMaps, with a changed configuration.
    pub(crate) fn start_with(
        configure: impl FnOnce(WatchConfig<ConfigMap>) -> WatchConfig<ConfigMap>,
    ) -> Self {
        let (logs, logger) = Logs::capture(Level::INFO);
        let (client, api) = FakeApi::new();
        let (index, calls) = recorder();
        let (readiness, shutdown) = (Readiness::default(), CancellationToken::new());
        let mut registry = Registry::default();
        let metrics = WatchMetrics::register(&mut registry);
        let config = configure(WatchConfig::new(Api::all(client), HINT));
        let guard = readiness.register("configmaps");
        let task = tokio::spawn(watch(config, Arc::new(index), guard, metrics, shutdown.clone()));
        Self { api, calls, readiness, shutdown, task, registry, logs, _logger: logger }
    }

    /// Starts a watch and lets it list `items` in one page, at version 1. Its next request will be
    /// for the changes.
    pub(crate) async fn listed(items: &[Value]) -> Self {
        let mut world = Self::start(Lists::Pages);
        world.api.next_list().await.list("1", items);
        world.calls.skip(items.len()).await;
        assert!(world.calls.next().await.starts_with("reset"));
        world.calls.expect(["commit"]).await;
        world
    }

    /// Returns the reason why the watch is not ready; `None` if it is.
    pub(crate) fn reason(&self) -> Option<String> {
        self.readiness.pending().pop().and_then(|(_, reason)| reason)
    }

    /// Returns the number of logged lines of a level that contain `text`.
    pub(crate) fn logged(&self, level: &str, text: &str) -> usize {
        self.logs.count(level, text)
    }

    /// Returns all logged warnings and errors.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let lines = self.logs.with("").into_iter();
        lines.filter(|line| line.contains(" WARN ") || line.contains("ERROR")).collect()
    }

    /// Returns the value of a metric, as scraped.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        sample(&self.registry, name)
    }
}

/// Returns a ConfigMap in the namespace `default`.
pub(crate) fn object(name: &str, version: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "resourceVersion": version}, "data": {"k": "v"}})
}

/// Returns a ConfigMap in the namespace `default` that does not decode.
pub(crate) fn bad_object(name: &str, version: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "resourceVersion": version}, "data": "not a map"})
}

/// Calls of the index as text, in order: `apply a@1`, `delete a`, `reset a b`, `commit`.
pub(crate) struct Calls {
    calls: mpsc::UnboundedReceiver<String>,
    starts: Arc<AtomicUsize>,
}

impl Calls {
    pub(crate) async fn next(&mut self) -> String {
        let next = tokio::time::timeout(PATIENCE, self.calls.next()).await;
        next.expect("no further call of the index").expect("the index is gone")
    }

    /// Asserts that the next calls are these.
    pub(crate) async fn expect<const N: usize>(&mut self, expected: [&str; N]) {
        let mut calls = Vec::new();
        for _ in 0..N {
            calls.push(self.next().await);
        }
        assert_eq!(calls, expected);
    }

    pub(crate) async fn skip(&mut self, number: usize) {
        for _ in 0..number {
            self.next().await;
        }
    }

    /// Returns the number of lists begun.
    pub(crate) fn starts(&self) -> usize {
        self.starts.load(Ordering::Relaxed)
    }

    /// Asserts that there is no further call yet.
    pub(crate) fn expect_none(&mut self) {
        if let Ok(call) = self.calls.try_recv() {
            panic!("unexpected call of the index: {call}");
        }
    }
}

struct Recorder {
    calls: mpsc::UnboundedSender<String>,
    starts: Arc<AtomicUsize>,
}

fn recorder() -> (Recorder, Calls) {
    let (send, calls) = mpsc::unbounded();
    let starts = Arc::default();
    (Recorder { calls: send, starts: Arc::clone(&starts) }, Calls { calls, starts })
}

impl Recorder {
    fn call(&self, text: String) {
        let _ = self.calls.unbounded_send(text);
    }
}

impl Index<ConfigMap> for Recorder {
    fn apply(&self, object: ConfigMap) {
        assert_eq!(object.metadata.managed_fields, None);
        let name = object.metadata.name.unwrap();
        self.call(format!("apply {name}@{}", object.metadata.resource_version.unwrap_or_default()));
    }

    fn delete(&self, key: &ObjectKey) {
        assert_eq!(key.namespace, "default");
        self.call(format!("delete {}", key.name));
    }

    fn start(&self) {
        self.starts.fetch_add(1, Ordering::Relaxed);
    }

    fn reset(&self, live: &HashSet<ObjectKey>) {
        let mut names: Vec<&str> = live.iter().map(|key| key.name.as_str()).collect();
        names.sort_unstable();
        self.call(format!("reset {}", names.join(" ")));
    }

    fn commit(&self) {
        self.call("commit".to_owned());
    }
}
