//! Counters of transfers and of signature errors.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::secondary::tsig::TsigError;

/// Family of counters, by the value of its one label.
type CounterFamily = Family<[(&'static str, &'static str); 1], Counter>;

/// Outcomes of queries for a zone transfer: the values of the label `kind`.
const TRANSFER_KINDS: [&str; 5] = ["axfr", "ixfr", "current", "busy", "refused"];

/// Errors of signatures that are counted. `None` stands for a malformed TSIG record.
const TSIG_ERRORS: [Option<TsigError>; 5] = [
    None,
    Some(TsigError::BadKey),
    Some(TsigError::BadSig),
    Some(TsigError::BadTime),
    Some(TsigError::BadTrunc),
];

/// Counters of zone transfers by outcome, and of invalid signatures by error.
#[derive(Debug, Clone)]
pub struct TransferMetrics {
    transfers: CounterFamily,
    tsig_errors: CounterFamily,
}

impl Default for TransferMetrics {
    fn default() -> Self {
        let (transfers, tsig_errors) = (CounterFamily::default(), CounterFamily::default());
        // Create every counter now, so that those without events are exported as 0.
        for kind in TRANSFER_KINDS {
            drop(transfers.get_or_create(&[("kind", kind)]));
        }
        for error in TSIG_ERRORS {
            drop(tsig_errors.get_or_create(&[("error", name(error))]));
        }
        Self { transfers, tsig_errors }
    }
}

impl TransferMetrics {
    /// Counts a query for a zone transfer by its outcome, one of [`TRANSFER_KINDS`].
    pub(super) fn count_transfer(&self, kind: &'static str) {
        self.transfers.get_or_create(&[("kind", kind)]).inc();
    }

    /// Counts a query with an invalid signature. `None` stands for a malformed TSIG record.
    pub fn count_tsig_error(&self, error: Option<TsigError>) {
        self.tsig_errors.get_or_create(&[("error", name(error))]).inc();
    }

    /// Registers the counters for `/metrics`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("transfers", "Requests for zone transfers, by outcome", self.transfers.clone());
        registry.register("tsig_errors", "Signed queries that were rejected", self.tsig_errors.clone());
    }
}

fn name(error: Option<TsigError>) -> &'static str {
    error.map_or("FORMERR", Into::into)
}
