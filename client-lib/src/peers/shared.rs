//! State that a PeerSet's handles and tasks share.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use multinet_memory::GpuError;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::end_reason::EndReason;
use super::lock::{Guard, Lock, Releases};
use crate::channel::DataChannel;
use crate::endpoint::Endpoint;
use crate::error::{DialError, SendError, TrySendError};
use crate::frame::Frame;
use crate::handshake::TransportKind;
use crate::outbound::{InvalidReport, LinkId, Outbound, Outgoing, PeerId, Refused};
use crate::reference::OfferId;
use crate::resolve::ResolveError;
use crate::staging::StagingPool;
use crate::stream::{Body, Message, MessageSource};
use crate::wire::{Control, ControlBody, Data, Header};

/// State of a PeerSet: the sending state machine, and what its tasks add.
pub(crate) struct SendState {
    pub(crate) outbound: Outbound<Frame>,
    pub(crate) endpoints: HashMap<PeerId, Arc<Endpoint>>,
    /// Connections that are up or being made.
    pub(crate) links: BTreeMap<LinkId, Arc<Link>>,
    /// Latest reason why connecting to a peer failed, by peer. Removed once a connection is up.
    pub(crate) failures: HashMap<PeerId, Arc<DialError>>,
    /// Latest reason why an established connection to a peer broke, by peer.
    pub(crate) breaks: HashMap<PeerId, String>,
    /// Last reason why frames on a connection of a peer do not go by RDMA, by peer and index.
    pub(crate) instead_of_rdma: HashMap<(PeerId, u16), String>,
    /// Sequence of the last frame that a log line named as holding up all others.
    undecided: Option<u64>,
    /// Last failure of DNS, or the reason why its endpoints are no peers.
    pub(crate) unresolved: Option<String>,
    /// Failure of DNS because of which no endpoint is known any more. `None` otherwise.
    pub(crate) lost: Option<ResolveError>,
    pub(crate) lifecycle: Lifecycle,
}

/// Stage in the life of a PeerSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    /// The PeerSet takes frames.
    Open,
    /// The PeerSet takes no more frames, and finishes those that it has.
    Closing,
    /// The PeerSet was closed. All its connections end.
    Closed {
        /// Number of frames that were not finished when the PeerSet was closed.
        unfinished: usize,
    },
    /// Its last handle was dropped before it was closed. Each connection writes its frames, and
    /// ends.
    Abandoned,
}

pub(crate) struct PeerSetState {
    pub(super) state: Lock<SendState>,
    /// Wakes callers that wait for a change of the state.
    pub(crate) progress: Notify,
    /// Wakes the PeerSet's manager, which makes and ends connections.
    pub(crate) wake: Notify,
    /// Host memory that payloads in a GPU are copied to.
    staging: StagingPool,
    /// Cancelled when all connections of the PeerSet must end.
    pub(crate) shutdown: CancellationToken,
    /// Answers what the peer asks for, if it has connected to fetch.
    pub(super) asks: Option<AskHandler>,
}

/// Function that answers a question. Returns whether the peer may ask so much at a time.
pub(crate) type AskHandler = Box<dyn Fn(Ask) -> bool + Send + Sync>;

/// Question of a peer for a payload that is on offer.
#[derive(Debug)]
pub(crate) struct Ask {
    /// Number by which the answer names the question.
    pub(crate) number: u64,
    pub(crate) id: OfferId,
}

/// One connection to a peer, shared by the tasks that write to it.
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) shared: Arc<PeerSetState>,
    /// Channel that carries the frames. Empty until the connection is up.
    pub(crate) channel: OnceLock<DataChannel<EndReason>>,
    /// Cancelled when this connection must end.
    pub(crate) end: CancellationToken,
}

impl PeerSetState {
    pub(crate) fn new(outbound: Outbound<Frame>, asks: Option<AskHandler>) -> Self {
        let state = SendState {
            outbound,
            endpoints: HashMap::new(),
            links: BTreeMap::new(),
            failures: HashMap::new(),
            breaks: HashMap::new(),
            instead_of_rdma: HashMap::new(),
            undecided: None,
            unresolved: None,
            lost: None,
            lifecycle: Lifecycle::Open,
        };
        Self {
            state: Lock::new(state),
            progress: Notify::new(),
            wake: Notify::new(),
            staging: StagingPool::default(),
            shutdown: CancellationToken::new(),
            asks,
        }
    }

    pub(crate) fn state(&self) -> Guard<'_, SendState> {
        self.state.lock()
    }

    /// Wakes the manager and all callers that wait for a change of the state machine.
    pub(crate) fn notify(&self) {
        self.progress.notify_waiters();
        self.wake.notify_one();
    }

    /// Waits until `holds` returns a value, checking after each change of the state.
    pub(crate) async fn until<T>(&self, mut holds: impl FnMut(&mut SendState) -> Option<T>) -> T {
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            // Enabled before the check, so that a change after it is not missed.
            progress.as_mut().enable();
            if let Some(value) = holds(&mut self.state()) {
                return value;
            }
            progress.await;
        }
    }
}

impl SendState {
    /// Stops taking frames. Those taken before are still delivered.
    pub(crate) fn start_closing(&mut self) {
        if self.lifecycle == Lifecycle::Open {
            self.lifecycle = Lifecycle::Closing;
        }
    }

    /// Ends all connections. Returns the number of frames that were unfinished when this was first
    /// called.
    pub(crate) fn close(&mut self) -> usize {
        if let Lifecycle::Closed { unfinished } = self.lifecycle {
            return unfinished;
        }
        let unfinished = self.outbound.held();
        self.lifecycle = Lifecycle::Closed { unfinished };
        unfinished
    }

    /// Lets each connection write its frames and then end, unless the PeerSet has been closed.
    pub(crate) fn abandon(&mut self) {
        if !self.has_ended() {
            self.lifecycle = Lifecycle::Abandoned;
        }
    }

    /// Returns whether the PeerSet has been closed or abandoned, so that all connections end.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.lifecycle, Lifecycle::Closed { .. } | Lifecycle::Abandoned)
    }

    /// Logs once for each undecided frame that it holds up all others.
    pub(crate) fn warn_undecided(&mut self, refused: Refused) {
        let Refused::Undecided { sequence } = refused else { return };
        if self.undecided.replace(sequence) != Some(sequence) {
            let host = self.outbound.peer_of(sequence).and_then(|peer| self.endpoints.get(&peer));
            let host = host.map_or("none now", |endpoint| &endpoint.host);
            warn!(sequence, host, "{}", TrySendError::Undecided { sequence });
        }
    }

    /// Returns the reason why no peer can be connected, if each has one that waiting does not cure.
    pub(crate) fn lasting_failure(&self) -> Option<Arc<DialError>> {
        let mut failures = self.endpoints.keys().map(|peer| self.failures.get(peer));
        let first = failures.next()??;
        let all = first.is_lasting() && failures.all(|error| error.is_some_and(|error| error.is_lasting()));
        all.then(|| Arc::clone(first))
    }

    /// Returns the failure of DNS because of which no endpoint will ever be named. `None`
    /// otherwise.
    pub(crate) fn permanent_failure(&self) -> Option<ResolveError> {
        let is_lasting =
            |error: &&ResolveError| error.is_permanent() || matches!(error, ResolveError::NoSuchPort { .. });
        self.lost.as_ref().filter(is_lasting).cloned()
    }

    /// Returns the reason why a peer's frames do not go by RDMA. `None` if they do.
    pub(crate) fn instead_of_rdma(&self, peer: PeerId) -> Option<String> {
        let mut reasons = self.instead_of_rdma.iter().filter(|((of, _), _)| *of == peer);
        let (_, reason) = reasons.next().filter(|_| self.transport(peer) != TransportKind::Rdma)?;
        Some(reason.clone())
    }

    /// Returns the transport of a connected peer: RDMA if one of its connections uses it.
    pub(crate) fn transport(&self, peer: PeerId) -> TransportKind {
        let mut channels =
            self.links.iter().filter(|(id, _)| id.peer == peer).filter_map(|(_, link)| link.channel.get());
        if channels.any(DataChannel::is_rdma) { TransportKind::Rdma } else { TransportKind::Tcp }
    }

    /// Returns an error if the PeerSet takes no more frames.
    pub(crate) fn check_open(&self) -> Result<(), SendError> {
        match &self.lost {
            _ if self.lifecycle != Lifecycle::Open => Err(SendError::Closed),
            Some(error) if error.is_permanent() => Err(SendError::Resolve(error.clone())),
            _ => Ok(()),
        }
    }
}

impl Releases for SendState {
    fn released(&mut self) -> &mut Vec<Frame> {
        self.outbound.released()
    }
}

impl Link {
    /// Writes the frames queued for this connection, as far as that is possible without waiting.
    pub(crate) fn try_flush(&self) {
        if let Some(channel) = self.channel.get() {
            channel.try_flush(self);
        }
    }

    /// Writes frames as [`try_flush`](Self::try_flush) does, or leaves them to the connection's
    /// task, which writes more at once.
    pub(crate) fn try_flush_later(&self) {
        if let Some(channel) = self.channel.get() {
            channel.try_flush_later(self);
        }
    }

    /// Applies a receiver's control message.
    pub(super) fn apply_control(
        &self,
        control: &Control,
        body: ControlBody<'_>,
    ) -> Result<(), InvalidReport> {
        // A limit on slots exists only by TCP.
        let limit = control.limit.filter(|_| !self.channel.get().is_some_and(DataChannel::is_rdma));
        let must_wake = {
            let outbound = &mut self.shared.state().outbound;
            outbound.on_control(
                tokio::time::Instant::now().into_std(),
                self.id,
                (control.freed, control.taken),
                body.acked(),
                body.rejected(),
            )?;
            if let Some(limit) = limit {
                outbound.on_limit(self.id, limit);
            }
            // A frame that the receiver rejected is sent again later.
            outbound.has_actions() || control.rejected > 0
        };
        if limit.is_some() {
            self.try_flush();
        }
        self.shared.progress.notify_waiters();
        // This runs for every frame, and usually only senders wait. So the manager is woken only if
        // needed.
        if must_wake {
            self.shared.wake.notify_one();
        }
        Ok(())
    }
}

impl MessageSource for Link {
    fn next(&self) -> Option<Message> {
        let outbound = &mut self.shared.state().outbound;
        outbound
            .take_limit_answer(self.id)
            .map(limit_message)
            .or_else(|| outbound.take(self.id).map(data_message))
    }

    fn has_work(&self) -> bool {
        self.shared.state().outbound.has_work(self.id)
    }

    fn written(&self, count: usize) {
        self.shared.state().outbound.on_written(self.id, count);
        self.shared.progress.notify_waiters();
    }

    fn fetch(&self, message: &mut Message) -> ControlFlow<()> {
        let Body::Frame(frame) = &mut message.body else { return ControlFlow::Continue(()) };
        let Err(error) = self.shared.staging.fetch(frame) else { return ControlFlow::Continue(()) };
        self.give_up(message, &error);
        ControlFlow::Break(())
    }

    fn give_up(&self, message: &Message, reason: &GpuError) {
        if let Ok(Header::Data(Data { sequence, .. })) = Header::decode(&message.header) {
            warn!(sequence, "a frame is given up, because it cannot be read from its GPU: {reason}");
            self.shared.state().outbound.on_unreadable(self.id, sequence);
            self.shared.notify();
        }
    }
}

fn data_message(outgoing: Outgoing<Frame>) -> Message {
    let Outgoing { sequence, floor, is_repeat, frame } = outgoing;
    // The lengths were checked when the frame was submitted.
    let header = Data {
        is_repeat,
        key: frame.key.len() as u8,
        metadata: frame.metadata.len() as u16,
        payload: frame.len() as u32,
        sequence,
        floor,
        timestamp: frame.timestamp.map_or(0, nanoseconds),
    };
    Message { header: Header::Data(header).encode(), body: Body::Frame(frame) }
}

fn limit_message(limit: u32) -> Message {
    Message { header: Header::Limited { limit }.encode(), body: Body::Bytes(Bytes::new()) }
}

/// Returns the nanoseconds from 1970 to `time`, negative before, clamped to 64 bits.
fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |before| -before),
    }
}
