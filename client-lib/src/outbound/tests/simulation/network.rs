//! Connections: two ordered streams of bytes, each of which can be cut at any time.

use std::collections::VecDeque;

use super::receiver::Memory;
use crate::handshake::SessionId;
use crate::outbound::LinkId;
use crate::wire::MAX_IDS;

/// Frame that the simulated caller sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) number: u64,
    pub(super) key: u64,
    pub(super) length: usize,
    pub(super) is_named: bool,
}

/// Frame in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) sequence: u64,
    pub(super) floor: u64,
    pub(super) is_repeat: bool,
    pub(super) packet: Packet,
}

/// Message of a sender in flight.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sent {
    Frame(Message),
    /// The sender keeps to this limit from here on.
    Limited(u32),
}

/// Report of a receiver in flight.
#[derive(Clone, Debug)]
pub(super) struct Control {
    pub(super) freed: u64,
    pub(super) taken: u64,
    pub(super) acked: Vec<u64>,
    pub(super) rejected: Vec<u64>,
    pub(super) limit: Option<u32>,
}

/// State of a connection at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Not reached yet.
    Pending,
    Open,
    Gone,
}

/// A connection with the messages in flight, and separate counters of each side.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) sender: usize,
    pub(super) session: SessionId,
    pub(super) link: LinkId,
    /// The process at the other end, once reached.
    pub(super) process: usize,
    /// The receiver's index of the connection.
    pub(super) lane: u16,
    /// The receiver's record of the sender's frames.
    pub(super) memory: Option<Memory>,
    pub(super) at_sender: Side,
    pub(super) at_receiver: Side,
    /// Whether the sender was told to close the connection.
    pub(super) is_closing: bool,
    /// Whether the sender was told to write.
    pub(super) may_write: bool,
    pub(super) data: VecDeque<Sent>,
    pub(super) control: VecDeque<Control>,
    pub(super) is_data_cut: bool,
    pub(super) is_control_cut: bool,
    /// Whether messages in flight are delayed.
    pub(super) is_data_stuck: bool,
    pub(super) is_control_stuck: bool,
    pub(super) slots: u64,
    /// Number of frames that the receiver has room for.
    pub(super) room: u32,
    /// Limit that the sender has not confirmed, and whether the receiver has sent it.
    pub(super) limit: Option<(u32, bool)>,
    /// Sender's counters: frames written, and the latest report.
    pub(super) handed: u64,
    pub(super) known_freed: u64,
    pub(super) known_taken: u64,
    /// Receiver's counters and decisions.
    pub(super) arrived: u64,
    pub(super) freed: u64,
    pub(super) taken: u64,
    pub(super) acked: VecDeque<u64>,
    pub(super) rejected: VecDeque<u64>,
    /// Whether the receiver has a report to send.
    pub(super) has_control_to_send: bool,
}

impl Connection {
    pub(super) fn new(id: u64, sender: usize, session: SessionId, link: LinkId) -> Self {
        Self {
            id,
            sender,
            session,
            link,
            process: usize::MAX,
            lane: 0,
            memory: None,
            at_sender: Side::Pending,
            at_receiver: Side::Pending,
            is_closing: false,
            may_write: false,
            data: VecDeque::new(),
            control: VecDeque::new(),
            is_data_cut: false,
            is_control_cut: false,
            is_data_stuck: false,
            is_control_stuck: false,
            slots: 0,
            room: 0,
            limit: None,
            handed: 0,
            known_freed: 0,
            known_taken: 0,
            arrived: 0,
            freed: 0,
            taken: 0,
            acked: VecDeque::new(),
            rejected: VecDeque::new(),
            has_control_to_send: false,
        }
    }

    pub(super) fn cut_data(&mut self) {
        self.is_data_cut = true;
        self.data.clear();
    }

    pub(super) fn cut_control(&mut self) {
        self.is_control_cut = true;
        self.control.clear();
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_data_cut || self.is_control_cut
    }

    /// Returns whether the connection has ended and the sender has yet to notice.
    pub(super) fn has_ended_for_sender(&self) -> bool {
        let is_over = self.is_closing || self.is_cut() || self.at_receiver == Side::Gone;
        self.at_sender != Side::Gone && is_over
    }

    /// Returns whether the connection has ended and the receiver has yet to notice.
    pub(super) fn has_ended_for_receiver(&self) -> bool {
        let is_read_out = self.at_sender == Side::Gone && self.data.is_empty();
        self.at_receiver == Side::Open && (self.is_cut() || is_read_out)
    }

    /// Returns whether the sender may have something to write.
    pub(super) fn is_writable(&self) -> bool {
        self.at_sender == Side::Open && self.may_write
    }

    /// Returns whether the receiver has a report to send.
    pub(super) fn may_send_control(&self) -> bool {
        self.at_receiver == Side::Open && self.has_control_to_send
    }

    /// Returns whether the connection is open at both ends.
    pub(super) fn is_up(&self) -> bool {
        self.at_sender == Side::Open && self.at_receiver == Side::Open
    }

    /// Returns whether messages are in flight.
    pub(super) fn is_busy(&self) -> bool {
        !self.data.is_empty() || !self.control.is_empty()
    }

    /// Returns whether a message can reach the receiver.
    pub(super) fn has_data_to_deliver(&self) -> bool {
        !self.is_data_stuck && !self.data.is_empty()
    }

    /// Returns whether a report can reach the sender.
    pub(super) fn has_control_to_deliver(&self) -> bool {
        self.at_sender != Side::Gone && !self.is_control_stuck && !self.control.is_empty()
    }

    pub(super) fn is_over(&self) -> bool {
        self.at_sender == Side::Gone && self.at_receiver != Side::Open
    }

    pub(super) fn write(&mut self, message: Message) {
        self.handed += 1;
        self.send(Sent::Frame(message));
    }

    pub(super) fn send(&mut self, sent: Sent) {
        if !self.is_data_cut && self.at_receiver == Side::Open {
            self.data.push_back(sent);
        }
    }

    /// Returns the most frames that may be in flight: until the sender confirms a limit, it may
    /// still use the higher one before.
    pub(super) fn most(&self) -> u32 {
        self.limit.map_or(self.room, |(limit, _)| limit.max(self.room))
    }

    /// Sends the receiver's report.
    pub(super) fn send_control(&mut self) {
        let acked = self.acked.drain(..self.acked.len().min(MAX_IDS)).collect();
        let rejected = self.rejected.drain(..self.rejected.len().min(MAX_IDS)).collect();
        self.has_control_to_send = !self.acked.is_empty() || !self.rejected.is_empty();
        if !self.is_control_cut && self.at_sender != Side::Gone {
            let unsent = self.limit.as_mut().filter(|(_, is_sent)| !is_sent);
            let limit = unsent.map(|(limit, is_sent)| {
                *is_sent = true;
                *limit
            });
            self.control.push_back(Control { freed: self.freed, taken: self.taken, acked, rejected, limit });
        }
    }
}
