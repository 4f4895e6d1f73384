//! Sending: takes a batch of messages from the source, reserves what they need, copies what has to
//! be copied, and posts them all at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use multinet_memory::{GpuError, Method};
use multinet_verbs::{GpuPages, MAX_WRITES, Pages, RemoteAddress, Write, ZeroCopy};
use tracing::{debug, warn};

use super::{QueuePair, QueuePairLedger, SentMemory};
use crate::buffer::Buffer;
use crate::rdma::layout::Immediate;
use crate::rdma::ledger::{StagedRange, WorkRequest};
use crate::rdma::stripes::{STRIPE_THRESHOLD, WorkRequestId, stripe_range};
use crate::rdma::unusable::QueuePairError;
use crate::stream::{Message, MessageSource};
use crate::wire::HEADER;

/// The most bytes that are fetched from GPUs for one batch, so that the first of them are sent
/// while the next are fetched.
const MAX_FETCHED: usize = 1 << 20;

/// Messages that have been taken from the source and are not posted yet.
#[derive(Default)]
pub(super) struct SendBatch {
    pub(super) messages: VecDeque<PendingMessage>,
    /// Reservations for the first of the messages, kept to avoid allocations.
    reservations: Vec<Reservation>,
}

/// A message from the source that waits for room to be written to the peer.
pub(super) struct PendingMessage {
    message: Message,
    /// The payload, if the device reads it where it lies; `None` if it is copied to staging memory.
    zero_copy: Option<ZeroCopyPayload>,
}

/// A registered payload, which the device reads where it lies instead of from staging memory.
#[derive(Clone)]
pub(super) enum ZeroCopyPayload {
    Pages(Arc<Pages>),
    Gpu(Arc<GpuPages>),
}

/// A placeholder for a request that has not been added to the send queue.
const UNPOSTED: WorkRequest = WorkRequest { id: 0, is_signalled: false, stripe: None };

/// The request, the peer's slot and the staging memory that one message needs.
#[derive(Clone, Copy)]
struct Reservation {
    request: WorkRequest,
    slot: u16,
    staged: StagedRange,
    /// The length in bytes of key, metadata and header, which are always copied.
    before: usize,
}

impl<E> QueuePair<E> {
    /// Takes messages from the source, and posts as many as there is room for.
    pub(super) fn post_batch(
        &self,
        batch: &mut SendBatch,
        source: &impl MessageSource,
    ) -> Result<(), QueuePairError> {
        let SendBatch { messages, reservations } = batch;
        self.take_messages(messages, source);
        if let Some(request) = self.reserve(messages, reservations) {
            self.post(0, &[self.immediate(request, Immediate::RingCredit)])?;
        }
        let count = reservations.len();
        for (PendingMessage { message, zero_copy }, Reservation { staged, .. }) in
            messages.iter().zip(&*reservations)
        {
            let mut at = staged.offset;
            // Key, metadata and header, and the pieces of the payload unless the device reads it in
            // place.
            let count = if zero_copy.is_some() { 3 } else { usize::MAX };
            for piece in message.pieces_in_place().take(count) {
                let copied = self.local.staging.write(at, piece);
                copied.map_err(|error| self.failure_of(&error, error.hint()))?;
                at += piece.len();
            }
        }
        // The stripes of the extra queue pairs first: they take as long as those of the first one.
        let all = || messages.iter().zip(&*reservations);
        for pair in 0..self.extra_pairs {
            let stripes =
                all().filter_map(|(pending, reservation)| self.stripe_write(reservation, pending, pair));
            self.post_all(pair + 1, stripes)?;
        }
        let writes = all().flat_map(|(pending, reservation)| self.message_writes(reservation, pending));
        self.post_all(0, writes.flatten())?;
        messages.drain(..count);
        Ok(())
    }

    /// Posts writes to the queue pair with this number by one call of verbs.
    fn post_all<'a>(
        &'a self,
        pair: usize,
        all: impl Iterator<Item = Write<'a>>,
    ) -> Result<(), QueuePairError> {
        let unused = self.immediate(UNPOSTED, Immediate::RingCredit);
        let mut writes: [_; MAX_WRITES] = std::array::from_fn(|_| unused.clone());
        let used = writes.iter_mut().zip(all).map(|(to, write)| *to = write).count();
        self.post(pair, &writes[..used])
    }

    fn take_messages(&self, messages: &mut VecDeque<PendingMessage>, source: &impl MessageSource) {
        let most = if self.peer.payloads.is_some() { MAX_WRITES / 2 } else { MAX_WRITES };
        take_up_to(most, messages, source, |message| self.register_payload(message));
    }

    /// Registers the payload of a message, if it is memory that the device may read where it lies.
    /// Returns `None` if the payload is to be copied.
    fn register_payload(&self, message: &Message) -> Result<Option<ZeroCopyPayload>, GpuError> {
        let Some(payload) = message.whole_payload() else { return Ok(None) };
        let may_register = !self.copies_only.load(Ordering::Relaxed);
        let Some((pages, _)) = payload.pages().filter(|_| may_register) else {
            return self.register_gpu_payload(payload);
        };
        if let Err(error) = pages.register(&self.local.memory.domain) {
            self.copies_only.store(true, Ordering::Relaxed);
            warn!("frames are copied from now on: {}", self.failure_of(&error, error.hint()));
            return Ok(None);
        }
        Ok(Some(ZeroCopyPayload::Pages(Arc::clone(pages))))
    }

    /// Registers the payload of a message if it lies in a GPU. A failure concerns this payload
    /// alone; it is an error only if the method is forced.
    fn register_gpu_payload(&self, payload: &Buffer) -> Result<Option<ZeroCopyPayload>, GpuError> {
        let Some(pages) = payload.gpu_pages().filter(|pages| !pages.is_refused()) else { return Ok(None) };
        let memory = &self.local.memory;
        let zero_copy = Some(ZeroCopyPayload::Gpu(Arc::clone(pages)));
        if pages.is_registered(&memory.domain) {
            return Ok(zero_copy);
        }
        let method = match memory.device.gpu_methods.known(pages.memory(), self.local.source) {
            None | Some(Ok(Method::Staging)) => return Ok(None),
            Some(method) => method?,
        };
        let was_refused = pages.has_been_refused();
        if let Err(error) = pages.register(&memory.domain, method) {
            let why = self.failure_of(&error, None);
            if was_refused {
                debug!("a payload of a GPU is still copied: {why}");
            } else {
                warn!("a payload of a GPU is copied: {why}");
            }
            return Ok(None);
        }
        Ok(zero_copy)
    }

    /// Reserves what the first messages need, as many of them as there is room for. Returns a
    /// request for a ring credit, if one is owed: it comes first, since the other side may wait for
    /// it.
    fn reserve(
        &self,
        messages: &VecDeque<PendingMessage>,
        reservations: &mut Vec<Reservation>,
    ) -> Option<WorkRequest> {
        reservations.clear();
        let mut ledger = self.ledger.lock();
        let owes_credit = ledger.owed_ring_credits > 0;
        let credit = if owes_credit { ledger.queue.post(None, 0, true) } else { None };
        ledger.owed_ring_credits -= u32::from(credit.is_some());
        let QueuePairLedger { queue, staging, remote_slots, .. } = &mut *ledger;
        for PendingMessage { message, zero_copy } in messages {
            if !(queue.has_room_for(reservations.len() + 1) && remote_slots.has_free()) {
                break;
            }
            let before = message.before_header() + HEADER;
            let payload = if zero_copy.is_some() { 0 } else { message.len() - before };
            let Some(staged) = staging.take(before + payload) else { break };
            let Some(slot) = remote_slots.take() else { break };
            reservations.push(Reservation { request: UNPOSTED, slot, staged, before });
        }
        // The number of messages is known only now, and the last of them is to be signalled.
        let count = reservations.len();
        for ((number, reservation), PendingMessage { message, zero_copy }) in
            (1..).zip(reservations.iter_mut()).zip(messages)
        {
            // The handle is kept until the device has read the payload.
            let sent = SentMemory { staged: reservation.staged, _zero_copy: zero_copy.clone() };
            let is_striped = self.extra_pairs > 0 && message.len() - reservation.before >= STRIPE_THRESHOLD;
            let request = queue.post_striped(Some(sent), message.len(), number == count, is_striped);
            reservation.request = request.unwrap_or(UNPOSTED);
        }
        ledger.is_waiting = count < messages.len();
        // One credit is posted at a time. If there was no room for it, there is none now.
        ledger.is_blocked = ledger.is_waiting || (ledger.owed_ring_credits > 0 && credit.is_none());
        credit
    }

    /// Returns the writes of a message on the first queue pair. That is one write, or two if
    /// payloads lie apart: the second one carries the immediate, and arrives after the payload. Of
    /// a striped message it is the first stripe.
    fn message_writes<'a>(
        &'a self,
        reservation: &Reservation,
        PendingMessage { message, zero_copy }: &'a PendingMessage,
    ) -> [Option<Write<'a>>; 2] {
        let Reservation { request, slot, staged, before } = *reservation;
        let WorkRequest { id, is_signalled, stripe } = request;
        let id = WorkRequestId::Message(id).encode();
        let payload = message.len() - before;
        let (length, immediate) = match stripe {
            None => (payload, Immediate::Frame(slot)),
            Some(_) => (stripe_range(payload, self.extra_pairs + 1, 0).end, Immediate::Striped(slot)),
        };
        let (start, middle) = (staged.offset, staged.offset + before);
        let end = if zero_copy.is_some() { middle } else { middle + length };
        let zero_copy = zero_copy.as_ref().map(|payload| payload.range(0..length));
        let offset = self.peer.layout.body(slot) - HEADER - message.before_header();
        let remote = offset_by(self.peer.address, offset);
        let immediate = Some(immediate.encode());
        let Some(payloads) = &self.peer.payloads else {
            let sge = Some((&self.local.staging, start..end));
            return [None, Some(Write { id, sge, zero_copy, remote, immediate, is_signalled })];
        };
        let sge = Some((&self.local.staging, start..middle));
        let header = Write { id, sge, zero_copy: None, remote, immediate, is_signalled };
        if length == 0 {
            return [None, Some(header)];
        }
        let sge = zero_copy.is_none().then_some((&self.local.staging, middle..end));
        let remote = payloads.slot(slot);
        let payload = Write { id, sge, zero_copy, remote, immediate: None, is_signalled: false };
        [Some(payload), Some(header)]
    }

    /// Returns the write for the stripe of a message on an extra queue pair, counted from 0.
    fn stripe_write<'a>(
        &'a self,
        reservation: &Reservation,
        PendingMessage { message, zero_copy }: &'a PendingMessage,
        pair: usize,
    ) -> Option<Write<'a>> {
        let Reservation { request: WorkRequest { stripe, .. }, slot, staged, before } = *reservation;
        // There are at most 8 queue pairs.
        let id = WorkRequestId::Stripe { pair: pair as u8, number: stripe? }.encode();
        let range = stripe_range(message.len() - before, self.extra_pairs + 1, pair + 1);
        let payload = match &self.peer.payloads {
            Some(payloads) => payloads.slot(slot),
            None => offset_by(self.peer.address, self.peer.layout.body(slot)),
        };
        let remote = offset_by(payload, range.start);
        let immediate = Some(Immediate::Stripe(slot).encode());
        let (sge, zero_copy) = match zero_copy {
            Some(payload) => (None, Some(payload.range(range))),
            None => {
                let start = staged.offset + before;
                (Some((&self.local.staging, start + range.start..start + range.end)), None)
            }
        };
        Some(Write { id, sge, zero_copy, remote, immediate, is_signalled: true })
    }
}

/// Takes messages from the source until there are `most`.
///
/// A message is given up if its payload is in a GPU that the forced method does not reach. It would
/// hold up those behind it for as long as no other connection reaches that GPU either. Messages
/// that are given up count towards `most`, so that the call ends.
fn take_up_to(
    most: usize,
    messages: &mut VecDeque<PendingMessage>,
    source: &impl MessageSource,
    register: impl Fn(&Message) -> Result<Option<ZeroCopyPayload>, GpuError>,
) {
    let mut fetched = 0;
    for _ in messages.len()..most {
        if fetched >= MAX_FETCHED {
            return;
        }
        let Some(mut message) = source.next() else { return };
        let mut registered = register(&message);
        if matches!(registered, Ok(None)) && !message.is_readable() {
            if source.fetch(&mut message).is_break() {
                continue;
            }
            fetched += message.len();
            registered = register(&message);
        }
        match registered {
            Ok(zero_copy) => messages.push_back(PendingMessage { message, zero_copy }),
            Err(error) => source.give_up(&message, &error),
        }
    }
}

pub(super) fn offset_by(RemoteAddress { address, key }: RemoteAddress, offset: usize) -> RemoteAddress {
    RemoteAddress { address: address + offset as u64, key }
}

impl ZeroCopyPayload {
    fn range(&self, range: Range<usize>) -> (ZeroCopy<'_>, Range<usize>) {
        match self {
            Self::Pages(pages) => (ZeroCopy::Pages(pages), range),
            Self::Gpu(pages) => (ZeroCopy::Gpu(pages), range),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::stream::Body;

    /// A source whose messages never end.
    #[derive(Default)]
    struct Endless {
        taken: Cell<usize>,
        given_up: Cell<usize>,
    }

    impl MessageSource for Endless {
        fn next(&self) -> Option<Message> {
            self.taken.set(self.taken.get() + 1);
            Some(Message { header: [0; HEADER], body: Body::Short([0; 128], 0) })
        }

        fn has_work(&self) -> bool {
            true
        }

        fn give_up(&self, _: &Message, _: &GpuError) {
            self.given_up.set(self.given_up.get() + 1);
        }
    }

    #[test]
    fn giving_up_messages_without_end_comes_to_an_end() {
        let (source, mut messages) = (Endless::default(), VecDeque::new());
        take_up_to(16, &mut messages, &source, |_| Err(GpuError::new("not reached")));
        assert_eq!((messages.len(), source.taken.get(), source.given_up.get()), (0, 16, 16));
    }

    #[test]
    fn no_more_messages_are_taken_than_a_batch_holds() {
        let (source, mut messages) = (Endless::default(), VecDeque::new());
        for _ in 0..2 {
            take_up_to(16, &mut messages, &source, |_| Ok(None));
            assert_eq!((messages.len(), source.taken.get()), (16, 16));
        }
        messages.drain(..5);
        take_up_to(16, &mut messages, &source, |_| Ok(None));
        assert_eq!((messages.len(), source.taken.get()), (16, 21));
    }
}
