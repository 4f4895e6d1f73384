//! Metrics of multinet-numaflow. Every series exists from the start.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use multinet_runtime::METRICS_PREFIX;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Upper bounds of the webhook's answers, in seconds.
const SECONDS: [f64; 10] = [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.25, 1.0, 5.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WriteLabels {
    write: &'static str,
    result: &'static str,
}

/// Metrics of the program. Clones share the counters.
#[derive(Clone, Debug)]
pub struct Metrics {
    reviews: Family<ResultLabel, Counter>,
    review_time: Histogram,
    writes: Family<WriteLabels, Counter>,
    /// Writes of events that failed.
    pub failed_events: Counter,
    /// End of the validity of the webhook's certificate, in seconds since the Unix epoch; 0 if it
    /// has none, or one from files.
    pub certificate_end: Gauge<f64, AtomicU64>,
}

impl Metrics {
    /// Registers the metrics in the root registry, with the prefix `multinet_numaflow`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            reviews: Family::default(),
            review_time: Histogram::new(SECONDS),
            writes: Family::default(),
            failed_events: Counter::default(),
            certificate_end: Gauge::default(),
        };
        for result in ["injected", "unchanged", "failed"] {
            drop(metrics.reviews.get_or_create(&ResultLabel { result }));
        }
        for write in ["create", "replace", "delete", "probe", "reset"] {
            for result in ["ok", "failed"] {
                drop(metrics.writes.get_or_create(&WriteLabels { write, result }));
            }
        }
        let registry = registry.sub_registry_with_prefix(format!("{METRICS_PREFIX}_numaflow"));
        registry.register("reviews", "Vertices that the webhook was asked about", metrics.reviews.clone());
        registry.register_with_unit(
            "review",
            "Time for an answer of the webhook",
            Unit::Seconds,
            metrics.review_time.clone(),
        );
        registry.register(
            "writes",
            "Writes of services and Vertices; a probe is a dry run",
            metrics.writes.clone(),
        );
        registry.register(
            "failed_events",
            "Writes of events that failed and are repeated",
            metrics.failed_events.clone(),
        );
        registry.register_with_unit(
            "certificate_end_timestamp",
            "End of the webhook's certificate since the Unix epoch; 0 for none, or one from files",
            Unit::Seconds,
            metrics.certificate_end.clone(),
        );
        metrics
    }

    /// Counts an answer of the webhook.
    pub(crate) fn reviewed(&self, result: &'static str, time: Duration) {
        self.reviews.get_or_create(&ResultLabel { result }).inc();
        self.review_time.observe(time.as_secs_f64());
    }

    /// Counts a write.
    pub(crate) fn wrote(&self, write: &'static str, is_ok: bool) {
        let result = if is_ok { "ok" } else { "failed" };
        self.writes.get_or_create(&WriteLabels { write, result }).inc();
    }
}
