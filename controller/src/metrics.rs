//! Metrics of the controller.
//!
//! Every label has a fixed set of values, and every series exists from the start: the rate of a
//! counter is correct only if the counter starts at zero.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use strum::{IntoStaticStr, VariantArray};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_runtime::watch::ProblemKind;

use crate::index::{ClusterIndex, Totals};
use crate::queue::Queue;
use crate::work::OptionalApi;

/// Kind of request to the API server. Converts into a value of the label `verb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Verb {
    Create,
    Update,
    Delete,
    /// Server-side apply of a status.
    Apply,
    /// A list request, which is not counted as a write.
    List,
}

impl Verb {
    /// Returns the verb of the RBAC rule that permits the request.
    pub(crate) fn rbac(self) -> &'static str {
        match self {
            Self::Apply => "patch",
            _ => self.into(),
        }
    }
}

/// Reason why a request failed. Converts into a value of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Reason {
    /// Other writers kept changing the objects that the request was for.
    Conflict,
    /// The API server rejects the object as invalid.
    Invalid,
    /// Another problem, which any request can have, such as a missing permission.
    #[strum(transparent)]
    Problem(ProblemKind),
}

impl Reason {
    /// Returns all reasons.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [Self::Conflict, Self::Invalid]
            .into_iter()
            .chain(ProblemKind::VARIANTS.iter().copied().map(Self::Problem))
    }
}

/// Value of the label `result` of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum ResultLabel {
    /// The request succeeded.
    Ok,
    /// The object had another version than expected.
    Conflict,
    /// The API server refused the request.
    Refused,
    /// The API server failed, or did not answer.
    Failed,
    /// Leadership ended before the answer arrived.
    GivenUp,
}

/// Names and values of a series' labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Upper bounds of the duration histograms, in seconds: from a request on an idle machine up to the
/// request timeout.
const SECONDS: [f64; 14] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 5.0, 10.0];

/// Metrics of the writer. Clones share their values.
#[derive(Clone, Debug)]
pub struct WriterMetrics {
    syncs: Histogram,
    durations: Histogram,
    writes: Family<Labels<3>, Counter>,
    retries: Family<Labels<1>, Counter>,
    /// Events that were dropped, or that the API server did not accept.
    pub(crate) lost_events: Counter,
}

impl Default for WriterMetrics {
    fn default() -> Self {
        let metrics = Self {
            syncs: Histogram::new(SECONDS),
            durations: Histogram::new(SECONDS),
            writes: Family::default(),
            retries: Family::default(),
            lost_events: Counter::default(),
        };
        let slices = kind::<MultiNetworkEndpointSlice>();
        let mirrors = kind::<EndpointSlice>();
        let slice_verbs = [Verb::Create, Verb::Update, Verb::Delete];
        let of_slices = [slices, mirrors].into_iter().flat_map(|kind| slice_verbs.map(|verb| (kind, verb)));
        for (kind, verb) in of_slices.chain([(kind::<MultiNetworkService>(), Verb::Apply)]) {
            for &answer in ResultLabel::VARIANTS {
                drop(metrics.writes.get_or_create(&write_labels(kind, verb, answer)));
            }
        }
        for reason in Reason::all() {
            drop(metrics.retries.get_or_create(&[("reason", reason.into())]));
        }
        metrics
    }
}

impl WriterMetrics {
    /// Counts a request for kind `K`, and records its duration.
    pub(crate) fn request<K: Resource<DynamicType = ()>>(
        &self,
        verb: Verb,
        answer: ResultLabel,
        took: Duration,
    ) {
        if verb != Verb::List {
            self.writes.get_or_create(&write_labels(kind::<K>(), verb, answer)).inc();
            self.durations.observe(took.as_secs_f64());
        }
    }

    /// Records the time that it took to plan a service and to write its slices.
    pub(crate) fn synced(&self, took: Duration) {
        self.syncs.observe(took.as_secs_f64());
    }

    /// Counts a retry of a service, by the reason of the failure.
    pub(crate) fn retry(&self, reason: Reason) {
        self.retries.get_or_create(&[("reason", reason.into())]).inc();
    }
}

/// Returns the name of kind `K`.
fn kind<K: Resource<DynamicType = ()>>() -> &'static str {
    // All implementations in use return a borrowed constant.
    match K::kind(&()) {
        std::borrow::Cow::Borrowed(kind) => kind,
        std::borrow::Cow::Owned(_) => "unknown",
    }
}

/// Registers the metrics with the prefix `multinet_controller`.
pub fn register(
    registry: &mut Registry,
    metrics: &WriterMetrics,
    index: Arc<ClusterIndex>,
    queue: Arc<Queue>,
) {
    let registry = registry.sub_registry_with_prefix("multinet_controller");
    registry.register_with_unit(
        "sync_duration",
        "Time from the start of a service's turn until its slices are written",
        Unit::Seconds,
        metrics.syncs.clone(),
    );
    registry.register_with_unit(
        "write_duration",
        "Time from a write to its answer",
        Unit::Seconds,
        metrics.durations.clone(),
    );
    registry.register("writes", "Writes of slices and statuses, by result", metrics.writes.clone());
    registry.register("retries", "Retries of services, by reason", metrics.retries.clone());
    registry.register(
        "lost_events",
        "Events for people that were not published",
        metrics.lost_events.clone(),
    );
    registry.register_collector(Box::new(StateCollector { index, queue }));
}

fn write_labels(kind: &'static str, verb: Verb, answer: ResultLabel) -> Labels<3> {
    [("kind", kind), ("verb", verb.into()), ("result", answer.into())]
}

/// Gauges that tell which optional API groups are served.
#[derive(Clone, Debug, Default)]
pub struct ApiMetrics(Family<Labels<1>, Gauge>);

impl ApiMetrics {
    /// Registers the gauges with the prefix `multinet_controller`. `registry` is the root registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        OptionalApi::ALL.into_iter().for_each(|api| metrics.set_served(api, false));
        let registry = registry.sub_registry_with_prefix("multinet_controller");
        registry.register(
            "api_served",
            "Whether the API server serves an optional API group",
            metrics.0.clone(),
        );
        metrics
    }

    pub(crate) fn set_served(&self, api: OptionalApi, is_served: bool) {
        self.0.get_or_create(&[("group", api.group())]).set(is_served.into());
    }
}

/// Collector of gauges that are computed at each scrape, so that no gauge can become outdated.
struct StateCollector {
    index: Arc<ClusterIndex>,
    queue: Arc<Queue>,
}

impl fmt::Debug for StateCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateCollector").finish_non_exhaustive()
    }
}

impl Collector for StateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let totals: Totals = self.index.totals();
        for (name, help, value) in [
            ("queue_depth", "Services that wait for their turn", self.queue.depth()),
            ("pods", "Known pods in all namespaces", totals.pods),
            ("services", "Known MultiNetworkServices", totals.services),
            ("slices", "MultiNetworkEndpointSlices that the controller manages", totals.slices),
            ("mirrors", "Core EndpointSlices that the controller manages", totals.mirrors),
            ("conflicts", "Addresses that pods of one network are in conflict over", totals.conflicts),
            (
                "unreadable_annotations",
                "Pods whose network-status annotation cannot be read",
                totals.unreadable,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(value).encode(metric)?;
        }
        let help = "Endpoints in the controller's MultiNetworkEndpointSlices, by state";
        let mut metric = encoder.encode_descriptor("endpoints", help, None, MetricType::Gauge)?;
        for (state, value) in
            [("ready", totals.ready), ("not_ready", totals.not_ready), ("terminating", totals.terminating)]
        {
            gauge(value).encode(metric.encode_family(&[("state", state)])?)?;
        }
        Ok(())
    }
}

fn gauge(value: usize) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}
