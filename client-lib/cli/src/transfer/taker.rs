//! Takes frames of several senders, each of which has a transfer of its own. Which of them is to be
//! believed shows only at the end: so one that says nothing, or nonsense, does not keep others from
//! coming.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use anyhow::{Error, anyhow};
use multinet_client::Received;
use tracing::warn;

use super::destination::Destination;
use super::header::Header;
use super::incoming::{Cause, Done, Failure, Incoming};
use super::progress::Progress;
use crate::output::PipeClosed;

/// Senders that have been refused and are remembered, so that their next frame is not taken for a
/// beginning.
const REFUSED: usize = 64;

/// Transfers at a time.
const MOST: usize = 64;

/// How a transfer ended.
pub(super) enum Outcome {
    Done(Done),
    Failed {
        error: Error,
        session: u128,
        /// Nothing is to be waited for any more.
        is_last: bool,
    },
}

/// All transfers.
pub(super) struct Taker {
    destination: Destination,
    /// For a sender that has gone.
    wait: Duration,
    keeps: bool,
    transfers: BTreeMap<u128, Incoming>,
    refused: VecDeque<u128>,
}

impl Taker {
    pub(super) fn new(destination: Destination, wait: Duration, keeps: bool) -> Self {
        Self { destination, wait, keeps, transfers: BTreeMap::new(), refused: VecDeque::new() }
    }

    /// Finishes what earlier receivers had received, but for their senders to know it: all of it,
    /// or one if one is enough.
    pub(super) fn adopt(&mut self) {
        let Some(files) = self.destination.files() else { return };
        let sessions = files.completed().unwrap_or_else(|error| {
            warn!(
                "cannot look for what earlier receivers have left in {}: {error}",
                files.folder().display()
            );
            Vec::new()
        });
        for session in sessions {
            let sender = "the sender of what an earlier receiver has left".to_owned();
            let adopted = Incoming::begin(&self.destination, session, sender, Progress::hidden()).and_then(
                |mut transfer| {
                    transfer.adopt(&mut self.destination)?;
                    Ok(transfer)
                },
            );
            match adopted {
                Ok(transfer) => {
                    self.transfers.insert(session, transfer);
                    if !self.keeps {
                        return;
                    }
                }
                Err(Failure { error, .. }) => {
                    warn!("what an earlier receiver has left is passed over: {error:#}");
                }
            }
        }
    }

    /// Whether one is over as soon as its sender has gone.
    pub(super) fn is_leaving(&self) -> bool {
        self.transfers.values().any(Incoming::is_told)
    }

    /// A frame has come. A frame that is dropped here goes back to its sender, as refused.
    pub(super) fn take(&mut self, received: Received) -> Option<Outcome> {
        let session = received.id().session;
        if self.refused.contains(&session) {
            return None;
        }
        let Some(header) = Header::decode(received.metadata(), received.len()) else {
            warn!("refused {:?}: its frames are not from multinet send", received.sender());
            self.refuse(session);
            return None;
        };
        if !self.transfers.contains_key(&session) {
            let sender = format!("{:?}", received.sender());
            if let Some(reason) = self.make_room(received.len() as u64) {
                warn!("refused {sender}: {reason}");
                self.refuse(session);
                return None;
            }
            // Two bars would be written over each other.
            let progress =
                if self.transfers.is_empty() { Progress::new(header.total) } else { Progress::hidden() };
            match Incoming::begin(&self.destination, session, sender, progress) {
                Ok(transfer) => drop(self.transfers.insert(session, transfer)),
                // The session is the sender's choice: another one may be written to another file.
                Err(Failure { error, .. }) => {
                    warn!("refused a sender, whose transfer cannot be begun here: {error:#}");
                    self.refuse(session);
                    return None;
                }
            }
        }
        let transfer = self.transfers.get_mut(&session)?;
        let was_complete = transfer.is_complete();
        match transfer.take(&mut self.destination, header, received) {
            Ok(()) if transfer.is_complete() && !was_complete => {
                self.decide(session);
                None
            }
            Ok(()) => None,
            Err(failure) => Some(self.end(session, failure)),
        }
    }

    /// Some time has passed; a session's sender is connected, or not.
    pub(super) fn look(&mut self, is_connected: impl Fn(u128) -> bool) -> Option<Outcome> {
        let (destination, wait) = (&mut self.destination, self.wait);
        let (session, over) = self.transfers.iter_mut().find_map(|(&session, transfer)| {
            match transfer.look(destination, is_connected(session), wait) {
                Ok(false) => None,
                over => Some((session, over)),
            }
        })?;
        match over {
            Ok(_) => Some(Outcome::Done(self.transfers.remove(&session)?.leave())),
            Err(failure) => Some(self.end(session, failure)),
        }
    }

    /// Why there is no room for another transfer, of which so many bytes have come.
    fn make_room(&mut self, bytes: u64) -> Option<String> {
        let first = self.transfers.iter().next();
        if let Some((&session, other)) = first.filter(|_| self.destination.files().is_none()) {
            if other.written() > 0 || other.is_complete() {
                return Some(format!(
                    "{} is sending, and only a file can have several senders",
                    other.sender()
                ));
            }
            // A sender of nothing does not hold up one of something.
            warn!("refused {}: it has sent nothing yet, and another sender has come", other.sender());
            self.drop_one(session);
            return None;
        }
        if let Some(other) = self.transfers.values().find(|other| !self.keeps && other.is_complete()) {
            return Some(format!("all of what {} sends is here", other.sender()));
        }
        if self.transfers.len() < MOST {
            return None;
        }
        let open = self.transfers.iter().filter(|(_, other)| !other.is_complete());
        let least = open.min_by_key(|(_, other)| other.written())?;
        let (&session, written) = (least.0, least.1.written());
        if written > bytes {
            return Some(format!("{MOST} transfers are under way, and have come farther"));
        }
        warn!("refused {}: others, of {MOST} that are sending, have come farther", least.1.sender());
        self.drop_one(session);
        None
    }

    /// All of one is there. If one is enough, the others are refused.
    fn decide(&mut self, complete: u128) {
        if self.keeps {
            return;
        }
        let others: Vec<u128> =
            self.transfers.keys().copied().filter(|&session| session != complete).collect();
        for session in others {
            if let Some(other) = self.transfers.get(&session) {
                warn!("refused {}: another transfer is complete", other.sender());
            }
            self.drop_one(session);
        }
    }

    fn drop_one(&mut self, session: u128) {
        if let Some(transfer) = self.transfers.remove(&session) {
            transfer.discard();
        }
        self.refuse(session);
    }

    /// A transfer has failed that had begun.
    fn end(&mut self, session: u128, failure: Failure) -> Outcome {
        let is_spoilt = self.transfers.get(&session).is_some_and(Incoming::is_spoilt);
        let has_written = self.transfers.get(&session).is_some_and(|transfer| transfer.written() > 0);
        let failure = match failure {
            // Nothing but a connection has come and gone.
            Failure { cause: Cause::Gone | Cause::GaveUp, error } if !has_written => Failure::theirs(error),
            failure => failure,
        };
        match self.transfers.remove(&session) {
            // The next receiver would take for complete what its sender does not stand by.
            Some(transfer) if failure.cause != Cause::Ours => transfer.reject(),
            Some(transfer) => transfer.discard(),
            None => {}
        }
        self.failed(session, failure, is_spoilt)
    }

    fn failed(&mut self, session: u128, Failure { cause, error }: Failure, is_spoilt: bool) -> Outcome {
        self.refuse(session);
        // Standard output does not come back.
        let is_last = error.is::<PipeClosed>() || ends(cause, is_spoilt, self.keeps, self.has_senders());
        let error = match is_last || self.keeps {
            true => error,
            false => anyhow!("{error:#}; waiting for another sender"),
        };
        Outcome::Failed { error, session, is_last }
    }

    /// Returns whether any transfer has had a frame lately. A connection that stays silent is none to wait for.
    fn has_senders(&self) -> bool {
        self.transfers.values().any(|transfer| transfer.is_moving(self.wait))
    }

    fn refuse(&mut self, session: u128) {
        if self.refused.contains(&session) {
            return;
        }
        self.refused.push_back(session);
        if self.refused.len() > REFUSED {
            self.refused.pop_front();
        }
    }
}

/// Whether nothing is to be waited for after a failure: a stranger's nonsense is no reason to end.
fn ends(cause: Cause, is_spoilt: bool, keeps: bool, has_others: bool) -> bool {
    match cause {
        _ if keeps => false,
        Cause::Ours => true,
        _ if is_spoilt => true,
        Cause::Theirs => false,
        Cause::GaveUp | Cause::Gone => !has_others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_ends_the_receiver_unless_another_sender_may_do_better() {
        for has_others in [false, true] {
            for cause in [Cause::Ours, Cause::Theirs, Cause::GaveUp, Cause::Gone] {
                assert!(!ends(cause, true, true, has_others), "--keep: {cause:?}");
                // What is on standard output stays there.
                assert!(ends(cause, true, false, has_others), "{cause:?}");
            }
            assert!(ends(Cause::Ours, false, false, has_others));
            assert!(!ends(Cause::Theirs, false, false, has_others));
            for cause in [Cause::GaveUp, Cause::Gone] {
                assert_eq!(ends(cause, false, false, has_others), !has_others, "{cause:?}");
            }
        }
    }
}
