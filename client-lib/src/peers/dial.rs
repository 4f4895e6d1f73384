//! Connects to a peer: route, TCP, TLS and handshake.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsStream;

use super::end_reason::EndReason;
use super::rails::{Preference, usable};
use crate::blocking::drop_blocking;
use crate::choose::hash;
use crate::endpoint::{Endpoint, EndpointAddress};
use crate::error::DialError;
use crate::fallback::{NO_ENCRYPTION, NoRdma, try_rdma};
use crate::handshake::{
    Accept, Answer, Chosen, Delivery, HandshakeError, Hello, PREAMBLE, Preamble, RefusalCode, SessionId,
    TransportKind, VERSION, encode,
};
use crate::identity::Identity;
use crate::near::{Gpu, Near};
use crate::nic;
use crate::outbound::{DownReason, LinkId};
use crate::rdma::{Prepared, QueuePair, RdmaDevices, Role};
use crate::resolve::service_of;
use crate::stream::{Stream, tune, use_small_send_buffer};
use crate::tls::{self, Tls};
use crate::transport::Transport;

/// Connection to a peer after the handshake.
pub(crate) struct Dialed {
    pub(crate) stream: Stream,
    pub(crate) accept: Accept,
    /// RDMA queue pair that carries the frames. `None` if the TCP connection does.
    pub(crate) pair: Option<QueuePair<EndReason>>,
    /// Reason why the frames do not go by RDMA. `None` if they do, or TCP was chosen.
    pub(crate) instead_of_rdma: Option<String>,
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
        let (mut furthest, mut all_lasting): (Option<DialError>, _) = (None, true);
        let mut end = DownReason::Broken;
        let wants_rdma = self.wants_rdma();
        let distances = self.distances(endpoint).await;
        let preference = Preference { network: self.network.as_deref(), wants_rdma, distances: &distances };
        for address in preference.order(&endpoint.addresses, link.index) {
            match self.dial_address(endpoint, address, link).await {
                Ok(connected) => return Ok(connected),
                Err(error) => {
                    // An address without a route has none for RDMA, either.
                    all_lasting &=
                        matches!(error, DialError::Rdma { is_lasting: true, .. } | DialError::Route(_));
                    if error.is_receivers_refusal() {
                        end = DownReason::Refused;
                    }
                    // Of equally far attempts, the one whose failure may pass counts more.
                    let rank = |error: &DialError| (error.progress(), !error.is_lasting());
                    if furthest.as_ref().is_none_or(|before| rank(before) < rank(&error)) {
                        furthest = Some(error);
                    }
                }
            }
        }
        if let Some(DialError::Rdma { is_lasting, .. }) = &mut furthest {
            *is_lasting = all_lasting;
        }
        let error = furthest.unwrap_or_else(|| DialError::Network {
            has: aliases(endpoint, self.network.as_deref().unwrap_or_default()),
            network: self.network.clone().unwrap_or_default(),
        });
        Err((error, end))
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

    async fn dial_address(
        &self,
        endpoint: &Endpoint,
        address: &EndpointAddress,
        link: LinkId,
    ) -> Result<Dialed, DialError> {
        let peer = SocketAddr::new(address.ip, endpoint.port);
        let route = nic::route_to(address.ip)?;
        let route = if self.allow_default_network { route } else { route.on_network_of(address)? };
        let late = |what, obstacle| DialError::Timeout { peer, what, after: self.patience, obstacle };
        // Memory is registered before connecting, so that the listener does not wait for it.
        let own = self.prepare(route.source, address.ip).await;
        if let (Transport::Rdma, Err(Some(no_rdma))) = (self.transport, &own) {
            let NoRdma { reason, is_lasting } = no_rdma.clone();
            return Err(DialError::Rdma { peer, reason, is_lasting });
        }
        let connecting = async {
            let stream = route.tcp_socket()?.connect(peer).await?;
            tune(&stream, self.silence)?;
            if self.is_on_this_machine(endpoint) || route.source == address.ip {
                use_small_send_buffer(&stream);
            }
            io::Result::Ok(stream)
        };
        let stream = match timeout(self.patience, connecting).await {
            Ok(connected) => connected.map_err(|source| {
                let obstacle = route.obstacle(&source);
                DialError::Connect { peer, from: route.source, source, obstacle }
            })?,
            Err(_) => {
                let obstacle = route.obstacle(&io::ErrorKind::TimedOut.into());
                return Err(late("accept a connection", obstacle));
            }
        };
        let handshake = self.handshake(stream, (endpoint, link, peer), own.as_ref().ok());
        let outcome = timeout(self.patience, handshake).await.map_err(|_| late("finish the handshake", None));
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
        stream: TcpStream,
        (endpoint, link, peer): (&Endpoint, LinkId, SocketAddr),
        own: Option<&Prepared>,
    ) -> Result<(Stream, Accept), DialError> {
        let mut stream = match &self.tls {
            None => Stream::Plain(stream),
            Some(tls) => {
                // The name in the certificate is that of the service, never one out of a DNS
                // answer.
                let secured = tls.connect(stream, &service_of(&self.service)).await;
                let secured = secured.map_err(|source| DialError::Tls { peer, source })?;
                Stream::Tls(Box::new(TlsStream::Client(secured)))
            }
        };
        let not_ours = |source| DialError::Handshake { peer, source };
        let hello = encode(&self.hello(endpoint, link, own)).map_err(not_ours)?;
        let answer = match &mut stream {
            Stream::Plain(stream) => exchange(stream, &hello).await,
            Stream::Tls(stream) => exchange(stream, &hello).await,
        };
        let accept = match answer.map_err(|error| error.into_dial(peer))? {
            Answer::Accept(accept) => accept,
            Answer::Refuse(refusal) => {
                let (code, message) = (refusal.code, refusal.message);
                return Err(DialError::Refused { peer, name: endpoint.to_string(), code, message });
            }
        };
        if let (Some(expected), Some(uid)) = (endpoint.uid(), &accept.uid)
            && expected != uid
        {
            let (found, uid) = (accept.name, uid.clone());
            return Err(DialError::WrongPeer { peer, found, uid, expected: expected.to_owned() });
        }
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
                let said = match &mut stream {
                    Stream::Plain(stream) => timeout(self.patience, write(stream, &chosen)).await,
                    Stream::Tls(stream) => timeout(self.patience, write(stream, &chosen)).await,
                };
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

impl DialError {
    /// Returns whether the receiver that knows the session has refused. It has then ended the
    /// previous connection. Other listeners know neither of the two.
    fn is_receivers_refusal(&self) -> bool {
        let after_that = [RefusalCode::Epoch, RefusalCode::Full, RefusalCode::Transport];
        matches!(self, Self::Refused { code, .. } if after_that.contains(code))
    }

    /// Returns how far the attempt got. One that got further tells more about the peer, and less
    /// about one of its addresses.
    fn progress(&self) -> u8 {
        match self {
            Self::Route(_) | Self::Network { .. } => 0,
            Self::Connect { .. } | Self::Timeout { .. } => 1,
            Self::Rdma { .. } => 2,
            Self::Tls { .. }
            | Self::Handshake { .. }
            | Self::Closed { .. }
            | Self::Refused { .. }
            | Self::WrongPeer { .. } => 3,
        }
    }
}

enum ExchangeError {
    Io(io::Error),
    Handshake(HandshakeError),
}

impl ExchangeError {
    fn into_dial(self, peer: SocketAddr) -> DialError {
        match self {
            Self::Handshake(source) => DialError::Handshake { peer, source },
            Self::Io(error) => match tls::explain(&error) {
                Some(source) => DialError::Tls { peer, source },
                None => DialError::Closed { peer },
            },
        }
    }
}

impl From<io::Error> for ExchangeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<HandshakeError> for ExchangeError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

async fn exchange(
    stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin),
    hello: &[u8],
) -> Result<Answer, ExchangeError> {
    let written = write(stream, hello).await;
    // A peer that refuses by TLS sends the reason before it closes. That reason tells more than a
    // failed write.
    let preamble = match (written, preamble(stream).await) {
        (Err(error), Err(ExchangeError::Io(reason))) if tls::explain(&reason).is_none() => {
            return Err(error.into());
        }
        (_, read) => read?,
    };
    let Preamble { version, length } = Preamble::decode(preamble)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    match Answer::decode(&body) {
        // A refusal can be read in any version. An acceptance of another version may agree to
        // something unknown here.
        Ok(refusal @ Answer::Refuse(_)) => Ok(refusal),
        _ if version != VERSION => Err(HandshakeError::Version(version).into()),
        answer => Ok(answer?),
    }
}

async fn write(stream: &mut (impl tokio::io::AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

async fn preamble(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<[u8; PREAMBLE], ExchangeError> {
    let mut preamble = [0; PREAMBLE];
    let mut length = 0;
    while length < PREAMBLE {
        match stream.read(&mut preamble[length..]).await? {
            0 if length == 0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            // A TLS alert is shorter than a preamble.
            0 => return Err(HandshakeError::from_first_bytes(&preamble[..length]).into()),
            read => length += read,
        }
    }
    Ok(preamble)
}

fn aliases(endpoint: &Endpoint, wanted: &str) -> String {
    let aliases: Vec<&str> =
        endpoint.addresses.iter().filter_map(|address| address.network.as_deref()).collect();
    if aliases.is_empty() {
        // Only endpoints that were found by SRV records have TXT records.
        return format!(
            "none is known; ask for the port by its name, or for {wanted}._net. before the service's name"
        );
    }
    aliases.join(", ")
}
