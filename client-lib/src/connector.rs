//! Connects to the peers of a service by its name.

mod builder;

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use multinet_memory::Gpu;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::choose::Choice;
use crate::endpoint::Endpoint;
use crate::error::{ConnectError, FetchError};
use crate::fetch::{Fetcher, Source};
use crate::handshake::{Delivery, SessionId};
use crate::identity::{Identity, node_name};
use crate::listener::{Listener, Received};
use crate::near;
use crate::outbound::{Outbound, SendSettings};
use crate::peers::dial::Dialer;
use crate::peers::location::Location;
use crate::peers::manager::{EndpointSource, Manager};
use crate::peers::shared::{PeerSetState, SendState};
use crate::peers::{PeerSet, PeerSetHandle};
use crate::rdma::RdmaDevices;
use crate::reference::Reference;
use crate::resolve::Resolver;
use crate::transport::{Rdma, Transport};
pub use builder::ConnectorBuilder;

/// Connects to services. Clones share the settings, the resolver and the RDMA devices.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::Connector;
///
/// // One for all services: they share its resolver and its RDMA devices.
/// let connector = Connector::builder().build()?;
/// let detect = connector.connect("detect.vision.svc.multinet", "rdma").await?;
/// let track = connector.connect("track.vision.svc.multinet", "rdma").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Connector {
    config: Arc<ConnectorBuilder>,
    resolver: Resolver,
    rdma_devices: Arc<RdmaDevices>,
    fetcher: Arc<Mutex<Option<Arc<Fetcher>>>>,
}

/// Default limit on the time for which a fetch looks for a payload. Where a pod has died, the
/// message that led to the payload is delivered again, after up to 60 s by JetStream as Numaflow
/// sets it up, and the payload put on offer again. The reference that was sent on before may be the
/// one that the queue keeps for another 60 s.
const FETCH_WAIT: Duration = Duration::from_secs(150);

impl Connector {
    /// Returns a builder with the default settings.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Choice, Connector};
    ///
    /// let builder = Connector::builder().network("rail0");
    /// let connector = builder.choice(Choice::LeastOutstanding).build()?;
    /// # Ok(()) }
    /// ```
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
            gpu: None,
            node: node_name(),
            zone: std::env::var("MULTINET_ZONE_NAME").ok().filter(|zone| !zone.is_empty()),
            fetch_frame_size: 8 << 20,
            fetch_slots: 16,
            fetch_memory: None,
            fetch_gpu: None,
            fetch_wait: FETCH_WAIT,
        }
    }

    /// Resolves a service, such as `infer.vision.svc.multinet`, and connects to the port of that
    /// name or number of all its endpoints. With `rail0._net.` before the name, only addresses on
    /// the network with the alias rail0 are used.
    ///
    /// Completes when the first peer is connected. The others follow, and as long as the PeerSet
    /// lives, peers come and go with DNS.
    ///
    /// # Errors
    ///
    /// [`ConnectError`], if no peer is connected in time ([`ConnectorBuilder::wait`]). It is
    /// returned at once if the name is wrong, if the service has no such port, or if connections to
    /// all peers fail for a reason that waiting does not cure
    /// ([`DialError::is_lasting`](crate::DialError::is_lasting)).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::{Connector, Delivery};
    ///
    /// let connector = Connector::builder().delivery(Delivery::AtLeastOnce).build()?;
    /// let peers = connector.connect("infer.vision.svc.multinet", "rdma").await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(&self, name: &str, port: &str) -> Result<PeerSet, ConnectError> {
        let peers = self.start(name, port);
        let is_there = |state: &mut SendState| state.outbound.connected().next().is_some().then_some(());
        let wait = self.config.wait;
        let shared = &peers.handle.shared;
        let outcome = timeout(wait, async {
            tokio::select! {
                () = shared.until(is_there) => Ok(()),
                source = shared.until(|state| state.permanent_failure()) => Err(ConnectError::Resolve { name: name.to_owned(), source }),
                last = shared.until(|state| state.lasting_failure()) => Err(ConnectError::Lasting { name: name.to_owned(), last }),
            }
        });
        match outcome.await {
            Ok(Ok(())) => Ok(peers),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(not_connected(name, wait, &shared.state())),
        }
    }

    /// Starts to connect as [`connect`](Self::connect) does, and returns at once: for services
    /// whose pods start later. A wrong name is reported by the first frame
    /// ([`SendError::Resolve`](crate::SendError::Resolve)).
    ///
    /// ```no_run
    /// # async fn example(
    /// #     connector: &multinet_client::Connector,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let peers = connector.start("infer.vision.svc.multinet", "rdma");
    /// // All pods of the StatefulSet, as soon as they have loaded their models.
    /// peers.connected(4).await;
    /// println!("{:?}", peers.peers());
    /// # Ok(()) }
    /// ```
    pub fn start(&self, name: &str, port: &str) -> PeerSet {
        self.open(name, EndpointSource::Dns(Box::new(self.resolver.watch(name, port))))
    }

    /// Connects to endpoints that the caller knows without DNS. Each item of the stream is the
    /// whole set of endpoints. After the end of the stream, the last set stays. `name` is the
    /// service's name for listeners and logs.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use multinet_client::{Connector, Resolver};
    /// # let resolver = Resolver::builder().servers(["127.0.0.1:53".parse()?]).build()?;
    /// # let connector = Connector::builder().resolver(resolver).build()?;
    /// use futures::stream;
    /// use multinet_client::{Endpoint, Listener};
    ///
    /// // Both ends in one program, for a test.
    /// let listener = Listener::builder().address("127.0.0.1".parse()?).port(0).bind().await?;
    /// let endpoint = Endpoint::at(listener.local_addresses()[0]);
    /// let peers = connector.follow("infer", stream::iter([vec![endpoint]]));
    /// peers.send("a frame").await?;
    /// assert_eq!(listener.recv().await?.bytes(), b"a frame");
    /// # Ok(()) }
    /// ```
    pub fn follow(
        &self,
        name: &str,
        endpoints: impl Stream<Item = Vec<Endpoint>> + Send + 'static,
    ) -> PeerSet {
        self.open(name, EndpointSource::Given(endpoints.fuse().boxed()))
    }

    fn open(&self, name: &str, source: EndpointSource) -> PeerSet {
        let config = &self.config;
        let settings = SendSettings {
            delivery: config.delivery,
            choice: config.choice,
            replay: config.replay,
            connections: config.connections,
        };
        let seed = SessionId::random().0 as u64;
        let shared = Arc::new(PeerSetState::new(Outbound::new(settings, seed), None));
        let window = u32::try_from(settings.max_per_connection()).unwrap_or(u32::MAX);
        let dialer = self.dialer(name, config.gpu.as_ref(), window);
        let session = dialer.session;
        let manager = Manager {
            shared: Arc::clone(&shared),
            dialer: Arc::new(dialer),
            source,
            location: (config.choice == Choice::Nearest).then(|| Location {
                node: config.node.clone(),
                zone: config.zone.clone(),
                network: config.network.clone(),
            }),
            rdma: config.rdma.clone(),
        };
        tokio::spawn(manager.run());
        PeerSet::new(PeerSetHandle { shared, session: session.0, choice: config.choice })
    }

    /// Fetches a payload by its reference from a pod of a service. Asks the pod that the reference
    /// names, and then all others, until one has the payload. Connections, and what DNS says of the
    /// service, are kept for the next fetch, until no fetch has used them for a minute.
    ///
    /// Acknowledge the frame when the payload has been dealt with, which ends the offer. If it is
    /// dropped without that, the payload can be fetched again.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     connector: &multinet_client::Connector,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // From the message of a queue, which another pod's Offers has made.
    /// let reference = "decode-0/camera-17/4711".parse()?;
    /// let frame = connector.fetch("decode.vision.svc.multinet", "offers", &reference).await?;
    /// println!("{} bytes", frame.bytes().len());
    /// frame.acknowledge();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`FetchError`]. While the payload is not found, pods are asked again until no byte of it has
    /// come for [`ConnectorBuilder::fetch_wait`].
    pub async fn fetch(&self, name: &str, port: &str, reference: &Reference) -> Result<Received, FetchError> {
        let open = || (self.dialer(name, None, 0), Source::Dns(Box::new(self.resolver.watch(name, port))));
        let fetcher = self.fetcher()?;
        let service = fetcher.service(name, port, open);
        fetcher.fetch(&service, name, reference, self.config.fetch_wait).await
    }

    /// Fetches as [`fetch`](Self::fetch) does, from endpoints that the caller knows without DNS.
    /// `name` is the service's name for these pods and logs.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use multinet_client::{Connector, Resolver};
    /// # let resolver = Resolver::builder().servers(["127.0.0.1:53".parse()?]).build()?;
    /// # let connector = Connector::builder().resolver(resolver).build()?;
    /// use multinet_client::{Endpoint, Offers};
    ///
    /// // Both ends in one program, for a test.
    /// let offers = Offers::builder().address("127.0.0.1".parse()?).port(0).bind().await?;
    /// let offer = offers.offer("4711".parse()?, "a payload").await?;
    /// let endpoints = vec![Endpoint::at(offers.local_addresses()[0])];
    /// let frame = connector.fetch_from("decode", endpoints, &offer.reference()).await?;
    /// assert_eq!(frame.bytes(), b"a payload");
    /// frame.acknowledge();
    /// offer.taken().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_from(
        &self,
        name: &str,
        endpoints: Vec<Endpoint>,
        reference: &Reference,
    ) -> Result<Received, FetchError> {
        let fetcher = self.fetcher()?;
        let service = fetcher.service(name, "", || (self.dialer(name, None, 0), Source::Caller));
        service.set(endpoints);
        fetcher.fetch(&service, name, reference, self.config.fetch_wait).await
    }

    /// Closes the connections that payloads were fetched by, after the pods have been told of all
    /// payloads that are acknowledged. Later fetches fail.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     connector: &multinet_client::Connector,
    /// #     frame: multinet_client::Received,
    /// # ) {
    /// frame.acknowledge();
    /// // Before the program ends.
    /// connector.close().await;
    /// # }
    /// ```
    pub async fn close(&self) {
        let fetcher = self.fetcher.lock().clone();
        if let Some(fetcher) = fetcher {
            fetcher.close().await;
        }
    }

    /// Returns what fetches, which the first fetch makes.
    fn fetcher(&self) -> Result<Arc<Fetcher>, FetchError> {
        let mut fetcher = self.fetcher.lock();
        if let Some(fetcher) = &*fetcher {
            return Ok(Arc::clone(fetcher));
        }
        let config = &*self.config;
        let mut listener = Listener::builder()
            .slots(config.fetch_slots)
            .identity(config.identity.clone())
            .transport(config.transport)
            .rdma(config.rdma.clone())
            .patience(config.patience)
            .silence(config.silence);
        if let Some(bytes) = config.fetch_memory {
            listener = listener.memory(bytes);
        }
        if let Some(gpu) = &config.fetch_gpu {
            listener = listener.gpu(Arc::clone(gpu));
        }
        if let Some(tls) = &config.tls {
            listener = listener.tls(tls.clone());
        }
        let made = Arc::new(Fetcher::new(listener, config.fetch_frame_size).map_err(FetchError::Slots)?);
        Ok(Arc::clone(fetcher.insert(made)))
    }

    fn dialer(&self, name: &str, gpu: Option<&Arc<dyn Gpu>>, window: u32) -> Dialer {
        let config = &self.config;
        Dialer {
            service: name.to_owned(),
            identity: config.identity.clone(),
            own_port: config.own_port,
            session: SessionId::random(),
            delivery: config.delivery,
            transport: config.transport,
            rdma_devices: Arc::clone(&self.rdma_devices),
            gpu: gpu.and_then(|gpu| near::Gpu::new(&**gpu, config.rdma.clone())),
            window,
            network: config.network.clone(),
            allow_default_network: config.allow_default_network,
            tls: config.tls.clone(),
            node: config.node.clone(),
            patience: config.patience,
            silence: config.silence,
        }
    }

    /// Returns the resolver of this connector.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     connector: &multinet_client::Connector,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // The number of endpoints, without a connection to any.
    /// let found = connector.resolver().resolve("infer.vision.svc.multinet", "rdma").await?;
    /// println!("{} endpoints of {}", found.endpoints.len(), found.name);
    /// # Ok(()) }
    /// ```
    pub fn resolver(&self) -> &Resolver {
        &self.resolver
    }
}

/// Returns the error for a connector that has no connected peer after `waited`.
fn not_connected(name: &str, waited: Duration, state: &SendState) -> ConnectError {
    let name = name.to_owned();
    let count = state.endpoints.len();
    if count == 0 {
        let last = state.unresolved.clone().unwrap_or_else(|| "DNS has not answered yet".to_owned());
        return ConnectError::NoEndpoint { name, waited, last };
    }
    let first = state.failures.iter().min_by_key(|(peer, _)| **peer);
    let last = first.map(|(_, error)| Arc::clone(error));
    ConnectError::NoPeer { name, count, waited, last }
}
