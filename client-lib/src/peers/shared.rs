//! What a PeerSet's handles and tasks share.

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
use crate::resolve::ResolveError;
use crate::staging::StagingPool;
use crate::stream::{Body, Message, MessageSource};
use crate::wire::{Control, ControlBody, Data, Header};

/// The state machine, and what the shell knows beside it.
pub(crate) struct State {
    pub(crate) outbound: Outbound<Frame>,
    pub(crate) endpoints: HashMap<PeerId, Arc<Endpoint>>,
    /// Connections that are there or being made.
    pub(crate) links: BTreeMap<LinkId, Arc<Link>>,
    /// Why a peer could not be connected, most recently.
    pub(crate) failures: HashMap<PeerId, Arc<DialError>>,
    /// Why a connection to a peer has ended that was not to, most recently.
    pub(crate) breaks: HashMap<PeerId, String>,
    /// Why frames of a peer's lane do not go by RDMA, as it was said last.
    pub(crate) instead_of_rdma: HashMap<(PeerId, u16), String>,
    /// The frame that holds all others up, as it was said last.
    undecided: Option<u64>,
    /// What DNS said last, if it was not endpoints, or why they are none to connect to.
    pub(crate) unresolved: Option<String>,
    /// Why DNS names no endpoint, if it does not.
    pub(crate) lost: Option<ResolveError>,
    pub(crate) lifecycle: Lifecycle,
}

/// Stage in the life of a PeerSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    /// It takes frames.
    Open,
    /// It takes no more frames, and finishes those that it has.
    Closing,
    /// It was closed. All connections end.
    Closed {
        /// Number of frames that were not finished at that time.
        unfinished: usize,
    },
    /// Its last handle was dropped before it was closed. Each connection writes its frames, and ends.
    Abandoned,
}

pub(crate) struct Shared {
    pub(super) state: Lock<State>,
    /// Something has changed that a waiting caller may wait for.
    pub(crate) progress: Notify,
    /// The manager has something to do.
    pub(crate) wake: Notify,
    /// What GPUs' payloads are copied to.
    staging: StagingPool,
    /// Everything ends.
    pub(crate) shutdown: CancellationToken,
}

/// A connection's handle for those who write to it.
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) shared: Arc<Shared>,
    /// Set once it is up.
    pub(crate) channel: OnceLock<DataChannel<EndReason>>,
    /// It is to end.
    pub(crate) end: CancellationToken,
}

impl Shared {
    pub(crate) fn new(outbound: Outbound<Frame>) -> Self {
        let state = State {
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
        }
    }

    pub(crate) fn state(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// The state machine has been told something: whoever waits looks again.
    pub(crate) fn notify(&self) {
        self.progress.notify_waiters();
        self.wake.notify_one();
    }

    /// Waits until a condition holds.
    pub(crate) async fn until<T>(&self, mut holds: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            // From here on nothing is missed.
            progress.as_mut().enable();
            if let Some(value) = holds(&mut self.state()) {
                return value;
            }
            progress.await;
        }
    }
}

impl State {
    /// Takes no more frames.
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

    /// Has connections write their frames and end, unless they have been closed.
    pub(crate) fn abandon(&mut self) {
        if !self.has_ended() {
            self.lifecycle = Lifecycle::Abandoned;
        }
    }

    /// Returns whether all connections end.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.lifecycle, Lifecycle::Closed { .. } | Lifecycle::Abandoned)
    }

    /// Says once of a frame that it holds all others up.
    pub(crate) fn warn_undecided(&mut self, refused: Refused) {
        let Refused::Undecided { sequence } = refused else { return };
        if self.undecided.replace(sequence) != Some(sequence) {
            let host = self.outbound.peer_of(sequence).and_then(|peer| self.endpoints.get(&peer));
            let host = host.map_or("nobody now", |endpoint| &endpoint.host);
            warn!(sequence, host, "{}", TrySendError::Undecided { sequence });
        }
    }

    /// Why none of the peers that there are can be connected, however long it is tried.
    pub(crate) fn lasting_failure(&self) -> Option<Arc<DialError>> {
        let mut failures = self.endpoints.keys().map(|peer| self.failures.get(peer));
        let first = failures.next()??;
        let all = first.is_lasting() && failures.all(|error| error.is_some_and(|error| error.is_lasting()));
        all.then(|| Arc::clone(first))
    }

    /// Why DNS will name no endpoint, however often it is asked.
    pub(crate) fn permanent_failure(&self) -> Option<ResolveError> {
        let is_lasting =
            |error: &&ResolveError| error.is_permanent() || matches!(error, ResolveError::NoSuchPort { .. });
        self.lost.as_ref().filter(is_lasting).cloned()
    }

    /// Why none of a peer's lanes is by RDMA.
    pub(crate) fn instead_of_rdma(&self, peer: PeerId) -> Option<String> {
        let mut reasons = self.instead_of_rdma.iter().filter(|((of, _), _)| *of == peer);
        let (_, reason) = reasons.next().filter(|_| self.transport(peer) != TransportKind::Rdma)?;
        Some(reason.clone())
    }

    /// How frames travel to a peer that is connected: by RDMA if one of its lanes is.
    pub(crate) fn transport(&self, peer: PeerId) -> TransportKind {
        let mut channels =
            self.links.iter().filter(|(id, _)| id.peer == peer).filter_map(|(_, link)| link.channel.get());
        if channels.any(DataChannel::is_rdma) { TransportKind::Rdma } else { TransportKind::Tcp }
    }

    /// Whether frames are taken.
    pub(crate) fn check_open(&self) -> Result<(), SendError> {
        match &self.lost {
            _ if self.lifecycle != Lifecycle::Open => Err(SendError::Closed),
            Some(error) if error.is_permanent() => Err(SendError::Resolve(error.clone())),
            _ => Ok(()),
        }
    }
}

impl Releases for State {
    fn released(&mut self) -> &mut Vec<Frame> {
        self.outbound.released()
    }
}

impl Link {
    /// Writes what there is for it.
    pub(crate) fn try_flush(&self) {
        if let Some(channel) = self.channel.get() {
            channel.try_flush(self);
        }
    }

    /// As [`try_flush`](Self::try_flush), or leaves it to the task, which writes more at once.
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
        // Under RDMA there is none.
        let limit = control.limit.filter(|_| !self.channel.get().is_some_and(DataChannel::is_rdma));
        let is_something = {
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
            // A frame that was not wanted is to be sent again, in its time.
            outbound.has_actions() || control.rejected > 0
        };
        if limit.is_some() {
            self.try_flush();
        }
        self.shared.progress.notify_waiters();
        // As a rule there is nothing to do but to let senders know, and this is the way of every frame.
        if is_something {
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
            warn!(sequence, "a frame is given up, for it cannot be read from its GPU: {reason}");
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

/// Since 1970; times that do not fit are as far as it goes.
fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |before| -before),
    }
}
