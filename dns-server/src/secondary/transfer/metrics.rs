//! What is counted of transfers and of signatures.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::secondary::tsig::TsigError;

/// Counters by the value of one label.
type CounterFamily = Family<[(&'static str, &'static str); 1], Counter>;

/// What becomes of a request for a transfer.
const TRANSFER_KINDS: [&str; 5] = ["axfr", "ixfr", "current", "busy", "refused"];

/// What may be wrong with a signature.
const TSIG_ERRORS: [Option<TsigError>; 5] = [
    None,
    Some(TsigError::BadKey),
    Some(TsigError::BadSig),
    Some(TsigError::BadTime),
    Some(TsigError::BadTrunc),
];

/// All of them.
#[derive(Debug, Clone)]
pub struct TransferMetrics {
    transfers: CounterFamily,
    tsig_errors: CounterFamily,
}

impl Default for TransferMetrics {
    fn default() -> Self {
        let (transfers, tsig_errors) = (CounterFamily::default(), CounterFamily::default());
        // What has not happened yet is zero, not unknown.
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
    /// Counts a transfer, by one of [`TRANSFER_KINDS`].
    pub(super) fn count_transfer(&self, kind: &'static str) {
        self.transfers.get_or_create(&[("kind", kind)]).inc();
    }

    /// Counts a signature that is no good; without a code it is no signature at all.
    pub fn count_tsig_error(&self, error: Option<TsigError>) {
        self.tsig_errors.get_or_create(&[("error", name(error))]).inc();
    }

    /// Registers all.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "transfers",
            "Zone transfers asked for, by what became of them",
            self.transfers.clone(),
        );
        registry.register("tsig_errors", "Signed queries that were not accepted", self.tsig_errors.clone());
    }
}

fn name(error: Option<TsigError>) -> &'static str {
    error.map_or("FORMERR", TsigError::name)
}
