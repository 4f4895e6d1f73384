//! What is counted of notifications, for each secondary.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

type BySecondary = Family<[(&'static str, String); 1], Counter>;

/// The counters of all secondaries.
#[derive(Debug, Clone, Default)]
pub struct NotifierMetrics {
    sent: BySecondary,
    acknowledged: BySecondary,
    failed: BySecondary,
}

/// Those of one.
#[derive(Debug, Clone)]
pub(super) struct Counters {
    /// NOTIFY messages sent, repeated ones too.
    pub(super) sent: Counter,
    /// Those that were accepted.
    pub(super) acknowledged: Counter,
    /// Those without answer, or refused.
    pub(super) failed: Counter,
}

impl NotifierMetrics {
    /// The counters of one secondary.
    pub(super) fn of(&self, secondary: &str) -> Counters {
        let of = |by: &BySecondary| by.get_or_create_owned(&[("secondary", secondary.to_owned())]);
        Counters { sent: of(&self.sent), acknowledged: of(&self.acknowledged), failed: of(&self.failed) }
    }

    /// Registers all.
    pub fn register(&self, registry: &mut Registry) {
        for (name, help, metric) in [
            ("notifies_sent", "NOTIFY messages sent", &self.sent),
            ("notifies_acknowledged", "NOTIFY messages that the secondary accepted", &self.acknowledged),
            ("notifies_failed", "NOTIFY messages without answer, or refused", &self.failed),
        ] {
            registry.register(name, help, metric.clone());
        }
    }
}
