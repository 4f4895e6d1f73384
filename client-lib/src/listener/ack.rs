//! Schedules the control messages of a receiver: credits for slots that are free again, and
//! acknowledgements. Pure: it has no lock, timer or socket.
//!
//! A program drops frames one at a time, but a message for each would cost as much as a small
//! frame. So credits and acknowledgements are collected, and sent
//!
//! - at once, if half of the slots that the sender uses are free, a message is full, or its limit
//!   changes;
//! - as soon as the program waits for a frame, if there are acknowledgements, for the sender may
//!   wait for them;
//! - else at the first flush that finds no more free slots than the one before. The pauses between
//!   flushes double, and with the last of [`FLUSHES`] it is sent in any case.

use std::time::Duration;

use tokio::time::Instant;

use crate::rdma::LocalSlots;
use crate::stream::{Body, Message, SHORT};
use crate::wire::{Control, Header, WINDOW};

/// Time from a change, such as a free slot, until the first flush of the control message.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Longest pause between two flushes of a control message.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(1 << (FLUSHES - 1));

/// Number of flushes after which a message is sent even if the next one would say more.
const FLUSHES: u32 = 3;

/// Most sequences of acknowledged and rejected frames in one control message, without RDMA.
const IDS: usize = SHORT / size_of::<u64>();

/// The same under RDMA, where a message also has the numbers of free slots, as many as sequences.
const IDS_WITH_SLOTS: usize = SHORT / (size_of::<u64>() + size_of::<u16>());

/// Most sequences of one kind that wait to be sent: a window of them, and as many that have left
/// the window meanwhile or are repeated.
const MOST_IDS: usize = 2 * WINDOW as usize;

/// Scheduler of one sender's control messages, which collects what they have to say.
#[derive(Default)]
pub(super) struct AckScheduler {
    /// Slots that have become free since the connection began, and how many of them the sender
    /// knows of.
    freed: u64,
    sent_freed: u64,
    /// Frames that the program has taken, and how many of them the sender knows of.
    taken: u64,
    sent_taken: u64,
    /// Sequences of frames that the program has acknowledged, or rejected, not yet sent.
    acked: Vec<u64>,
    rejected: Vec<u64>,
    /// Whether the connection is in the flusher's list for the next timed flush.
    awaits_flush: bool,
    /// Whether the connection is in the flusher's list for the moment when the program is idle.
    awaits_idle: bool,
    /// `freed` at the last flush, and how many flushes have found more since the first.
    freed_at_flush: u64,
    flushes: u32,
    /// Values of `freed` at the last two marks, one tick apart; the older one first.
    freed_at_marks: [u64; 2],
    /// The free slots, where the sender has to know which they are (by RDMA).
    slots: Option<LocalSlots>,
    /// Most frames that the sender may have under way, as far as it knows.
    room: u32,
    /// Number of newly free slots for which a message is sent at once.
    enough: u64,
    /// The limit that the sender has not answered, and since when it has been asked to.
    asked: Option<(u32, Instant)>,
    /// The limit on its slots that the sender is to be told; `None` once the message with it is
    /// made.
    limit: Option<u32>,
}

/// Time at which to send the next control message to the sender.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum When {
    Now,
    /// At the next flush, or as soon as the program is idle. One that is false is not needed, or
    /// the connection waits for it already.
    Later {
        at_flush: bool,
        when_idle: bool,
    },
}

impl AckScheduler {
    /// Creates the scheduler for a sender that has `slots` slots, and never more than `window`
    /// frames under way. By RDMA, `local` keeps which slots are free.
    pub(super) fn new(slots: u32, window: Option<u32>, local: Option<LocalSlots>) -> Self {
        // Before its second mark, a connection is not quiet: its first frame may be on its way.
        let mut this = Self { slots: local, freed_at_marks: [u64::MAX; 2], ..Self::default() };
        this.set_room(slots, window);
        this
    }

    fn set_room(&mut self, room: u32, window: Option<u32>) {
        self.room = room;
        self.enough = u64::from(window.unwrap_or(u32::MAX).min(room).div_ceil(2)).max(1);
    }

    /// Returns how many frames the sender may have sent since the connection began. It is no more
    /// than the sender has been told, so that one that reads nothing cannot go on sending.
    pub(super) fn credit(&self) -> u64 {
        u64::from(self.room) + self.sent_freed
    }

    /// Returns the state of each slot under RDMA, where the sender is told which are free, or
    /// `None`.
    pub(super) fn local_slots(&self) -> Option<&LocalSlots> {
        self.slots.as_ref()
    }

    /// Records that the sender has written a frame to a slot, by RDMA.
    #[cfg(feature = "rdma")]
    pub(super) fn landed(&mut self, slot: u16) -> Result<(), crate::rdma::Violation> {
        self.slots.as_mut().map_or(Ok(()), |slots| slots.occupy(slot))
    }

    /// Asks the sender to keep to a limit, unless it has still to answer another one.
    pub(super) fn ask(&mut self, limit: u32, window: Option<u32>, now: Instant) {
        if self.asked.is_none() {
            let before = self.room;
            self.set_room(limit, window);
            // Until it answers, it may use what it had before.
            self.room = before.max(limit);
            (self.asked, self.limit) = (Some((limit, now)), Some(limit));
        }
    }

    /// Records the sender's answer. Returns whether it answers the limit that was asked for.
    pub(super) fn answered(&mut self, limit: u32, window: Option<u32>) -> bool {
        let is_right = self.asked.take().is_some_and(|(asked, _)| asked == limit);
        if is_right {
            self.set_room(limit, window);
        }
        is_right
    }

    /// Returns the limit on slots that the sender has not confirmed, and when it was asked to.
    pub(super) fn asked(&self) -> Option<(u32, Instant)> {
        self.asked
    }

    /// Records that the program has taken a frame from the queue, of which the sender is told.
    pub(super) fn take(&mut self) {
        self.taken += 1;
    }

    /// Records a free slot, with its number if the sender has to know which it is.
    pub(super) fn free(&mut self, slot: Option<u16>) {
        self.freed += 1;
        if let (Some(slots), Some(slot)) = (&mut self.slots, slot) {
            slots.free(slot);
        }
    }

    /// Adds the acknowledgement of a frame once more, as the sender has missed the first.
    pub(super) fn acknowledge_again(&mut self, sequence: u64) {
        self.acked.push(sequence);
    }

    /// Adds the program's decision on a frame. The sender waits for none on frames below `floor`.
    pub(super) fn decide(&mut self, sequence: u64, is_acknowledged: bool, floor: u64) {
        let ids = if is_acknowledged { &mut self.acked } else { &mut self.rejected };
        ids.push(sequence);
        // The lane of a sender that does not read collects the decisions on frames of other lanes,
        // and more than one on a frame that is rejected again and again. What is left is at most a
        // window, so that the next look is as many decisions away.
        if ids.len() > MOST_IDS {
            ids.retain(|&id| id >= floor);
            ids.sort_unstable();
            ids.dedup();
        }
    }

    /// Decides when to send the next control message, after a change to what it says.
    pub(super) fn schedule(&mut self) -> When {
        if self.is_due() {
            return When::Now;
        }
        let at_flush = !std::mem::replace(&mut self.awaits_flush, true);
        if at_flush {
            (self.freed_at_flush, self.flushes) = (self.freed, 0);
        }
        let when_idle = self.has_ids() && !std::mem::replace(&mut self.awaits_idle, true);
        When::Later { at_flush, when_idle }
    }

    /// Returns whether a message is full, or the sender may soon have no credit left.
    fn is_due(&self) -> bool {
        let is_full = self.acked.len() + self.rejected.len() >= self.most_ids();
        is_full || self.limit.is_some() || self.freed - self.sent_freed >= self.enough
    }

    /// Records a flush. Returns how long to wait for the next one, or `None` if the message is to
    /// be sent now. A sender that waits for the answer to each frame would otherwise get a message
    /// for each slot.
    pub(super) fn flush(&mut self) -> Option<Duration> {
        let has_more = std::mem::replace(&mut self.freed_at_flush, self.freed) != self.freed;
        self.flushes += 1;
        self.awaits_flush = has_more && self.flushes < FLUSHES && !self.has_ids();
        self.awaits_flush.then(|| PAUSE * (1 << self.flushes))
    }

    /// Records that the program is idle, for which a message with acknowledgements has waited.
    pub(super) fn idle(&mut self) {
        self.awaits_idle = false;
    }

    /// Sets a mark, by which [`is_quiet`](Self::is_quiet) tells what is recent. What was used
    /// before it counts for less.
    pub(super) fn mark(&mut self) {
        self.freed_at_marks = [self.freed_at_marks[1], self.freed];
        if let Some(local) = &mut self.slots {
            local.forget_peak();
        }
    }

    /// Returns whether no slot has become free since the last mark but one, which the connection
    /// has had already.
    pub(super) fn is_quiet(&self) -> bool {
        self.freed == self.freed_at_marks[0]
    }

    fn most_ids(&self) -> usize {
        if self.slots.is_some() { IDS_WITH_SLOTS } else { IDS }
    }

    /// Returns whether the sender has to be told of decisions.
    pub(super) fn has_ids(&self) -> bool {
        !self.acked.is_empty() || !self.rejected.is_empty()
    }

    /// Returns whether the sender has to be told of decisions, slots, taken frames or a limit.
    pub(super) fn has_message(&self) -> bool {
        let has_more = self.freed != self.sent_freed || self.taken != self.sent_taken;
        self.has_ids() || has_more || self.limit.is_some()
    }

    /// Makes the next control message, or returns `None` if there is nothing to tell the sender.
    pub(super) fn message(&mut self) -> Option<Message> {
        if !self.has_message() {
            return None;
        }
        let mut body = [0; SHORT];
        let most = self.most_ids();
        let acked = self.acked.len().min(most);
        let rejected = self.rejected.len().min(most - acked);
        let ids = self.acked.drain(..acked).chain(self.rejected.drain(..rejected));
        let (places, _) = body.as_chunks_mut();
        places.iter_mut().zip(ids).for_each(|(place, id)| *place = id.to_be_bytes());
        // The slot of a frame is free for the sender only when the decision on the frame is sent,
        // too. Otherwise a sender that reads nothing could make the lists grow without end.
        let unsent = (self.acked.len() + self.rejected.len()) as u64;
        let before = self.sent_freed;
        self.sent_freed = self.freed.saturating_sub(unsent).max(before);
        let mut slots = 0;
        if let Some(local) = &mut self.slots {
            let (places, _) = body[(acked + rejected) * size_of::<u64>()..].as_chunks_mut();
            let now_free = (self.sent_freed - before).min(places.len() as u64);
            self.sent_freed = before + now_free;
            let now_free = std::iter::from_fn(|| local.take_freed()).take(now_free as usize);
            for (place, slot) in places.iter_mut().zip(now_free) {
                *place = slot.to_be_bytes();
                slots += 1;
            }
        }
        self.sent_taken = self.taken;
        let control = Control {
            // Each is `IDS` at most.
            acked: acked as u16,
            rejected: rejected as u16,
            slots,
            freed: self.sent_freed,
            taken: self.taken,
            limit: self.limit.take(),
        };
        let body = Body::Short(body, control.body());
        Some(Message { header: Header::Control(control).encode(), body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(acks: &mut AckScheduler) -> Option<Control> {
        let message = acks.message()?;
        match Header::decode(&message.header) {
            Ok(Header::Control(control)) => Some(control),
            other => panic!("{other:?}"),
        }
    }

    fn later(at_flush: bool, when_idle: bool) -> When {
        When::Later { at_flush, when_idle }
    }

    #[test]
    fn credits_are_sent_at_once_when_half_of_the_slots_are_free() {
        for (slots, window, half) in [(8, None, 4), (8, Some(2), 1), (7, Some(100), 4), (1, None, 1)] {
            let mut acks = AckScheduler::new(slots, window, None);
            for number in 1..half {
                acks.free(None);
                assert_eq!(acks.schedule(), later(number == 1, false), "{slots} {window:?}");
            }
            acks.free(None);
            assert_eq!(acks.schedule(), When::Now, "{slots} {window:?}");
            assert_eq!(control(&mut acks).map(|control| control.freed), Some(half));
            assert_eq!(control(&mut acks), None);
        }
    }

    #[test]
    fn acknowledgements_are_sent_when_the_program_is_idle_or_a_message_is_full() {
        let mut acks = AckScheduler::new(1000, None, None);
        acks.decide(1, true, 0);
        assert_eq!(acks.schedule(), later(true, true));
        acks.decide(2, false, 0);
        assert_eq!(acks.schedule(), later(false, false));
        let sent = control(&mut acks).unwrap();
        assert_eq!((sent.acked, sent.rejected), (1, 1));
        acks.idle();
        for sequence in 1..IDS as u64 {
            acks.decide(sequence, true, 0);
            assert_eq!(acks.schedule(), later(false, sequence == 1));
        }
        acks.decide(IDS as u64, true, 0);
        assert_eq!(acks.schedule(), When::Now);
    }

    #[test]
    fn a_flush_waits_as_long_as_there_is_more_but_not_for_ever() {
        let mut acks = AckScheduler::new(1000, None, None);
        let mut free = || {
            acks.free(None);
            (acks.schedule(), acks.flush())
        };
        // What the first flush finds has been noted already.
        assert_eq!(free(), (later(true, false), None));
        acks.free(None);
        assert_eq!(acks.schedule(), later(true, false));
        let mut pauses = Vec::new();
        loop {
            acks.free(None);
            assert_eq!(acks.schedule(), later(false, false));
            let Some(pause) = acks.flush() else { break };
            pauses.push(pause);
        }
        assert_eq!(pauses, [PAUSE * 2, PAUSE * 4]);
        assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE));
        // Senders wait for acknowledgements.
        acks.decide(1, true, 0);
        assert_eq!(acks.schedule(), later(true, true));
        acks.free(None);
        assert_eq!(acks.flush(), None);
    }

    #[test]
    fn a_limit_is_sent_at_once_and_credit_falls_only_with_the_answer() {
        let now = Instant::now();
        let mut acks = AckScheduler::new(8, None, None);
        acks.ask(3, None, now);
        assert_eq!((acks.schedule(), acks.asked(), acks.credit()), (When::Now, Some((3, now)), 8));
        acks.ask(5, None, now);
        assert_eq!(control(&mut acks).and_then(|control| control.limit), Some(3));
        assert!(acks.answered(3, None) && acks.credit() == 3);
        assert!(!acks.answered(3, None), "it was not asked");
        // Two of three are half of them.
        acks.free(None);
        assert_eq!(acks.schedule(), later(true, false));
        acks.free(None);
        assert_eq!(acks.schedule(), When::Now);
        acks.ask(16, None, now);
        assert_eq!(acks.credit(), 16, "it may use more before it answers");
        assert!(!acks.answered(15, None));
    }

    #[test]
    fn a_slot_is_free_for_the_sender_only_with_the_decision_on_its_frame() {
        let mut acks = AckScheduler::new(1000, None, None);
        for sequence in 0..IDS as u64 + 2 {
            acks.free(None);
            acks.decide(sequence, true, 0);
        }
        let sent = [(); 3].map(|()| control(&mut acks).map(|it| (usize::from(it.acked), it.freed)));
        assert_eq!(sent, [Some((IDS, IDS as u64)), Some((2, IDS as u64 + 2)), None]);
    }

    #[test]
    fn a_connection_is_quiet_from_the_second_mark_after_its_start_or_its_last_frame() {
        let mut acks = AckScheduler::new(8, None, None);
        acks.mark();
        assert!(!acks.is_quiet(), "its first frame may be on its way");
        acks.mark();
        assert!(acks.is_quiet());
        acks.free(None);
        assert!(!acks.is_quiet());
        acks.mark();
        assert!(!acks.is_quiet(), "it may be about to send the next");
        acks.mark();
        assert!(acks.is_quiet());
    }

    #[test]
    fn a_sender_that_does_not_read_costs_a_window_of_sequences() {
        let mut acks = AckScheduler::default();
        let mut longest = 0;
        // The window moves on, and each frame of it comes again and again.
        for number in 0..10 * WINDOW {
            let floor = number / 8;
            acks.decide(floor + number % 32, false, floor);
            longest = longest.max(acks.rejected.len());
        }
        assert_eq!(longest, MOST_IDS);
        // Each that is left is there once, so that the next look is as many decisions away.
        let window = WINDOW as usize;
        (0..MOST_IDS as u64).for_each(|number| acks.decide(number % WINDOW, true, 0));
        acks.decide(0, true, 0);
        assert_eq!((acks.acked.len(), acks.rejected.len() <= MOST_IDS), (window, true));
    }
}
