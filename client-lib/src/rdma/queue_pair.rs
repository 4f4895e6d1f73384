//! A connected queue pair with its accounts: writes messages to the other side's places, hears of what has come to ours.
//!
//! ```text
//!   kick ── Source::next ──> reserve a place, memory, a request ── copy or lend ── post (several at once)
//!   look ── completions ──┬─> of writes: what they took is free, Source::written
//!                         └─> of the other side's immediates: heard by the connection, then a receive request again
//! ```
//!
//! Whoever has something to say writes it at once, as with TCP. What could not be written, for lack of places or memory, is written by
//! the connection's task when a completion has made room.

mod arrivals;
mod pairs;
mod writing;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use multinet_verbs::{
    Completion, Depths, Domain, GpuLanding, Landing, Pair, Queue, Region, Remote, Status, Write,
};
use tokio::sync::Notify;

use self::pairs::Pairs;
use self::writing::{Held, Writing};
use super::accounts::{Places, Posting, Reading, SendQueue, Staged, Staging, Violation};
use super::gpu::Place;
use super::layout::{Immediate, Layout};
use super::lock;
use super::rail::{Completes, Rail};
use super::stripes::Ticket;
use super::unusable::Unusable;
use crate::stream::{Baton, Source};
use crate::way::{Failure, discard};

/// So many batches one caller writes, before it leaves the rest to the task.
const ROUNDS: usize = 4;

/// A queue pair, with further ones for parts of large frames, which fails for a reason `E`.
pub(crate) struct QueuePair<E> {
    pairs: Pairs,
    queue: Queue,
    number: u64,
    rail: Arc<Rail>,
    /// What the other side writes to.
    landing: Landing,
    layout: Layout,
    /// What it writes payloads to, if they are to be in a GPU, and from one to the next.
    gpu: Option<(GpuLanding, usize)>,
    /// What we write to.
    remote: Remote,
    theirs: Layout,
    /// Where payloads go, if they have a place of their own.
    payloads: Option<Payloads>,
    /// Where we are.
    own: Place,
    /// What we write from.
    staging: Region,
    domain: Domain,
    accounts: Mutex<Accounts>,
    writing: Baton<Writing>,
    polling: Mutex<Polling>,
    failure: Mutex<Option<E>>,
    /// Memory of the program's own could not be registered.
    only_copies: AtomicBool,
    /// It has failed, or is not wanted any more: nothing is written.
    is_over: AtomicBool,
    /// How many completions there can be at a time.
    depth: usize,
    /// The task has something to do.
    wake: Notify,
    /// Something has completed.
    progress: Notify,
    names: String,
}

/// Memory of the other side for payloads alone, one to each of its slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payloads {
    pub(super) remote: Remote,
    pub(super) stride: usize,
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
    /// There was no room, or what there is waits for more, and nothing has completed or become free since.
    is_blocked: bool,
}

/// What has been posted: a message, or an immediate alone.
type Posted = Option<Sent>;

/// What a message is sent from.
struct Sent {
    staged: Staged,
    // Only held, for the device reads from it.
    _lent: Option<Held>,
}

#[derive(Default)]
struct Polling {
    completions: Vec<Completion>,
    /// What need not be kept any longer.
    done: Vec<Sent>,
    is_stopped: bool,
}

impl Payloads {
    /// Where the payload of a slot goes.
    fn place(&self, slot: u16) -> Remote {
        let Remote { address, key } = self.remote;
        Remote { address: address + (usize::from(slot) * self.stride) as u64, key }
    }
}

impl<E> QueuePair<E> {
    pub(super) fn new(
        (pairs, queue, number, rail): (Vec<Pair>, Queue, u64, Arc<Rail>),
        (landing, layout, gpu): (Landing, Layout, Option<(GpuLanding, usize)>),
        (remote, theirs, places, payloads): (Remote, Layout, Places, Option<Payloads>),
        (domain, staging, capacity): (Domain, Region, usize),
        depths: Depths,
        (names, own): (String, Place),
    ) -> Self {
        // A message is two writes then.
        let messages = if payloads.is_some() { depths.send / 2 } else { depths.send };
        let count = pairs.len();
        let accounts = Accounts {
            queue: SendQueue::new(messages, pairs.len().saturating_sub(1)),
            staging: Staging::new(capacity),
            places,
            reading: Reading::new(layout.count),
            owed: 0,
            is_waiting: false,
            is_blocked: false,
        };
        Self {
            pairs: Pairs::new(pairs),
            queue,
            number,
            rail,
            landing,
            layout,
            gpu,
            remote,
            theirs,
            payloads,
            own,
            staging,
            domain,
            accounts: Mutex::new(accounts),
            writing: Baton::new(Writing::default()),
            polling: Mutex::default(),
            failure: Mutex::new(None),
            only_copies: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            depth: count * (usize::from(depths.send) + usize::from(depths.receive)),
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
            self.look_all(|| by.look());
        }
    }

    /// Looks at all that is there now, but not at what the other side adds for ever.
    pub(crate) fn look_all(&self, mut look: impl FnMut() -> bool) {
        let mut rounds = 0..=self.depth;
        while rounds.next().is_some() && look() {}
    }

    pub(crate) fn arm(&self) {
        // Fails only if polling does, which says so.
        let _ = self.queue.arm();
    }

    /// Tries the ways to the other side, by so many bytes in the first of its slots, none of which has been used, and in the place for its payload.
    pub(super) fn ping(&self, length: usize) -> Result<(), Failure> {
        let Some(posting) = lock(&self.accounts).queue.post(None, 0, true) else { return Ok(()) };
        let part = Some((&self.staging, 0..length.min(self.theirs.stride)));
        let told = Write { part, ..self.immediate(posting, Immediate::Ping) };
        for pair in 0..self.pairs.further() {
            let id = Ticket::Part { pair: pair as u8, number: 0 }.encode();
            self.post(pair + 1, &[Write { id, is_signalled: true, ..told.clone() }])?;
        }
        if let Some(payloads) = &self.payloads {
            let part = Some((&self.staging, 0..length.min(payloads.stride)));
            let remote = payloads.remote;
            self.post(0, &[Write { part, remote, immediate: None, is_signalled: false, ..told.clone() }])?;
        }
        self.post(0, &[told])
    }

    /// Whether one more pair's ping has arrived.
    pub(super) fn pong(&self) -> Result<bool, Unusable> {
        let Some(completion) = self.queue.poll()? else { return Ok(false) };
        match completion.status {
            Err(status) => Err(Unusable::Ping(self.first_failure(&status, Vec::new()))),
            Ok(()) => match Ticket::decode(completion.id) {
                Ticket::Received(_) => Err(Unusable::Peer("the peer speaks before it has been spoken to")),
                Ticket::Part { .. } => Ok(true),
                Ticket::Sent(number) => {
                    lock(&self.accounts).queue.completed(number).for_each(drop);
                    Ok(true)
                }
            },
        }
    }

    /// Nothing is looked at any more, and the other side's device gets no answer.
    pub(crate) async fn hang_up(&self) {
        self.stop();
        self.rail.forget(self.number);
        discard(self.pairs.take()).await;
        let domain = self.domain.clone();
        // If the runtime ends, the memory's end is theirs.
        let _ = tokio::task::spawn_blocking(move || domain.release()).await;
        // Nobody reads from it any more, and nobody will write it.
        let unwritten = std::mem::take(&mut self.writing.tools().messages);
        let unread = lock(&self.accounts).queue.clear();
        drop((unwritten, unread));
    }

    /// Nothing is written or looked at any more.
    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        lock(&self.polling).is_stopped = true;
    }

    fn immediate(&self, posting: Posting, immediate: Immediate) -> Write<'static> {
        Write {
            id: Ticket::Sent(posting.id).encode(),
            part: None,
            lent: None,
            remote: self.remote,
            immediate: Some(immediate.encode()),
            is_signalled: posting.is_signalled,
        }
    }

    /// Posts to one of the pairs, from 0.
    fn post(&self, pair: usize, writes: &[Write<'_>]) -> Result<(), Failure> {
        self.pairs.write(pair, writes).map_err(|error| self.explain(&error, error.hint()))
    }

    /// How many pairs there are beside the first.
    pub(crate) fn further(&self) -> usize {
        self.pairs.further()
    }

    fn unblock(&self, accounts: &mut Accounts) {
        if std::mem::take(&mut accounts.is_blocked) {
            self.wake.notify_one();
        }
    }
}

impl<E: From<Failure> + From<Violation>> QueuePair<E> {
    /// Writes what there is, as far as there is room.
    pub(crate) fn kick(&self, source: &impl Source) {
        let mut rounds = 0;
        let write = |writing: &mut Writing| {
            rounds += 1;
            // Whoever sends one frame must not write those of all others for ever.
            if rounds > ROUNDS || self.is_over.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            match self.write(writing, source) {
                Ok(()) => ControlFlow::Continue(()),
                Err(failure) => {
                    self.fail(failure.into());
                    ControlFlow::Break(())
                }
            }
        };
        // If there is no room, or it is to wait for more, the next completion wakes the task.
        let has_more = || {
            let Accounts { owed, is_waiting, is_blocked, .. } = *lock(&self.accounts);
            !is_blocked && (is_waiting || owed > 0 || source.has_work())
        };
        if self.writing.pass(write, has_more).is_break() {
            self.wake.notify_one();
        }
    }

    /// As [`kick`](Self::kick), but as long as something is under way it leaves all to the task, which its completion wakes. What has come
    /// together until then is written by as few calls, and with as few completions, as there can be.
    pub(crate) fn kick_or_linger(&self, source: &impl Source) {
        {
            let mut accounts = lock(&self.accounts);
            // The last of what is under way always gets a completion, and that is taken in under this lock, too.
            if !accounts.queue.is_empty() {
                accounts.is_blocked = true;
                return;
            }
        }
        self.kick(source);
    }

    /// Writes everything, and waits until it has arrived, or it is over.
    pub(crate) async fn flush(&self, source: &impl Source) {
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            self.kick(source);
            if self.is_over.load(Ordering::Relaxed) || self.is_idle(source) {
                return;
            }
            // Whoever has added something while we looked has left it to us.
            self.kick(source);
            progress.await;
        }
    }

    fn is_idle(&self, source: &impl Source) -> bool {
        // Somebody else may be at it.
        let _writing = self.writing.tools();
        let accounts = lock(&self.accounts);
        accounts.queue.is_empty() && !accounts.is_waiting && accounts.owed == 0 && !source.has_work()
    }

    /// It has failed for a reason that lies outside.
    pub(crate) fn fail_for(&self, reason: &str) {
        self.fail(self.explain(&reason, None).into());
    }

    /// Writes what could not be written at once. Ends when the connection has failed.
    pub(crate) async fn run(&self, source: &impl Source) -> E {
        loop {
            self.wake.notified().await;
            // Others may have it kicked again and again.
            tokio::task::consume_budget().await;
            if let Some(failure) = lock(&self.failure).take() {
                return failure;
            }
            if !self.is_over.load(Ordering::Relaxed) {
                self.kick(source);
            }
        }
    }

    /// Looks at some of what has completed, and has `hear` told of the other side's immediates, and by which pair they came, from 0. Whether there was
    /// something.
    pub(crate) fn look(&self, source: &impl Source, mut hear: impl FnMut(u8, u32) -> Result<(), E>) -> bool {
        let mut polling = lock(&self.polling);
        let Polling { completions, done, is_stopped } = &mut *polling;
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
                    Ok(()) => self.take_in(&completion, source, done, &mut hear)?,
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
        done: &mut Vec<Sent>,
        hear: &mut impl FnMut(u8, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let ticket = Ticket::decode(completion.id);
        if let Ticket::Received(pair) = ticket {
            hear(pair, completion.immediate.ok_or(Violation::NoImmediate)?)?;
            let received = self.pairs.receive(pair);
            return received.map_err(|error| self.explain(&error, error.hint()).into());
        }
        let mut accounts = lock(&self.accounts);
        let Accounts { queue, staging, .. } = &mut *accounts;
        match ticket {
            Ticket::Part { pair, number } => {
                done.extend(queue.part_completed(pair.into(), number).flatten());
            }
            Ticket::Sent(number) => done.extend(queue.completed(number).flatten()),
            Ticket::Received(_) => {}
        }
        done.iter().for_each(|sent| staging.free(sent.staged));
        self.unblock(&mut accounts);
        drop(accounts);
        let written = done.len();
        // Memory may end with it, which takes a while.
        done.clear();
        if written > 0 {
            source.written(written);
        }
        Ok(())
    }

    /// Of several failures, the first is the reason.
    fn fail(&self, failure: E) {
        self.is_over.store(true, Ordering::Relaxed);
        lock(&self.failure).get_or_insert(failure);
        self.wake.notify_one();
        self.progress.notify_waiters();
    }
}

impl<E> QueuePair<E> {
    /// The reason of a failure, after which these have come. Devices may report what they gave up before what failed.
    fn first_failure(&self, status: &Status, mut later: Vec<Completion>) -> Failure {
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

    fn explain(&self, what: &dyn std::fmt::Display, hint: Option<&str>) -> Failure {
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        Failure(format!("{}: {what}{hint}", self.names))
    }
}

impl<E> Drop for QueuePair<E> {
    fn drop(&mut self) {
        self.rail.forget(self.number);
        self.domain.retire();
    }
}
