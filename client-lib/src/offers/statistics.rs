//! Counts of payloads on offer and their fetches.

use super::ledger::Counts;

/// Counts of [`Offers`](super::Offers) so far, and of what is there now.
///
/// # Examples
///
/// ```no_run
/// # fn example(offers: &multinet_client::Offers) {
/// let now = offers.statistics();
/// println!("{} of {} bytes are on offer; {} payloads wait", now.bytes, now.budget, now.waiting);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffersStatistics {
    /// Payloads that are on offer.
    pub offers: usize,
    /// Bytes of payloads that are on offer, and of those whose offer has ended while they are
    /// fetched.
    pub bytes: usize,
    /// Most `bytes` at a time.
    pub budget: usize,
    /// Payloads that wait for room in the budget.
    pub waiting: usize,
    /// Payloads that have been put on offer. A payload whose id was on offer already, or was taken
    /// lately, does not count.
    pub offered: u64,
    /// Payloads that a fetcher has acknowledged in time.
    pub taken: u64,
    /// Payloads whose deadline has come.
    pub expired: u64,
    /// Payloads that were withdrawn.
    pub withdrawn: u64,
    /// Payloads that fetchers have now and have neither acknowledged nor dropped. Several may have
    /// the same one.
    pub fetches: usize,
    /// Fetches of ids that were not on offer.
    pub unknown: u64,
    /// Connections from fetchers that exist now.
    pub fetchers: usize,
    /// Connections that were not let in, for any reason.
    pub refused: u64,
}

impl OffersStatistics {
    pub(super) fn new(counts: Counts, budget: usize, fetchers: usize, refused: u64) -> Self {
        let Counts { offers, bytes, waiting, fetches, offered, taken, expired, withdrawn, unknown } = counts;
        Self {
            offers,
            bytes,
            budget,
            waiting,
            offered,
            taken,
            expired,
            withdrawn,
            fetches,
            unknown,
            fetchers,
            refused,
        }
    }
}
