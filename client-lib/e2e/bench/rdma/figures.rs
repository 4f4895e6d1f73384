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

/// One size by so many queue pairs: messages a second in each round.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Bandwidths {
    pub(crate) size: u32,
    pub(crate) pairs: u16,
    /// `multinet bench`.
    pub(crate) frames: Vec<Option<f64>>,
    pub(crate) perftest: Vec<Option<f64>>,
    pub(crate) ucx: Vec<Option<f64>>,
}

/// The latency of one size in each round: the median, in microseconds, of one way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Latencies {
    pub(crate) size: u32,
    pub(crate) frames: Vec<Option<f64>>,
    /// With `--busy-poll`.
    pub(crate) busy: Vec<Option<f64>>,
    pub(crate) perftest: Vec<Option<f64>>,
}
