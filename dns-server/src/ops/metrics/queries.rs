//! Metrics of queries: the sums of all tallies.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Unit;
use strum::VariantArray as _;

use super::histogram::{BYTES, Histogram, NANOSECONDS};
use super::tallies::Tallies;
use super::tally::{COOKIES, EVENTS, FAMILIES, TYPES, Tally};
use crate::answer::proto::Proto;
use crate::answer::query::Rcode;

/// Collector of the query metrics: it sums the threads' tallies at each scrape.
#[derive(Debug)]
pub(super) struct QueryMetrics {
    pub(super) tallies: Tallies,
}

impl Collector for QueryMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let tallies = self.tallies.all();
        let of = |proto: Proto| tallies.iter().filter(move |tally| tally.proto == proto);
        let protos = || Proto::VARIANTS.iter().copied().filter(|&proto| of(proto).next().is_some());
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
            for &rcode in Rcode::VARIANTS {
                let count = total(proto, &|tally| &tally.responses[rcode as usize]);
                if count > 0 {
                    let labels = [("proto", proto.name()), ("rcode", rcode.name())];
                    ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        let mut metric = encoder.encode_descriptor("cookies", "Queries with a cookie", None, counter)?;
        for proto in protos() {
            for (position, cookie) in COOKIES.iter().enumerate() {
                let count = total(proto, &|tally| &tally.cookies[position]);
                let labels = [("proto", proto.name()), ("cookie", *cookie)];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        for (event, (name, help)) in EVENTS.iter().enumerate() {
            let mut metric = encoder.encode_descriptor(name, help, None, counter)?;
            for proto in protos() {
                let count = total(proto, &|tally| &tally.events[event]);
                let labels = [("proto", proto.name())];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
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
        let help = "Time from the receipt of a query to handing over its reply; sampled over UDP";
        encode_histogram(
            encoder,
            name,
            help,
            Unit::Seconds,
            tallies,
            (&NANOSECONDS, 1e9, |tally| &tally.duration),
        )?;
        let help = "Size of queries";
        let pick: fn(&Tally) -> &Histogram<10> = |tally| &tally.request_size;
        encode_histogram(encoder, "request_size", help, Unit::Bytes, tallies, (&BYTES, 1.0, pick))?;
        let help = "Size of replies";
        let pick: fn(&Tally) -> &Histogram<10> = |tally| &tally.response_size;
        encode_histogram(encoder, "response_size", help, Unit::Bytes, tallies, (&BYTES, 1.0, pick))
    }
}

/// Upper bounds, number of their units per unit of the metric, and the tally's field with the
/// histogram.
type HistogramOf<const N: usize> = (&'static [u64; N], f64, fn(&Tally) -> &Histogram<N>);

fn encode_histogram<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Unit,
    tallies: &[Arc<Tally>],
    (bounds, scale, pick): HistogramOf<N>,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
    for &proto in Proto::VARIANTS {
        let of_proto: Vec<&Histogram<N>> =
            tallies.iter().filter(|tally| tally.proto == proto).map(|tally| pick(tally)).collect();
        if of_proto.is_empty() {
            continue;
        }
        let buckets = bounds.iter().enumerate().map(|(bucket, &bound)| {
            // OpenMetrics requires the last bucket to be `le="+Inf"`.
            let bound = if bound == u64::MAX { f64::INFINITY } else { bound as f64 / scale };
            (bound, of_proto.iter().map(|histogram| histogram.count(bucket)).sum())
        });
        let buckets: Vec<(f64, u64)> = buckets.collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = of_proto.iter().map(|histogram| histogram.sum.load(Ordering::Relaxed)).sum::<u64>();
        let labels = [("proto", proto.name())];
        let mut metric = metric.encode_family(&labels)?;
        metric.encode_histogram::<NoLabelSet>(sum as f64 / scale, count, &buckets, None)?;
    }
    Ok(())
}
