//! A batch of messages on its way out: what each needs is reserved, what has to be copied is copied, all are posted at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use multinet_verbs::{Error, MOST_WRITES, Pages, Remote, Write};
use tracing::warn;

use super::{Accounts, QueuePair, Sent, lock};
use crate::rdma::accounts::{Posting, Staged};
use crate::rdma::layout::Immediate;
use crate::stream::{Message, Source};
use crate::wire::HEADER;

/// Messages that have been taken to be written.
#[derive(Default)]
pub(super) struct Writing {
    pub(super) messages: VecDeque<Taken>,
    reserved: Vec<Reserved>,
}

/// A message that has been taken to be written, and its payload, if that is sent from where it lies.
pub(super) struct Taken {
    message: Message,
    lent: Option<Arc<Pages>>,
}

/// What a message is going to be.
struct Reserved {
    posting: Posting,
    place: u16,
    staged: Staged,
    /// How much has been copied to be sent.
    copied: usize,
}

impl<E> QueuePair<E> {
    /// Posts a batch, as far as there is room.
    pub(super) fn write(&self, writing: &mut Writing, source: &impl Source) -> Result<(), Error> {
        let Writing { messages, reserved } = writing;
        let more = MOST_WRITES - messages.len();
        messages.extend(std::iter::from_fn(|| source.next()).take(more).map(|message| self.lend(message)));
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
                self.staging.write(at, piece)?;
                at += piece.len();
            }
        }
        let nothing = self.immediate(Posting { id: 0, is_signalled: true }, Immediate::Heard);
        let mut writes: [_; MOST_WRITES] = std::array::from_fn(|_| nothing.clone());
        for ((write, taken), reserved) in writes.iter_mut().zip(&*messages).zip(&*reserved) {
            *write = self.message(reserved, taken);
        }
        self.post(&writes[..count])?;
        messages.drain(..count);
        Ok(())
    }

    /// Has the payload of a message registered, if it is memory of the kind. If that cannot be, it is copied like all others.
    fn lend(&self, message: Message) -> Taken {
        let lends = |pages: &&Arc<Pages>| {
            if self.only_copies.load(Ordering::Relaxed) {
                return false;
            }
            let registered = pages.register(&self.domain);
            if let Err(error) = &registered {
                self.only_copies.store(true, Ordering::Relaxed);
                warn!("frames are copied from now on: {}", self.explain(error, error.hint()));
            }
            registered.is_ok()
        };
        Taken { lent: message.lendable().filter(lends).cloned(), message }
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
            let copied = message.len() - lent.as_ref().map_or(0, |pages| pages.bytes().len());
            let Some(staged) = staging.take(copied) else { break };
            let Some(place) = places.take() else { break };
            reserved.push(Reserved { posting: nobody, place, staged, copied });
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

    fn message<'a>(&'a self, reserved: &Reserved, Taken { message, lent }: &'a Taken) -> Write<'a> {
        let Reserved { posting, place, staged, copied } = *reserved;
        let offset = self.theirs.body(place) - HEADER - message.before_header();
        let Remote { address, key } = self.remote;
        Write {
            id: posting.id,
            part: Some((&self.staging, staged.offset..staged.offset + copied)),
            lent: lent.as_deref().map(|pages| (pages, 0..pages.bytes().len())),
            remote: Remote { address: address + offset as u64, key },
            immediate: Some(Immediate::Frame(place).encode()),
            is_signalled: posting.is_signalled,
        }
    }
}
