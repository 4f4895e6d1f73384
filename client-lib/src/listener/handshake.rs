//! The listener's side of the handshake: TLS, the sender's hello, the answer, and the choice of a
//! transport.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsStream;
use tracing::debug;

use super::Shared;
use super::agree::{Agreed, Granted, agree, offered};
use super::control::Connection;
use super::decision::{Decision, Membership, decide};
use super::ended::Ended;
use super::limits::Limits;
use super::log_limit::LineKind;
use super::room;
use super::slots::{Newcomer, Slots};
use crate::blocking::drop_blocking;
use crate::handshake::{
    Answer, Chosen, HandshakeError, Hello, PREAMBLE, Preamble, Refusal, TransportKind, VERSION, encode,
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
    /// Returns the kind of log line that it deserves. Port scans and health checks deserve none.
    pub(super) fn line_kind(&self) -> Option<LineKind> {
        match self {
            Self::Refused(refusal) => Some(LineKind::Refused(refusal.code)),
            Self::Unreadable(_) => Some(LineKind::Unreadable),
            Self::Tls(_) => Some(LineKind::Tls),
            Self::Slow(_) => Some(LineKind::Slow),
            Self::Gone(_) => None,
        }
    }
}

/// Performs the whole handshake. The sender's hello and the answer may take the listener's
/// patience, and so may the sender's choice after that, if RDMA was offered.
pub(super) async fn admit(shared: &Arc<Shared>, stream: TcpStream) -> Result<Admitted, NotAdmitted> {
    let patience = shared.config.limits.patience;
    let slow = |_| NotAdmitted::Slow(patience);
    let (stream, agreed) = timeout(patience, answer(shared, stream)).await.map_err(slow)??;
    timeout(patience, choose(stream, agreed)).await.map_err(slow)?
}

/// Reads the sender's hello, decides on the sender, and sends the answer.
async fn answer(shared: &Arc<Shared>, stream: TcpStream) -> Result<(Stream, Agreed), NotAdmitted> {
    tune(&stream, shared.config.limits.silence).map_err(NotAdmitted::Gone)?;
    let mut owner = Vec::new();
    let mut stream = match &shared.config.tls {
        None => Stream::Plain(stream),
        Some(tls) => {
            let secured = tls.accept(stream).await.map_err(NotAdmitted::Tls)?;
            let certificates = secured.get_ref().1.peer_certificates();
            owner = holder_names(certificates);
            debug!(certificate = peer_names(certificates).join(", "), "secured");
            Stream::Tls(Box::new(TlsStream::Server(secured)))
        }
    };
    let hello = match &mut stream {
        Stream::Plain(stream) => read_hello(stream).await,
        Stream::Tls(stream) => read_hello(stream).await,
    };
    let addresses = stream.addresses().map_err(NotAdmitted::Gone)?;
    let outcome = match hello {
        Ok(hello) => let_in(shared, hello, owner, addresses).await,
        // One that is no peer of multinet would not understand a refusal.
        Err(NotAdmitted::Unreadable(error)) if !matches!(error, HandshakeError::Magic) => {
            Err(error.refusal())
        }
        Err(other) => return Err(other),
    };
    let answer = match &outcome {
        Ok(agreed) => Answer::Accept(agreed.decision.accept.clone()),
        Err(refusal) => Answer::Refuse(refusal.clone()),
    };
    let bytes = encode(&answer).map_err(NotAdmitted::Unreadable)?;
    let written = match &mut stream {
        Stream::Plain(stream) => write(stream, &bytes).await,
        Stream::Tls(stream) => write(stream, &bytes).await,
    };
    match outcome {
        Ok(agreed) => {
            written.map_err(NotAdmitted::Gone)?;
            Ok((stream, agreed))
        }
        Err(refusal) => {
            match stream {
                Stream::Plain(stream) => drain_and_close(stream).await,
                Stream::Tls(stream) => tls::close(stream).await,
            }
            Err(NotAdmitted::Refused(refusal))
        }
    }
}

/// Decides on a sender, whose address is the second one, and grants it slots.
async fn let_in(
    shared: &Arc<Shared>,
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
async fn grant(shared: &Shared, address: IpAddr, may_use_rdma: bool) -> Result<Granted, Refusal> {
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
    let chosen = match &mut stream {
        Stream::Plain(stream) => read_choice(stream).await,
        Stream::Tls(stream) => read_choice(stream).await,
    };
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

async fn read_hello(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<Hello, NotAdmitted> {
    let (version, body) = read(stream).await?;
    if version < VERSION {
        return Err(NotAdmitted::Unreadable(HandshakeError::Version(version)));
    }
    // A sender of a later version, whose hello has all that ours has, is told our version. It knows
    // whether it can go on with that.
    Hello::decode(&body).map_err(|error| {
        NotAdmitted::Unreadable(if version > VERSION { HandshakeError::Version(version) } else { error })
    })
}

async fn read_choice(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<Chosen, NotAdmitted> {
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
async fn read(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<(u16, Vec<u8>), NotAdmitted> {
    let mut preamble = [0; PREAMBLE];
    stream.read_exact(&mut preamble).await.map_err(NotAdmitted::Gone)?;
    let preamble = Preamble::decode(preamble).map_err(NotAdmitted::Unreadable)?;
    let mut body = vec![0; preamble.length];
    stream.read_exact(&mut body).await.map_err(NotAdmitted::Gone)?;
    Ok((preamble.version, body))
}

async fn write(stream: &mut (impl tokio::io::AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}
