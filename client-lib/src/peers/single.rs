//! Sending on one connection that the peer has opened, and that is not opened again.

use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc;

use super::dial::Dialed;
use super::end_reason::EndReason;
use super::handle::{Handle, Sent};
use super::serve::run_connection;
use super::shared::{Ask, Link, Shared};
use crate::choose::Choice;
use crate::error::SendError;
use crate::frame::Frame;
use crate::handshake::{Delivery, SessionId};
use crate::outbound::{Action, LinkId, Outbound, PeerId, PeerInfo, Settings};

/// Identifier of the only connection.
pub(crate) const ONLY: LinkId = LinkId { peer: PeerId(0), index: 0, epoch: 1 };

/// Most frames that the peer has not decided on.
pub(crate) const MAX_UNDECIDED: usize = 1024;

/// Sender with one connection. Frames are delivered at least once as long as it lasts: a frame that
/// the peer rejects is given up.
pub(crate) struct SingleSender {
    handle: Arc<Handle>,
    link: Arc<Link>,
}

impl SingleSender {
    /// Creates a sender, and the queue of what its peer asks for, which holds at most `asks`.
    pub(crate) fn new(session: SessionId, asks: usize) -> (Self, mpsc::Receiver<Ask>) {
        let (sender, receiver) = mpsc::channel(asks);
        let settings = settings();
        let mut outbound = Outbound::new(settings, session.0 as u64).give_up_rejected();
        let now = tokio::time::Instant::now().into_std();
        let info = PeerInfo { target: String::new(), uid: None, distance: 0 };
        outbound.set_endpoints(now, vec![info]);
        outbound.tick(now);
        let shared = Arc::new(Shared::new(outbound, Some(sender)));
        let end = shared.shutdown.child_token();
        let link = Arc::new(Link { id: ONLY, shared: Arc::clone(&shared), channel: OnceLock::new(), end });
        {
            let mut state = shared.state();
            while state.outbound.next_action().is_some() {}
            state.links.insert(ONLY, Arc::clone(&link));
        }
        let handle = Arc::new(Handle { shared, session: session.0, choice: Choice::RoundRobin });
        (Self { handle, link }, receiver)
    }

    /// Returns the limit on frames in flight that the hello tells the peer.
    pub(crate) fn window() -> u32 {
        u32::try_from(settings().max_per_connection()).unwrap_or(u32::MAX)
    }

    /// Sends a frame, as soon as the peer has room for it.
    pub(crate) async fn send(&self, frame: Frame) -> Result<Sent, SendError> {
        self.handle.send(frame, Some(ONLY.peer)).await
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

fn settings() -> Settings {
    Settings {
        delivery: Delivery::AtLeastOnce,
        choice: Choice::RoundRobin,
        replay: 2 * MAX_UNDECIDED,
        connections: 1,
    }
}
