//! Connects to a peer: route, TCP, TLS and handshake.

mod exchange;
mod failures;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsStream;

use self::exchange::{exchange, write};
use self::failures::Failures;
use super::end_reason::EndReason;
use super::rails::{Preference, usable};
use crate::blocking::drop_blocking;
use crate::choose::hash;
use crate::endpoint::{Endpoint, EndpointAddress};
use crate::error::DialError;
use crate::fallback::{NO_ENCRYPTION, NoRdma, try_rdma};
use crate::handshake::{
    Accept, Answer, Chosen, Delivery, Fetch, FetchAnswer, HandshakeError, Hello, Refusal, SessionId,
    TransportKind, encode,
};
use crate::identity::Identity;
use crate::near::{Gpu, Near};
use crate::nic::{self, Obstacle, Route};
use crate::outbound::{DownReason, LinkId};
use crate::rdma::{Prepared, QueuePair, RdmaDevices, Role};
use crate::resolve::service_of;
use crate::stream::{Stream, tune, use_small_send_buffer};
use crate::tls::Tls;
use crate::transport::Transport;

/// The step that a peer is late with.
const FINISH: &str = "finish the handshake";

/// Connection to a peer after the handshake.
pub(crate) struct Dialed {
    pub(crate) stream: Stream,
    pub(crate) accept: Accept,
    /// RDMA queue pair that carries the frames. `None` if the TCP connection does.
    pub(crate) pair: Option<QueuePair<EndReason>>,
    /// Reason why the frames do not go by RDMA. `None` if they do, or TCP was chosen.
    pub(crate) instead_of_rdma: Option<String>,
}

/// Connection to a pod that offers payloads, on which the pod is the sender, and its hello.
pub(crate) struct Offering {
    pub(crate) stream: Stream,
    pub(crate) hello: Hello,
    pub(crate) peer: SocketAddr,
}

/// Settings that all connections of a PeerSet to its peers share.
#[derive(Debug)]
pub(crate) struct Dialer {
    pub(crate) service: String,
    pub(crate) identity: Identity,
    /// Port on which this process listens as an endpoint of the same service.
    pub(crate) own_port: Option<u16>,
    pub(crate) session: SessionId,
    pub(crate) delivery: Delivery,
    pub(crate) transport: Transport,
    pub(crate) rdma_devices: Arc<RdmaDevices>,
    /// GPU that most frames lie in, to prefer NICs near it.
    pub(crate) gpu: Option<Gpu>,
    /// Limit on the frames that one connection has in flight.
    pub(crate) window: u32,
    /// Alias of the only network whose addresses may be used. `None` allows all.
    pub(crate) network: Option<String>,
    pub(crate) allow_default_network: bool,
    pub(crate) tls: Option<Tls>,
    /// Name of the Kubernetes Node that this process runs on, if known.
    pub(crate) node: Option<String>,
    /// Time limit for the TCP connection, and again for the handshake.
    pub(crate) patience: Duration,
    /// Time without an answer from its host after which a connected peer counts as gone.
    pub(crate) silence: Duration,
}

impl Dialer {
    /// Connects to a peer at the first of its addresses that works. If none does, returns the error
    /// of the attempt that got furthest, and whether the receiver itself refused a connection at
    /// any address.
    pub(crate) async fn dial(
        &self,
        endpoint: &Endpoint,
        link: LinkId,
    ) -> Result<Dialed, (DialError, DownReason)> {
        let mut failures = Failures::default();
        for address in self.order(endpoint, link.index).await {
            match self.dial_address(endpoint, address, link).await {
                Ok(connected) => return Ok(connected),
                Err(error) => failures.add(error),
            }
        }
        Err(failures.into_error(endpoint, self.network.as_deref()))
    }

    /// Connects to a pod that offers payloads, at the first of its addresses that works.
    pub(crate) async fn dial_to_fetch(&self, endpoint: &Endpoint) -> Result<Offering, DialError> {
        let mut failures = Failures::default();
        for address in self.order(endpoint, 0).await {
            match self.ask_to_fetch(endpoint, address).await {
                Ok(connected) => return Ok(connected),
                Err(error) => failures.add(error),
            }
        }
        Err(failures.into_error(endpoint, self.network.as_deref()).0)
    }

    /// Makes a connection to send on of one that a peer has opened to fetch.
    pub(crate) async fn take_over(
        &self,
        stream: Stream,
        (endpoint, link, peer): (&Endpoint, LinkId, SocketAddr),
    ) -> Result<Dialed, DialError> {
        let (source, _) = stream.addresses().map_err(|_| DialError::Closed { peer })?;
        if self.is_on_this_machine(endpoint) || source == peer.ip() {
            use_small_send_buffer(stream.tcp());
        }
        let own = self.prepare(source, peer.ip()).await;
        self.agree(std::future::ready(Ok(stream)), (endpoint, link, peer), own).await
    }

    /// Returns whether frames are to go by RDMA if the peer supports it.
    pub(super) fn wants_rdma(&self) -> bool {
        match self.transport {
            Transport::Tcp => false,
            Transport::Auto => self.tls.is_none(),
            Transport::Rdma => true,
        }
    }

    fn is_on_this_machine(&self, endpoint: &Endpoint) -> bool {
        self.node.is_some() && self.node == endpoint.node
    }

    /// Returns how far the NICs that lead to the peer's addresses are from the GPU.
    async fn distances(&self, endpoint: &Endpoint) -> HashMap<IpAddr, Near> {
        let Some(gpu) = self.gpu.clone() else { return HashMap::new() };
        let usable = usable(&endpoint.addresses, self.network.as_deref());
        let peers: Vec<IpAddr> = usable.map(|address| address.ip).collect();
        if peers.len() < 2 {
            return HashMap::new();
        }
        // A device that does not respond must not prevent TCP. All addresses then rank the same.
        let finding = tokio::task::spawn_blocking(move || gpu.distances(peers));
        timeout(self.patience, finding).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Returns the peer's usable addresses in the order in which to try them.
    async fn order<'e>(&self, endpoint: &'e Endpoint, lane: u16) -> Vec<&'e EndpointAddress> {
        let distances = self.distances(endpoint).await;
        let (network, wants_rdma) = (self.network.as_deref(), self.wants_rdma());
        Preference { network, wants_rdma, distances: &distances }.order(&endpoint.addresses, lane)
    }

    async fn dial_address(
        &self,
        endpoint: &Endpoint,
        address: &EndpointAddress,
        link: LinkId,
    ) -> Result<Dialed, DialError> {
        let peer = SocketAddr::new(address.ip, endpoint.port);
        let route = self.route(address)?;
        // Memory is registered before connecting, so that the listener does not wait for it.
        let own = self.prepare(route.source, address.ip).await;
        if let (Transport::Rdma, Err(Some(no_rdma))) = (self.transport, &own) {
            let NoRdma { reason, is_lasting } = no_rdma.clone();
            return Err(DialError::Rdma { peer, reason, is_lasting });
        }
        let stream = self.connect(endpoint, &route, peer).await?;
        self.agree(self.secure(stream, peer), (endpoint, link, peer), own).await
    }

    async fn ask_to_fetch(
        &self,
        endpoint: &Endpoint,
        address: &EndpointAddress,
    ) -> Result<Offering, DialError> {
        let peer = SocketAddr::new(address.ip, endpoint.port);
        let stream = self.connect(endpoint, &self.route(address)?, peer).await?;
        let asking = async {
            let mut stream = self.secure(stream, peer).await?;
            let fetch = Fetch {
                service: self.service.clone(),
                uid: endpoint.uid().map(ToOwned::to_owned),
                from: self.identity.name.clone(),
                from_uid: self.identity.uid.clone(),
                node: self.node.clone(),
                knows_taken: true,
            };
            let not_ours = |source| DialError::Handshake { peer, source };
            let fetch = fetch.encode().map_err(not_ours)?;
            let answer = exchange(&mut stream, &fetch, |body| match FetchAnswer::decode(body) {
                Ok(FetchAnswer::Refuse(refusal)) => Ok(Err(refusal)),
                Ok(FetchAnswer::Hello(hello)) => Ok(Ok(*hello)),
                Err(error) => Err(error),
            });
            match answer.await.map_err(|error| error.into_dial(peer))? {
                Ok(hello) => Ok(Offering { stream, hello, peer }),
                Err(refusal) => Err(refused(refusal, endpoint, peer)),
            }
        };
        let offering =
            timeout(self.patience, asking).await.map_err(|_| self.late(peer, FINISH, None)).flatten()?;
        check_uid(endpoint, peer, &offering.hello.from, offering.hello.from_uid.as_deref())?;
        Ok(offering)
    }

    fn route(&self, address: &EndpointAddress) -> Result<Route, DialError> {
        let route = nic::route_to(address.ip)?;
        Ok(if self.allow_default_network { route } else { route.on_network_of(address)? })
    }

    fn late(&self, peer: SocketAddr, what: &'static str, obstacle: Option<Obstacle>) -> DialError {
        DialError::Timeout { peer, what, after: self.patience, obstacle }
    }

    async fn connect(
        &self,
        endpoint: &Endpoint,
        route: &Route,
        peer: SocketAddr,
    ) -> Result<TcpStream, DialError> {
        let connecting = async {
            let stream = route.tcp_socket()?.connect(peer).await?;
            tune(&stream, self.silence)?;
            if self.is_on_this_machine(endpoint) || route.source == peer.ip() {
                use_small_send_buffer(&stream);
            }
            io::Result::Ok(stream)
        };
        match timeout(self.patience, connecting).await {
            Ok(connected) => connected.map_err(|source| {
                let obstacle = route.obstacle(&source);
                DialError::Connect { peer, from: route.source, source, obstacle }
            }),
            Err(_) => {
                let obstacle = route.obstacle(&io::ErrorKind::TimedOut.into());
                Err(self.late(peer, "accept a connection", obstacle))
            }
        }
    }

    async fn secure(&self, stream: TcpStream, peer: SocketAddr) -> Result<Stream, DialError> {
        let Some(tls) = &self.tls else { return Ok(Stream::Plain(stream)) };
        // The name in the certificate is that of the service, never one out of a DNS answer.
        let secured = tls.connect(stream, &service_of(&self.service)).await;
        let secured = secured.map_err(|source| DialError::Tls { peer, source })?;
        Ok(Stream::Tls(Box::new(TlsStream::Client(secured))))
    }

    /// Runs the handshake of a sender on a connection that is being secured.
    async fn agree(
        &self,
        securing: impl Future<Output = Result<Stream, DialError>>,
        (endpoint, link, peer): (&Endpoint, LinkId, SocketAddr),
        own: Result<Prepared, Option<NoRdma>>,
    ) -> Result<Dialed, DialError> {
        let handshake = async {
            let stream = securing.await?;
            self.handshake(stream, (endpoint, link, peer), own.as_ref().ok()).await
        };
        let outcome = timeout(self.patience, handshake).await.map_err(|_| self.late(peer, FINISH, None));
        match outcome.flatten() {
            Ok((stream, accept)) => self.agree_on_transport(stream, accept, peer, own).await,
            Err(error) => {
                drop_blocking(own.ok()).await;
                Err(error)
            }
        }
    }

    async fn handshake(
        &self,
        mut stream: Stream,
        (endpoint, link, peer): (&Endpoint, LinkId, SocketAddr),
        own: Option<&Prepared>,
    ) -> Result<(Stream, Accept), DialError> {
        let not_ours = |source| DialError::Handshake { peer, source };
        let hello = encode(&self.hello(endpoint, link, own)).map_err(not_ours)?;
        let answer = exchange(&mut stream, &hello, |body| match Answer::decode(body) {
            Ok(Answer::Refuse(refusal)) => Ok(Err(refusal)),
            Ok(Answer::Accept(accept)) => Ok(Ok(accept)),
            Err(error) => Err(error),
        });
        let accept = match answer.await.map_err(|error| error.into_dial(peer))? {
            Ok(accept) => accept,
            Err(refusal) => return Err(refused(refusal, endpoint, peer)),
        };
        check_uid(endpoint, peer, &accept.name, accept.uid.as_deref())?;
        Ok((stream, accept))
    }

    /// Sets up the transport that the listener has chosen, or TCP if RDMA fails after all.
    async fn agree_on_transport(
        &self,
        mut stream: Stream,
        accept: Accept,
        peer: SocketAddr,
        own: Result<Prepared, Option<NoRdma>>,
    ) -> Result<Dialed, DialError> {
        let not_ours = |source| DialError::Handshake { peer, source };
        match (accept.transport, &accept.rdma, own) {
            (TransportKind::Rdma, Some(theirs), Ok(own)) => {
                let (theirs, frame_size) = (theirs.clone(), accept.frame_size);
                let patience = self.patience / 2;
                let connecting = move || own.connect(&theirs, peer.ip(), frame_size, patience);
                // The listener usually waits as long for the outcome as this side does. This limit
                // leaves time to send it.
                let connected = try_rdma(self.patience.mul_f64(0.8), connecting).await;
                let connected = connected.map_err(|no_rdma| no_rdma.reason);
                let (transport, reason) = match &connected {
                    Ok(_) => (TransportKind::Rdma, None),
                    Err(reason) => (TransportKind::Tcp, Some(reason.clone())),
                };
                if let (Some(reason), true) = (&reason, self.transport == Transport::Rdma || accept.rdma_only)
                {
                    return Err(DialError::Rdma { peer, reason: reason.clone(), is_lasting: false });
                }
                let chosen = encode(&Chosen { transport, reason: reason.clone() }).map_err(not_ours)?;
                let said = timeout(self.patience, write(&mut stream, &chosen)).await;
                said.ok().and_then(Result::ok).ok_or(DialError::Closed { peer })?;
                Ok(Dialed { stream, accept, pair: connected.ok(), instead_of_rdma: reason })
            }
            (TransportKind::Tcp, _, own) if self.transport != Transport::Rdma => {
                let instead_of_rdma = match own {
                    Err(no_rdma) => no_rdma.map(|no_rdma| no_rdma.reason),
                    Ok(own) => {
                        drop_blocking(own).await;
                        accept.reason.as_ref().map(|reason| format!("{}: {reason}", accept.name))
                    }
                };
                Ok(Dialed { stream, accept, pair: None, instead_of_rdma })
            }
            _ => Err(not_ours(HandshakeError::Value("a transport that was not offered"))),
        }
    }

    /// Prepares this end of an RDMA connection. The error is the reason why that is not possible,
    /// or `None` if RDMA is not wanted.
    async fn prepare(&self, source: IpAddr, peer: IpAddr) -> Result<Prepared, Option<NoRdma>> {
        match self.transport {
            Transport::Tcp => return Err(None),
            Transport::Auto if self.tls.is_some() => return Err(Some(NO_ENCRYPTION.to_owned().into())),
            Transport::Auto | Transport::Rdma => {}
        }
        let devices = Arc::clone(&self.rdma_devices);
        let preparing = move || devices.prepare(source, peer, Role::Sender, None);
        try_rdma(self.patience, preparing).await.map_err(Some)
    }

    fn hello(&self, endpoint: &Endpoint, link: LinkId, own: Option<&Prepared>) -> Hello {
        let transports = match (self.transport, own) {
            (Transport::Rdma, _) => vec![TransportKind::Rdma],
            (_, Some(_)) => vec![TransportKind::Rdma, TransportKind::Tcp],
            (_, None) => vec![TransportKind::Tcp],
        };
        Hello {
            service: self.service.clone(),
            uid: endpoint.uid().map(ToOwned::to_owned),
            from: self.identity.name.clone(),
            from_uid: self.identity.uid.clone(),
            session: self.session,
            epoch: link.epoch,
            peer: hash(format!("{}:{}", endpoint.target, endpoint.port).as_bytes()),
            lane: link.index,
            delivery: self.delivery,
            window: Some(self.window),
            is_limitable: true,
            transports,
            rdma: own.map(|own| own.end().clone()),
        }
    }
}

fn refused(refusal: Refusal, endpoint: &Endpoint, peer: SocketAddr) -> DialError {
    let Refusal { code, message } = refusal;
    DialError::Refused { peer, name: endpoint.to_string(), code, message }
}

/// Checks that the pod at an address is the one that DNS names, if both sides know its uid.
fn check_uid(endpoint: &Endpoint, peer: SocketAddr, name: &str, uid: Option<&str>) -> Result<(), DialError> {
    match (endpoint.uid(), uid) {
        (Some(expected), Some(uid)) if expected != uid => {
            let (found, uid, expected) = (name.to_owned(), uid.to_owned(), expected.to_owned());
            Err(DialError::WrongPeer { peer, found, uid, expected })
        }
        _ => Ok(()),
    }
}
