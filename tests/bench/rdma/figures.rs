//! What comes out of the guest.

use serde::{Deserialize, Serialize};

/// All that has been measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) bandwidths: Vec<Bandwidths>,
    pub(crate) latencies: Vec<Latencies>,
    /// What others' programs did not get done, a line each.
    pub(crate) failures: Vec<String>,
}

/// One size by so many queue pairs, with the figures of each round.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Bandwidths {
    pub(crate) size: u32,
    pub(crate) pairs: u16,
    pub(crate) multinet: Vec<Option<Run>>,
    pub(crate) perftest: Vec<Option<Run>>,
    pub(crate) ucx: Vec<Option<Run>>,
}

/// What one program got done.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Messages a second.
    pub(crate) rate: f64,
    /// What the guest used for each message, in microseconds.
    pub(crate) cpu: f64,
}

/// The latency of one size in each round: the median, in microseconds, of one way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Latencies {
    pub(crate) size: u32,
    pub(crate) multinet: Vec<Option<f64>>,
    /// With `--busy-poll`.
    pub(crate) busy: Vec<Option<f64>>,
    pub(crate) perftest: Vec<Option<f64>>,
}
