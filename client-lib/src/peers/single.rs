//! Sending on one connection that the peer has opened, and that is not opened again.

use std::sync::{Arc, OnceLock, Weak};

use super::dial::Dialed;
use super::end_reason::EndReason;
use super::handle::{PeerSetHandle, Sent};
use super::serve::run_connection;
use super::shared::{Ask, Link, PeerSetState};
use crate::choose::Choice;
use crate::error::{SendError, TrySendError};
use crate::frame::Frame;
use crate::handshake::{Delivery, SessionId};
use crate::outbound::{Action, LinkId, Outbound, PeerId, PeerInfo, SendSettings};

/// Identifier of the only connection.
pub(crate) const ONLY: LinkId = LinkId { peer: PeerId(0), index: 0, epoch: 1 };

/// Most frames that the peer has not decided on.
pub(crate) const MAX_UNDECIDED: usize = 1024;

/// Sender with one connection. Frames are delivered at least once as long as it lasts: a frame that
/// the peer rejects is given up.
pub(crate) struct SingleSender {
    handle: Arc<PeerSetHandle>,
    link: Arc<Link>,
}

/// Handle of such a sender by which frames are sent.
pub(crate) struct Answering(Arc<PeerSetHandle>);

impl SingleSender {
    /// Creates a sender. `asked` is called with what the peer asks for, and a handle by which to
    /// answer, on the thread that reads the question. It returns whether the peer may ask so much
    /// at a time.
    pub(crate) fn new(
        session: SessionId,
        asked: impl Fn(&Answering, Ask) -> bool + Send + Sync + 'static,
    ) -> Self {
        let settings = settings();
        let mut outbound = Outbound::new(settings, session.0 as u64).give_up_rejected();
        let now = tokio::time::Instant::now().into_std();
        let info = PeerInfo { target: String::new(), uid: None, distance: 0 };
        outbound.set_endpoints(now, vec![info]);
        outbound.tick(now);
        let handle = Arc::new_cyclic(|handle: &Weak<PeerSetHandle>| {
            let handle = Weak::clone(handle);
            let handler = move |ask| match handle.upgrade() {
                Some(handle) => asked(&Answering(handle), ask),
                // The connection ends.
                None => true,
            };
            let shared = Arc::new(PeerSetState::new(outbound, Some(Box::new(handler))));
            PeerSetHandle { shared, session: session.0, choice: Choice::RoundRobin }
        });
        let shared = &handle.shared;
        let end = shared.shutdown.child_token();
        let link = Arc::new(Link { id: ONLY, shared: Arc::clone(shared), channel: OnceLock::new(), end });
        {
            let mut state = shared.state();
            while state.outbound.next_action().is_some() {}
            state.links.insert(ONLY, Arc::clone(&link));
        }
        Self { handle, link }
    }

    /// Returns the limit on frames in flight that the hello tells the peer.
    pub(crate) fn window() -> u32 {
        u32::try_from(settings().max_per_connection()).unwrap_or(u32::MAX)
    }

    /// Returns a handle by which frames are sent.
    pub(crate) fn answering(&self) -> Answering {
        Answering(Arc::clone(&self.handle))
    }

    /// Runs the connection until it ends. Afterwards no device reads a frame any more.
    pub(crate) async fn run(&self, dialed: Dialed) -> EndReason {
        let ended = tokio::select! {
            ended = run_connection(&self.link, dialed) => ended,
            never = self.write() => match never {},
        };
        if let Some(channel) = self.link.channel.get() {
            channel.hang_up().await;
        }
        ended
    }

    /// Ends the connection, which [`run`](Self::run) returns from.
    pub(crate) fn close(&self) {
        self.link.end.cancel();
    }

    /// Writes the frames that the state machine gives to the connection later than it is given
    /// them.
    async fn write(&self) -> std::convert::Infallible {
        let shared = &self.link.shared;
        loop {
            shared.wake.notified().await;
            let mut must_write = false;
            {
                let mut state = shared.state();
                while let Some(action) = state.outbound.next_action() {
                    must_write |= action == Action::Write(ONLY);
                }
            }
            if must_write {
                self.link.try_flush();
            }
        }
    }
}

impl Answering {
    /// Sends a frame at once, or returns it if the peer has no room for it.
    #[expect(clippy::result_large_err, reason = "the frame itself is what is given back")]
    pub(crate) fn try_send(&self, frame: Frame) -> Result<Sent, (Frame, TrySendError)> {
        self.0.try_send(frame, Some(ONLY.peer))
    }

    /// Sends a frame, as soon as the peer has room for it.
    pub(crate) async fn send(&self, frame: Frame) -> Result<Sent, SendError> {
        self.0.send(frame, Some(ONLY.peer)).await
    }
}

fn settings() -> SendSettings {
    SendSettings {
        delivery: Delivery::AtLeastOnce,
        choice: Choice::RoundRobin,
        replay: 2 * MAX_UNDECIDED,
        connections: 1,
    }
}
