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
/// # Ok(()) }
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
    pub(crate) gid_index: Option<u32>,
    pub(crate) gpu_method: Option<Forced>,
    pub(crate) stripes: u8,
    service_level: u8,
    traffic_class: u8,
}

impl Default for Rdma {
    fn default() -> Self {
        Self {
            busy: Duration::ZERO,
            device: None,
            gid_index: None,
            gpu_method: None,
            stripes: 1,
            service_level: 0,
            traffic_class: 0,
        }
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

    /// The highest [service level](Self::service_level): there are four bits for it.
    ///
    /// ```
    /// use multinet_client::Rdma;
    ///
    /// // There is no higher one.
    /// let rdma = Rdma::default().service_level(Rdma::MOST_SERVICE_LEVEL);
    /// assert_eq!(rdma, Rdma::default().service_level(u8::MAX));
    /// ```
    pub const MOST_SERVICE_LEVEL: u8 = 15;

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

    /// As what packets travel.
    #[cfg(feature = "rdma")]
    pub(crate) fn class(&self) -> multinet_verbs::Class {
        let Self { service_level, traffic_class, .. } = *self;
        multinet_verbs::Class { service_level, traffic_class }
    }

    /// Leaves only what may be used.
    pub(crate) fn retain(&self, ports: &mut Vec<Port>) {
        ports.retain(|port| self.device.as_ref().is_none_or(|device| port.device == *device));
        ports
            .iter_mut()
            .for_each(|port| port.gids.retain(|it| self.gid_index.is_none_or(|index| it.index == index)));
    }

    /// Uses no other device than this one. Default: the one whose GID stands for the local address.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Listener, Rdma};
    ///
    /// // Several devices have the address: soft-RoCE on top of a NIC that has RDMA itself.
    /// let listener = Listener::builder().rdma(Rdma::default().device("mlx5_2")).bind().await?;
    /// # Ok(()) }
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
    /// let connector = Connector::builder().rdma(Rdma::default().device("mlx5_2").gid_index(3)).build()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn gid_index(mut self, index: u32) -> Self {
        self.gid_index = Some(index);
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
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stripes(mut self, count: u8) -> Self {
        self.stripes = count.clamp(1, Self::MOST_STRIPES);
        self
    }

    /// Has packets travel as this traffic class, which under RoCE v2 is an octet of IP: DSCP in the upper six bits, and ECN. Switches that choose the
    /// lossless priority by DSCP, and adapters that do (`trust dscp`), put packets without in with all others. What programs by NCCL have in `NCCL_IB_TC`, and by
    /// UCX in `UCX_IB_TRAFFIC_CLASS`, belongs here. Each side says it for what it sends. Default: 0.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Rdma};
    ///
    /// // DSCP 26 is lossless in this network; the lower two bits say that both ends understand ECN.
    /// let connector = Connector::builder().rdma(Rdma::default().traffic_class(26 << 2 | 2)).build()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = class;
        self
    }

    /// Has packets travel at this service level of InfiniBand, 0 to 15, for which its subnet manager has a lane. Under RoCE, devices make the priority of a
    /// VLAN of it (PCP, its lower three bits), where switches choose the lossless one by that. As `NCCL_IB_SL` and `UCX_IB_SL`. Each side says it for what it
    /// sends. Default: 0.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Listener, Rdma};
    ///
    /// // Priority 3 of the VLAN is lossless.
    /// let listener = Listener::builder().rdma(Rdma::default().service_level(3)).bind().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn service_level(mut self, level: u8) -> Self {
        self.service_level = level.min(Self::MOST_SERVICE_LEVEL);
        self
    }

    /// Has frames come to and from GPUs by this method and no other. Default: what the environment variable `MULTINET_GPU_METHOD` says, or
    /// the first one of dma-buf, peer memory and staging that is found to work. Until it is known, for the first seconds, frames are copied, and so is memory that cannot be
    /// registered by itself. If one that is forced does not work, a listener that wants payloads in a GPU has no RDMA, with the reason; a frame that is to be
    /// sent from one is given up ([`Statistics::undeliverable`](crate::Statistics)), with the reason in the log, and its connection stays.
    /// It is tried again after ten seconds, and so is what would be better than copies, if it only had no room.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Forced, Method, Rdma};
    ///
    /// // To find out what dma-buf gains: the same again by copies.
    /// let rdma = Rdma::default().gpu_method(Forced::To(Method::Staging));
    /// let connector = Connector::builder().rdma(rdma).build()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn gpu_method(mut self, forced: Forced) -> Self {
        self.gpu_method = Some(forced);
        self
    }
}

#[cfg(all(test, feature = "rdma"))]
mod tests {
    use super::*;

    #[test]
    fn packets_travel_as_is_said() {
        let class = |rdma: Rdma| (rdma.class().service_level, rdma.class().traffic_class);
        assert_eq!(class(Rdma::default()), (0, 0));
        assert_eq!(class(Rdma::default().service_level(3).traffic_class(106)), (3, 106));
        assert_eq!(class(Rdma::default().service_level(16).traffic_class(u8::MAX)), (15, 255));
    }
}
