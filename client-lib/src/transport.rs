//! Transports of frames, and settings for RDMA, which are the same on both sides.

use std::time::Duration;

use multinet_memory::Forced;

use crate::gid::Port;
#[cfg(doc)]
use crate::tls::Tls;

/// Transports that may be used.
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
    /// RDMA where both sides have it, else TCP. The log says once for each peer why it is TCP. With
    /// [`Tls`], always TCP, because RDMA would not encrypt.
    #[default]
    Auto,
    /// RDMA only. Where it cannot be used, connecting fails with the reason. With [`Tls`], the two
    /// sides authenticate each other, but frames are not encrypted.
    Rdma,
    /// TCP only, with or without [`Tls`].
    Tcp,
}

/// Settings for RDMA. Every setting has a default that suits most.
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
    /// The most [stripes](Self::stripes), and so the most queue pairs of one connection.
    ///
    /// ```
    /// use multinet_client::Rdma;
    ///
    /// // The maximum.
    /// let rdma = Rdma::default().stripes(Rdma::MOST_STRIPES);
    /// assert_eq!(rdma, Rdma::default().stripes(u8::MAX));
    /// ```
    pub const MOST_STRIPES: u8 = 8;

    /// The highest [service level](Self::service_level): it has four bits.
    ///
    /// ```
    /// use multinet_client::Rdma;
    ///
    /// // Higher values are capped.
    /// let rdma = Rdma::default().service_level(Rdma::MOST_SERVICE_LEVEL);
    /// assert_eq!(rdma, Rdma::default().service_level(u8::MAX));
    /// ```
    pub const MOST_SERVICE_LEVEL: u8 = 15;

    /// Sets how long a thread polls for more after something has arrived, before it waits for the
    /// device's event. This shortens round trips, and costs processor time. Default: not at all.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use multinet_client::Rdma;
    ///
    /// // The next request usually follows an answer within 50 µs.
    /// let rdma = Rdma::default().busy_poll(Duration::from_micros(50));
    /// assert_ne!(rdma, Rdma::default());
    /// ```
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy = time;
        self
    }

    /// Returns the service level and traffic class of RDMA packets.
    #[cfg(feature = "rdma")]
    pub(crate) fn class(&self) -> multinet_verbs::Class {
        let Self { service_level, traffic_class, .. } = *self;
        multinet_verbs::Class { service_level, traffic_class }
    }

    /// Removes the ports of other devices and the GIDs of other indices than these settings name.
    pub(crate) fn retain(&self, ports: &mut Vec<Port>) {
        ports.retain(|port| self.device.as_ref().is_none_or(|device| port.device == *device));
        ports
            .iter_mut()
            .for_each(|port| port.gids.retain(|it| self.gid_index.is_none_or(|index| it.index == index)));
    }

    /// Uses only this device. Default: the one that has a GID of the local address.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Listener, Rdma};
    ///
    /// // Several devices have the address: soft-RoCE on a NIC that has RDMA itself.
    /// let listener = Listener::builder().rdma(Rdma::default().device("mlx5_2")).bind().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Uses only this index of the device's GID table. It still has to hold the local address.
    /// Default: any index that does. The numbers differ from pod to pod, so this is for
    /// experiments.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Rdma};
    ///
    /// // To see whether the index matters, as with `ib_write_bw -x 3`.
    /// let rdma = Rdma::default().device("mlx5_2").gid_index(3);
    /// let connector = Connector::builder().rdma(rdma).build()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn gid_index(mut self, index: u32) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// Cuts each frame of 256 KiB or more into this many stripes, 1 to 8, each of which goes by a
    /// queue pair of its own.
    ///
    /// Switches that choose a path for each connection (ECMP) then send one frame over several
    /// paths. The receiver handles one completion for each stripe. The sender sets the number. A
    /// receiver of another version may support fewer. Default: 1.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Rdma};
    ///
    /// // Four paths lead through the spine, and a frame of 8 MiB should use them all.
    /// let connector = Connector::builder().rdma(Rdma::default().stripes(4)).build()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stripes(mut self, count: u8) -> Self {
        self.stripes = count.clamp(1, Self::MOST_STRIPES);
        self
    }

    /// Sets the traffic class of the packets that this side sends. For RoCE v2 it is a byte of the
    /// IP header: DSCP in the upper six bits, then ECN.
    ///
    /// Switches that select the lossless priority by DSCP, and adapters that do (`trust dscp`),
    /// treat packets without it as ordinary traffic. The value is the same as `NCCL_IB_TC` for NCCL
    /// and `UCX_IB_TRAFFIC_CLASS` for UCX. Default: 0.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Rdma};
    ///
    /// // DSCP 26 is lossless in this network. The lower two bits announce ECN.
    /// let rdma = Rdma::default().traffic_class(26 << 2 | 2);
    /// let connector = Connector::builder().rdma(rdma).build()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = class;
        self
    }

    /// Sets the InfiniBand service level of the packets that this side sends, 0 to 15. The subnet
    /// manager maps it to a virtual lane.
    ///
    /// For RoCE, devices derive the priority of the VLAN (PCP) from its lower three bits. Set it
    /// where switches select the lossless priority by that. The value is the same as `NCCL_IB_SL`
    /// and `UCX_IB_SL`. Default: 0.
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

    /// Moves frames to and from GPUs only by this method. Default: the environment variable
    /// `MULTINET_GPU_METHOD`, or the first of dma-buf, peer memory and staging that is found to
    /// work.
    ///
    /// Until that is known, in the first seconds, frames are copied. So is memory that cannot be
    /// registered. If a forced method does not work, a listener that wants payloads in a GPU has no
    /// RDMA, and says why. A frame that is sent from a GPU is then given up
    /// ([`Statistics::undeliverable`](crate::Statistics)) with the reason in the log, and its
    /// connection stays. A method that failed, or only lacked room, is tried again after ten
    /// seconds.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Forced, Method, Rdma};
    ///
    /// // To find out what dma-buf gains: the same by copies.
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
    fn the_class_has_the_set_values_within_bounds() {
        let class = |rdma: Rdma| (rdma.class().service_level, rdma.class().traffic_class);
        assert_eq!(class(Rdma::default()), (0, 0));
        assert_eq!(class(Rdma::default().service_level(3).traffic_class(106)), (3, 106));
        assert_eq!(class(Rdma::default().service_level(16).traffic_class(u8::MAX)), (15, 255));
    }
}
