//! Counters of notifications for each secondary.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

type BySecondary = Family<[(&'static str, String); 1], Counter>;

/// Counters of NOTIFY messages, by secondary.
#[derive(Debug, Clone, Default)]
pub(crate) struct NotifierMetrics {
    sent: BySecondary,
    acknowledged: BySecondary,
    failed: BySecondary,
}

/// Counters of the NOTIFY messages to one secondary.
#[derive(Debug, Clone)]
pub(super) struct Counters {
    /// NOTIFY messages that were sent, including repeated ones.
    pub(super) sent: Counter,
    /// NOTIFY messages that the secondary accepted.
    pub(super) acknowledged: Counter,
    /// NOTIFY messages that the secondary rejected or did not answer.
    pub(super) failed: Counter,
}

impl NotifierMetrics {
    /// Returns the counters of the secondary at the address `secondary`.
    pub(super) fn of(&self, secondary: &str) -> Counters {
        let of = |by: &BySecondary| by.get_or_create_owned(&[("secondary", secondary.to_owned())]);
        Counters { sent: of(&self.sent), acknowledged: of(&self.acknowledged), failed: of(&self.failed) }
    }

    /// Registers the counters of all secondaries for `/metrics`.
    pub(crate) fn register(&self, registry: &mut Registry) {
        for (name, help, metric) in [
            ("notifies_sent", "NOTIFY messages sent", &self.sent),
            ("notifies_acknowledged", "NOTIFY messages that the secondary accepted", &self.acknowledged),
            (
                "notifies_failed",
                "NOTIFY messages that the secondary rejected or did not answer",
                &self.failed,
            ),
        ] {
            registry.register(name, help, metric.clone());
        }
    }
}
