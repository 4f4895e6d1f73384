//! Simulated receivers: one process with its library and its application.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use super::network::{Connection, Message, Side};
use super::plan::Plan;
use super::{Checked, ensure};
use crate::choose::Choice;
use crate::handshake::{Delivery, SessionId};
use crate::inbound::{Arrival, Reporter, Seen, Sessions};
use crate::outbound::PeerId;

pub(super) type Memory = Arc<Mutex<Seen>>;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) target: usize,
    pub(super) uid: Option<u32>,
    pub(super) sessions: Sessions<SessionId, Memory>,
    pub(super) slots: u32,
    pub(super) frame_size: usize,
    /// Frames that the application may take.
    pub(super) inbox: VecDeque<Held>,
    /// Frames that the application has taken and not dropped.
    pub(super) held: Vec<Held>,
    /// Whether the application stalls.
    pub(super) is_stalled: bool,
    /// Whether the process may have forgotten a sender, since it has had as many as it remembers.
    pub(super) may_forget: bool,
    /// Frames that the application has had, by session: whether it has one still or has
    /// acknowledged it.
    had: HashMap<(SessionId, u64), bool>,
    /// Sequence of the last frame of each key that was not a repeat.
    last: HashMap<(SessionId, PeerId, u64), u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) connection: u64,
    pub(super) sender: usize,
    pub(super) session: SessionId,
    pub(super) sequence: u64,
    pub(super) memory: Memory,
    /// Whether the frame was acknowledged but not dropped yet.
    pub(super) is_acked: bool,
}

/// Decision of an application on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Acknowledges the frame and drops it.
    Done,
    /// Acknowledges the frame and keeps it for a while.
    Acknowledge,
    /// Drops the frame without acknowledging it.
    Reject,
}

impl Process {
    pub(super) fn new(
        target: usize,
        uid: Option<u32>,
        limit: usize,
        (slots, frame_size): (u32, usize),
    ) -> Self {
        Self {
            target,
            uid,
            sessions: Sessions::new(limit),
            slots,
            frame_size,
            inbox: VecDeque::new(),
            held: Vec::new(),
            is_stalled: false,
            may_forget: false,
            had: HashMap::new(),
            last: HashMap::new(),
        }
    }

    /// Handles a frame that has arrived. Returns whether the application gets it.
    pub(super) fn arrived(
        &mut self,
        plan: &Plan,
        connection: &mut Connection,
        memory: &Memory,
        message: Message,
    ) -> Result<bool, String> {
        connection.arrived += 1;
        let occupied = connection.arrived - connection.freed;
        let most = connection.most();
        ensure!(occupied <= u64::from(most), "{occupied} frames for {most} slots");
        ensure!(message.packet.length <= self.frame_size, "a frame larger than it takes");
        let sequence = message.sequence;
        let arrival = match plan.settings.delivery {
            Delivery::AtMostOnce => Arrival::Deliver,
            Delivery::AtLeastOnce => {
                memory.lock().unwrap().arrived_by(connection.lane, sequence, message.floor)
            }
        };
        match arrival {
            Arrival::Deliver => self.deliver(plan, connection, Arc::clone(memory), message)?,
            Arrival::Drop => {}
            Arrival::Acknowledge => connection.acked.push_back(sequence),
        }
        if arrival != Arrival::Deliver {
            connection.freed += 1;
            connection.taken += 1;
            connection.has_control_to_send = true;
        }
        Ok(arrival == Arrival::Deliver)
    }

    fn deliver(&mut self, plan: &Plan, connection: &Connection, memory: Memory, message: Message) -> Checked {
        let Connection { id, sender, session, link, .. } = *connection;
        let Message { sequence, is_repeat, packet, .. } = message;
        let before = self.had.insert((session, sequence), true);
        ensure!(before != Some(true) || self.may_forget, "frame {sequence} is delivered twice");
        if plan.settings.choice == Choice::ByKey && !packet.is_named && !is_repeat {
            // The sender may know this receiver by several names, each of which is a peer to it.
            let name = if plan.faults.names { link.peer } else { PeerId(0) };
            let last = self.last.insert((session, name, packet.key), sequence);
            ensure!(last < Some(sequence), "{sequence} after {last:?} of key {}", packet.key);
        }
        self.inbox.push_back(Held { connection: id, sender, session, sequence, memory, is_acked: false });
        Ok(())
    }

    /// Hands the next frame to the application.
    pub(super) fn take(&mut self) -> Option<Held> {
        let held = self.inbox.pop_front()?;
        self.held.push(held.clone());
        Some(held)
    }

    /// Decides on a frame that the application has. Returns whether this acknowledges it.
    pub(super) fn decide(
        &mut self,
        at: usize,
        verdict: Verdict,
        is_kept: bool,
        connections: &mut [Connection],
    ) -> (Held, bool) {
        let held = self.held[at].clone();
        let is_first = !held.is_acked;
        self.held[at].is_acked = true;
        if verdict != Verdict::Acknowledge {
            self.held.swap_remove(at);
        }
        let own = connections.iter_mut().find(|connection| connection.id == held.connection);
        if let Some(own) = own {
            own.has_control_to_send = true;
            own.freed += u64::from(verdict != Verdict::Acknowledge);
        }
        if is_kept && is_first {
            self.report_outcome(&held, verdict, connections);
        }
        (held, is_first && verdict != Verdict::Reject)
    }

    /// Queues the outcome of a frame on the connections that have to report it.
    fn report_outcome(&mut self, held: &Held, verdict: Verdict, connections: &mut [Connection]) {
        let is_acked = verdict != Verdict::Reject;
        let reporter = held.memory.lock().unwrap().decided(held.sequence, is_acked);
        self.had.insert((held.session, held.sequence), is_acked);
        let is_it = |it: &&mut Connection| {
            it.at_receiver == Side::Open
                && it.session == held.session
                && (reporter == Some(Reporter::All) || reporter == Some(Reporter::Lane(it.lane)))
                && self.sessions.is_latest(&it.session, it.lane, it.link.epoch)
        };
        for connection in connections.iter_mut().filter(is_it) {
            let to = if is_acked { &mut connection.acked } else { &mut connection.rejected };
            to.push_back(held.sequence);
            connection.has_control_to_send = true;
        }
    }
}
