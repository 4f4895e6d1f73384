//! The task of one connection to a peer: connects, reads the receiver's messages, and writes what
//! senders could not write at once.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tracing::{Instrument as _, info, info_span, warn};

use super::dial::{Dialed, Dialer};
use super::end_reason::EndReason;
use super::shared::{Ask, Lifecycle, Link};
use crate::channel::DataChannel;
use crate::endpoint::Endpoint;
use crate::gid;
use crate::handshake::{Accept, TransportKind};
use crate::outbound::DownReason;
use crate::stream::{Body, Message, MessageReader, MessageWriter, NoMessages, ReadTask};
use crate::wire::{CloseCode, ControlBody, HEADER, Header, MAX_TEXT};

/// Size of the buffer for reading a receiver's messages, which are short, in bytes.
const READ_AHEAD: usize = 1 << 10;

/// Time limit for sending the message that closes a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time limit for writing the frames of an abandoned PeerSet, together with the closing message. No
/// caller waits for it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Reports on drop that the connection has ended, also if its task panics, as the application's log
/// may do. Without the report, the state machine would never connect again, and its callers would
/// wait for ever.
struct DownGuard {
    link: Arc<Link>,
    end: DownReason,
}

impl Drop for DownGuard {
    fn drop(&mut self) {
        let Self { link, end } = self;
        let mut state = link.shared.state();
        state.outbound.on_down(tokio::time::Instant::now().into_std(), link.id, *end);
        state.links.remove(&link.id);
        drop(state);
        link.shared.notify();
    }
}

/// Connects to a peer, and runs the connection until it ends. Records the outcome.
pub(crate) async fn serve(link: Arc<Link>, dialer: Arc<Dialer>, endpoint: Arc<Endpoint>) {
    let mut ending = DownGuard { link: Arc::clone(&link), end: DownReason::Broken };
    let span = info_span!("peer", host = %endpoint.host, lane = link.id.index, epoch = link.id.epoch);
    async {
        let connecting = link.end.run_until_cancelled(dialer.dial(&endpoint, link.id));
        match connecting.await {
            None => {}
            Some(Err((error, how))) => {
                ending.end = how;
                let text = error.to_string();
                let last = link.shared.state().failures.insert(link.id.peer, Arc::new(error));
                if last.is_none_or(|last| last.to_string() != text) {
                    warn!(target: "multinet_client::peers::dial", "cannot connect: {text}; trying again");
                }
            }
            Some(Ok(dialed)) => {
                let Dialed { accept, pair, instead_of_rdma, .. } = &dialed;
                let Accept { slots, frame_size, .. } = *accept;
                let transport = if pair.is_some() { TransportKind::Rdma } else { TransportKind::Tcp };
                info!(slots, frame_size, %transport, "connected");
                log_fallback(&link, instead_of_rdma.as_deref(), dialer.wants_rdma());
                match run_connection(&link, dialed).await {
                    EndReason::NotNeeded => info!("closed"),
                    ended => {
                        warn!(target: "multinet_client::peers::ends", "the connection has ended: {ended}");
                        link.shared.state().breaks.insert(link.id.peer, ended.to_string());
                    }
                }
                if let Some(channel) = link.channel.get() {
                    channel.hang_up().await;
                }
            }
        }
    }
    .instrument(span)
    .await;
}

/// Logs why frames do not go by RDMA, once for each peer and reason.
fn log_fallback(link: &Link, reason: Option<&str>, is_wanted: bool) {
    let lane = (link.id.peer, link.id.index);
    let mut state = link.shared.state();
    let said = &mut state.instead_of_rdma;
    match reason {
        None => drop(said.remove(&lane)),
        Some(reason) => {
            let is_said = said.iter().any(|((peer, _), said)| *peer == link.id.peer && said == reason);
            said.insert(lane, reason.to_owned());
            drop(state);
            // On a machine with a device, users expect RDMA unless they rule it out.
            if !is_said && is_wanted && cfg!(feature = "rdma") && gid::has_devices() {
                warn!("frames go over TCP: {reason}");
            } else if !is_said {
                info!("frames go over TCP: {reason}");
            }
        }
    }
}

pub(super) async fn run_connection(link: &Arc<Link>, dialed: Dialed) -> EndReason {
    let Dialed { stream, accept: Accept { slots, frame_size, .. }, pair, .. } = dialed;
    let (reader, writer) = stream.split();
    let channel = link.channel.get_or_init(|| DataChannel::new(pair, MessageWriter::new(writer)));
    {
        let mut state = link.shared.state();
        state.failures.remove(&link.id.peer);
        let now = tokio::time::Instant::now().into_std();
        state.outbound.on_up(now, link.id, slots, frame_size as usize);
    }
    link.shared.notify();
    #[cfg(feature = "rdma")]
    super::answers::attach(link);
    let mut reading =
        ReadTask::start(read_messages(Arc::clone(link), MessageReader::new(reader, READ_AHEAD)));
    let ended = tokio::select! {
        biased;
        // A connection that is not needed may have ended by itself at the same time. That is no
        // failure.
        () = link.end.cancelled() => Ok(EndReason::NotNeeded),
        ended = reading.ended() => Ok(ended),
        error = channel.run(&**link) => Err(error),
    };
    // Both sides may need time to say why the connection ends. No new frames wait for that.
    link.shared.state().outbound.on_ending(link.id);
    let ended = match ended {
        Ok(ended) => ended,
        // The receiver's last messages may have been received already. Frames that they acknowledge
        // are not lost.
        Err(error) => match timeout(CLOSE_TIMEOUT, reading.ended()).await {
            Ok(said @ EndReason::ClosedWith(_)) => said,
            _ => error,
        },
    };
    let is_abandoned =
        matches!(ended, EndReason::NotNeeded) && link.shared.state().lifecycle == Lifecycle::Abandoned;
    if is_abandoned {
        // Callers that need the outcome close or flush the PeerSet.
        let _ = timeout(DRAIN_TIMEOUT, drain(link, channel, &mut reading)).await;
    }
    reading.stop().await;
    let close_message = match &ended {
        EndReason::Wire(_)
        | EndReason::UnexpectedFrame
        | EndReason::UnexpectedAsk
        | EndReason::InvalidId
        | EndReason::TooManyAsks
        | EndReason::InvalidReport(_)
        | EndReason::Rdma(_)
        | EndReason::WrongTransport => Some((CloseCode::Protocol, ended.to_string())),
        // `drain` has sent the closing message.
        EndReason::NotNeeded if is_abandoned => None,
        EndReason::NotNeeded => Some((CloseCode::Done, String::new())),
        // The TCP connection of the handshake still works.
        EndReason::Failed(_) => Some((CloseCode::Done, ended.to_string())),
        EndReason::Io(_) | EndReason::Closed | EndReason::ClosedWith(_) => None,
    };
    if let Some((code, text)) = close_message {
        // The peer notices the end of the connection anyway. This message only adds the reason.
        let _ = timeout(CLOSE_TIMEOUT, channel.finish(&NoMessages, close(code, text))).await;
    }
    // Messages that have arrived by RDMA until now count.
    #[cfg(feature = "rdma")]
    super::answers::drain(link);
    ended
}

/// Writes the frames that the connection has been given and the closing message, and waits until
/// the receiver closes the connection.
async fn drain(
    link: &Link,
    channel: &DataChannel<EndReason>,
    reading: &mut ReadTask<EndReason>,
) -> io::Result<()> {
    channel.flush(link).await?;
    channel.finish(&NoMessages, close(CloseCode::Done, String::new())).await?;
    // Reading goes on until then: the kernel resets a connection that is closed with unread data,
    // and frames on their way would be lost.
    reading.ended().await;
    Ok(())
}

pub(crate) fn close(code: CloseCode, mut text: String) -> Message {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    let header = Header::Close { code, text: text.len() }.encode();
    Message { header, body: Body::Bytes(text.into()) }
}

/// Reads the receiver's messages and applies them, until the connection ends.
async fn read_messages(link: Arc<Link>, mut reader: MessageReader) -> EndReason {
    let mut body = Vec::new();
    loop {
        match read_message(&link, &mut reader, &mut body).await {
            Ok(()) => {}
            Err(ended) => return ended,
        }
    }
}

async fn read_message(link: &Link, reader: &mut MessageReader, body: &mut Vec<u8>) -> Result<(), EndReason> {
    let header: [u8; HEADER] = reader.header().await?.ok_or(EndReason::Closed)?;
    match Header::decode(&header)? {
        Header::Data(_) | Header::Limited { .. } => Err(EndReason::UnexpectedFrame),
        Header::Ask { number, id } => {
            body.resize(id, 0);
            reader.fill(body).await?;
            let asks = link.shared.asks.as_ref().ok_or(EndReason::UnexpectedAsk)?;
            let id = str::from_utf8(body).ok().and_then(|id| id.parse().ok()).ok_or(EndReason::InvalidId)?;
            if asks(Ask { number, id }) { Ok(()) } else { Err(EndReason::TooManyAsks) }
        }
        Header::Close { text, .. } => {
            body.resize(text, 0);
            reader.fill(body).await?;
            let said = String::from_utf8_lossy(body).escape_debug().to_string();
            Err(if said.is_empty() { EndReason::Closed } else { EndReason::ClosedWith(said) })
        }
        Header::Control(control) => {
            body.resize(control.body(), 0);
            reader.fill(body).await?;
            if link.channel.get().is_some_and(DataChannel::is_rdma) {
                return Err(EndReason::WrongTransport);
            }
            link.apply_control(&control, ControlBody::new(&control, body))?;
            Ok(())
        }
    }
}
