//! Which ways of moving frames there are, and how they are used: the same on both sides.

use std::time::Duration;

use multinet_memory::Forced;

#[cfg(doc)]
use crate::tls::Tls;

/// Which ways of moving frames may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// RDMA where both sides have it, else TCP; the log says once for each peer why. With [`Tls`], TCP: RDMA would not encrypt.
    #[default]
    Auto,
    /// RDMA only: where it cannot be used, there is no connection, and the error says why. With [`Tls`], the two sides know each other by their
    /// certificates, but frames are not encrypted.
    Rdma,
    /// TCP only.
    Tcp,
}

/// How RDMA is used, where it is. Every setting has a default that suits most.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use multinet_client::Rdma;
///
/// let rdma = Rdma::default().busy_poll(Duration::from_micros(50)).device("mlx5_2");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rdma {
    pub(crate) busy: Duration,
    pub(crate) device: Option<String>,
    pub(crate) row: Option<u32>,
    pub(crate) gpu_method: Option<Forced>,
}

impl Rdma {
    /// For so long after something has come, a thread looks again and again whether there is more, before it waits for the device to report: a shorter round
    /// trip, for a processor. Default: not at all.
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy = time;
        self
    }

    /// Uses no other device than this one. Default: the one whose GID stands for the local address.
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Uses no other row of its GID table than this one, which still has to stand for the local address. Default: whichever does; the numbers
    /// differ from pod to pod, so this is for trying things out.
    #[must_use]
    pub fn gid_row(mut self, row: u32) -> Self {
        self.row = Some(row);
        self
    }

    /// Has frames come to and from GPUs by this method and no other. Default: what the environment variable `MULTINET_GPU_METHOD` says, or
    /// the first one of dma-buf, peer memory and staging that is found to work. Until it is known, for the first seconds, frames are copied, and so is memory that cannot be
    /// registered by itself. If one that is forced does not work, a listener that wants payloads in a GPU has no RDMA,
    /// and connections that are to send from one fail, with the reason.
    #[must_use]
    pub fn gpu_method(mut self, forced: Forced) -> Self {
        self.gpu_method = Some(forced);
        self
    }
}
