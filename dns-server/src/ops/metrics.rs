//! Metrics, named like those of CoreDNS. They are counted where a query is answered, and summed at
//! each scrape.
//!
//! Each counter has one thread as its only writer, so counting is a plain load and store. Counters
//! shared by threads would cost more than the answer does.

mod histogram;
mod queries;
mod sample;
mod tallies;
mod tally;

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::store::state::State;
use queries::QueryMetrics;
pub use sample::Sampler;
pub use tallies::{Tallies, TallyHandle};
pub use tally::{PacketEvent, Tally};

/// Metrics of the files that are given by `--manifests`.
#[derive(Debug, Clone, Default)]
pub struct ManifestMetrics {
    /// Number of times that a manifest went bad, or became bad in another way.
    pub found_bad: Counter,
    /// Number of files, documents and objects that cannot be used now.
    pub bad: Gauge,
    /// Number of paths given by `--manifests` that cannot be read now.
    pub lost: Gauge,
}

/// Metrics of client connections and of their memory.
#[derive(Debug, Clone, Default)]
pub struct ConnectionMetrics {
    /// Number of connections that were closed at the limit, in favor of new ones.
    pub evicted: Counter,
    /// Number of messages and replies that were dropped for want of memory for clients.
    pub without_room: Counter,
}

/// Metrics of the sources of objects and of client connections.
#[derive(Debug, Clone, Default)]
pub struct SourceMetrics {
    /// Metrics of manifest files.
    pub manifests: ManifestMetrics,
    /// Number of snapshot files that were written.
    pub snapshots: Counter,
    /// Number of snapshot files that could not be written.
    pub snapshot_failures: Counter,
    /// Metrics of client connections.
    pub connections: ConnectionMetrics,
}

/// Returns a histogram for the delay from a change in the cluster to the changed answer: the
/// service level that users see.
pub fn programming_latency() -> Histogram {
    Histogram::new((0..20).map(|power| 0.001 * f64::from(1u32 << power)))
}

/// Prefix of all metric names of this program.
pub const PREFIX: &str = "multinet_dns";

/// Registers all metrics of queries, sources and connections for `/metrics`.
pub fn register(
    registry: &mut Registry,
    tallies: Tallies,
    sources: &SourceMetrics,
    latency: &Histogram,
    state: Arc<State>,
) {
    let registry = registry.sub_registry_with_prefix(PREFIX);
    registry.register_with_unit(
        "programming_duration",
        "Time from the change recorded in a slice to the changed answer",
        Unit::Seconds,
        latency.clone(),
    );
    let manifests = &sources.manifests;
    registry.register("manifest_errors", "Manifests found unusable", manifests.found_bad.clone());
    registry.register("bad_manifests", "Manifests that are unusable now", manifests.bad.clone());
    registry.register(
        "lost_manifest_paths",
        "Manifest paths that cannot be read; their last answers are still served",
        manifests.lost.clone(),
    );
    registry.register("snapshots_written", "Snapshot files written", sources.snapshots.clone());
    registry.register("snapshot_failures", "Snapshot files not written", sources.snapshot_failures.clone());
    registry.register(
        "connections_evicted",
        "Connections evicted at the limit in favor of others",
        sources.connections.evicted.clone(),
    );
    registry.register(
        "messages_without_room",
        "Messages and replies dropped because the memory for clients is used up",
        sources.connections.without_room.clone(),
    );
    registry.register_collector(Box::new(QueryMetrics { tallies }));
    registry.register_collector(Box::new(SizeCollector { state }));
}

/// Reads sizes from the state at each scrape, so that no gauges must be kept in step.
struct SizeCollector {
    state: Arc<State>,
}

impl fmt::Debug for SizeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SizeCollector").finish_non_exhaustive()
    }
}

impl Collector for SizeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (services, slices, endpoints) = self.state.sizes();
        let answers = self.state.answers();
        let help = "Answers over streams that hold only some of the records";
        let metric = encoder.encode_descriptor("subset_responses", help, None, MetricType::Counter)?;
        ConstCounter::new(answers.subsets()).encode(metric)?;
        for (name, help, value) in [
            ("services", "Services known", services),
            ("slices", "Endpoint slices known", slices),
            ("endpoints", "Ready endpoints in those slices", endpoints),
            ("serial", "Serial of the zones", answers.serial() as usize),
            (
                "journal_bytes",
                "Bytes of changes remembered for incremental transfers",
                self.state.journal_bytes(),
            ),
        ] {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}
