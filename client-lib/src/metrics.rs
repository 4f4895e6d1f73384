//! Counters of a [`PeerSet`], a [`Listener`] and [`Offers`], for any metrics system.
//!
//! The data path does no extra work for them: values are read when they are asked for. Labels are
//! few and fixed. Peers' names are not among them.

use std::sync::Arc;

use crate::choose::Choice;
use crate::listener::Listener;
use crate::offers::Offers;
use crate::peers::PeerSet;

/// A counter or gauge with its value.
///
/// # Examples
///
/// ```no_run
/// # fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::metrics::Metrics as _;
///
/// // In the format of Prometheus, for a program without a library for it.
/// for measure in peers.measures() {
///     let suffix = if measure.is_counter { "_total" } else { "" };
///     println!("multinet_client_{}{suffix} {}", measure.name, measure.value);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Measure {
    /// Name of the metric in the style of Prometheus, without prefix and without `_total`.
    pub name: &'static str,
    /// Description of the metric, for people.
    pub help: &'static str,
    /// Whether the metric is a counter, which only grows. Otherwise it is a gauge.
    pub is_counter: bool,
    /// Value of the metric when it was read.
    pub value: u64,
}

/// Source of metrics.
///
/// # Examples
///
/// ```no_run
/// use multinet_client::metrics::{Measure, Metrics};
/// use multinet_client::{Listener, PeerSet};
///
/// /// A pod in the middle of a pipeline.
/// struct Stage(Listener, PeerSet);
///
/// impl Metrics for Stage {
///     fn measures(&self) -> Vec<Measure> {
///         [self.0.measures(), self.1.measures()].concat()
///     }
/// }
/// ```
pub trait Metrics: Send + Sync {
    /// Returns all values at this moment.
    ///
    /// ```no_run
    /// # fn example(listener: &multinet_client::Listener)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::metrics::Metrics as _;
    ///
    /// for measure in listener.measures() {
    ///     println!("{}: {}", measure.help, measure.value);
    /// }
    /// # Ok(()) }
    /// ```
    fn measures(&self) -> Vec<Measure>;

    /// Returns the labels of all values: names and values, from small fixed sets.
    ///
    /// ```no_run
    /// # fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::metrics::Metrics as _;
    ///
    /// // choice="by-key"
    /// let pair = |(name, value): &(&str, &str)| format!("{name}={value:?}");
    /// println!("{}", peers.labels().iter().map(pair).collect::<Vec<_>>().join(","));
    /// # Ok(()) }
    /// ```
    fn labels(&self) -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }
}

impl Metrics for PeerSet {
    fn measures(&self) -> Vec<Measure> {
        let now = self.statistics();
        vec![
            counter("sent_frames", "Frames that have been assigned to a peer", now.frames),
            counter("sent_bytes", "Payload bytes of frames that have been assigned to a peer", now.bytes),
            counter("acknowledged_frames", "Frames that receivers have acknowledged", now.acknowledged),
            counter("repeated_frames", "Frames that were sent again", now.repeats),
            counter("rejected_frames", "Frames that receivers have rejected", now.rejected),
            counter("lost_frames", "Frames whose connection broke before a receiver took them", now.lost),
            counter(
                "undeliverable_frames",
                "Frames that were given up because their only peer is gone or they cannot be read",
                now.undeliverable,
            ),
            counter("disconnects", "Connections to peers that broke", now.disconnects),
            gauge("connected_peers", "Peers that are connected", now.connected as u64),
            gauge("connections", "Connections to peers that are up", now.connections as u64),
            gauge("outstanding_frames", "Frames in flight, or in the receivers' slots", now.outstanding),
            gauge("credits", "Frames that the receivers have room for", now.credits),
            gauge("held_frames", "Frames that wait to be written or acknowledged", now.held as u64),
        ]
    }

    fn labels(&self) -> Vec<(&'static str, &'static str)> {
        let choice = match self.choice() {
            Choice::RoundRobin => "round-robin",
            Choice::LeastOutstanding => "least-outstanding",
            Choice::ByKey => "by-key",
            Choice::Nearest => "nearest",
        };
        vec![("choice", choice)]
    }
}

/// Metrics of a source that tasks share, such as a [`Listener`] that they receive from.
impl<M: Metrics + ?Sized> Metrics for Arc<M> {
    fn measures(&self) -> Vec<Measure> {
        (**self).measures()
    }

    fn labels(&self) -> Vec<(&'static str, &'static str)> {
        (**self).labels()
    }
}

impl Metrics for Listener {
    fn measures(&self) -> Vec<Measure> {
        let now = self.statistics();
        vec![
            counter("received_frames", "Frames received, without duplicates", now.frames),
            counter("received_bytes", "Payload bytes of the received frames, without duplicates", now.bytes),
            counter(
                "duplicate_frames",
                "Frames that were dropped because they had been received before",
                now.duplicates,
            ),
            counter("refused_connections", "Connections that were refused", now.refused),
            gauge("waiting_frames", "Received frames that wait for the program", now.waiting as u64),
            gauge("senders", "Connections from senders", now.connections as u64),
        ]
    }
}

impl Metrics for Offers {
    fn measures(&self) -> Vec<Measure> {
        let now = self.statistics();
        vec![
            counter("offered_payloads", "Payloads that have been put on offer", now.offered),
            counter("taken_payloads", "Payloads on offer that a fetcher has acknowledged", now.taken),
            counter("expired_payloads", "Payloads on offer whose deadline has come", now.expired),
            counter("withdrawn_payloads", "Payloads on offer that were withdrawn", now.withdrawn),
            counter("unknown_fetches", "Fetches of ids that were not on offer", now.unknown),
            counter("refused_fetchers", "Connections from fetchers that were refused", now.refused),
            gauge("offers", "Payloads that are on offer", now.offers as u64),
            gauge("offer_bytes", "Bytes of payloads that are on offer or being fetched", now.bytes as u64),
            gauge("offer_budget_bytes", "Most bytes of payloads on offer at a time", now.budget as u64),
            gauge("waiting_offers", "Payloads that wait for room in the budget", now.waiting as u64),
            gauge("fetches", "Payloads that fetchers have and have not decided on", now.fetches as u64),
            gauge("fetchers", "Connections from fetchers", now.fetchers as u64),
        ]
    }
}

fn counter(name: &'static str, help: &'static str, value: u64) -> Measure {
    Measure { name, help, is_counter: true, value }
}

fn gauge(name: &'static str, help: &'static str, value: u64) -> Measure {
    Measure { name, help, is_counter: false, value }
}

/// Adapter for a registry of prometheus-client:
/// `registry.register_collector(Box::new(Collector::new(peers)))`.
#[cfg(feature = "metrics")]
pub use self::prometheus::Collector;

#[cfg(feature = "metrics")]
mod prometheus {
    use std::fmt;

    use prometheus_client::collector;
    use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
    use prometheus_client::metrics::counter::ConstCounter;
    use prometheus_client::metrics::gauge::ConstGauge;

    use super::Metrics;

    /// Hands metrics to a registry of prometheus-client, as `multinet_client_…`, whenever the
    /// registry is encoded.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(peers: multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::metrics::Collector;
    /// use prometheus_client::encoding::text::encode;
    /// use prometheus_client::registry::Registry;
    ///
    /// let mut registry = Registry::default();
    /// registry.register_collector(Box::new(Collector::new(peers)));
    /// let mut page = String::new();
    /// encode(&mut page, &registry)?;
    /// # Ok(()) }
    /// ```
    pub struct Collector(Box<dyn Metrics>);

    impl Collector {
        /// Creates a collector for a [`PeerSet`](crate::PeerSet), a [`Listener`](crate::Listener)
        /// (in an `Arc`, if others receive from it), [`Offers`](crate::Offers), or a type that
        /// combines these.
        ///
        /// ```no_run
        /// # async fn example(registry: &mut prometheus_client::registry::Registry)
        /// # -> Result<(), Box<dyn std::error::Error>> {
        /// use multinet_client::Connector;
        /// use multinet_client::metrics::Collector;
        ///
        /// let peers = Connector::builder().build()?.start("infer.vision.svc.multinet", "rdma");
        /// // The registry has a handle of its own, so the connections stay as long as it does.
        /// registry.register_collector(Box::new(Collector::new(peers.clone())));
        /// # Ok(()) }
        /// ```
        pub fn new(metrics: impl Metrics + 'static) -> Self {
            Self(Box::new(metrics))
        }
    }

    impl fmt::Debug for Collector {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_tuple("Collector").field(&self.0.measures()).finish()
        }
    }

    impl collector::Collector for Collector {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let labels = self.0.labels();
            for measure in self.0.measures() {
                let name = format!("multinet_client_{}", measure.name);
                let counter = ConstCounter::new(measure.value);
                // No value comes near the limit.
                let gauge = ConstGauge::new(i64::try_from(measure.value).unwrap_or(i64::MAX));
                let kind = if measure.is_counter { counter.metric_type() } else { gauge.metric_type() };
                let mut metric = encoder.encode_descriptor(&name, measure.help, None, kind)?;
                let metric = metric.encode_family(&labels)?;
                if measure.is_counter { counter.encode(metric)? } else { gauge.encode(metric)? }
            }
            Ok(())
        }
    }

    #[cfg(test)]
    mod tests {
        use std::sync::Arc;

        use prometheus_client::encoding::text::encode;
        use prometheus_client::registry::Registry;

        use super::*;
        use crate::metrics::{Measure, counter, gauge};

        struct Fixed;

        impl Metrics for Fixed {
            fn measures(&self) -> Vec<Measure> {
                vec![counter("sent_frames", "Frames", 7), gauge("credits", "Room", 3)]
            }

            fn labels(&self) -> Vec<(&'static str, &'static str)> {
                vec![("choice", "by-key")]
            }
        }

        #[test]
        fn a_registry_encodes_values_and_labels() {
            let mut registry = Registry::default();
            registry.register_collector(Box::new(Collector::new(Arc::new(Fixed))));
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            assert!(text.contains("multinet_client_sent_frames_total{choice=\"by-key\"} 7"), "{text}");
            assert!(text.contains("multinet_client_credits{choice=\"by-key\"} 3"), "{text}");
        }
    }
}
