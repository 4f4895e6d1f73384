//! Metrics that every binary has, about its watches, build and process.

use std::borrow::Cow;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::process::ProcessCollector;

/// Prefix of the names of all of multinet's own metrics, before an underscore.
pub const METRICS_PREFIX: &str = "multinet";

/// Registers `multinet_build_info{version}` and the standard `process_…` metrics.
///
/// `registry` is the root registry, without a prefix: the names of process metrics are the same in
/// every program.
pub fn register_process_metrics(registry: &mut Registry, version: &'static str) {
    registry.sub_registry_with_prefix(METRICS_PREFIX).register(
        "build",
        "The version that is running",
        Info::new([("version", version)]),
    );
    registry.register_collector(Box::new(ProcessCollector));
}

/// Names and values of a series' labels.
type Labels<const N: usize> = [(&'static str, Cow<'static, str>); N];

/// Metrics of all watches of a process on Kubernetes objects. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub struct WatchMetrics {
    events: Family<Labels<2>, Counter>,
    errors: Family<Labels<2>, Counter>,
    undecodable: Family<Labels<1>, Gauge>,
    relists: Family<Labels<1>, Counter>,
}

impl WatchMetrics {
    /// Registers the metrics of watches in the root registry, with the prefix `multinet`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix(METRICS_PREFIX);
        registry.register(
            "watch_events",
            "Objects received from the API server; op is list, apply or delete",
            metrics.events.clone(),
        );
        registry.register(
            "watch_errors",
            "Failed lists and watches; each is retried after a pause",
            metrics.errors.clone(),
        );
        registry.register(
            "watch_undecodable_objects",
            "Objects whose newest version cannot be decoded; their last good version stays in use",
            metrics.undecodable.clone(),
        );
        registry.register(
            "watch_relists",
            "Complete lists, including the first one of the process",
            metrics.relists.clone(),
        );
        metrics
    }

    /// Returns the metrics of one watch, and creates their series with the value zero.
    pub(crate) fn of_kind(&self, kind: Cow<'static, str>) -> KindMetrics {
        let labels = [("kind", kind.clone())];
        let events =
            |op: &'static str| self.events.get_or_create_owned(&[("kind", kind.clone()), ("op", op.into())]);
        KindMetrics {
            listed: events("list"),
            applied: events("apply"),
            deleted: events("delete"),
            undecodable: self.undecodable.get_or_create_owned(&labels),
            relists: self.relists.get_or_create_owned(&labels),
            errors: self.errors.clone(),
            kind,
        }
    }
}

/// Metrics of the watch of one kind of Kubernetes objects.
#[derive(Clone, Debug)]
pub(crate) struct KindMetrics {
    pub(crate) listed: Counter,
    pub(crate) applied: Counter,
    pub(crate) deleted: Counter,
    pub(crate) undecodable: Gauge,
    pub(crate) relists: Counter,
    errors: Family<Labels<2>, Counter>,
    kind: Cow<'static, str>,
}

impl KindMetrics {
    /// Creates the series of a possible error with the value zero. Without it, Prometheus' `rate()`
    /// would miss the first error.
    pub(crate) fn may_fail(&self, reason: &'static str) {
        drop(self.errors_for(reason));
    }

    /// Counts a failed list or watch under `reason`, one of a few fixed words.
    pub(crate) fn error(&self, reason: &'static str) {
        self.errors_for(reason).inc();
    }

    fn errors_for(&self, reason: &'static str) -> Counter {
        self.errors.get_or_create_owned(&[("kind", self.kind.clone()), ("reason", reason.into())])
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn watch_metrics_have_their_names_and_labels() {
        let mut registry = Registry::default();
        let metrics = WatchMetrics::register(&mut registry);
        let pods = metrics.of_kind("Pod".into());
        pods.listed.inc_by(3);
        pods.deleted.inc();
        pods.undecodable.set(2);
        pods.error("forbidden");
        pods.may_fail("cut");

        let text = text(&registry);
        for line in [
            r#"multinet_watch_events_total{kind="Pod",op="list"} 3"#,
            r#"multinet_watch_events_total{kind="Pod",op="apply"} 0"#,
            r#"multinet_watch_events_total{kind="Pod",op="delete"} 1"#,
            r#"multinet_watch_errors_total{kind="Pod",reason="forbidden"} 1"#,
            r#"multinet_watch_errors_total{kind="Pod",reason="cut"} 0"#,
            r#"multinet_watch_undecodable_objects{kind="Pod"} 2"#,
            r#"multinet_watch_relists_total{kind="Pod"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is missing in:\n{text}");
        }
    }

    #[test]
    fn build_and_process_metrics_are_registered() {
        let mut registry = Registry::default();
        register_process_metrics(&mut registry, "1.2.3");
        let text = text(&registry);
        assert!(text.contains(r#"multinet_build_info{version="1.2.3"} 1"#), "{text}");
        assert!(text.contains("\nprocess_start_time_seconds "), "{text}");
    }
}
