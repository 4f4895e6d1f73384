//! A running writer, with access to everything that it does.

use std::sync::Arc;

use http::Method;
use jiff::Timestamp;
use multinet_controller::caps::Caps;
use multinet_controller::events::events;
use multinet_controller::fair_queue::Limits;
use multinet_controller::index::{ClusterIndex, Settings};
use multinet_controller::metrics::{self, WriterMetrics};
use multinet_controller::queue::Queue;
use multinet_controller::views;
use multinet_controller::writer::Writer;
use multinet_crds::MultiNetworkService;
use multinet_runtime::{Index, Leadership, ObjectKey, Refresh};
use multinet_testing::fake_api::{FakeApi, Request};
use multinet_testing::logs::Logs;
use multinet_testing::metrics::sample;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

pub(crate) const SLICES: &str =
    "/apis/multinetwork.numaproj.io/v1alpha1/namespaces/vision/multinetworkendpointslices";
pub(crate) const MIRRORS: &str = "/apis/discovery.k8s.io/v1/namespaces/vision/endpointslices";

pub(crate) struct Rig {
    pub(crate) api: FakeApi,
    pub(crate) index: Arc<ClusterIndex>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: JoinHandle<()>,
    registry: Registry,
    logs: Logs,
    _logger: DefaultGuard,
}

impl Rig {
    /// Starts a writer that leads and has nothing to do.
    pub(crate) fn leading() -> Self {
        Self::start(Leadership::always(), 32)
    }

    /// Starts a writer with at most `concurrency` concurrent requests.
    pub(crate) fn start(leadership: Leadership, concurrency: usize) -> Self {
        Self::start_with(leadership, Refresh::default(), concurrency, 100)
    }

    /// Starts a writer that leads, with slices of at most `limit` endpoints.
    pub(crate) fn with_slices_of(limit: usize) -> Self {
        Self::start_with(Leadership::always(), Refresh::default(), 32, limit)
    }

    /// Starts a writer with all options, and with watches that it can make list again.
    pub(crate) fn start_with(
        leadership: Leadership,
        refresh: Refresh,
        concurrency: usize,
        limit: usize,
    ) -> Self {
        let (logs, logger) = Logs::capture(Level::INFO);
        let (client, api) = FakeApi::new();
        let queue = Arc::new(Queue::new(Limits::of_services(concurrency)));
        let settings = Settings {
            zone: "multinet.cluster.local".into(),
            limit,
            mirror_limit: 100,
            caps: Caps::default(),
            clock: Timestamp::now,
        };
        let index = Arc::new(ClusterIndex::new(settings, Arc::clone(&queue)));
        let metrics = WriterMetrics::default();
        let mut registry = Registry::default();
        metrics::register(&mut registry, &metrics, Arc::clone(&index), Arc::clone(&queue));
        // These tests ignore the notices.
        let (events, _) = events(client.clone(), leadership.clone(), "test", Default::default());
        let shared = (Arc::clone(&index), queue);
        let writer = Writer::new(client, shared, (leadership, refresh), events, metrics, concurrency);
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(writer.run(shutdown.clone()));
        Self { api, index, shutdown, task, registry, logs, _logger: logger }
    }

    /// Delivers a service through the watch.
    pub(crate) fn service(&self, service: &Value) {
        let service: MultiNetworkService = serde_json::from_value(service.clone()).unwrap();
        self.index.apply(service);
        Index::<MultiNetworkService>::commit(&*self.index);
    }

    /// Delivers the deletion of a service through the watch.
    pub(crate) fn service_gone(&self, name: &str) {
        Index::<MultiNetworkService>::delete(&*self.index, &key(name));
        Index::<MultiNetworkService>::commit(&*self.index);
    }

    /// Delivers pods through the watch in one burst.
    pub(crate) fn pods(&self, pods: &[Value]) {
        for pod in pods {
            let pod: views::PodView = serde_json::from_value(pod.clone()).unwrap();
            self.index.apply(pod);
        }
        Index::<views::PodView>::commit(&*self.index);
    }

    /// Delivers the deletion of a pod through the watch.
    pub(crate) fn pod_gone(&self, name: &str) {
        Index::<views::PodView>::delete(&*self.index, &key(name));
        Index::<views::PodView>::commit(&*self.index);
    }

    /// Creates a service with one pod, whose slice and status have been written. The slice has
    /// version 10. Returns the service and the slice.
    pub(crate) async fn written_service(&mut self) -> (Value, Value) {
        let service = service("infer", "infer");
        self.pods(&[pod("infer-0", "infer", 1)]);
        self.service(&service);
        let slice = self.api.expect(Method::POST, SLICES).await.store("10");
        self.status_of("infer").await.apply_to(&service, "11");
        self.api.expect_no_request().await;
        (service, slice)
    }

    /// Receives the next request, which must be for the status of `name`.
    pub(crate) async fn status_of(&mut self, name: &str) -> Request {
        self.api.expect(Method::PATCH, &format!("/multinetworkservices/{name}/status")).await
    }

    /// Receives the next two requests, which must be lists of a service's slices and mirrors, and
    /// answers them.
    pub(crate) async fn lists(&mut self, service: &str, slices: &[Value]) {
        for _ in 0..2 {
            let request = self.api.expect(Method::GET, "slices").await;
            assert!([SLICES, MIRRORS].contains(&request.uri.path()), "{request:?}");
            let selector = format!("multinetwork.numaproj.io%2Fservice-name%3D{service}");
            assert_eq!(request.query("labelSelector"), Some(selector));
            assert_eq!(request.query("resourceVersion"), None, "as new as can be");
            let items = if request.uri.path() == SLICES { slices } else { &[] };
            request.list("9999", items);
        }
    }

    /// Returns the number of log lines with this level that contain `text`.
    pub(crate) fn logged(&self, level: &str, text: &str) -> usize {
        self.logs.count(level, text)
    }

    /// Returns the value of a metric as scraped.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        sample(&self.registry, name).unwrap_or_else(|| panic!("{name} is missing"))
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "vision".into(), name: name.into() }
}

/// Returns a service that selects pods by `app` on the network `rdma-a`.
pub(crate) fn service(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkService",
        "metadata": {
            "name": name, "namespace": "vision", "uid": format!("uid-of-{name}"), "resourceVersion": "1", "generation": 1,
        },
        "spec": {
            "selector": {"matchLabels": {"app": app}},
            "networks": [{"kind": "NetworkAttachmentDefinition", "name": "rdma-a"}],
            "ports": [{"name": "rdma", "port": 18515, "protocol": "TCP"}],
            "ipFamilies": ["IPv4", "IPv6"],
        },
    })
}

/// Returns a ready pod with the address `192.168.0.<last>` on the network `rdma-a`.
pub(crate) fn pod(name: &str, app: &str, last: u8) -> Value {
    let attached = json!([
        {"name": "cbr0", "default": true, "ips": ["10.244.0.7"]},
        {"name": "vision/rdma-a", "interface": "net1", "ips": [format!("192.168.0.{last}")]},
    ]);
    json!({
        "metadata": {
            "name": name, "namespace": "vision", "uid": format!("uid-of-{name}"), "labels": {"app": app},
            "creationTimestamp": "2026-11-21T09:00:00Z",
            "annotations": {"k8s.v1.cni.cncf.io/network-status": attached.to_string()},
        },
        "spec": {"nodeName": "worker-a"},
        "status": {
            "phase": "Running", "podIPs": [{"ip": "10.244.0.7"}], "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// Returns the addresses in a slice.
pub(crate) fn addresses(slice: &Value) -> Vec<String> {
    let endpoints = slice["spec"]["endpoints"].as_array().unwrap();
    endpoints.iter().map(|endpoint| endpoint["addresses"][0].as_str().unwrap().to_owned()).collect()
}
