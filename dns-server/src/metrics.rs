//! Metrics, named in CoreDNS' manner: counters of each worker's own, added up when somebody looks.
//!
//! A worker is the only writer of its counters, so counting is a plain load and store; sharing one set
//! among threads would cost more than the answer does.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::query::Rcode;
use crate::rrset::rtype;
use crate::source::manifests::ManifestMetrics;
use crate::state::State;

/// How a query came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Proto {
    Udp,
    Tcp,
    Tls,
    Https,
    Quic,
}

impl Proto {
    const ALL: [Self; 5] = [Self::Udp, Self::Tcp, Self::Tls, Self::Https, Self::Quic];

    /// The value of the label `proto`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Https => "https",
            Self::Quic => "quic",
        }
    }
}

/// The values of the label `type`; all that is not listed is `other`, so that nobody's imagination grows
/// the number of series.
const TYPES: [(u16, &str); 9] = [
    (rtype::A, "A"),
    (rtype::AAAA, "AAAA"),
    (rtype::SRV, "SRV"),
    (rtype::TXT, "TXT"),
    (rtype::PTR, "PTR"),
    (rtype::SOA, "SOA"),
    (rtype::NS, "NS"),
    (rtype::ANY, "ANY"),
    (0, "other"),
];

const FAMILIES: [&str; 2] = ["1", "2"];

/// Upper bounds of the duration histogram, in seconds.
const SECONDS: [f64; 10] = [10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 10e-3, 100e-3, 1.0];

/// Upper bounds of the size histograms, in octets, as CoreDNS has them.
const OCTETS: [f64; 9] = [64.0, 128.0, 256.0, 512.0, 1023.0, 2047.0, 4095.0, 16000.0, 64000.0];

/// A histogram with one writer.
struct Buckets<const N: usize> {
    counts: [AtomicU64; N],
    above: AtomicU64,
    /// In octets or nanoseconds: whole numbers add without rounding.
    sum: AtomicU64,
}

impl<const N: usize> Default for Buckets<N> {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; N], above: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }
}

impl<const N: usize> Buckets<N> {
    fn observe(&self, bounds: &[f64; N], value: f64, sum: u64, times: u64) {
        let bucket = bounds.partition_point(|&bound| bound < value);
        add(self.counts.get(bucket).unwrap_or(&self.above), times);
        add(&self.sum, sum * times);
    }
}

/// Adds to a counter of which this thread is the only writer.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// One worker's counters.
pub struct Tally {
    proto: Proto,
    requests: [[AtomicU64; TYPES.len()]; FAMILIES.len()],
    responses: [AtomicU64; Rcode::ALL.len()],
    ignored: AtomicU64,
    dnssec_ok: AtomicU64,
    truncated: AtomicU64,
    slow: AtomicU64,
    request_size: Buckets<{ OCTETS.len() }>,
    response_size: Buckets<{ OCTETS.len() }>,
    duration: Buckets<{ SECONDS.len() }>,
}

impl Tally {
    fn new(proto: Proto) -> Self {
        Self {
            proto,
            requests: [const { [const { AtomicU64::new(0) }; TYPES.len()] }; FAMILIES.len()],
            responses: [const { AtomicU64::new(0) }; Rcode::ALL.len()],
            ignored: AtomicU64::new(0),
            dnssec_ok: AtomicU64::new(0),
            truncated: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            request_size: Buckets::default(),
            response_size: Buckets::default(),
            duration: Buckets::default(),
        }
    }

    /// Counts a query and its reply.
    pub fn answered(&self, is_ipv6: bool, qtype: Option<u16>, rcode: Rcode, request: usize, reply: &[u8]) {
        let kind = qtype
            .and_then(|qtype| TYPES.iter().position(|&(known, _)| known == qtype))
            .unwrap_or(TYPES.len() - 1);
        add(&self.requests[usize::from(is_ipv6)][kind], 1);
        if let Some(position) = Rcode::ALL.iter().position(|&known| known == rcode) {
            add(&self.responses[position], 1);
        }
        if reply.get(2).is_some_and(|flags| flags & 2 != 0) {
            add(&self.truncated, 1);
        }
        self.request_size.observe(&OCTETS, request as f64, request as u64, 1);
        self.response_size.observe(&OCTETS, reply.len() as f64, reply.len() as u64, 1);
    }

    /// Counts a packet that no reply was sent to.
    pub fn ignored(&self) {
        add(&self.ignored, 1);
    }

    /// Counts a query that asks for DNSSEC records.
    pub fn dnssec_ok(&self) {
        add(&self.dnssec_ok, 1);
    }

    /// Counts a packet that the fast path did not take.
    pub fn slow(&self) {
        add(&self.slow, 1);
    }

    /// Notes how long each of some queries took.
    pub fn took(&self, queries: u32, each: Duration) {
        let nanoseconds = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        self.duration.observe(&SECONDS, each.as_secs_f64(), nanoseconds, u64::from(queries));
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally").field("proto", &self.proto).finish_non_exhaustive()
    }
}

/// The tallies of all workers. Connections come and go, so their tallies are used again: the number of
/// tallies is that of the most connections there ever were at one time.
#[derive(Debug, Clone, Default)]
pub struct Tallies(Arc<Mutex<TallyPool>>);

#[derive(Debug, Default)]
struct TallyPool {
    all: Vec<Arc<Tally>>,
    idle: Vec<Arc<Tally>>,
}

impl Tallies {
    /// A tally that nobody else writes to, until it is given back.
    pub fn take(&self, proto: Proto) -> Arc<Tally> {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(position) = pool.idle.iter().position(|tally| tally.proto == proto) {
            return pool.idle.swap_remove(position);
        }
        let tally = Arc::new(Tally::new(proto));
        pool.all.push(Arc::clone(&tally));
        tally
    }

    /// Gives a tally back; what it counted stays counted.
    pub fn give_back(&self, tally: Arc<Tally>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).idle.push(tally);
    }

    fn all(&self) -> Vec<Arc<Tally>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).all.clone()
    }
}

/// What the sources count.
#[derive(Debug, Clone, Default)]
pub struct SourceMetrics {
    /// Manifests.
    pub manifests: ManifestMetrics,
    /// Snapshot files written.
    pub snapshots: Counter,
    /// Snapshot files that could not be written.
    pub snapshot_failures: Counter,
    /// Connections closed because there were too many.
    pub refused_connections: Counter,
}

/// The delay from a change in the cluster to its answer: the service level that users see.
pub fn programming_latency() -> Histogram {
    Histogram::new((0..20).map(|power| 0.001 * f64::from(1u32 << power)))
}

/// Registers everything under the prefix `multinet_dns`.
pub fn register(
    registry: &mut Registry,
    tallies: Tallies,
    sources: &SourceMetrics,
    latency: &Histogram,
    state: Arc<State>,
) {
    let registry = registry.sub_registry_with_prefix("multinet_dns");
    registry.register_with_unit(
        "programming_duration",
        "Time from the change that a slice tells of to the changed answer",
        Unit::Seconds,
        latency.clone(),
    );
    let manifests = &sources.manifests;
    registry.register("manifest_errors", "Manifests found unusable", manifests.found_bad.clone());
    registry.register("bad_manifests", "Manifests that are unusable now", manifests.bad.clone());
    registry.register("snapshots_written", "Snapshot files written", sources.snapshots.clone());
    registry.register("snapshot_failures", "Snapshot files not written", sources.snapshot_failures.clone());
    registry.register(
        "connections_refused",
        "Connections closed at the limit",
        sources.refused_connections.clone(),
    );
    registry.register_collector(Box::new(QueryMetrics { tallies }));
    registry.register_collector(Box::new(Sizes { state }));
}

/// Adds up the tallies at each scrape.
#[derive(Debug)]
struct QueryMetrics {
    tallies: Tallies,
}

impl Collector for QueryMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let tallies = self.tallies.all();
        let of = |proto: Proto| tallies.iter().filter(move |tally| tally.proto == proto);
        let protos = || Proto::ALL.into_iter().filter(|&proto| of(proto).next().is_some());
        let total = |proto: Proto, pick: &dyn Fn(&Tally) -> &AtomicU64| {
            of(proto).map(|tally| pick(tally).load(Ordering::Relaxed)).sum::<u64>()
        };

        let counter = MetricType::Counter;
        let mut metric = encoder.encode_descriptor("requests", "Queries answered", None, counter)?;
        for proto in protos() {
            for (family, name) in FAMILIES.iter().enumerate() {
                for (kind, (_, qtype)) in TYPES.iter().enumerate() {
                    let count = total(proto, &|tally| &tally.requests[family][kind]);
                    if count > 0 {
                        let labels = [("proto", proto.name()), ("family", *name), ("type", *qtype)];
                        ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
                    }
                }
            }
        }
        let mut metric = encoder.encode_descriptor("responses", "Replies by code", None, counter)?;
        for proto in protos() {
            for (position, rcode) in Rcode::ALL.iter().enumerate() {
                let count = total(proto, &|tally| &tally.responses[position]);
                if count > 0 {
                    let labels = [("proto", proto.name()), ("rcode", rcode.name())];
                    ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        type Pick = fn(&Tally) -> &AtomicU64;
        let single: [(&str, &str, Pick); 4] = [
            ("ignored", "Packets not replied to: no queries", |tally| &tally.ignored),
            ("do_requests", "Queries with the DO bit", |tally| &tally.dnssec_ok),
            ("truncated_responses", "Replies with the TC bit", |tally| &tally.truncated),
            ("slow_path_requests", "Packets beyond the fast path", |tally| &tally.slow),
        ];
        for (name, help, pick) in single {
            let mut metric = encoder.encode_descriptor(name, help, None, counter)?;
            for proto in protos() {
                let labels = [("proto", proto.name())];
                ConstCounter::new(total(proto, &pick)).encode(metric.encode_family(&labels)?)?;
            }
        }
        self.encode_histograms(&mut encoder, &tallies)
    }
}

impl QueryMetrics {
    fn encode_histograms(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        tallies: &[Arc<Tally>],
    ) -> Result<(), fmt::Error> {
        let name = "request_duration";
        let help = "Time from receipt to hand-over of the reply";
        encode_histogram(
            encoder,
            name,
            help,
            Unit::Seconds,
            tallies,
            (&SECONDS, 1e9, |tally| &tally.duration),
        )?;
        let help = "Size of queries";
        let pick: fn(&Tally) -> &Buckets<9> = |tally| &tally.request_size;
        encode_histogram(encoder, "request_size", help, Unit::Bytes, tallies, (&OCTETS, 1.0, pick))?;
        let help = "Size of replies";
        let pick: fn(&Tally) -> &Buckets<9> = |tally| &tally.response_size;
        encode_histogram(encoder, "response_size", help, Unit::Bytes, tallies, (&OCTETS, 1.0, pick))
    }
}

/// Bounds, what one of the unit is in the sum, and where a tally keeps the histogram.
type HistogramOf<const N: usize> = (&'static [f64; N], f64, fn(&Tally) -> &Buckets<N>);

fn encode_histogram<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Unit,
    tallies: &[Arc<Tally>],
    (bounds, scale, pick): HistogramOf<N>,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
    for proto in Proto::ALL {
        let of_proto: Vec<&Buckets<N>> =
            tallies.iter().filter(|tally| tally.proto == proto).map(|tally| pick(tally)).collect();
        if of_proto.is_empty() {
            continue;
        }
        let total = |counter: &dyn Fn(&Buckets<N>) -> u64| of_proto.iter().map(|b| counter(b)).sum::<u64>();
        let mut buckets: Vec<(f64, u64)> = (0..N)
            .map(|bucket| (bounds[bucket], total(&|b| b.counts[bucket].load(Ordering::Relaxed))))
            .collect();
        buckets.push((f64::MAX, total(&|b| b.above.load(Ordering::Relaxed))));
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = total(&|b| b.sum.load(Ordering::Relaxed)) as f64 / scale;
        let labels = [("proto", proto.name())];
        metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}

/// Reads sizes at each scrape: there are no gauges to keep in step.
struct Sizes {
    state: Arc<State>,
}

impl fmt::Debug for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sizes").finish_non_exhaustive()
    }
}

impl Collector for Sizes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (services, slices, endpoints) = self.state.sizes();
        let answers = self.state.answers();
        for (name, help, value) in [
            ("services", "Services known", services),
            ("slices", "Endpoint slices known", slices),
            ("endpoints", "Ready endpoints in those slices", endpoints),
            ("names", "Names that exist, empty non-terminals included", answers.len()),
            ("serial", "Serial of the zones", answers.serial() as usize),
        ] {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}
