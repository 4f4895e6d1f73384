//! The listener's side of the handshake: TLS, the sender's hello, the answer, and the choice of a
//! transport.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsStream;
use tracing::debug;

use super::ListenerState;
use super::agree::{Agreed, Granted, agree, offered};
use super::control::Connection;
use super::decision::{Decision, Membership, check_asked, decide};
use super::ended::Ended;
use super::limits::Limits;
use super::log_limit::LineKind;
use super::room;
use super::slots::{Newcomer, Slots};
use crate::blocking::drop_blocking;
use crate::endpoint::Endpoint;
use crate::error::DialError;
use crate::handshake::{
    Answer, Chosen, Fetch, HandshakeError, Hello, Opening, PREAMBLE, Preamble, Refusal, RefusalCode,
    TransportKind, VERSION, encode,
};
use crate::rdma::QueuePair;
use crate::stream::{Stream, tune};
use crate::tls::{self, TlsError, drain_and_close, holder_names, peer_names};

/// A sender whose handshake has succeeded, with the transport that it has chosen.
pub(super) struct Admitted {
    pub(super) stream: Stream,
    pub(super) hello: Hello,
    pub(super) slots: Slots<Connection>,
    pub(super) membership: Membership,
    pub(super) pair: Option<QueuePair<Ended>>,
    /// Reason why there is no RDMA, if the sender has asked for it.
    pub(super) instead_of_rdma: Option<String>,
}

/// Peer that may come in.
pub(super) enum Entered {
    Sender(Box<Admitted>),
    Fetcher(FetcherConnection),
}

/// Connection of a peer that has come to fetch payloads, after its first message.
pub(super) struct FetcherConnection {
    pub(super) stream: Stream,
    pub(super) fetch: Fetch,
}

/// Peer whose first message has been read: a sender that has been answered, or a fetcher.
enum Begun {
    Sender(Box<(Stream, Agreed)>),
    Fetcher(FetcherConnection),
}

/// Reason why a sender was not let in.
#[derive(Debug, Error)]
pub(super) enum NotAdmitted {
    /// The listener has refused the sender, and has told it why.
    #[error("the sender was refused: {}", .0.message)]
    Refused(Refusal),
    #[error("the sender was turned away: {0}")]
    Unreadable(HandshakeError),
    #[error("the sender was turned away: {0}")]
    Tls(TlsError),
    #[error("the sender was turned away: no handshake within {0:?}")]
    Slow(Duration),
    #[error("the sender has gone during the handshake: {0}")]
    Gone(io::Error),
}

impl NotAdmitted {
    /// Returns the error of an endpoint that this side has connected to.
    pub(super) fn into_dial(self, endpoint: &Endpoint, peer: SocketAddr) -> DialError {
        match self {
            Self::Refused(Refusal { code, message }) => {
                DialError::Refused { peer, name: endpoint.to_string(), code, message }
            }
            Self::Unreadable(source) => DialError::Handshake { peer, source },
            Self::Tls(source) => DialError::Tls { peer, source },
            Self::Slow(after) => {
                DialError::Timeout { peer, what: "finish the handshake", after, obstacle: None }
            }
            Self::Gone(_) => DialError::Closed { peer },
        }
    }

    /// Returns the kind of log line that it deserves. Port scans and health checks deserve none.
    pub(super) fn line_kind(&self) -> Option<LineKind> {
        match self {
            // The peer is told, and `multinet doctor` asks on purpose.
            Self::Refused(refusal) if refusal.code == RefusalCode::Role => None,
            Self::Refused(refusal) => Some(LineKind::Refused(refusal.code)),
            Self::Unreadable(_) => Some(LineKind::Unreadable),
            Self::Tls(_) => Some(LineKind::Tls),
            Self::Slow(_) => Some(LineKind::Slow),
            Self::Gone(_) => None,
        }
    }
}

/// Performs the whole handshake. The peer's first message and the answer may take the listener's
/// patience, and so may the sender's choice after that, if RDMA was offered.
pub(super) async fn admit(shared: &Arc<ListenerState>, stream: TcpStream) -> Result<Entered, NotAdmitted> {
    let patience = shared.config.limits.patience;
    let slow = |_| NotAdmitted::Slow(patience);
    match timeout(patience, begin(shared, stream)).await.map_err(slow)?? {
        Begun::Sender(begun) => {
            let (stream, agreed) = *begun;
            let admitted = timeout(patience, choose(stream, agreed)).await.map_err(slow)??;
            Ok(Entered::Sender(Box::new(admitted)))
        }
        Begun::Fetcher(fetcher) => Ok(Entered::Fetcher(fetcher)),
    }
}

/// Performs the rest of the handshake with a sender that this side has connected to, and whose
/// certificate is for the names in `owner`.
pub(super) async fn admit_connected(
    shared: &Arc<ListenerState>,
    stream: Stream,
    hello: Hello,
    owner: Vec<String>,
) -> Result<Admitted, NotAdmitted> {
    let patience = shared.config.limits.patience;
    let slow = |_| NotAdmitted::Slow(patience);
    let answering = timeout(patience, answer(shared, stream, hello, owner));
    let (stream, agreed) = answering.await.map_err(slow)??;
    timeout(patience, choose(stream, agreed)).await.map_err(slow)?
}

/// Reads the first message of a peer. Decides on a sender, and sends the answer.
async fn begin(shared: &Arc<ListenerState>, stream: TcpStream) -> Result<Begun, NotAdmitted> {
    let (mut stream, owner) = secure(shared, stream).await?;
    let has_offers = shared.fetchers.is_some();
    let refusal = match read_opening(&mut stream).await {
        Ok(Opening::Send(hello)) if !has_offers => {
            let begun = answer(shared, stream, *hello, owner).await?;
            return Ok(Begun::Sender(Box::new(begun)));
        }
        Ok(Opening::Fetch(fetch)) if has_offers => {
            match check_asked(&shared.config, fetch.uid.as_deref(), &fetch.service) {
                Ok(()) => return Ok(Begun::Fetcher(FetcherConnection { stream, fetch })),
                Err(refusal) => refusal,
            }
        }
        Ok(Opening::Send(_)) => {
            Refusal::new(RefusalCode::Role, "this port offers payloads to fetch; it receives no frames")
        }
        Ok(Opening::Fetch(_)) => {
            Refusal::new(RefusalCode::Role, "this port receives frames; it offers no payloads to fetch")
        }
        // One that is no peer of multinet would not understand a refusal.
        Err(NotAdmitted::Unreadable(error)) if !matches!(error, HandshakeError::Magic) => error.refusal(),
        Err(other) => return Err(other),
    };
    refuse(stream, refusal).await
}

/// Secures a connection, if the listener has certificates. Returns the names of the peer's, too.
async fn secure(shared: &ListenerState, stream: TcpStream) -> Result<(Stream, Vec<String>), NotAdmitted> {
    tune(&stream, shared.config.limits.silence).map_err(NotAdmitted::Gone)?;
    let Some(tls) = &shared.config.tls else { return Ok((Stream::Plain(stream), Vec::new())) };
    let secured = tls.accept(stream).await.map_err(NotAdmitted::Tls)?;
    let certificates = secured.get_ref().1.peer_certificates();
    debug!(certificate = peer_names(certificates).join(", "), "secured");
    let owner = holder_names(certificates);
    Ok((Stream::Tls(Box::new(TlsStream::Server(secured))), owner))
}

/// Decides on a sender, and sends the answer.
async fn answer(
    shared: &Arc<ListenerState>,
    mut stream: Stream,
    hello: Hello,
    owner: Vec<String>,
) -> Result<(Stream, Agreed), NotAdmitted> {
    let addresses = stream.addresses().map_err(NotAdmitted::Gone)?;
    match let_in(shared, hello, owner, addresses).await {
        Ok(agreed) => {
            let accept = Answer::Accept(agreed.decision.accept.clone());
            let bytes = encode(&accept).map_err(NotAdmitted::Unreadable)?;
            write(&mut stream, &bytes).await.map_err(NotAdmitted::Gone)?;
            Ok((stream, agreed))
        }
        Err(refusal) => refuse(stream, refusal).await,
    }
}

/// Tells the peer why it is refused, and ends the connection.
pub(super) async fn refuse<T>(mut stream: Stream, refusal: Refusal) -> Result<T, NotAdmitted> {
    let bytes = encode(&Answer::Refuse(refusal.clone())).map_err(NotAdmitted::Unreadable)?;
    // The peer may have gone, which changes nothing.
    let _ = write(&mut stream, &bytes).await;
    match stream {
        Stream::Plain(stream) => drain_and_close(stream).await,
        Stream::Tls(stream) => tls::close(stream).await,
    }
    Err(NotAdmitted::Refused(refusal))
}

/// Decides on a sender, whose address is the second one, and grants it slots.
async fn let_in(
    shared: &Arc<ListenerState>,
    hello: Hello,
    owner: Vec<String>,
    addresses: (IpAddr, IpAddr),
) -> Result<Agreed, Refusal> {
    let theirs = offered(shared, &hello)?;
    let decision = decide(shared, hello, owner)?;
    // After the decision, by which a half-open connection of the same sender ends: its slots may be
    // the ones that are missing.
    let granted = grant(shared, addresses.1, theirs.is_ok()).await?;
    agree(shared, decision, granted, (addresses, theirs)).await
}

/// Grants slots to a sender, for RDMA and for TCP, or for TCP only.
async fn grant(shared: &ListenerState, address: IpAddr, may_use_rdma: bool) -> Result<Granted, Refusal> {
    let Limits { slots: wanted, patience, .. } = shared.config.limits;
    // The rest of the time is for what follows.
    let (newcomer, patience) = (Newcomer { address, wanted, is_lasting: may_use_rdma }, patience / 4);
    let (slots, spare) = room::grant(&shared.memory, &shared.spares, newcomer, patience).await?;
    let Some(memory) = shared.gpu_memory.as_ref().filter(|_| may_use_rdma && spare.is_none()) else {
        return Ok(Granted { slots, gpu: None, spare });
    };
    match room::grant(memory, &shared.spares, newcomer, patience).await {
        Ok((gpu, spare)) => Ok(Granted { slots, gpu: Some(gpu), spare }),
        // Payloads come to the machine's memory then.
        Err(_) => Ok(Granted { slots, gpu: None, spare }),
    }
}

/// Reads which transport the sender has chosen, if RDMA was offered: it has tried that.
async fn choose(
    mut stream: Stream,
    Agreed { decision, slots, offer }: Agreed,
) -> Result<Admitted, NotAdmitted> {
    let Decision { hello, membership, accept } = decision;
    let Some(offer) = offer else {
        let instead_of_rdma = accept.reason;
        return Ok(Admitted { stream, hello, slots, membership, pair: None, instead_of_rdma });
    };
    let chosen = read_choice(&mut stream).await;
    let (pair, slots) = match &chosen {
        Ok(Chosen { transport: TransportKind::Rdma, .. }) => (Some(offer.pair), offer.gpu.unwrap_or(slots)),
        _ => {
            drop_blocking(offer).await;
            (None, slots)
        }
    };
    let chosen = chosen?;
    if pair.is_none() {
        check_tcp(&hello, accept.rdma_only)?;
    }
    Ok(Admitted { stream, hello, slots, membership, pair, instead_of_rdma: chosen.reason })
}

async fn read_opening(stream: &mut Stream) -> Result<Opening, NotAdmitted> {
    let (version, body) = read(stream).await?;
    if version < VERSION {
        return Err(NotAdmitted::Unreadable(HandshakeError::Version(version)));
    }
    // A sender of a later version, whose hello has all that ours has, is told our version. It knows
    // whether it can go on with that.
    Opening::decode(&body).map_err(|error| {
        NotAdmitted::Unreadable(if version > VERSION { HandshakeError::Version(version) } else { error })
    })
}

async fn read_choice(stream: &mut Stream) -> Result<Chosen, NotAdmitted> {
    let (_, body) = read(stream).await?;
    Chosen::decode(&body).map_err(NotAdmitted::Unreadable)
}

/// Checks that both sides allow TCP, which the sender has fallen back to after RDMA was offered.
fn check_tcp(hello: &Hello, rdma_only: bool) -> Result<(), NotAdmitted> {
    match !rdma_only && hello.transports.contains(&TransportKind::Tcp) {
        true => Ok(()),
        false => Err(NotAdmitted::Unreadable(HandshakeError::Value("TCP, where RDMA was agreed"))),
    }
}

/// Reads a handshake message from a sender. Returns its version and its body.
async fn read(stream: &mut Stream) -> Result<(u16, Vec<u8>), NotAdmitted> {
    let mut preamble = [0; PREAMBLE];
    stream.read_exact(&mut preamble).await.map_err(NotAdmitted::Gone)?;
    let preamble = Preamble::decode(preamble).map_err(NotAdmitted::Unreadable)?;
    let mut body = vec![0; preamble.length];
    stream.read_exact(&mut body).await.map_err(NotAdmitted::Gone)?;
    Ok((preamble.version, body))
}

async fn write(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}
