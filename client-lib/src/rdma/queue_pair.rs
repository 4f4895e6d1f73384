//! A connected queue pair with its accounts: writes messages to the other side's places, hears of what has come to ours.
//!
//! ```text
//!   kick ── Source::next ──> reserve a place, memory, a request ── copy ── post (several at once)
//!   look ── completions ──┬─> of writes: what they took is free, Source::written
//!                         └─> of the other side's immediates: heard by the connection, then a receive request again
//! ```
//!
//! Whoever has something to say writes it at once, as with TCP. What could not be written, for lack of places or memory, is written by
//! the connection's task when a completion has made room.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use multinet_verbs::{Completion, Error, Landing, MOST_WRITES, Pair, Queue, Region, Remote, Status, Write};
use tokio::sync::Notify;

use super::Landed;
use super::accounts::{OwnSlots, Places, Posting, Reading, SendQueue, Staged, Staging, Violation};
use super::layout::{Immediate, Layout};
use super::rail::{Completes, Rail};
use crate::stream::{Baton, Message, SHORT, Source};
use crate::wire::{Data, HEADER};

/// Number of the completions that tell of the other side's writes. Those of our own count from zero.
pub(super) const RECEIVED: u64 = u64::MAX;

/// A queue pair, which fails for a reason `E`.
pub(crate) struct QueuePair<E> {
    /// `None` once it has been hung up.
    pair: RwLock<Option<Pair>>,
    queue: Queue,
    number: u64,
    rail: Arc<Rail>,
    /// What the other side writes to.
    landing: Landing,
    layout: Layout,
    /// What we write to.
    remote: Remote,
    theirs: Layout,
    /// What we write from.
    staging: Region,
    accounts: Mutex<Accounts>,
    writing: Baton<Writing>,
    polling: Mutex<Polling>,
    failure: Mutex<Option<E>>,
    /// The task has something to do.
    wake: Notify,
    /// Something has completed.
    progress: Notify,
    names: String,
}

struct Accounts {
    queue: SendQueue<Posted>,
    staging: Staging,
    places: Places,
    /// Of our ring, if this is a sender's end.
    reading: Reading,
    /// So many times the other side is to be told that another half of our ring has been read.
    owed: u32,
    /// Messages have been taken that there was no room for.
    is_waiting: bool,
    /// There was no room, and none has become free since.
    is_blocked: bool,
}

/// What has been posted: a message, or an immediate alone.
type Posted = Option<Staged>;

/// Messages that have been taken to be written.
#[derive(Default)]
struct Writing {
    messages: VecDeque<Message>,
    reserved: Vec<Reserved>,
}

/// What a message is going to be.
struct Reserved {
    posting: Posting,
    place: u16,
    staged: Staged,
    length: usize,
}

#[derive(Default)]
struct Polling {
    completions: Vec<Completion>,
    is_stopped: bool,
}

impl<E> QueuePair<E> {
    pub(super) fn new(
        (pair, queue, number, rail): (Pair, Queue, u64, Arc<Rail>),
        (landing, layout): (Landing, Layout),
        (remote, theirs, places): (Remote, Layout, Places),
        (staging, capacity, sends): (Region, usize, u16),
        names: String,
    ) -> Self {
        let accounts = Accounts {
            queue: SendQueue::new(sends),
            staging: Staging::new(capacity),
            places,
            reading: Reading::new(layout.count),
            owed: 0,
            is_waiting: false,
            is_blocked: false,
        };
        Self {
            pair: RwLock::new(Some(pair)),
            queue,
            number,
            rail,
            landing,
            layout,
            remote,
            theirs,
            staging,
            accounts: Mutex::new(accounts),
            writing: Baton::new(Writing::default()),
            polling: Mutex::default(),
            failure: Mutex::new(None),
            wake: Notify::new(),
            progress: Notify::new(),
            names,
        }
    }

    /// Both ends, for people.
    pub(crate) fn names(&self) -> &str {
        &self.names
    }

    /// Has the device's thread see to it that somebody looks, until it is hung up.
    pub(crate) fn watch(&self, by: Weak<dyn Completes>) {
        self.rail.watch(self.number, by.clone());
        self.arm();
        // What came before is not reported.
        if let Some(by) = by.upgrade() {
            while by.look() {}
        }
    }

    pub(crate) fn arm(&self) {
        // Fails only if polling does, which says so.
        let _ = self.queue.arm();
    }

    /// Tries the way to the other side.
    pub(super) fn ping(&self) -> Result<(), Error> {
        let posting = lock(&self.accounts).queue.post(None, 0, true);
        match posting {
            Some(posting) => self.post(&[self.immediate(posting, Immediate::Ping)]),
            None => Ok(()),
        }
    }

    /// What has become of the ping, once that is known.
    pub(super) fn pong(&self) -> Result<Option<Result<(), Status>>, Error> {
        let Some(completion) = self.queue.poll()? else { return Ok(None) };
        lock(&self.accounts).queue.completed(completion.id).for_each(drop);
        Ok(Some(completion.status))
    }

    /// Nothing is looked at any more, and the other side's device gets no answer.
    pub(crate) fn hang_up(&self) {
        self.stop();
        self.rail.forget(self.number);
        // Outside the lock, as it takes a while.
        let pair = self.pair.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(pair);
    }

    /// Nothing is looked at any more.
    pub(crate) fn stop(&self) {
        lock(&self.polling).is_stopped = true;
    }

    /// Waits until all that has been posted has arrived, or it has failed.
    pub(crate) async fn settled(&self) {
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            if lock(&self.accounts).queue.is_empty() || lock(&self.polling).is_stopped {
                return;
            }
            progress.await;
        }
    }

    fn immediate(&self, posting: Posting, immediate: Immediate) -> Write<'static> {
        Write {
            id: posting.id,
            part: None,
            remote: self.remote,
            immediate: Some(immediate.encode()),
            is_signalled: posting.is_signalled,
        }
    }

    fn post(&self, writes: &[Write<'_>]) -> Result<(), Error> {
        match &*self.pair.read().unwrap_or_else(PoisonError::into_inner) {
            Some(pair) => pair.write(writes),
            // The other side will not miss it.
            None => Ok(()),
        }
    }

    /// The other side may send one more immediate.
    fn receive(&self) -> Result<(), Error> {
        match &*self.pair.read().unwrap_or_else(PoisonError::into_inner) {
            Some(pair) => pair.receive(RECEIVED),
            None => Ok(()),
        }
    }

    /// The other side has read another half of its ring.
    pub(crate) fn heard(&self) -> Result<(), Violation> {
        let mut accounts = lock(&self.accounts);
        accounts.places.heard()?;
        self.unblock(&mut accounts);
        Ok(())
    }

    /// The other side has done with slots.
    pub(crate) fn freed(&self, mut slots: impl Iterator<Item = u16>) -> Result<(), Violation> {
        let mut accounts = lock(&self.accounts);
        slots.try_for_each(|slot| accounts.places.freed(slot))?;
        self.unblock(&mut accounts);
        Ok(())
    }

    /// The next entry of our ring, which has come to this place.
    pub(crate) fn entry(&self, place: u32) -> Result<[u8; HEADER + SHORT], Violation> {
        let mut accounts = lock(&self.accounts);
        let is_half = accounts.reading.arrived(place)?;
        let mut entry = [0; HEADER + SHORT];
        // Within the ring, as the place has been found to be the next one.
        let _ = self.landing.read(self.layout.body(place as u16) - HEADER, &mut entry);
        // Said only when it has been read: the other side will write there again.
        if is_half {
            accounts.owed += 1;
            self.wake.notify_one();
        }
        Ok(entry)
    }

    /// The accounts of our slots.
    pub(crate) fn own_slots(&self) -> OwnSlots {
        OwnSlots::new(self.layout.count)
    }

    /// The header of what has come to one of our slots.
    pub(crate) fn header(&self, slot: u16) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        // Within the memory, as the slot has been found among those that there are.
        let _ = self.landing.read(self.layout.body(slot) - HEADER, &mut header);
        header
    }

    /// What has come to one of our slots. `None` if it does not fit.
    pub(crate) fn landed(&self, slot: u16, data: &Data) -> Option<Landed> {
        let body = self.layout.body(slot);
        let begin = body.checked_sub(HEADER + data.prefix())?;
        let end = body.checked_add(data.payload as usize)?;
        let is_within = data.prefix() + HEADER <= self.layout.prefix
            && data.payload as usize <= self.layout.stride - self.layout.prefix;
        let bytes = is_within.then(|| self.landing.landed(begin..end).ok()).flatten()?;
        Some(Landed { slot, bytes })
    }

    fn unblock(&self, accounts: &mut Accounts) {
        if std::mem::take(&mut accounts.is_blocked) {
            self.wake.notify_one();
        }
    }
}

impl<E: From<io::Error>> QueuePair<E> {
    /// Writes what there is, as far as there is room.
    pub(crate) fn kick(&self, source: &impl Source) {
        let write = |writing: &mut Writing| match self.write(writing, source) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.fail(self.explain(&error, error.hint()).into());
                ControlFlow::Break(())
            }
        };
        // If there is no room, the completion that makes some wakes the task.
        let has_more = || {
            let Accounts { owed, is_waiting, is_blocked, .. } = *lock(&self.accounts);
            !is_blocked && (is_waiting || owed > 0 || source.has_work())
        };
        // What breaks off has failed.
        let _ = self.writing.pass(write, has_more);
    }

    /// Writes what could not be written at once. Ends when the connection has failed.
    pub(crate) async fn run(&self, source: &impl Source) -> E {
        loop {
            self.wake.notified().await;
            if let Some(failure) = lock(&self.failure).take() {
                return failure;
            }
            self.kick(source);
        }
    }

    /// Looks at some of what has completed, and has `hear` told of the other side's immediates. Whether there was something.
    pub(crate) fn look(&self, source: &impl Source, mut hear: impl FnMut(u32) -> Result<(), E>) -> bool {
        let mut polling = lock(&self.polling);
        let Polling { completions, is_stopped } = &mut *polling;
        if *is_stopped {
            return false;
        }
        completions.clear();
        let polled = self.queue.poll_many(completions).map_err(|error| self.explain(&error, error.hint()));
        let has_some = !completions.is_empty();
        let mut come = completions.drain(..);
        let outcome = polled.map_err(E::from).and_then(|()| {
            while let Some(completion) = come.next() {
                match &completion.status {
                    Ok(()) => self.take_in(&completion, source, &mut hear)?,
                    Err(status) => return Err(self.first_failure(status, come.collect()).into()),
                }
            }
            Ok(())
        });
        if let Err(failure) = outcome {
            *is_stopped = true;
            self.fail(failure);
        }
        drop(polling);
        if has_some {
            self.progress.notify_waiters();
        }
        has_some
    }

    fn take_in(
        &self,
        completion: &Completion,
        source: &impl Source,
        hear: &mut impl FnMut(u32) -> Result<(), E>,
    ) -> Result<(), E> {
        if completion.id == RECEIVED {
            // Only writes with an immediate take a receive request.
            hear(completion.immediate.unwrap_or_default())?;
            return self.receive().map_err(|error| self.explain(&error, error.hint()).into());
        }
        let mut accounts = lock(&self.accounts);
        let Accounts { queue, staging, .. } = &mut *accounts;
        let mut written = 0;
        for staged in queue.completed(completion.id).flatten() {
            staging.free(staged);
            written += 1;
        }
        self.unblock(&mut accounts);
        drop(accounts);
        if written > 0 {
            source.written(written);
        }
        Ok(())
    }

    /// Posts one batch after the other, until there is nothing more or no room.
    fn write(&self, writing: &mut Writing, source: &impl Source) -> Result<(), Error> {
        let Writing { messages, reserved } = writing;
        loop {
            let more = MOST_WRITES - messages.len();
            messages.extend(std::iter::from_fn(|| source.next()).take(more));
            let heard = self.reserve(messages, reserved);
            let count = reserved.len();
            for (message, Reserved { staged, .. }) in messages.iter().zip(&*reserved) {
                let mut at = staged.offset;
                for piece in message.pieces_in_place() {
                    self.staging.write(at, piece)?;
                    at += piece.len();
                }
            }
            let nothing = self.immediate(Posting { id: 0, is_signalled: true }, Immediate::Heard);
            let mut writes: [_; MOST_WRITES] = std::array::from_fn(|_| nothing.clone());
            for ((write, message), reserved) in writes.iter_mut().zip(&*messages).zip(&*reserved) {
                *write = self.message(reserved, message);
            }
            self.post(&writes[..count])?;
            if let Some(posting) = heard {
                self.post(&[self.immediate(posting, Immediate::Heard)])?;
            }
            messages.drain(..count);
            if count < MOST_WRITES {
                return Ok(());
            }
        }
    }

    /// Takes what the first messages need, as many as there is room for, and what it needs to say that a half has been heard.
    fn reserve(&self, messages: &VecDeque<Message>, reserved: &mut Vec<Reserved>) -> Option<Posting> {
        reserved.clear();
        let mut accounts = lock(&self.accounts);
        let Accounts { queue, staging, places, .. } = &mut *accounts;
        let nobody = Posting { id: 0, is_signalled: false };
        for message in messages {
            if !(queue.has_room_for(reserved.len() + 1) && places.has_one()) {
                break;
            }
            let length = message.len();
            let Some(staged) = staging.take(length) else { break };
            let Some(place) = places.take() else { break };
            reserved.push(Reserved { posting: nobody, place, staged, length });
        }
        let count = reserved.len();
        for (number, it) in (1..).zip(reserved.iter_mut()) {
            let posting = queue.post(Some(it.staged), it.length, number == count);
            it.posting = posting.unwrap_or(nobody);
        }
        accounts.is_waiting = count < messages.len();
        accounts.is_blocked = accounts.is_waiting;
        if accounts.owed == 0 {
            return None;
        }
        let posting = accounts.queue.post(None, 0, true);
        match posting {
            Some(_) => accounts.owed -= 1,
            None => accounts.is_blocked = true,
        }
        posting
    }

    fn message(&self, reserved: &Reserved, message: &Message) -> Write<'_> {
        let Reserved { posting, place, staged, length } = *reserved;
        let offset = self.theirs.body(place) - HEADER - message.before_header();
        let Remote { address, key } = self.remote;
        Write {
            id: posting.id,
            part: Some((&self.staging, staged.offset..staged.offset + length)),
            remote: Remote { address: address + offset as u64, key },
            immediate: Some(Immediate::Frame(place).encode()),
            is_signalled: posting.is_signalled,
        }
    }

    /// The reason of a failure, after which these have come. Devices may report what they gave up before what failed.
    fn first_failure(&self, status: &Status, mut later: Vec<Completion>) -> io::Error {
        let mut count = usize::MAX;
        while status.is_flush() && count != later.len() {
            count = later.len();
            // What cannot be polled tells nothing more.
            let _ = self.queue.poll_many(&mut later);
        }
        let mut failures = later.iter().filter_map(|completion| completion.status.as_ref().err());
        let status = failures.find(|status| !status.is_flush()).unwrap_or(status);
        self.explain(status, status.hint())
    }

    /// Of several failures, the first is the reason.
    fn fail(&self, failure: E) {
        lock(&self.failure).get_or_insert(failure);
        self.wake.notify_one();
        self.progress.notify_waiters();
    }

    fn explain(&self, what: &dyn std::fmt::Display, hint: Option<&str>) -> io::Error {
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        io::Error::other(format!("{}: {what}{hint}", self.names))
    }
}

impl<E> Drop for QueuePair<E> {
    fn drop(&mut self) {
        self.rail.forget(self.number);
    }
}

/// No code panics while it holds one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
