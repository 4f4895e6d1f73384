//! Which ways of moving frames there are, and how they are used: the same on both sides.

use std::time::Duration;

use multinet_memory::Forced;

use crate::gid::Port;
#[cfg(doc)]
use crate::tls::Tls;

/// Which ways of moving frames may be used.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Listener, Transport};
///
/// // RDMA needs locked memory, of which this pod may have little.
/// let listener = Listener::builder().transport(Transport::Tcp).bind().await?;
/// # Ok(())
/// # }
/// ```
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rdma {
    pub(crate) busy: Duration,
    pub(crate) device: Option<String>,
    pub(crate) row: Option<u32>,
    pub(crate) gpu_method: Option<Forced>,
    pub(crate) stripes: u8,
}

impl Default for Rdma {
    fn default() -> Self {
        Self { busy: Duration::ZERO, device: None, row: None, gpu_method: None, stripes: 1 }
    }
}

impl Rdma {
    /// The most parts that a frame is [cut into](Self::stripes), which is the most queue pairs of one connection.
    ///
    /// ```
    /// use multinet_client::Rdma;
    ///
    /// // As many as there may be.
    /// let rdma = Rdma::default().stripes(Rdma::MOST_STRIPES);
    /// assert_eq!(rdma, Rdma::default().stripes(u8::MAX));
    /// ```
    pub const MOST_STRIPES: u8 = 8;

    /// For so long after something has come, a thread looks again and again whether there is more, before it waits for the device to report: a shorter round
    /// trip, for a processor. Default: not at all.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use multinet_client::Rdma;
    ///
    /// // The next request follows an answer within 50 µs, as a rule.
    /// let rdma = Rdma::default().busy_poll(Duration::from_micros(50));
    /// assert_ne!(rdma, Rdma::default());
    /// ```
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy = time;
        self
    }

    /// Leaves only what may be used.
    pub(crate) fn retain(&self, ports: &mut Vec<Port>) {
        ports.retain(|port| self.device.as_ref().is_none_or(|device| port.device == *device));
        ports.iter_mut().for_each(|port| port.rows.retain(|it| self.row.is_none_or(|row| it.index == row)));
    }

    /// Uses no other device than this one. Default: the one whose GID stands for the local address.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Listener, Rdma};
    ///
    /// // Several devices have the address: soft-RoCE on top of a NIC that has RDMA itself.
    /// let listener = Listener::builder().rdma(Rdma::default().device("mlx5_2")).bind().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Uses no other row of its GID table than this one, which still has to stand for the local address. Default: whichever does; the numbers
    /// differ from pod to pod, so this is for trying things out.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Rdma};
    ///
    /// // To see whether the row matters, as with `ib_write_bw -x 3`.
    /// let connector = Connector::builder().rdma(Rdma::default().device("mlx5_2").gid_row(3)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn gid_row(mut self, row: u32) -> Self {
        self.row = Some(row);
        self
    }

    /// Cuts each frame of 256 KiB or more into so many parts, 1 to 8, that go by queue pairs of their own: switches that choose a way by the connection (ECMP) then
    /// send one frame by several ways. It costs the receiver a notice for each part. Senders say how many; a receiver of another version may have fewer. Default: 1.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Rdma};
    ///
    /// // Four ways lead through the spine, and a frame of 8 MiB should use them all.
    /// let connector = Connector::builder().rdma(Rdma::default().stripes(4)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stripes(mut self, count: u8) -> Self {
        self.stripes = count.clamp(1, Self::MOST_STRIPES);
        self
    }

    /// Has frames come to and from GPUs by this method and no other. Default: what the environment variable `MULTINET_GPU_METHOD` says, or
    /// the first one of dma-buf, peer memory and staging that is found to work. Until it is known, for the first seconds, frames are copied, and so is memory that cannot be
    /// registered by itself. If one that is forced does not work, a listener that wants payloads in a GPU has no RDMA, with the reason; a frame that is to be
    /// sent from one is given up ([`Statistics::undeliverable`](crate::Statistics)), with the reason in the log, and its connection stays.
    /// It is tried again after ten seconds.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Forced, Method, Rdma};
    ///
    /// // To find out what dma-buf gains: the same again by copies.
    /// let rdma = Rdma::default().gpu_method(Forced::To(Method::Staging));
    /// let connector = Connector::builder().rdma(rdma).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn gpu_method(mut self, forced: Forced) -> Self {
        self.gpu_method = Some(forced);
        self
    }
}
