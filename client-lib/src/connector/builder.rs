//! Settings of a connector.

use std::sync::Arc;
use std::time::Duration;

use multinet_memory::Gpu;

use super::Connector;
use crate::choose::Choice;
use crate::handshake::{Delivery, MAX_CONNECTIONS_PER_PEER};
use crate::identity::Identity;
#[cfg(doc)]
use crate::peers::PeerSet;
use crate::rdma::RdmaDevices;
use crate::resolve::{ResolveError, Resolver};
use crate::tls::Tls;
use crate::transport::{Rdma, Transport};
use crate::wire::WINDOW;

/// Builder of a [`Connector`]. The default of each setting suits most programs.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Choice, Connector, Delivery};
///
/// let connector = Connector::builder()
///     .delivery(Delivery::AtLeastOnce) // losing a result costs more than receiving it twice
///     .choice(Choice::Nearest)
///     .build()?;
/// let results = connector.connect("results.vision.svc.multinet", "rdma").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is connected before build()"]
pub struct ConnectorBuilder {
    pub(super) resolver: Option<Resolver>,
    pub(super) transport: Transport,
    pub(super) delivery: Delivery,
    pub(super) choice: Choice,
    pub(super) identity: Identity,
    pub(super) own_port: Option<u16>,
    pub(super) network: Option<String>,
    pub(super) allow_default_network: bool,
    pub(super) tls: Option<Tls>,
    pub(super) connections: u16,
    pub(super) replay: usize,
    pub(super) patience: Duration,
    pub(super) silence: Duration,
    pub(super) wait: Duration,
    pub(super) rdma: Rdma,
    pub(super) gpu: Option<Arc<dyn Gpu>>,
    pub(super) node: Option<String>,
    pub(super) zone: Option<String>,
    pub(super) fetch_frame_size: u32,
    pub(super) fetch_slots: u32,
    pub(super) fetch_memory: Option<usize>,
    pub(super) fetch_gpu: Option<Arc<dyn Gpu>>,
    pub(super) fetch_wait: Duration,
}

impl ConnectorBuilder {
    /// Resolves names by this resolver, instead of one with the settings of `/etc/resolv.conf`.
    ///
    /// ```
    /// use multinet_client::{Connector, Resolver};
    ///
    /// // On a node, whose own DNS does not know the cluster's names.
    /// let resolver = Resolver::builder().servers(["10.96.0.10:53".parse()?]);
    /// let resolver = resolver.search(["cluster.local"]).build()?;
    /// let connector = Connector::builder().resolver(resolver).build()?;
    /// assert_eq!(connector.resolver().search(), ["cluster.local"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = Some(resolver);
        self
    }

    /// Sets the transports that may be used. Default: [`Transport::Auto`].
    ///
    /// With RDMA, each connection locks memory to copy frames to: twice the size of the receiver's
    /// slots, and at least 1 MiB.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Transport};
    ///
    /// // TCP would be so slow that an error is better.
    /// let connector = Connector::builder().transport(Transport::Rdma).build()?;
    /// # Ok(()) }
    /// ```
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Sets the delivery guarantee. Default: [`Delivery::AtMostOnce`].
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Delivery};
    ///
    /// // Frames that a pod has not acknowledged when it is replaced go to another pod.
    /// let connector = Connector::builder().delivery(Delivery::AtLeastOnce).build()?;
    /// # Ok(()) }
    /// ```
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Sets how a peer is chosen for each frame. Default: [`Choice::RoundRobin`].
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Choice, Connector};
    ///
    /// // Some frames take longer than others: the first idle peer gets the next one.
    /// let connector = Connector::builder().choice(Choice::LeastOutstanding).build()?;
    /// # Ok(()) }
    /// ```
    pub fn choice(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Sets the identity of this process. Default: [`Identity::from_env`].
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Identity};
    ///
    /// // Outside a pod, the host's name tells little.
    /// let identity = Identity::new("import of 2026-11-21");
    /// let connector = Connector::builder().identity(identity).build()?;
    /// # Ok(()) }
    /// ```
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Sets the port on which this process listens as an endpoint of the same service. The process
    /// is then left out of its own peers even if DNS does not tell its uid.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Listener};
    ///
    /// // Each pod of the service sends to all others.
    /// let listener = Listener::builder().port(18515).bind().await?;
    /// let connector = Connector::builder().own_port(18515).build()?;
    /// let others = connector.start("infer.vision.svc.multinet", "rdma");
    /// # Ok(()) }
    /// ```
    pub fn own_port(mut self, port: u16) -> Self {
        self.own_port = Some(port);
        self
    }

    /// Uses only addresses on the network with this alias. Default: any.
    ///
    /// Of a peer on several networks, those with an RDMA device come first, if RDMA may be used,
    /// and of these those near to the [GPU](Self::gpu). Several
    /// [connections](Self::connections_per_peer) are spread over equally good networks.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Connector;
    ///
    /// // Control messages use one rail, so that frames have the other one to themselves.
    /// let control = Connector::builder().network("rail0").build()?;
    /// let frames = Connector::builder().network("rail1").build()?;
    /// # Ok(()) }
    /// ```
    pub fn network(mut self, alias: impl Into<String>) -> Self {
        self.network = Some(alias.into());
        self
    }

    /// Sets whether frames may leave by the default network. Default: no.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Connector;
    ///
    /// // In a test cluster, pods have one network.
    /// let connector = Connector::builder().allow_default_network(true).build()?;
    /// # Ok(()) }
    /// ```
    pub fn allow_default_network(mut self, is_allowed: bool) -> Self {
        self.allow_default_network = is_allowed;
        self
    }

    /// Uses mutual TLS with all peers.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Tls};
    ///
    /// // The listener's certificate must be that of the service.
    /// let file = |name| format!("/var/run/tls/{name}");
    /// let tls = Tls::from_files(file("tls.crt"), file("tls.key"), file("ca.crt"))?;
    /// let connector = Connector::builder().tls(tls).build()?;
    /// # Ok(()) }
    /// ```
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the number of connections to each peer, from 1 to 64. They are spread over the peer's
    /// [equally good](Self::network) networks. Default: 1.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Connector;
    ///
    /// // By TCP, one connection may not fill the NIC. Frames of one key still come in order.
    /// let connector = Connector::builder().connections_per_peer(4).build()?;
    /// # Ok(()) }
    /// ```
    pub fn connections_per_peer(mut self, count: u16) -> Self {
        self.connections = count.clamp(1, MAX_CONNECTIONS_PER_PEER);
        self
    }

    /// Sets how many frames may wait for their acknowledgement, under [`Delivery::AtLeastOnce`],
    /// before [`PeerSet::send`] waits; from 1 to 65,535. These frames stay in memory. Default:
    /// 1024.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Delivery};
    ///
    /// // Frames of 4 MiB: at most 256 MiB of them are kept.
    /// let connector = Connector::builder().delivery(Delivery::AtLeastOnce).replay(64).build()?;
    /// # Ok(()) }
    /// ```
    pub fn replay(mut self, frames: usize) -> Self {
        self.replay = frames.clamp(1, WINDOW as usize - 1);
        self
    }

    /// Sets the time limit for each of: connecting, the handshake, and setting up RDMA. Default: 5
    /// s.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::Connector;
    ///
    /// // Pods on busy nodes take long to answer.
    /// let connector = Connector::builder().patience(Duration::from_secs(20)).build()?;
    /// # Ok(()) }
    /// ```
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets after how long a silence of its host a peer counts as gone. Default: 10 s; at least 4
    /// s.
    ///
    /// With TCP, a peer that has read nothing for so long, while frames wait for it, counts as
    /// gone, too: the kernel does not tell the two cases apart. A receiver whose runtime has a
    /// single thread must therefore compute elsewhere (`tokio::task::spawn_blocking`, or a runtime
    /// of several threads), or this time must be longer than it computes.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::Connector;
    ///
    /// // A node that loses its power is noticed after 4 s.
    /// let connector = Connector::builder().silence(Duration::from_secs(4)).build()?;
    /// # Ok(()) }
    /// ```
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence.max(Duration::from_secs(4));
        self
    }

    /// Sets how long [`Connector::connect`] waits for the first peer. Default: 30 s.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::Connector;
    ///
    /// // The service's pods load models for minutes before they are ready.
    /// let connector = Connector::builder().wait(Duration::from_secs(600)).build()?;
    /// # Ok(()) }
    /// ```
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets the options of RDMA.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::{Connector, Rdma};
    ///
    /// // Answers come within microseconds, and a processor may be spent on them.
    /// let rdma = Rdma::default().busy_poll(Duration::from_micros(100));
    /// let connector = Connector::builder().rdma(rdma).build()?;
    /// # Ok(()) }
    /// ```
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.rdma = rdma;
        self
    }

    /// Sets the GPU that most frames lie in. Of a peer's networks that are equally good otherwise,
    /// the one is used whose NIC on this machine is nearest to the GPU on the PCI bus. Several
    /// [connections](Self::connections_per_peer) are spread over the nearest. Default: none.
    ///
    /// ```no_run
    /// # fn example(
    /// #     gpu: std::sync::Arc<dyn multinet_client::Gpu>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Connector;
    ///
    /// // With the feature cuda, `gpu` may be Cuda::device(0)?.
    /// let connector = Connector::builder().gpu(gpu).build()?;
    /// # Ok(()) }
    /// ```
    pub fn gpu(mut self, gpu: Arc<dyn Gpu>) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// Sets the name and the zone of the Node that this process runs on. [`Choice::Nearest`] needs
    /// both. With the name, TCP to a peer on the same Node is twice as fast. Default: the
    /// environment variables `MULTINET_NODE_NAME` and `MULTINET_ZONE_NAME`.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Choice, Connector};
    ///
    /// // Outside a pod, where no variable is set.
    /// let (node, zone) = ("gpu-1".to_owned(), "a".to_owned());
    /// let builder = Connector::builder().choice(Choice::Nearest);
    /// let connector = builder.place(Some(node), Some(zone)).build()?;
    /// # Ok(()) }
    /// ```
    pub fn place(mut self, node: Option<String>, zone: Option<String>) -> Self {
        (self.node, self.zone) = (node, zone);
        self
    }

    /// Sets the largest payload that is fetched, in bytes. Default: 8 MiB. Each pod that payloads
    /// are fetched from gets slots of this size.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let builder = multinet_client::Connector::builder();
    /// let builder = builder.fetch_frame_size(64 << 20).fetch_slots(4);
    /// # Ok(()) }
    /// ```
    pub fn fetch_frame_size(mut self, bytes: u32) -> Self {
        self.fetch_frame_size = bytes;
        self
    }

    /// Sets the number of payloads of one pod that may be under way, or be held by the program.
    /// Default: 16.
    ///
    /// ```
    /// # let builder = multinet_client::Connector::builder();
    /// // One after the other.
    /// let builder = builder.fetch_slots(1);
    /// ```
    pub fn fetch_slots(mut self, count: u32) -> Self {
        self.fetch_slots = count;
        self
    }

    /// Sets the memory for fetched payloads of all pods, in bytes. Default: a quarter of the memory
    /// limit of this process, and at most 4 GiB.
    ///
    /// ```
    /// # let builder = multinet_client::Connector::builder();
    /// let builder = builder.fetch_memory(1 << 30);
    /// ```
    pub fn fetch_memory(mut self, bytes: usize) -> Self {
        self.fetch_memory = Some(bytes);
        self
    }

    /// Sets the GPU that fetched payloads go to.
    ///
    /// ```no_run
    /// # fn example(gpu: std::sync::Arc<dyn multinet_client::Gpu>) {
    /// # let builder = multinet_client::Connector::builder();
    /// let builder = builder.fetch_gpu(gpu);
    /// # }
    /// ```
    pub fn fetch_gpu(mut self, gpu: Arc<dyn Gpu>) -> Self {
        self.fetch_gpu = Some(gpu);
        self
    }

    /// Sets the limit on the time for which a fetch looks for a payload, or waits for its next
    /// bytes. Default: 150 s, which is longer than it takes Numaflow to deliver a message of a dead
    /// pod again.
    ///
    /// ```
    /// # let builder = multinet_client::Connector::builder();
    /// use std::time::Duration;
    ///
    /// let builder = builder.fetch_wait(Duration::from_secs(10));
    /// ```
    pub fn fetch_wait(mut self, wait: Duration) -> Self {
        self.fetch_wait = wait;
        self
    }

    /// Builds the connector. Sends no query, and opens no connection.
    ///
    /// ```no_run
    /// # fn example(server: std::net::SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Resolver};
    ///
    /// // Without an /etc/resolv.conf, the server must be named.
    /// let connector = Connector::builder().build().or_else(|_| {
    ///     let resolver = Resolver::builder().servers([server]).build()?;
    ///     Connector::builder().resolver(resolver).build()
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ResolveError`], if `/etc/resolv.conf` is needed and cannot be used.
    pub fn build(self) -> Result<Connector, ResolveError> {
        let resolver = match &self.resolver {
            Some(resolver) => resolver.clone(),
            None => Resolver::builder().build()?,
        };
        let rdma_devices = Arc::new(RdmaDevices::new(self.rdma.clone()));
        Ok(Connector { config: Arc::new(self), resolver, rdma_devices, fetcher: Arc::default() })
    }
}
