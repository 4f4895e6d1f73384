//! Accepts connections, and serves each until it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info, info_span, warn};

use super::ListenerState;
use super::admission::Refuser;
use super::control::Connection;
use super::decision::Membership;
use super::ended::Ended;
use super::fetchers::ArrivedFetcher;
use super::handshake::{Admitted, Entered, FetcherConnection, admit, refuse};
use super::log_limit::LineKind;
use super::pending::{ConnectionCounts, Counted};
use super::receive::receive;
#[cfg(feature = "rdma")]
use super::receive_rdma::RdmaReceiver;
use super::session::SessionKey;
use crate::channel::DataChannel;
use crate::handshake::{Refusal, RefusalCode, TransportKind};
use crate::nic::Keeper;
use crate::peers::close;
use crate::stream::{MessageReader, MessageWriter, ReadTask};
use crate::wire::CloseCode;

/// Most handshakes at a time on one listening socket.
const HANDSHAKES: usize = 256;

/// Most handshakes at a time with peers of one address.
const HANDSHAKES_EACH: usize = 32;

/// Time until the listener tries again to accept after an error, as without free file descriptors.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Bytes of a TCP connection that are read ahead: many small frames at a time.
const AHEAD: usize = 16 << 10;

/// Time limit for the last messages to and from a sender when its connection ends.
const GOODBYE: Duration = Duration::from_secs(1);

/// Accepts connections until the listener closes. With a `keeper`, they stay off the default
/// network.
pub(super) async fn accept(
    socket: Arc<TcpListener>,
    mut keeper: Option<Keeper>,
    shared: Arc<ListenerState>,
    tasks: TaskTracker,
) {
    let pending = ConnectionCounts::new(HANDSHAKES, HANDSHAKES_EACH);
    let refuser = Refuser::new(shared.config.tls.is_some());
    let mut keep = |stream: &TcpStream, peer: SocketAddr| match &mut keeper {
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
                // A listener for IPv6 may serve IPv4, too. A link-local address keeps its scope.
                address.set_ip(address.ip().to_canonical());
                if let Err(reason) = shared.config.admission.admits(address.ip()) {
                    shared.counts.refused();
                    if shared.may_log(LineKind::Refused(RefusalCode::Sender)) {
                        warn!(%address, "the connection was refused: {reason}");
                    }
                    refuser.refuse(stream, &reason, &tasks);
                    continue;
                }
                match pending.begin(address.ip()) {
                    Some(handshake) => {
                        let span = info_span!("sender", %address);
                        if let Err(error) = keep(&stream, address) {
                            span.in_scope(|| debug!("the connection cannot be kept on second NICs: {error}"));
                            continue;
                        }
                        let serving = serve(Arc::clone(&shared), stream, address, handshake);
                        tasks.spawn(serving.instrument(span));
                    }
                    None => {
                        shared.counts.refused();
                        if shared.may_log(LineKind::Crowd) {
                            warn!(%address, "the sender was turned away: too many are in their handshake");
                        }
                    }
                }
            }
            // The socket no longer listens.
            Err(_) if shared.shutdown.is_cancelled() => return,
            Err(error) => {
                if shared.may_log(LineKind::Exhausted) {
                    warn!("cannot accept connections: {error}; trying again");
                }
                sleep(EXHAUSTED).await;
            }
        }
    }
}

/// Performs a sender's handshake, and receives its frames until the connection ends.
async fn serve(shared: Arc<ListenerState>, stream: TcpStream, address: SocketAddr, handshake: Counted) {
    let admitted = tokio::select! {
        admitted = admit(&shared, stream) => admitted,
        () = shared.shutdown.cancelled() => return,
    };
    drop(handshake);
    let admitted = match admitted {
        Ok(Entered::Sender(admitted)) => *admitted,
        Ok(Entered::Fetcher(fetcher)) => {
            return hand_over(&shared, fetcher, address).await;
        }
        Err(error) => {
            shared.counts.refused();
            return match error.line_kind() {
                Some(kind) if shared.may_log(kind) => warn!("{error}"),
                Some(_) => {}
                None => debug!("{error}"),
            };
        }
    };
    Receiving::new(&shared, admitted, address).run().await;
}

/// Hands a connection over to the program that offers payloads, unless there are too many.
async fn hand_over(
    shared: &ListenerState,
    FetcherConnection { stream, fetch }: FetcherConnection,
    from: SocketAddr,
) {
    let Some(fetchers) = &shared.fetchers else { return };
    match fetchers.counts.begin(from.ip()) {
        // If it is not taken, the program has ended.
        Some(counted) => drop(fetchers.queue.send(ArrivedFetcher { stream, fetch, from, counted }).await),
        None => {
            shared.counts.refused();
            let refusal = Refusal::new(RefusalCode::Full, "too many fetchers are connected; try again later");
            if shared.may_log(LineKind::Refused(RefusalCode::Full)) {
                warn!("the fetcher was refused: {}", refusal.message);
            }
            let _ = refuse::<()>(stream, refusal).await;
        }
    }
}

/// A connection from a sender, after the handshake.
pub(super) struct Receiving {
    shared: Arc<ListenerState>,
    pub(super) connection: Arc<Connection>,
    membership: Membership,
    lane: (u16, u64),
    pub(super) reader: MessageReader,
}

impl Receiving {
    pub(super) fn new(shared: &Arc<ListenerState>, admitted: Admitted, address: SocketAddr) -> Self {
        let Admitted { stream, hello, slots, membership, pair, instead_of_rdma } = admitted;
        let (lane, epoch) = (hello.lane, hello.epoch);
        if shared.may_log(LineKind::Connected) {
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
        let reader = MessageReader::new(reader, AHEAD);
        Self { shared: Arc::clone(shared), connection, membership, lane: (lane, epoch), reader }
    }

    /// Receives until the connection ends.
    pub(super) async fn run(self) {
        let Self { shared, connection, membership, lane: (lane, epoch), reader } = self;
        let mut reading = ReadTask::start(receive(Arc::clone(&shared), Arc::clone(&connection), reader));
        #[cfg(feature = "rdma")]
        let by_rdma = RdmaReceiver::start(&shared, &connection);
        let ended = tokio::select! {
            ended = reading.ended() => ended,
            // The sender may have said goodbye before it went, which explains the error.
            error = connection.channel.run(&*connection) => match error {
                Ended::Io(_) | Ended::Failed(_) => match timeout(GOODBYE, reading.ended()).await {
                    Ok(ended) if ended.is_goodbye() => ended,
                    _ => error,
                },
                _ => error,
            },
            error = connection.write_asks() => error,
            () = shared.shutdown.cancelled() => Ended::Shutdown,
            () = superseded(&shared, &connection, (&membership.key, lane, epoch)) => Ended::Superseded,
            () = connection.closing.cancelled() => {
                    let room = || Ended::MadeRoom(connection.slots.described());
                    connection.take_reason().unwrap_or_else(room)
                }
        };
        reading.stop().await;
        #[cfg(feature = "rdma")]
        if let Some(by_rdma) = by_rdma.as_ref().filter(|_| ended.is_goodbye()) {
            by_rdma.receive_rest();
        }
        if let Some(code) = close_code(&ended) {
            // The sender notices the end in any case; this says why. What the program has taken and
            // acknowledged until now goes first, or the sender would count it as lost, or send it
            // again.
            let goodbye = close(code, ended.to_string());
            let _ = timeout(GOODBYE, connection.channel.finish(&*connection, goodbye)).await;
        }
        // Explicitly, as frames that the program has may keep the connection's memory alive for
        // long.
        connection.channel.hang_up().await;
        connection.end();
        let kind = if ended.is_violation() { LineKind::Protocol } else { LineKind::Ended };
        match shared.may_log(kind) {
            true if ended.is_violation() => warn!("{ended}"),
            true => info!("{ended}"),
            false => {}
        }
    }
}

/// Returns what the sender is told at the end, unless it has ended the connection itself.
fn close_code(ended: &Ended) -> Option<CloseCode> {
    match ended {
        Ended::Shutdown | Ended::MadeRoom(_) | Ended::NotNeeded => Some(CloseCode::Done),
        Ended::Superseded => Some(CloseCode::Superseded),
        // The connection of the handshake still works.
        Ended::Failed(_) => Some(CloseCode::Done),
        ended if ended.is_violation() => Some(CloseCode::Protocol),
        _ => None,
    }
}

/// Completes when a later connection of the same lane has been let in. This one is half-open then.
async fn superseded(
    shared: &ListenerState,
    connection: &Connection,
    (key, lane, epoch): (&SessionKey, u16, u64),
) {
    loop {
        // Enabled before the check, so that no connection in between is missed.
        let mut admitted = std::pin::pin!(connection.session.admitted.notified());
        admitted.as_mut().enable();
        if !shared.sessions.lock().is_latest(key, lane, epoch) {
            return;
        }
        admitted.await;
    }
}
