//! Metrics of leader election.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::METRICS_PREFIX;

/// Metrics of leader election. Clones share the values.
#[derive(Clone, Debug, Default)]
pub struct LeaseMetrics {
    leader: Gauge,
    transitions: Family<[(&'static str, &'static str); 1], Counter>,
}

impl LeaseMetrics {
    /// Registers the metrics of leader election in the root registry, with the prefix `multinet`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix(METRICS_PREFIX);
        registry.register(
            "leader",
            "1 while this process is the leader, 0 otherwise",
            metrics.leader.clone(),
        );
        registry.register(
            "leader_transitions",
            "Number of times that this process gained or lost leadership; change is gained or lost",
            metrics.transitions.clone(),
        );
        // Create both series now: without a first zero, Prometheus' rate() would miss the first
        // change.
        metrics.transition(GAINED);
        metrics.transition(LOST);
        metrics
    }

    pub(super) fn gained(&self) {
        self.leader.set(1);
        self.transition(GAINED).inc();
    }

    pub(super) fn lost(&self) {
        self.leader.set(0);
        self.transition(LOST).inc();
    }

    fn transition(&self, change: &'static str) -> Counter {
        self.transitions.get_or_create_owned(&[("change", change)])
    }
}

const GAINED: &str = "gained";
const LOST: &str = "lost";
