//! What a connector is to do.

use std::sync::Arc;
use std::time::Duration;

use multinet_memory::Gpu;

use super::Connector;
use crate::choose::Choice;
use crate::handshake::{Delivery, MAX_LANES};
use crate::identity::Identity;
#[cfg(doc)]
use crate::peers::PeerSet;
use crate::rdma::Rails;
use crate::resolve::{ResolveError, Resolver};
use crate::tls::Tls;
use crate::transport::{Rdma, Transport};
use crate::wire::WINDOW;

/// What a [`Connector`] is to do. Every setting has a default that suits most.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Choice, Connector, Delivery};
///
/// let connector = Connector::builder()
///     .delivery(Delivery::AtLeastOnce) // a result that is lost costs more than one that comes twice
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
}

impl ConnectorBuilder {
    /// Asks this resolver, instead of the one that `/etc/resolv.conf` names.
    ///
    /// ```
    /// use multinet_client::{Connector, Resolver};
    ///
    /// // From a node, whose own DNS does not know the cluster's names.
    /// let resolver = Resolver::builder().servers(["10.96.0.10:53".parse()?]).search(["cluster.local"]).build()?;
    /// let connector = Connector::builder().resolver(resolver).build()?;
    /// assert_eq!(connector.resolver().search(), ["cluster.local"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = Some(resolver);
        self
    }

    /// Which ways of moving frames may be used. Default: [`Transport::Auto`].
    ///
    /// By RDMA each connection has memory locked that frames are copied to: twice the size of the receiver's slots, 1 MiB at least.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Transport};
    ///
    /// // Where TCP would be so slow that an error is better.
    /// let connector = Connector::builder().transport(Transport::Rdma).build()?;
    /// # Ok(()) }
    /// ```
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// What is promised of each frame. Default: [`Delivery::AtMostOnce`].
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Delivery};
    ///
    /// // What a pod has not acknowledged when it is replaced goes to another one.
    /// let connector = Connector::builder().delivery(Delivery::AtLeastOnce).build()?;
    /// # Ok(()) }
    /// ```
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Which peer gets a frame. Default: [`Choice::RoundRobin`].
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Choice, Connector};
    ///
    /// // Some frames take longer than others: who is done first gets the next one.
    /// let connector = Connector::builder().choice(Choice::LeastOutstanding).build()?;
    /// # Ok(()) }
    /// ```
    pub fn choice(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Who this process is. Default: [`Identity::from_env`].
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Identity};
    ///
    /// // Outside a pod, where the host's name says little.
    /// let connector = Connector::builder().identity(Identity::new("import of 2026-11-21")).build()?;
    /// # Ok(()) }
    /// ```
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// This process is an endpoint of the service itself, and listens on this port: it passes itself over, even where no uid tells.
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

    /// Uses only addresses on the network with this alias. Default: any. Of a peer on several networks, those with an RDMA device come first, if RDMA may be used, then
    /// those that are near to the [GPU](Self::gpu), and several [connections](Self::connections_per_peer) take turns among equals.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Connector;
    ///
    /// // Control by one rail, so that frames have the other one to themselves.
    /// let control = Connector::builder().network("rail0").build()?;
    /// let frames = Connector::builder().network("rail1").build()?;
    /// # Ok(()) }
    /// ```
    pub fn network(mut self, alias: impl Into<String>) -> Self {
        self.network = Some(alias.into());
        self
    }

    /// Whether frames may leave by the default network. Default: no.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Connector;
    ///
    /// // In a cluster for tests, whose pods have one network.
    /// let connector = Connector::builder().allow_default_network(true).build()?;
    /// # Ok(()) }
    /// ```
    pub fn allow_default_network(mut self, is_allowed: bool) -> Self {
        self.allow_default_network = is_allowed;
        self
    }

    /// Speaks mutual TLS with all peers.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Tls};
    ///
    /// // Whoever listens has to be the service that is asked for, as its certificate says.
    /// let tls = Tls::from_files("/var/run/tls/tls.crt", "/var/run/tls/tls.key", "/var/run/tls/ca.crt")?;
    /// let connector = Connector::builder().tls(tls).build()?;
    /// # Ok(()) }
    /// ```
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How many connections each peer gets, 1 to 64, on as many of its networks as are [equally good](Self::network). Default: 1.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Connector;
    ///
    /// // By TCP, where one connection does not fill the NIC. Frames of one key still come in order.
    /// let connector = Connector::builder().connections_per_peer(4).build()?;
    /// # Ok(()) }
    /// ```
    pub fn connections_per_peer(mut self, count: u16) -> Self {
        self.connections = count.clamp(1, MAX_LANES);
        self
    }

    /// How many frames may wait for their acknowledgement, under [`Delivery::AtLeastOnce`], before [`PeerSet::send`] waits; 1 to 65,535.
    /// They are kept in memory until then. Default: 1024.
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

    /// How long a connection may take to be made, and again the handshake, and again what is done for RDMA. Default: 5 s.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::Connector;
    ///
    /// // Where pods may be on nodes that are so busy that they take long to answer.
    /// let connector = Connector::builder().patience(Duration::from_secs(20)).build()?;
    /// # Ok(()) }
    /// ```
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// After how long without a sign of life from its host a peer counts as gone. Default: 10 s; at least 4 s.
    ///
    /// By TCP, one that lives but has read nothing for so long, while frames for it wait, counts as gone, too: the kernel does not tell the two apart. So a
    /// receiver whose runtime has one thread, and whose code computes for longer, should have that done elsewhere (`tokio::task::spawn_blocking`, or
    /// a runtime of several threads); else this has to be longer than it computes.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use multinet_client::Connector;
    ///
    /// // A node that has lost its power is noticed after 4 s.
    /// let connector = Connector::builder().silence(Duration::from_secs(4)).build()?;
    /// # Ok(()) }
    /// ```
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence.max(Duration::from_secs(4));
        self
    }

    /// How long [`Connector::connect`] waits for the first peer. Default: 30 s.
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

    /// How RDMA is used, where it is.
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

    /// The GPU that frames lie in, as a rule. Of a peer's networks that are equal otherwise, that one is used whose NIC on this machine is nearest to
    /// it on the PCI bus; several [connections](Self::connections_per_peer) take turns among the nearest. Default: none.
    ///
    /// ```no_run
    /// # fn example(gpu: std::sync::Arc<dyn multinet_client::Gpu>) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Connector;
    ///
    /// // With the feature cuda, `gpu` is what Cuda::device(0)? gives.
    /// let connector = Connector::builder().gpu(gpu).build()?;
    /// # Ok(()) }
    /// ```
    pub fn gpu(mut self, gpu: Arc<dyn Gpu>) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// Where this process runs: the Node's name and zone. [`Choice::Nearest`] needs both; by the Node's name, TCP to a peer on the same Node is
    /// twice as fast. Default: the environment's `MULTINET_NODE_NAME` and `MULTINET_ZONE_NAME`.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Choice, Connector};
    ///
    /// // Outside a pod, where no variable says it.
    /// let (node, zone) = ("gpu-1".to_owned(), "a".to_owned());
    /// let connector = Connector::builder().choice(Choice::Nearest).place(Some(node), Some(zone)).build()?;
    /// # Ok(()) }
    /// ```
    pub fn place(mut self, node: Option<String>, zone: Option<String>) -> Self {
        (self.node, self.zone) = (node, zone);
        self
    }

    /// Makes the connector. Nothing is asked or connected yet.
    ///
    /// ```no_run
    /// # fn example(server: std::net::SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Resolver};
    ///
    /// // Where there is no /etc/resolv.conf, a server that is known.
    /// let connector = Connector::builder().build().or_else(|_| {
    ///     let resolver = Resolver::builder().servers([server]).build()?;
    ///     Connector::builder().resolver(resolver).build()
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ResolveError`], if `/etc/resolv.conf` is needed and cannot be read.
    pub fn build(self) -> Result<Connector, ResolveError> {
        let resolver = match &self.resolver {
            Some(resolver) => resolver.clone(),
            None => Resolver::builder().build()?,
        };
        let rails = Arc::new(Rails::new(self.rdma.clone()));
        Ok(Connector { config: Arc::new(self), resolver, rails })
    }
}
