//! Metrics of the publisher. Every series exists from the start.

use multinet_runtime::METRICS_PREFIX;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics of the writer.
#[derive(Clone, Debug, Default)]
pub struct WriterMetrics {
    /// Keys of this program in etcd.
    pub keys: Gauge,
    /// Keys that another program has.
    pub blocked: Gauge,
    /// Services without keys, beyond the limit of their namespace.
    pub left_out_services: Gauge,
    /// Endpoints without keys, beyond the limit of their service.
    pub left_out_endpoints: Gauge,
    /// Whether the last request to etcd succeeded.
    pub connected: Gauge,
    /// Complete lists of keys.
    pub lists: Counter,
    changes: Family<OpLabel, Counter>,
    transactions: Family<ResultLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OpLabel {
    op: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl WriterMetrics {
    /// Registers the metrics in the root registry, with the prefix `multinet_publish`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix(METRICS_PREFIX).sub_registry_with_prefix("publish");
        registry.register("keys", "Keys of this program in etcd, while it leads", metrics.keys.clone());
        registry.register(
            "blocked_keys",
            "Keys that are not written, since another program has them",
            metrics.blocked.clone(),
        );
        registry.register(
            "left_out_services",
            "Services without keys, beyond the limit of their namespace",
            metrics.left_out_services.clone(),
        );
        registry.register(
            "left_out_endpoints",
            "Endpoints without keys, beyond the limit of their service",
            metrics.left_out_endpoints.clone(),
        );
        registry.register(
            "etcd_connected",
            "Whether the last request to etcd succeeded, while this process leads",
            metrics.connected.clone(),
        );
        registry.register("lists", "Complete lists of the keys in etcd", metrics.lists.clone());
        registry.register("changes", "Keys put and deleted", metrics.changes.clone());
        registry.register("transactions", "Transactions by their result", metrics.transactions.clone());
        for op in ["put", "delete"] {
            drop(metrics.changes.get_or_create(&OpLabel { op }));
        }
        for result in ["ok", "conflict", "failed"] {
            drop(metrics.transactions.get_or_create(&ResultLabel { result }));
        }
        metrics
    }

    /// Counts keys that were put and deleted in a transaction.
    pub fn written(&self, puts: usize, deletes: usize) {
        for (op, count) in [("put", puts), ("delete", deletes)] {
            self.changes.get_or_create(&OpLabel { op }).inc_by(count as u64);
        }
        self.transaction("ok");
    }

    /// Counts a transaction by its result.
    pub fn transaction(&self, result: &'static str) {
        self.transactions.get_or_create(&ResultLabel { result }).inc();
    }
}
