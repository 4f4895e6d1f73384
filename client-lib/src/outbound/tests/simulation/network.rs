//! Connections: two ordered streams of bytes, which can be cut at any time, each for itself.

use std::collections::VecDeque;

use super::receiver::Memory;
use crate::handshake::SessionId;
use crate::outbound::LinkId;
use crate::wire::MAX_IDS;

/// What is sent: the caller's number of it, and its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) number: u64,
    pub(super) key: u64,
    pub(super) length: usize,
    pub(super) is_named: bool,
}

/// A frame on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) sequence: u64,
    pub(super) floor: u64,
    pub(super) is_repeat: bool,
    pub(super) packet: Packet,
}

/// Message of a sender that is on its way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sent {
    Frame(Message),
    /// From here on it keeps to this limit.
    Limited(u32),
}

/// What a receiver says, on its way.
#[derive(Clone, Debug)]
pub(super) struct Control {
    pub(super) freed: u64,
    pub(super) taken: u64,
    pub(super) acked: Vec<u64>,
    pub(super) rejected: Vec<u64>,
    pub(super) limit: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// It has not got so far.
    Pending,
    Open,
    Gone,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) sender: usize,
    pub(super) session: SessionId,
    pub(super) link: LinkId,
    /// The process at its other end, once that has been reached.
    pub(super) process: usize,
    /// What its lane is to the receiver.
    pub(super) lane: u16,
    /// What the receiver remembers of the sender.
    pub(super) memory: Option<Memory>,
    pub(super) at_sender: Side,
    pub(super) at_receiver: Side,
    /// The sender has been told to end it.
    pub(super) is_closing: bool,
    /// The sender has been told to write.
    pub(super) may_write: bool,
    pub(super) data: VecDeque<Sent>,
    pub(super) control: VecDeque<Control>,
    pub(super) is_data_cut: bool,
    pub(super) is_control_cut: bool,
    /// It takes a while for what is on its way to go on.
    pub(super) is_data_stuck: bool,
    pub(super) is_control_stuck: bool,
    pub(super) slots: u64,
    /// So many frames the receiver has room for.
    pub(super) room: u32,
    /// A limit that the sender has not answered, and whether it has been said.
    pub(super) limit: Option<(u32, bool)>,
    /// The sender's books: what it has written, and what it has heard.
    pub(super) handed: u64,
    pub(super) known_freed: u64,
    pub(super) known_taken: u64,
    /// The receiver's: what has come, and what has become of it.
    pub(super) arrived: u64,
    pub(super) freed: u64,
    pub(super) taken: u64,
    pub(super) acked: VecDeque<u64>,
    pub(super) rejected: VecDeque<u64>,
    /// The receiver has something to say.
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

    /// Whether the sender has something to learn of its end.
    pub(super) fn has_ended_for_sender(&self) -> bool {
        let is_over = self.is_closing || self.is_cut() || self.at_receiver == Side::Gone;
        self.at_sender != Side::Gone && is_over
    }

    /// Whether the receiver has something to learn of its end.
    pub(super) fn has_ended_for_receiver(&self) -> bool {
        let is_read_out = self.at_sender == Side::Gone && self.data.is_empty();
        self.at_receiver == Side::Open && (self.is_cut() || is_read_out)
    }

    /// Whether the sender has something to write, perhaps.
    pub(super) fn is_writable(&self) -> bool {
        self.at_sender == Side::Open && self.may_write
    }

    /// Whether the receiver has something to say.
    pub(super) fn may_send_control(&self) -> bool {
        self.at_receiver == Side::Open && self.has_control_to_send
    }

    /// Whether both sides have it.
    pub(super) fn is_up(&self) -> bool {
        self.at_sender == Side::Open && self.at_receiver == Side::Open
    }

    /// Whether something is on its way.
    pub(super) fn is_busy(&self) -> bool {
        !self.data.is_empty() || !self.control.is_empty()
    }

    /// Whether a frame can come.
    pub(super) fn has_data_to_deliver(&self) -> bool {
        !self.is_data_stuck && !self.data.is_empty()
    }

    /// Whether the sender can hear something.
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

    /// The most frames that may be there: what the sender has been told last, or before, as long as it has not answered.
    pub(super) fn most(&self) -> u32 {
        self.limit.map_or(self.room, |(limit, _)| limit.max(self.room))
    }

    /// The receiver says what is new.
    pub(super) fn send_control(&mut self) {
        let acked = self.acked.drain(..self.acked.len().min(MAX_IDS)).collect();
        let rejected = self.rejected.drain(..self.rejected.len().min(MAX_IDS)).collect();
        self.has_control_to_send = !self.acked.is_empty() || !self.rejected.is_empty();
        if !self.is_control_cut && self.at_sender != Side::Gone {
            let unsaid = self.limit.as_mut().filter(|(_, is_said)| !is_said);
            let limit = unsaid.map(|(limit, is_said)| {
                *is_said = true;
                *limit
            });
            self.control.push_back(Control { freed: self.freed, taken: self.taken, acked, rejected, limit });
        }
    }
}
