//! Lets senders in, or says why not.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsStream;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info, info_span, warn};

use super::Shared;
use super::admission::Door;
use super::agree::{Granted, Offer, agree, offered};
use super::builder::Limits;
use super::control::{Connection, SessionKey, SessionState};
#[cfg(feature = "rdma")]
use super::landing::Landing;
use super::notices::Kind;
use super::receive::{Ended, receive};
use super::room;
use super::slots::{Newcomer, Slots};
use crate::blocking::drop_blocking;
use crate::channel::DataChannel;
use crate::handshake::{
    Accept, Answer, Chosen, HandshakeError, Hello, PREAMBLE, Preamble, Refusal, RefusalCode, TransportKind,
    VERSION, encode,
};
use crate::nic::Keeper;
use crate::peers::close;
use crate::rdma::QueuePair;
use crate::resolve::{List, service_of};
use crate::stream::{MessageReader, MessageWriter, ReadTask, Stream, tune};
use crate::tls::{self, TlsError, drain_and_close, holder_names, peer_names};
use crate::wire::CloseCode;

/// How many may be in their handshake at a time.
const HANDSHAKES: usize = 256;

/// How many of them may come from one address.
const HANDSHAKES_EACH: usize = 32;

/// How long is waited when the system has no more file descriptors.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// How much is read ahead: many small frames at a time.
const AHEAD: usize = 16 << 10;

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// Those in their handshake, by address.
#[derive(Default)]
struct Guests(Mutex<HashMap<IpAddr, usize>>);

struct Guest {
    guests: Arc<Guests>,
    address: IpAddr,
}

impl Guests {
    fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Guest> {
        let mut guests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = guests.values().sum();
        let count = guests.entry(address).or_default();
        if all >= HANDSHAKES || *count >= HANDSHAKES_EACH {
            if *count == 0 {
                guests.remove(&address);
            }
            return None;
        }
        *count += 1;
        Some(Guest { guests: Arc::clone(self), address })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut guests = self.guests.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = guests.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                guests.remove(&self.address);
            }
        }
    }
}

/// Takes connections until the listener closes. The `keeper`, if there is one, has them stay on second NICs.
pub(super) async fn accept(
    socket: Arc<TcpListener>,
    mut keeper: Option<Keeper>,
    shared: Arc<Shared>,
    tasks: TaskTracker,
) {
    let guests = Arc::<Guests>::default();
    let door = Door::new(shared.config.tls.is_some());
    let mut stay = |stream: &TcpStream, peer: SocketAddr| match &mut keeper {
        Some(keeper) => keeper.keep(&stream.into(), (stream.local_addr()?.ip().to_canonical(), peer.ip())),
        None => Ok(()),
    };
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = shared.shutdown.cancelled() => return,
        };
        match accepted {
            Ok((stream, mut address)) => {
                // Where a listener for IPv6 serves IPv4, too. A link-local address keeps its scope.
                address.set_ip(address.ip().to_canonical());
                if let Err(reason) = shared.config.admission.admits(address.ip()) {
                    shared.counts.refused();
                    if shared.may_say(Kind::Refused(RefusalCode::Sender)) {
                        warn!(%address, "refused: {reason}");
                    }
                    door.refuse(stream, &reason, &tasks);
                    continue;
                }
                match guests.admit(address.ip()) {
                    Some(guest) => {
                        let span = info_span!("sender", %address);
                        if let Err(error) = stay(&stream, address) {
                            span.in_scope(|| debug!("cannot be kept on second NICs: {error}"));
                            continue;
                        }
                        let serving = serve(Arc::clone(&shared), stream, address, guest);
                        tasks.spawn(serving.instrument(span));
                    }
                    None => {
                        shared.counts.refused();
                        if shared.may_say(Kind::Crowd) {
                            warn!(%address, "turned away: too many are in their handshake");
                        }
                    }
                }
            }
            // Nobody listens there any more.
            Err(_) if shared.shutdown.is_cancelled() => return,
            Err(error) => {
                if shared.may_say(Kind::Exhausted) {
                    warn!("cannot accept connections: {error}; trying again");
                }
                sleep(EXHAUSTED).await;
            }
        }
    }
}

/// A sender that has been let in.
struct Admitted {
    stream: Stream,
    hello: Hello,
    slots: Slots,
    membership: Membership,
    pair: Option<QueuePair<Ended>>,
    /// Why there is none, if the sender has asked for one.
    instead_of_rdma: Option<String>,
}

/// A connection's place in its session, which it leaves when this is dropped.
struct Membership {
    shared: Arc<Shared>,
    key: SessionKey,
    state: Arc<SessionState>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let now = tokio::time::Instant::now().into_std();
        self.shared.sessions().leave(now, &self.key, |state| state.rest());
    }
}

/// Why a sender was not let in.
#[derive(Debug, Error)]
enum Turned {
    /// It has been told.
    #[error("refused: {}", .0.message)]
    Away(Refusal),
    #[error("turned away: {0}")]
    Unreadable(HandshakeError),
    #[error("turned away: {0}")]
    Tls(TlsError),
    #[error("turned away: no handshake within {0:?}")]
    Slow(Duration),
    #[error("gone during the handshake: {0}")]
    Gone(io::Error),
}

impl Turned {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Away(refusal) => Some(Kind::Refused(refusal.code)),
            Self::Unreadable(_) => Some(Kind::Unreadable),
            Self::Tls(_) => Some(Kind::Tls),
            Self::Slow(_) => Some(Kind::Slow),
            // As port scans and health checks do.
            Self::Gone(_) => None,
        }
    }
}

async fn serve(shared: Arc<Shared>, stream: TcpStream, address: SocketAddr, guest: Guest) {
    let admitted = tokio::select! {
        admitted = admit(&shared, stream) => admitted,
        () = shared.shutdown.cancelled() => return,
    };
    drop(guest);
    let Admitted { stream, hello, slots, membership, pair, instead_of_rdma } = match admitted {
        Ok(admitted) => admitted,
        Err(turned) => {
            shared.counts.refused();
            return match turned.kind() {
                Some(kind) if shared.may_say(kind) => warn!("{turned}"),
                Some(_) => {}
                None => debug!("{turned}"),
            };
        }
    };
    let (lane, epoch) = (hello.lane, hello.epoch);
    if shared.may_say(Kind::Connected) {
        let transport = if pair.is_some() { TransportKind::Rdma } else { TransportKind::Tcp };
        info!(name = %hello.from, lane, epoch, slots = slots.count(), %transport, instead_of_rdma, "connected");
    }
    let (reader, writer) = stream.split();
    let connection = Connection::new(
        (hello, address, Arc::clone(&membership.key.owner)),
        shared.config.acknowledge,
        (slots, DataChannel::new(pair, MessageWriter::new(writer))),
        Arc::clone(&membership.state),
        Arc::clone(&shared.flusher),
    );
    let mut reading = ReadTask::start(receive(
        Arc::clone(&shared),
        Arc::clone(&connection),
        MessageReader::new(reader, AHEAD),
    ));
    #[cfg(feature = "rdma")]
    let landing = Landing::watch(&shared, &connection);
    let ended = tokio::select! {
        ended = reading.ended() => ended,
        // What the sender said before it went is here already.
        error = connection.channel().run(&*connection) => match error {
            Ended::Io(_) | Ended::Failed(_) => match timeout(GOODBYE, reading.ended()).await {
                Ok(ended) if ended.is_goodbye() => ended,
                _ => error,
            },
            _ => error,
        },
        () = shared.shutdown.cancelled() => Ended::Shutdown,
        () = superseded(&shared, &connection, (&membership.key, lane, epoch)) => Ended::Superseded,
        () = connection.closing().cancelled() => Ended::MadeRoom(connection.slots().described()),
    };
    reading.stop().await;
    #[cfg(feature = "rdma")]
    if let Some(landing) = landing.as_ref().filter(|_| ended.is_goodbye()) {
        landing.hear_out();
    }
    let code = match &ended {
        Ended::Shutdown => Some(CloseCode::Done),
        Ended::Superseded => Some(CloseCode::Superseded),
        Ended::MadeRoom(_) => Some(CloseCode::Done),
        // The connection of the handshake is as good as ever.
        Ended::Failed(_) => Some(CloseCode::Done),
        ended if ended.is_violation() => Some(CloseCode::Protocol),
        _ => None,
    };
    if let Some(code) = code {
        // The other side learns of the end in any case; this only says why.
        // What our code has taken and acknowledged until now is said before, or the sender would count it as lost, or send it again.
        let goodbye = close(code, ended.to_string());
        let _ = timeout(GOODBYE, connection.channel().finish(&*connection, goodbye)).await;
    }
    // Our code may have frames of it, and with them the connection, for long.
    connection.channel().hang_up().await;
    connection.has_ended();
    let kind = if ended.is_violation() { Kind::Protocol } else { Kind::Ended };
    match shared.may_say(kind) {
        true if ended.is_violation() => warn!("{ended}"),
        true => info!("{ended}"),
        false => {}
    }
}

/// The whole handshake. There is so much time for what the sender says and our answer, and as much again for what it says of RDMA, if that was our
/// answer.
async fn admit(shared: &Arc<Shared>, stream: TcpStream) -> Result<Admitted, Turned> {
    let patience = shared.config.limits.patience;
    let slow = |_| Turned::Slow(patience);
    let (stream, decision, slots) = timeout(patience, greet(shared, stream)).await.map_err(slow)??;
    timeout(patience, settle(stream, decision, slots)).await.map_err(slow)?
}

/// TLS, the sender's words and our answer, and everything that has to be looked up.
async fn greet(shared: &Arc<Shared>, stream: TcpStream) -> Result<(Stream, Decision, Slots), Turned> {
    tune(&stream, shared.config.limits.silence).map_err(Turned::Gone)?;
    let mut owner = Vec::new();
    let mut stream = match &shared.config.tls {
        None => Stream::Plain(stream),
        Some(tls) => {
            let secured = tls.accept(stream).await.map_err(Turned::Tls)?;
            let certificates = secured.get_ref().1.peer_certificates();
            owner = holder_names(certificates);
            debug!(certificate = peer_names(certificates).join(", "), "secured");
            Stream::Tls(Box::new(TlsStream::Server(secured)))
        }
    };
    let heard = match &mut stream {
        Stream::Plain(stream) => hear(stream).await,
        Stream::Tls(stream) => hear(stream).await,
    };
    let addresses = stream.addresses().map_err(Turned::Gone)?;
    let outcome = match heard {
        Ok(hello) => let_in(shared, hello, owner, addresses).await,
        // Whoever speaks TLS reads from an answer that is none that this side does not.
        Err(Turned::Unreadable(error)) if !matches!(error, HandshakeError::Magic) => Err(error.refusal()),
        Err(other) => return Err(other),
    };
    let answer = match &outcome {
        Ok((Decision { accept, .. }, _)) => Answer::Accept(accept.clone()),
        Err(refusal) => Answer::Refuse(refusal.clone()),
    };
    let bytes = encode(&answer).map_err(Turned::Unreadable)?;
    let said = match &mut stream {
        Stream::Plain(stream) => say(stream, &bytes).await,
        Stream::Tls(stream) => say(stream, &bytes).await,
    };
    match outcome {
        Ok((decision, slots)) => {
            said.map_err(Turned::Gone)?;
            Ok((stream, decision, slots))
        }
        Err(refusal) => {
            match stream {
                Stream::Plain(stream) => drain_and_close(stream).await,
                Stream::Tls(stream) => tls::close(stream).await,
            }
            Err(Turned::Away(refusal))
        }
    }
}

/// Hears whether the sender uses RDMA, if it was offered: it has tried.
async fn settle(
    mut stream: Stream,
    Decision { hello, membership, accept, offer, .. }: Decision,
    slots: Slots,
) -> Result<Admitted, Turned> {
    let Some(offer) = offer else {
        let instead_of_rdma = accept.reason;
        return Ok(Admitted { stream, hello, slots, membership, pair: None, instead_of_rdma });
    };
    let chosen = match &mut stream {
        Stream::Plain(stream) => hear_choice(stream).await,
        Stream::Tls(stream) => hear_choice(stream).await,
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
        may_be_tcp(&hello, accept.rdma_only)?;
    }
    Ok(Admitted { stream, hello, slots, membership, pair, instead_of_rdma: chosen.reason })
}

async fn hear(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<Hello, Turned> {
    let (version, body) = message(stream).await?;
    if version < VERSION {
        return Err(Turned::Unreadable(HandshakeError::Version(version)));
    }
    // A later version that says what ours does, and more, is told ours; it knows whether it can go on with that.
    Hello::decode(&body).map_err(|error| {
        Turned::Unreadable(if version > VERSION { HandshakeError::Version(version) } else { error })
    })
}

async fn hear_choice(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<Chosen, Turned> {
    let (_, body) = message(stream).await?;
    Chosen::decode(&body).map_err(Turned::Unreadable)
}

/// Both sides have to allow what is fallen back to.
fn may_be_tcp(hello: &Hello, rdma_only: bool) -> Result<(), Turned> {
    match !rdma_only && hello.transports.contains(&TransportKind::Tcp) {
        true => Ok(()),
        false => Err(Turned::Unreadable(HandshakeError::Value("TCP, where RDMA was agreed"))),
    }
}

/// A message's version, and what it says.
async fn message(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Result<(u16, Vec<u8>), Turned> {
    let mut preamble = [0; PREAMBLE];
    stream.read_exact(&mut preamble).await.map_err(Turned::Gone)?;
    let preamble = Preamble::decode(preamble).map_err(Turned::Unreadable)?;
    let mut body = vec![0; preamble.length];
    stream.read_exact(&mut body).await.map_err(Turned::Gone)?;
    Ok((preamble.version, body))
}

async fn say(stream: &mut (impl tokio::io::AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// What is decided of a sender that is let in.
pub(super) struct Decision {
    pub(super) hello: Hello,
    membership: Membership,
    pub(super) accept: Accept,
    /// RDMA, if that is what is offered.
    pub(super) offer: Option<Offer>,
}

/// Lets a sender in, which comes from the second address, or says why not.
async fn let_in(
    shared: &Arc<Shared>,
    hello: Hello,
    owner: Vec<String>,
    addresses: (IpAddr, IpAddr),
) -> Result<(Decision, Slots), Refusal> {
    let theirs = offered(shared, &hello)?;
    let decision = decide(shared, hello, owner)?;
    // Only now: where there is no room, it may be a half-open connection of the same sender that is in the way, and that goes.
    let granted = grant(shared, addresses.1, theirs.is_ok()).await?;
    agree(shared, decision, granted, (addresses, theirs)).await
}

/// Slots for a newcomer, which may use RDMA, or not.
async fn grant(shared: &Shared, address: IpAddr, may_use_rdma: bool) -> Result<Granted, Refusal> {
    let Limits { slots: wanted, patience, .. } = shared.config.limits;
    // The rest is for what follows.
    let (newcomer, patience) = (Newcomer { address, wanted, is_lasting: may_use_rdma }, patience / 4);
    let (slots, spare) = room::slots(&shared.memory, &shared.late, newcomer, patience).await?;
    let Some(memory) = shared.gpu_memory.as_ref().filter(|_| may_use_rdma && spare.is_none()) else {
        return Ok(Granted { slots, gpu: None, spare });
    };
    match room::slots(memory, &shared.late, newcomer, patience).await {
        Ok((gpu, spare)) => Ok(Granted { slots, gpu: Some(gpu), spare }),
        // Without, payloads come to the machine's memory.
        Err(_) => Ok(Granted { slots, gpu: None, spare }),
    }
}

/// Whether a sender is let in, if there is memory for it.
fn decide(shared: &Arc<Shared>, mut hello: Hello, owner: Vec<String>) -> Result<Decision, Refusal> {
    let config = &shared.config;
    let me = &config.identity;
    if let (Some(expected), Some(mine)) = (&hello.uid, &me.uid)
        && expected != mine
    {
        let message =
            format!("this is pod {} with uid {mine}, not {expected}: the address has a new owner", me.name);
        return Err(Refusal::new(RefusalCode::Pod, message));
    }
    if !config.services.is_empty() && !config.services.iter().any(|name| is_asked_for(name, &hello.service)) {
        let message =
            format!("{} is no endpoint of {}, but of {}", me.name, hello.service, List(&config.services));
        return Err(Refusal::new(RefusalCode::Service, message));
    }
    let now = tokio::time::Instant::now().into_std();
    let lane = (hello.peer, hello.lane);
    let key = SessionKey { id: hello.session, owner: owner.into() };
    let (state, place) = shared.sessions().admit(now, &key, lane, hello.epoch)?;
    // From here on, a lane is what this listener knows it as.
    hello.lane = place;
    state.supersede(place, hello.epoch);
    state.admitted.notify_waiters();
    let membership = Membership { shared: Arc::clone(shared), key, state };
    let accept = Accept {
        uid: me.uid.clone(),
        name: me.name.clone(),
        frame_size: config.limits.frame_size,
        // Filled in when it is known.
        slots: 0,
        transport: TransportKind::Tcp,
        rdma: None,
        rdma_only: false,
        reason: None,
    };
    Ok(Decision { hello, membership, accept, offer: None })
}

/// Whether a service, of which the first labels are enough, is what a sender has asked for, by whichever of its networks.
fn is_asked_for(service: &str, asked: &str) -> bool {
    let asked = service_of(asked);
    let rest = asked.strip_prefix(service_of(service).as_str());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Completes when a later connection of the same lane has been let in: this one is half-open.
async fn superseded(shared: &Shared, connection: &Connection, (key, lane, epoch): (&SessionKey, u16, u64)) {
    loop {
        let mut admitted = std::pin::pin!(connection.session_state().admitted.notified());
        admitted.as_mut().enable();
        if !shared.sessions().is_latest(key, lane, epoch) {
            return;
        }
        admitted.await;
    }
}
