//! Metrics of the controller. Every label has a few fixed values, and every series is there from the start: a rate needs a zero
//! to begin with.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use multinet_crds::{MultiNetworkEndpointSlice, MultiNetworkService};
use multinet_runtime::watch::ProblemKind;

use crate::index::{ClusterIndex, Totals};
use crate::queue::Queue;
use crate::work::OptionalApi;

/// What the API server is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Create,
    Update,
    Delete,
    /// Server-side apply, of a status.
    Apply,
    /// To show what is there.
    List,
}

impl Verb {
    /// The value of the metric's label.
    fn label(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Apply => "apply",
            Self::List => "list",
        }
    }

    /// What a role calls it.
    pub(crate) fn rbac(self) -> &'static str {
        match self {
            Self::Apply => "patch",
            _ => self.label(),
        }
    }
}

/// Why a request failed, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Somebody else changed the objects, again and again.
    Conflict,
    /// The API server says that the object is not valid.
    Invalid,
    /// What can happen to any request.
    Problem(ProblemKind),
}

impl Reason {
    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [Self::Conflict, Self::Invalid].into_iter().chain(ProblemKind::ALL.map(Self::Problem))
    }

    /// The value of the metric's label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Invalid => "invalid",
            Self::Problem(kind) => kind.label(),
        }
    }
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultLabel {
    /// It was done.
    Ok,
    /// The object was not what it was taken for.
    Conflict,
    /// The API server does not want to.
    Refused,
    /// The API server could not, or did not answer.
    Failed,
    /// Leadership ended before the answer came.
    GivenUp,
}

impl ResultLabel {
    const ALL: [Self; 5] = [Self::Ok, Self::Conflict, Self::Refused, Self::Failed, Self::GivenUp];

    fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::GivenUp => "given_up",
        }
    }
}

/// Upper bounds of durations, in seconds: from a request on a quiet machine to one that is given up.
const SECONDS: [f64; 14] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 5.0, 10.0];

/// What the writer counts. Clones count into the same.
#[derive(Clone, Debug)]
pub struct WriterMetrics {
    syncs: Histogram,
    durations: Histogram,
    writes: Family<WriteLabels, Counter>,
    retries: Family<RetryLabels, Counter>,
    /// Events that nobody took in time, or that the API server did not take.
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
            for answer in ResultLabel::ALL {
                drop(metrics.writes.get_or_create(&WriteLabels::new(kind, verb, answer)));
            }
        }
        for reason in Reason::all() {
            drop(metrics.retries.get_or_create(&RetryLabels { reason: reason.label() }));
        }
        metrics
    }
}

impl WriterMetrics {
    /// A request for kind `K` has been answered.
    pub(crate) fn request<K: Resource<DynamicType = ()>>(
        &self,
        verb: Verb,
        answer: ResultLabel,
        took: Duration,
    ) {
        if verb != Verb::List {
            self.writes.get_or_create(&WriteLabels::new(kind::<K>(), verb, answer)).inc();
            self.durations.observe(took.as_secs_f64());
        }
    }

    /// A service has been looked at, and written if need be.
    pub(crate) fn synced(&self, took: Duration) {
        self.syncs.observe(took.as_secs_f64());
    }

    /// A service has to be looked at again.
    pub(crate) fn retry(&self, reason: Reason) {
        self.retries.get_or_create(&RetryLabels { reason: reason.label() }).inc();
    }
}

/// The name of a kind whose names are known to the compiler.
fn kind<K: Resource<DynamicType = ()>>() -> &'static str {
    // Every implementation that we have borrows a constant.
    match K::kind(&()) {
        std::borrow::Cow::Borrowed(kind) => kind,
        std::borrow::Cow::Owned(_) => "unknown",
    }
}

/// Registers everything under the prefix `multinet_controller`.
pub fn register(
    registry: &mut Registry,
    metrics: &WriterMetrics,
    index: Arc<ClusterIndex>,
    queue: Arc<Queue>,
) {
    let registry = registry.sub_registry_with_prefix("multinet_controller");
    registry.register_with_unit(
        "sync_duration",
        "Time from when a service's turn comes until its slices are written",
        Unit::Seconds,
        metrics.syncs.clone(),
    );
    registry.register_with_unit(
        "write_duration",
        "Time from a write to its answer",
        Unit::Seconds,
        metrics.durations.clone(),
    );
    registry.register(
        "writes",
        "Writes of slices and status, by what became of them",
        metrics.writes.clone(),
    );
    registry.register(
        "retries",
        "How often a service had to be tried again, by reason",
        metrics.retries.clone(),
    );
    registry.register(
        "lost_events",
        "Events for people that were not published",
        metrics.lost_events.clone(),
    );
    registry.register_collector(Box::new(State { index, queue }));
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WriteLabels {
    kind: &'static str,
    verb: &'static str,
    result: &'static str,
}

impl WriteLabels {
    fn new(kind: &'static str, verb: Verb, answer: ResultLabel) -> Self {
        Self { kind, verb: verb.label(), result: answer.label() }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RetryLabels {
    reason: &'static str,
}

/// Which optional APIs are served, one gauge each.
#[derive(Clone, Debug, Default)]
pub struct ApiMetrics(Family<ApiLabels, prometheus_client::metrics::gauge::Gauge>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ApiLabels {
    group: &'static str,
}

impl ApiMetrics {
    /// Registers the gauges, with the prefix `multinet_controller`; `registry` is the root one.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        OptionalApi::ALL.into_iter().for_each(|api| metrics.set_served(api, false));
        let registry = registry.sub_registry_with_prefix("multinet_controller");
        registry.register(
            "api_served",
            "Whether the API server has an optional API group",
            metrics.0.clone(),
        );
        metrics
    }

    pub(crate) fn set_served(&self, api: OptionalApi, is_served: bool) {
        self.0.get_or_create(&ApiLabels { group: api.group() }).set(is_served.into());
    }
}

/// Read at each scrape: there are no gauges to keep in step.
struct State {
    index: Arc<ClusterIndex>,
    queue: Arc<Queue>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let totals: Totals = self.index.totals();
        for (name, help, value) in [
            ("queue_depth", "Services that wait for their turn", self.queue.depth()),
            ("pods", "Pods known, of all namespaces", totals.pods),
            ("services", "MultiNetworkServices known", totals.services),
            ("slices", "MultiNetworkEndpointSlices of ours", totals.slices),
            ("mirrors", "Core EndpointSlices of ours", totals.mirrors),
            ("conflicts", "Addresses that several pods of one network have", totals.conflicts),
            (
                "unreadable_annotations",
                "Pods whose network-status annotation cannot be read",
                totals.unreadable,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(value).encode(metric)?;
        }
        let help = "Endpoints in our MultiNetworkEndpointSlices, by state";
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
