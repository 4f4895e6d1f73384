//! Asks for a service by name and connects to its peers.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::time::timeout;

use crate::choose::Choice;
use crate::endpoint::Endpoint;
use crate::error::ConnectError;
use crate::handshake::{Delivery, MAX_LANES, SessionId};
use crate::identity::Identity;
use crate::outbound::{Outbound, Settings};
use crate::peers::dial::Dialer;
use crate::peers::manager::{Manager, Place, Source};
use crate::peers::shared::{Shared, State};
use crate::peers::{Handle, PeerSet};
use crate::rdma::Rails;
use crate::resolve::{ResolveError, Resolver};
use crate::tls::Tls;
use crate::transport::{Rdma, Transport};
use crate::wire::WINDOW;

/// Connects to services. A clone is another handle.
#[derive(Clone, Debug)]
pub struct Connector {
    config: Arc<ConnectorBuilder>,
    resolver: Resolver,
    rails: Arc<Rails>,
}

/// What a [`Connector`] is to do. Every setting has a default that suits most.
#[derive(Clone, Debug)]
pub struct ConnectorBuilder {
    resolver: Option<Resolver>,
    transport: Transport,
    delivery: Delivery,
    choice: Choice,
    identity: Identity,
    own_port: Option<u16>,
    network: Option<String>,
    allow_default_network: bool,
    tls: Option<Tls>,
    connections: u16,
    replay: usize,
    patience: Duration,
    silence: Duration,
    wait: Duration,
    rdma: Rdma,
    node: Option<String>,
    zone: Option<String>,
}

impl Connector {
    /// All settings at their defaults.
    pub fn builder() -> ConnectorBuilder {
        ConnectorBuilder {
            resolver: None,
            transport: Transport::default(),
            delivery: Delivery::default(),
            choice: Choice::default(),
            identity: Identity::from_env(),
            own_port: None,
            network: None,
            allow_default_network: false,
            tls: None,
            connections: 1,
            replay: 1024,
            patience: Duration::from_secs(5),
            silence: Duration::from_secs(10),
            wait: Duration::from_secs(30),
            rdma: Rdma::default(),
            node: std::env::var("MULTINET_NODE_NAME").ok().filter(|node| !node.is_empty()),
            zone: std::env::var("MULTINET_ZONE_NAME").ok().filter(|zone| !zone.is_empty()),
        }
    }

    /// Resolves a service, such as `infer.vision.svc.multinet`, and connects to all its endpoints' port of that name (or number). With
    /// `rail0._net.` before the name, only addresses of the network with the alias rail0 are used.
    ///
    /// Completes when the first peer is connected; the others follow, and peers come and go with DNS as long as the PeerSet lives.
    ///
    /// # Errors
    ///
    /// [`ConnectError`], if the name is wrong, or no peer is connected in time ([`ConnectorBuilder::wait`]); at once, if only RDMA may be used and
    /// this side has none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Delivery};
    ///
    /// let connector = Connector::builder().delivery(Delivery::AtLeastOnce).build()?;
    /// let peers = connector.connect("infer.vision.svc.multinet", "rdma").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(&self, name: &str, port: &str) -> Result<PeerSet, ConnectError> {
        let peers = self.start(name, port);
        let is_there = |state: &mut State| state.outbound.connected().next().is_some().then_some(());
        let wait = self.config.wait;
        let shared = &peers.handle.shared;
        let wrong_name = |state: &mut State| state.wrong.take();
        let outcome = timeout(wait, async {
            tokio::select! {
                () = shared.until(is_there) => Ok(()),
                source = shared.until(wrong_name) => Err(ConnectError::Resolve { name: name.to_owned(), source }),
                last = shared.until(|state| state.without_rdma()) => Err(ConnectError::NoRdma { name: name.to_owned(), last }),
            }
        });
        match outcome.await {
            Ok(Ok(())) => Ok(peers),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(why(name, wait, &shared.state())),
        }
    }

    /// As [`connect`](Self::connect), but does not wait for anybody: for services whose pods start later.
    pub fn start(&self, name: &str, port: &str) -> PeerSet {
        self.open(name, Source::Dns(Box::new(self.resolver.watch(name, port))))
    }

    /// Connects to endpoints that are known in another way than by DNS: all that there are, again with every change. The stream's end
    /// means that the last ones stay. `name` is what the listeners are told, and the logs say.
    pub fn follow(
        &self,
        name: &str,
        endpoints: impl Stream<Item = Vec<Endpoint>> + Send + 'static,
    ) -> PeerSet {
        self.open(name, Source::Given(endpoints.fuse().boxed()))
    }

    fn open(&self, name: &str, source: Source) -> PeerSet {
        let config = &self.config;
        let settings = Settings {
            delivery: config.delivery,
            choice: config.choice,
            replay: config.replay,
            lanes: config.connections,
        };
        let session = SessionId(random());
        let shared = Arc::new(Shared::new(Outbound::new(settings, random() as u64)));
        let dialer = Dialer {
            service: name.to_owned(),
            identity: config.identity.clone(),
            own_port: config.own_port,
            session,
            delivery: config.delivery,
            transport: config.transport,
            rails: Arc::clone(&self.rails),
            window: u32::try_from(settings.share()).unwrap_or(u32::MAX),
            network: config.network.clone(),
            allow_default_network: config.allow_default_network,
            tls: config.tls.clone(),
            patience: config.patience,
            silence: config.silence,
        };
        let manager = Manager {
            shared: Arc::clone(&shared),
            dialer: Arc::new(dialer),
            source,
            place: Place { node: config.node.clone(), zone: config.zone.clone() },
        };
        tokio::spawn(manager.run());
        PeerSet { handle: Arc::new(Handle { shared, session: session.0, choice: config.choice }) }
    }

    /// The resolver that it asks.
    pub fn resolver(&self) -> &Resolver {
        &self.resolver
    }
}

/// Why nobody is connected.
fn why(name: &str, waited: Duration, state: &State) -> ConnectError {
    let name = name.to_owned();
    let count = state.endpoints.len();
    if count == 0 {
        let last = state.unresolved.clone().unwrap_or_else(|| "DNS has not answered yet".to_owned());
        return ConnectError::NoEndpoint { name, waited, last };
    }
    let last = state.failures.values().next().cloned().unwrap_or_else(|| "still connecting".to_owned());
    ConnectError::NoPeer { name, count, waited, last }
}

impl ConnectorBuilder {
    /// Asks this resolver, instead of the one that `/etc/resolv.conf` names.
    #[must_use]
    pub fn resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = Some(resolver);
        self
    }

    /// Which ways of moving frames may be used. Default: [`Transport::Auto`].
    ///
    /// By RDMA each connection has memory locked that frames are copied to: twice the size of the receiver's slots, 1 MiB at least.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// What is promised of each frame. Default: [`Delivery::AtMostOnce`].
    #[must_use]
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Which peer gets a frame. Default: [`Choice::RoundRobin`].
    #[must_use]
    pub fn choice(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Who this process is. Default: [`Identity::from_env`].
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// This process is an endpoint of the service itself, and listens on this port: it passes itself over, even where no uid tells.
    #[must_use]
    pub fn own_port(mut self, port: u16) -> Self {
        self.own_port = Some(port);
        self
    }

    /// Uses only addresses on the network with this alias. Default: any.
    #[must_use]
    pub fn network(mut self, alias: impl Into<String>) -> Self {
        self.network = Some(alias.into());
        self
    }

    /// Whether frames may leave by the interface with the default route. Default: no.
    #[must_use]
    pub fn allow_default_network(mut self, is_allowed: bool) -> Self {
        self.allow_default_network = is_allowed;
        self
    }

    /// Speaks mutual TLS with all peers.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How many connections each peer gets, 1 to 64. Default: 1.
    #[must_use]
    pub fn connections_per_peer(mut self, count: u16) -> Self {
        self.connections = count.clamp(1, MAX_LANES);
        self
    }

    /// How many frames may wait for their acknowledgement, under [`Delivery::AtLeastOnce`], before [`PeerSet::send`] waits; 1 to 65,535.
    /// They are kept in memory until then. Default: 1024.
    #[must_use]
    pub fn replay(mut self, frames: usize) -> Self {
        self.replay = frames.clamp(1, WINDOW as usize - 1);
        self
    }

    /// How long a connection may take to be made, and again the handshake, and again what is done for RDMA. Default: 5 s.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// After how long without a sign of life from its host a peer counts as gone. Default: 10 s; at least 4 s.
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence.max(Duration::from_secs(4));
        self
    }

    /// How long [`Connector::connect`] waits for the first peer. Default: 30 s.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How RDMA is used, where it is.
    #[must_use]
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.rdma = rdma;
        self
    }

    /// Where this process runs, for [`Choice::Nearest`]: the Node's name and zone. Default: the environment's `MULTINET_NODE_NAME` and
    /// `MULTINET_ZONE_NAME`.
    #[must_use]
    pub fn place(mut self, node: Option<String>, zone: Option<String>) -> Self {
        (self.node, self.zone) = (node, zone);
        self
    }

    /// Makes the connector. Nothing is asked or connected yet.
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

/// 128 bits that nobody guesses.
fn random() -> u128 {
    let mut bytes = [0; 16];
    #[expect(
        clippy::expect_used,
        reason = "a kernel without getrandom runs no Kubernetes; there is nothing to go on with"
    )]
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    u128::from_be_bytes(bytes)
}
