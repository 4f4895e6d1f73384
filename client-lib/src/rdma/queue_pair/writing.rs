//! A batch of messages on its way out: what each needs is reserved, what has to be copied is copied, all are posted at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use multinet_memory::Method;
use multinet_verbs::{GpuPages, Lent, MOST_WRITES, Pages, Remote, Write};
use tracing::warn;

use super::{Accounts, QueuePair, Sent, lock};
use crate::buffer::Buffer;
use crate::rdma::accounts::{Posting, Staged};
use crate::rdma::layout::Immediate;
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

/// A payload that a device reads where it lies, and its length.
#[derive(Clone)]
pub(super) enum Held {
    Pages(Arc<Pages>, usize),
    Gpu(Arc<GpuPages>, usize),
}

/// What a message is going to be.
struct Reserved {
    posting: Posting,
    place: u16,
    staged: Staged,
    /// How much of it has been copied to be sent: what comes before the payload, and the payload.
    copied: (usize, usize),
}

impl<E> QueuePair<E> {
    /// Posts a batch, as far as there is room.
    pub(super) fn write(&self, writing: &mut Writing, source: &impl Source) -> Result<(), Failure> {
        let Writing { messages, reserved } = writing;
        self.take(messages, source)?;
        let heard = self.reserve(messages, reserved);
        if let Some(posting) = heard {
            self.post(&[self.immediate(posting, Immediate::Heard)])?;
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
        let nothing = self.immediate(Posting { id: 0, is_signalled: true }, Immediate::Heard);
        let mut writes: [_; MOST_WRITES] = std::array::from_fn(|_| nothing.clone());
        let mut used = 0;
        for (taken, reserved) in messages.iter().zip(&*reserved) {
            for write in self.message(reserved, taken).into_iter().flatten() {
                writes[used] = write;
                used += 1;
            }
        }
        self.post(&writes[..used])?;
        messages.drain(..count);
        Ok(())
    }

    /// Takes messages to be written.
    fn take(&self, messages: &mut VecDeque<Taken>, source: &impl Source) -> Result<(), Failure> {
        let most = if self.payloads.is_some() { MOST_WRITES / 2 } else { MOST_WRITES };
        let mut fetched = 0;
        while messages.len() < most && fetched < FETCHED {
            let Some(mut message) = source.next() else { break };
            let mut lent = self.lend(&message)?;
            if lent.is_none() && !message.is_readable() {
                if source.fetch(&mut message).is_break() {
                    continue;
                }
                fetched += message.len();
                lent = self.lend(&message)?;
            }
            messages.push_back(Taken { message, lent });
        }
        Ok(())
    }

    /// Has the payload of a message registered, if it is memory of the kind. If that cannot be, it is copied like all others.
    fn lend(&self, message: &Message) -> Result<Option<Held>, Failure> {
        let Some(payload) = message.whole_payload() else { return Ok(None) };
        let may = !self.only_copies.load(Ordering::Relaxed);
        let (held, outcome) = if let Some((pages, length)) = payload.pages().filter(|_| may) {
            let registered = pages.register(&self.domain);
            let outcome = registered.map_err(|error| self.explain(&error, error.hint()));
            (Held::Pages(Arc::clone(pages), length), outcome)
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
    fn lend_gpu(&self, payload: &Buffer) -> Result<Option<Held>, Failure> {
        let Some(pages) = payload.gpu_pages().filter(|pages| !pages.is_refused()) else { return Ok(None) };
        let held = Some(Held::Gpu(Arc::clone(pages), payload.len()));
        if pages.is_registered(&self.domain) {
            return Ok(held);
        }
        let method = match self.rail.known_method(pages.memory(), self.own) {
            None | Some(Ok(Method::Staging)) => return Ok(None),
            Some(method) => method.map_err(|error| self.explain(&error, None))?,
        };
        if let Err(error) = pages.register(&self.domain, method) {
            warn!("a payload of a GPU is copied: {}", self.explain(&error, None));
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
        let nobody = Posting { id: 0, is_signalled: false };
        for Taken { message, lent } in messages {
            if !(queue.has_room_for(reserved.len() + 1) && places.has_one()) {
                break;
            }
            let before = message.before_header() + HEADER;
            let payload = if lent.is_some() { 0 } else { message.len() - before };
            let Some(staged) = staging.take(before + payload) else { break };
            let Some(place) = places.take() else { break };
            reserved.push(Reserved { posting: nobody, place, staged, copied: (before, payload) });
        }
        let count = reserved.len();
        for ((number, it), Taken { message, lent }) in (1..).zip(reserved.iter_mut()).zip(messages) {
            // The device reads until it has completed.
            let sent = Sent { staged: it.staged, _lent: lent.clone() };
            let posting = queue.post(Some(sent), message.len(), number == count);
            it.posting = posting.unwrap_or(nobody);
        }
        accounts.is_waiting = count < messages.len();
        // One is posted at a time; if there was no room for it, there is none.
        accounts.is_blocked = accounts.is_waiting || (accounts.owed > 0 && heard.is_none());
        heard
    }

    /// A message as one write, or as two, if payloads have a place of their own: the second one tells the other side of both.
    fn message<'a>(
        &'a self,
        reserved: &Reserved,
        Taken { message, lent }: &'a Taken,
    ) -> [Option<Write<'a>>; 2] {
        let Reserved { posting: Posting { id, is_signalled }, place, staged, copied } = *reserved;
        let (start, middle) = (staged.offset, staged.offset + copied.0);
        let end = middle + copied.1;
        let lent = lent.as_ref().map(Held::lent);
        let offset = self.theirs.body(place) - HEADER - message.before_header();
        let Remote { address, key } = self.remote;
        let remote = Remote { address: address + offset as u64, key };
        let immediate = Some(Immediate::Frame(place).encode());
        let Some(payloads) = &self.payloads else {
            let part = Some((&self.staging, start..end));
            return [None, Some(Write { id, part, lent, remote, immediate, is_signalled })];
        };
        let part = Some((&self.staging, start..middle));
        let told = Write { id, part, lent: None, remote, immediate, is_signalled };
        if lent.is_none() && copied.1 == 0 {
            return [None, Some(told)];
        }
        let part = lent.is_none().then_some((&self.staging, middle..end));
        let remote = payloads.place(place);
        let payload = Write { id, part, lent, remote, immediate: None, is_signalled: false };
        [Some(payload), Some(told)]
    }
}

impl Held {
    fn lent(&self) -> (Lent<'_>, std::ops::Range<usize>) {
        match self {
            Self::Pages(pages, length) => (Lent::Pages(pages), 0..*length),
            Self::Gpu(pages, length) => (Lent::Gpu(pages), 0..*length),
        }
    }
}
