//! Polling: the handling of completions, and the reason of a failure among them.

use multinet_verbs::{Completion, Status};

use super::{QueuePair, SentMemory};
use crate::rdma::ledger::Violation;
use crate::rdma::stripes::WorkRequestId;
use crate::rdma::unusable::QueuePairError;
use crate::stream::MessageSource;

/// Buffers of the thread that polls completions, kept to avoid allocations.
#[derive(Default)]
pub(super) struct Polling {
    completions: Vec<Completion>,
    /// The memory of sent messages whose requests are done, to be given back.
    done: Vec<SentMemory>,
    pub(super) is_stopped: bool,
}

impl<E> QueuePair<E> {
    /// Polls until no completion is left. A peer that keeps adding some cannot make it go on
    /// forever.
    pub(crate) fn poll_all(&self, mut poll: impl FnMut() -> bool) {
        let mut rounds = 0..=self.local.max_completions;
        while rounds.next().is_some() && poll() {}
    }

    /// Returns the reason for a failed completion. When a queue pair fails, all its other requests
    /// complete as flushed, and some devices report those before the one that failed.
    pub(super) fn root_failure(&self, status: &Status, mut later: Vec<Completion>) -> QueuePairError {
        let mut count = usize::MAX;
        while status.is_flush() && count != later.len() {
            count = later.len();
            // If polling fails, the completions so far have to do.
            let _ = self.local.completions.poll_batch(&mut later);
        }
        let mut failures = later.iter().filter_map(|completion| completion.status.as_ref().err());
        let status = failures.find(|status| !status.is_flush()).unwrap_or(status);
        self.failure_of(status, status.hint())
    }
}

impl<E: From<QueuePairError> + From<Violation>> QueuePair<E> {
    /// Polls a batch of completions. Calls `on_immediate` for each immediate from the peer, with
    /// the number of its queue pair. Returns whether there was any completion.
    pub(crate) fn poll(
        &self,
        source: &impl MessageSource,
        mut on_immediate: impl FnMut(u8, u32) -> Result<(), E>,
    ) -> bool {
        let mut polling = self.polling.lock();
        let Polling { completions, done, is_stopped } = &mut *polling;
        if *is_stopped {
            return false;
        }
        completions.clear();
        let polled = self.local.completions.poll_batch(completions);
        let polled = polled.map_err(|error| self.failure_of(&error, error.hint()));
        let has_some = !completions.is_empty();
        let mut pending = completions.drain(..);
        let outcome = polled.map_err(E::from).and_then(|()| {
            while let Some(completion) = pending.next() {
                match &completion.status {
                    Ok(()) => self.handle_completion(&completion, source, done, &mut on_immediate)?,
                    Err(status) => return Err(self.root_failure(status, pending.collect()).into()),
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

    fn handle_completion(
        &self,
        completion: &Completion,
        source: &impl MessageSource,
        done: &mut Vec<SentMemory>,
        on_immediate: &mut impl FnMut(u8, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let id = WorkRequestId::decode(completion.id);
        if let WorkRequestId::Receive(pair) = id {
            on_immediate(pair, completion.immediate.ok_or(Violation::NoImmediate)?)?;
            // Only now, so that no more immediates arrive than have been handled.
            let pairs = self.pairs.read();
            let posted = pairs.get(usize::from(pair)).map_or(Ok(()), |pair| pair.post_receive(completion.id));
            return posted.map_err(|error| self.failure_of(&error, error.hint()).into());
        }
        let mut ledger = self.ledger.lock();
        match id {
            WorkRequestId::Stripe { pair, number } => {
                done.extend(ledger.queue.stripe_completed(pair.into(), number).flatten());
            }
            WorkRequestId::Message(number) => done.extend(ledger.queue.completed(number).flatten()),
            WorkRequestId::Receive(_) => {}
        }
        done.iter().for_each(|sent| ledger.staging.free(sent.staged));
        self.unblock(&mut ledger);
        drop(ledger);
        let written = done.len();
        // After the ledger is unlocked: dropping the last handle of registered memory takes a
        // while.
        done.clear();
        if written > 0 {
            source.written(written);
        }
        Ok(())
    }
}
