//! Reasons for falling back from RDMA to TCP.

use std::time::Duration;

use crate::blocking::run_blocking;
use crate::rdma::Unusable;

/// Reason for TCP where TLS is set and [`Transport::Auto`](crate::Transport::Auto) chosen.
pub(crate) const NO_ENCRYPTION: &str =
    "TLS is set, but RDMA does not encrypt frames: to use it nevertheless, set Transport::Rdma on both sides";

/// Reason why frames of a connection do not go by RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoRdma {
    /// Reason in words, with what to do about it.
    pub(crate) reason: String,
    /// Whether further attempts to use RDMA are expected to fail for the same reason.
    pub(crate) is_lasting: bool,
}

impl From<String> for NoRdma {
    fn from(reason: String) -> Self {
        Self { reason, is_lasting: false }
    }
}

impl From<Unusable> for NoRdma {
    fn from(error: Unusable) -> Self {
        Self { reason: error.reason(), is_lasting: error.is_lasting() }
    }
}

/// Sets up something with an RDMA device, and waits for at most `patience`. The device's driver may
/// block.
pub(crate) async fn try_rdma<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> Result<T, Unusable> + Send + 'static,
) -> Result<T, NoRdma> {
    Ok(run_blocking(patience, work).await??)
}
