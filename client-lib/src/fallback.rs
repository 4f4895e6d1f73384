//! Reasons why frames go by TCP although RDMA was possible.

use std::time::Duration;

use crate::blocking::run_blocking;
use crate::rdma::Unusable;

/// Reason why [`Transport::Auto`](crate::Transport::Auto) means TCP when TLS is set.
pub(crate) const NO_ENCRYPTION: &str = "TLS is set, and what goes by RDMA is not encrypted: ask for Transport::Rdma on both sides to have it all the same";

/// Why there is no RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoRdma {
    /// In words, with what to do.
    pub(crate) reason: String,
    /// Whether it will be so the next time, too, as far as can be told.
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

/// Sets something up with an RDMA device, which may block, and waits for it for at most `patience`.
pub(crate) async fn try_rdma<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> Result<T, Unusable> + Send + 'static,
) -> Result<T, NoRdma> {
    Ok(run_blocking(patience, work).await??)
}
