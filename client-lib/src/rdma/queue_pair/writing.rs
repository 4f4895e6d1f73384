//! A batch of messages on its way out: what each needs is reserved, what has to be copied is copied, all are posted at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use multinet_memory::{GpuError, Method};
use multinet_verbs::{GpuPages, Lent, MOST_WRITES, Pages, Remote, Write};
use tracing::{debug, warn};

use super::{Accounts, QueuePair, Sent, lock};
use crate::buffer::Buffer;
use crate::rdma::accounts::{Posting, Staged};
use crate::rdma::layout::Immediate;
use crate::rdma::stripes::{Ticket, WORTH_CUTTING, part};
use crate::stream::{Message, Source};
use crate::way::Failure;
use crate::wire::HEADER;

/// So many bytes are fetched from GPUs for one batch: the first of them should be on their way while the next are fetched.
const FETCHED: usize = 1 << 20;

/// Messages that have been taken to be written.
#[derive(Default)]
pub(super) struct Writing {
    pub(super) messages: VecDeque<Taken>,
    reserved: Vec<Reserved>,
}

/// A message that has been taken to be written, and its payload, if that is sent from where it lies.
pub(super) struct Taken {
    message: Message,
    lent: Option<Held>,
}

/// A payload that a device reads where it lies.
#[derive(Clone)]
pub(super) enum Held {
    Pages(Arc<Pages>),
    Gpu(Arc<GpuPages>),
}

/// What has not been posted yet.
const NOTHING: Posting = Posting { id: 0, is_signalled: false, parts: None };

/// What a message is going to be.
struct Reserved {
    posting: Posting,
    place: u16,
    staged: Staged,
    /// How long is what comes before the payload, which is always copied to be sent.
    before: usize,
}

impl<E> QueuePair<E> {
    /// Posts a batch, as far as there is room.
    pub(super) fn write(&self, writing: &mut Writing, source: &impl Source) -> Result<(), Failure> {
        let Writing { messages, reserved } = writing;
        self.take(messages, source);
        let heard = self.reserve(messages, reserved);
        if let Some(posting) = heard {
            self.post(0, &[self.immediate(posting, Immediate::Heard)])?;
        }
        let count = reserved.len();
        for (Taken { message, lent }, Reserved { staged, .. }) in messages.iter().zip(&*reserved) {
            let mut at = staged.offset;
            // Key, metadata and header, and the payload unless it is lent.
            let count = if lent.is_some() { 3 } else { usize::MAX };
            for piece in message.pieces_in_place().take(count) {
                self.staging.write(at, piece).map_err(|error| self.explain(&error, error.hint()))?;
                at += piece.len();
            }
        }
        let all = || messages.iter().zip(&*reserved);
        for pair in 0..self.further() {
            self.post_all(pair + 1, all().filter_map(|(taken, reserved)| self.part(reserved, taken, pair)))?;
        }
        self.post_all(0, all().flat_map(|(taken, reserved)| self.message(reserved, taken)).flatten())?;
        messages.drain(..count);
        Ok(())
    }

    /// Posts a batch to one of the pairs, by one call.
    fn post_all<'a>(&'a self, pair: usize, all: impl Iterator<Item = Write<'a>>) -> Result<(), Failure> {
        let nothing = self.immediate(NOTHING, Immediate::Heard);
        let mut writes: [_; MOST_WRITES] = std::array::from_fn(|_| nothing.clone());
        let used = writes.iter_mut().zip(all).map(|(place, write)| *place = write).count();
        self.post(pair, &writes[..used])
    }

    /// Takes messages to be written.
    fn take(&self, messages: &mut VecDeque<Taken>, source: &impl Source) {
        let most = if self.payloads.is_some() { MOST_WRITES / 2 } else { MOST_WRITES };
        fill(messages, most, source, |message| self.lend(message));
    }

    /// Has the payload of a message registered, if it is memory of the kind. If that cannot be, it is copied like all others, unless another method is forced.
    fn lend(&self, message: &Message) -> Result<Option<Held>, GpuError> {
        let Some(payload) = message.whole_payload() else { return Ok(None) };
        let may = !self.only_copies.load(Ordering::Relaxed);
        let (held, outcome) = if let Some((pages, _)) = payload.pages().filter(|_| may) {
            let registered = pages.register(&self.domain);
            let outcome: Result<_, Failure> = registered.map_err(|error| self.explain(&error, error.hint()));
            (Held::Pages(Arc::clone(pages)), outcome)
        } else {
            return self.lend_gpu(payload);
        };
        if let Err(failure) = outcome {
            self.only_copies.store(true, Ordering::Relaxed);
            warn!("frames are copied from now on: {failure}");
            return Ok(None);
        }
        Ok(Some(held))
    }

    /// The same for a GPU's. One that cannot be registered concerns no other.
    fn lend_gpu(&self, payload: &Buffer) -> Result<Option<Held>, GpuError> {
        let Some(pages) = payload.gpu_pages().filter(|pages| !pages.is_refused()) else { return Ok(None) };
        let held = Some(Held::Gpu(Arc::clone(pages)));
        if pages.is_registered(&self.domain) {
            return Ok(held);
        }
        let method = match self.rail.known_method(pages.memory(), self.own) {
            None | Some(Ok(Method::Staging)) => return Ok(None),
            Some(method) => method?,
        };
        let is_news = !pages.has_been_refused();
        if let Err(error) = pages.register(&self.domain, method) {
            let why = self.explain(&error, None);
            if is_news {
                warn!("a payload of a GPU is copied: {why}");
            } else {
                debug!("a payload of a GPU is still copied: {why}");
            }
            return Ok(None);
        }
        Ok(held)
    }

    /// Takes what it needs to say that a half has been heard, for which the other side may wait, and what the first messages need, as many as there is room
    /// for.
    fn reserve(&self, messages: &VecDeque<Taken>, reserved: &mut Vec<Reserved>) -> Option<Posting> {
        reserved.clear();
        let mut accounts = lock(&self.accounts);
        let heard = if accounts.owed > 0 { accounts.queue.post(None, 0, true) } else { None };
        accounts.owed -= u32::from(heard.is_some());
        let Accounts { queue, staging, places, .. } = &mut *accounts;
        for Taken { message, lent } in messages {
            if !(queue.has_room_for(reserved.len() + 1) && places.has_one()) {
                break;
            }
            let before = message.before_header() + HEADER;
            let payload = if lent.is_some() { 0 } else { message.len() - before };
            let Some(staged) = staging.take(before + payload) else { break };
            let Some(place) = places.take() else { break };
            reserved.push(Reserved { posting: NOTHING, place, staged, before });
        }
        let count = reserved.len();
        for ((number, it), Taken { message, lent }) in (1..).zip(reserved.iter_mut()).zip(messages) {
            // The device reads until it has completed.
            let sent = Sent { staged: it.staged, _lent: lent.clone() };
            let is_divided = self.further() > 0 && message.len() - it.before >= WORTH_CUTTING;
            let posting = queue.post_divided(Some(sent), message.len(), number == count, is_divided);
            it.posting = posting.unwrap_or(NOTHING);
        }
        accounts.is_waiting = count < messages.len();
        // One is posted at a time; if there was no room for it, there is none.
        accounts.is_blocked = accounts.is_waiting || (accounts.owed > 0 && heard.is_none());
        heard
    }

    /// A message as one write, or as two, if payloads have a place of their own: the second one tells the other side of both. Of one that is divided, the
    /// first part.
    fn message<'a>(
        &'a self,
        reserved: &Reserved,
        Taken { message, lent }: &'a Taken,
    ) -> [Option<Write<'a>>; 2] {
        let Reserved { posting: Posting { id, is_signalled, parts }, place, staged, before } = *reserved;
        let id = Ticket::Sent(id).encode();
        let (start, middle) = (staged.offset, staged.offset + before);
        let length = message.len() - before;
        let (length, immediate) = match parts {
            None => (length, Immediate::Frame(place)),
            Some(_) => (part(length, self.further() + 1, 0).end, Immediate::Divided(place)),
        };
        let end = if lent.is_some() { middle } else { middle + length };
        let lent = lent.as_ref().map(|held| held.lent(0..length));
        let offset = self.theirs.body(place) - HEADER - message.before_header();
        let remote = beyond(self.remote, offset);
        let immediate = Some(immediate.encode());
        let Some(payloads) = &self.payloads else {
            let part = Some((&self.staging, start..end));
            return [None, Some(Write { id, part, lent, remote, immediate, is_signalled })];
        };
        let part = Some((&self.staging, start..middle));
        let told = Write { id, part, lent: None, remote, immediate, is_signalled };
        if length == 0 {
            return [None, Some(told)];
        }
        let part = lent.is_none().then_some((&self.staging, middle..end));
        let remote = payloads.place(place);
        let payload = Write { id, part, lent, remote, immediate: None, is_signalled: false };
        [Some(payload), Some(told)]
    }

    /// The part of a message that is divided, that this further pair carries, from 0.
    fn part<'a>(
        &'a self,
        reserved: &Reserved,
        Taken { message, lent }: &'a Taken,
        pair: usize,
    ) -> Option<Write<'a>> {
        let Reserved { posting: Posting { parts, .. }, place, staged, before } = *reserved;
        // There are 8 at most.
        let id = Ticket::Part { pair: pair as u8, number: parts? }.encode();
        let range = part(message.len() - before, self.further() + 1, pair + 1);
        let remote = match &self.payloads {
            Some(payloads) => payloads.place(place),
            None => beyond(self.remote, self.theirs.body(place)),
        };
        let remote = beyond(remote, range.start);
        let immediate = Some(Immediate::Part(place).encode());
        let (part, lent) = match lent {
            Some(held) => (None, Some(held.lent(range))),
            None => {
                let start = staged.offset + before;
                (Some((&self.staging, start + range.start..start + range.end)), None)
            }
        };
        Some(Write { id, part, lent, remote, immediate, is_signalled: true })
    }
}

/// Takes messages until there are `most`. One whose payload is in a GPU that the forced method does not reach is given up: where no other connection reaches it either, it
/// would be tried for ever, and keep up those behind it. What is given up counts, too: whoever sends one frame must not take and give up those of all others.
fn fill(
    messages: &mut VecDeque<Taken>,
    most: usize,
    source: &impl Source,
    lend: impl Fn(&Message) -> Result<Option<Held>, GpuError>,
) {
    let mut fetched = 0;
    for _ in messages.len()..most {
        if fetched >= FETCHED {
            return;
        }
        let Some(mut message) = source.next() else { return };
        let mut lent = lend(&message);
        if matches!(lent, Ok(None)) && !message.is_readable() {
            if source.fetch(&mut message).is_break() {
                continue;
            }
            fetched += message.len();
            lent = lend(&message);
        }
        match lent {
            Ok(lent) => messages.push_back(Taken { message, lent }),
            Err(error) => source.give_up(&message, &error),
        }
    }
}

fn beyond(Remote { address, key }: Remote, offset: usize) -> Remote {
    Remote { address: address + offset as u64, key }
}

impl Held {
    fn lent(&self, range: Range<usize>) -> (Lent<'_>, Range<usize>) {
        match self {
            Self::Pages(pages) => (Lent::Pages(pages), range),
            Self::Gpu(pages) => (Lent::Gpu(pages), range),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::stream::Body;

    /// Somebody who has no end of messages.
    #[derive(Default)]
    struct Endless {
        taken: Cell<usize>,
        given_up: Cell<usize>,
    }

    impl Source for Endless {
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
    fn what_is_given_up_comes_to_an_end() {
        let (source, mut messages) = (Endless::default(), VecDeque::new());
        fill(&mut messages, 16, &source, |_| Err(GpuError::new("not reached")));
        assert_eq!((messages.len(), source.taken.get(), source.given_up.get()), (0, 16, 16));
    }

    #[test]
    fn no_more_is_taken_than_a_batch_holds() {
        let (source, mut messages) = (Endless::default(), VecDeque::new());
        for _ in 0..2 {
            fill(&mut messages, 16, &source, |_| Ok(None));
            assert_eq!((messages.len(), source.taken.get()), (16, 16));
        }
        messages.drain(..5);
        fill(&mut messages, 16, &source, |_| Ok(None));
        assert_eq!((messages.len(), source.taken.get()), (16, 21));
    }
}
