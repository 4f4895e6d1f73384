//! Metrics of an election.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::METRICS_PREFIX;

/// The metrics of an election. Clones count into the same.
#[derive(Clone, Debug, Default)]
pub struct LeaseMetrics {
    leader: Gauge,
    transitions: Family<TransitionLabels, Counter>,
}

impl LeaseMetrics {
    /// Registers the metrics, with the prefix `multinet`; `registry` is the root one.
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
            "How often this process has gained and lost leadership; change is gained or lost",
            metrics.transitions.clone(),
        );
        // They are there from now on: a rate needs a series to begin with.
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
        self.transitions.get_or_create_owned(&TransitionLabels { change })
    }
}

const GAINED: &str = "gained";
const LOST: &str = "lost";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TransitionLabels {
    change: &'static str,
}
