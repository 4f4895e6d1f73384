//! The transfers of several senders at a time. Which of them is to be believed shows only at the
//! end: a sender that says nothing, or nonsense, does not keep another one's transfer from coming.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::Error;
use multinet_client::Received;
use tracing::warn;

use super::destination::Destination;
use super::files::Left;
use super::header::Header;
use super::incoming::{Cause, Done, Failure, Incoming};
use super::line_limit::LineLimit;
use super::partial::Partial;
use super::progress::TransferProgress;
use super::share::{FETCHED, Owner, gives_way, transfer_id};
use crate::output::{PipeClosed, message, note};

/// Refused transfers that are remembered, so that their next frame is not taken for a beginning.
const REFUSED: usize = 64;

/// Most transfers that are received at a time.
const MOST: usize = 64;

/// Time between two checks from which on no sender is blamed for it.
const LATE: Duration = Duration::from_secs(1);

/// Most transfers whose files have been placed, and whose senders are still answered.
const PLACED: usize = 1024;

/// How long a transfer must have been still to give way to another one when the disk is full.
const STILL: Duration = Duration::from_secs(2);

/// An event that the receiver's main task acts upon.
pub(super) enum TransferOutcome {
    /// A transfer has been received to its end.
    Done(Done),
    /// The receiver has to end with this error, because of the transfer with this session.
    Failed(Error, Option<u128>),
}

/// All transfers of one receiver: those under way, and those that have been refused.
pub(super) struct Transfers {
    destination: Destination,
    /// How long the receiver waits for a sender that has gone, before the transfer fails.
    wait: Duration,
    keeps: bool,
    current: BTreeMap<u128, Incoming>,
    /// Transfers whose files have been placed and reported, by this receiver or an earlier one.
    /// Only their senders may not know, and ask.
    placed_before: BTreeMap<u128, Incoming>,
    /// Transfers whose partial files earlier receivers have left. The files of those whose senders
    /// have not come back within `wait` are removed.
    unclaimed: Vec<u128>,
    start: Instant,
    /// Time of the last check.
    checked: Instant,
    refusals: Refusals,
}

/// Ids of refused transfers, and the limit of lines about them, which strangers can cause.
struct Refusals {
    ids: VecDeque<u128>,
    lines: LineLimit,
}

impl Transfers {
    pub(super) fn new(destination: Destination, wait: Duration, keeps: bool) -> Self {
        let refusals = Refusals { ids: VecDeque::new(), lines: LineLimit::default() };
        let (current, placed_before, unclaimed) = Default::default();
        let start = Instant::now();
        Self { destination, wait, keeps, current, placed_before, unclaimed, start, checked: start, refusals }
    }

    /// Finishes the complete transfers that earlier receivers have left: all of them, or one if one
    /// is enough. A file that an earlier receiver has placed counts while it is there.
    pub(super) fn finish_left_behind(&mut self) {
        let Some(files) = self.destination.files() else { return };
        let found = files.left_behind().unwrap_or_else(|error| {
            let folder = files.folder.display();
            warn!("cannot look for what earlier receivers have left in {folder}: {error}");
            Vec::new()
        });
        for (id, left) in found.into_iter().filter(|(id, _)| id & FETCHED == 0) {
            let has_enough = !self.keeps && !self.current.is_empty();
            match left {
                Left::Partial => {
                    self.unclaimed.push(id);
                    continue;
                }
                // The next receiver finishes it.
                Left::Complete if has_enough => continue,
                Left::Complete | Left::Placed => {}
            }
            match self.adopt(id) {
                Ok((transfer, true)) if !has_enough => drop(self.current.insert(id, transfer)),
                // A receipt that could not be read has been removed.
                Ok((transfer, _)) if !transfer.is_complete() => transfer.discard(),
                Ok((transfer, _)) => drop(self.placed_before.insert(id, transfer)),
                Err(Failure { error, .. }) => {
                    self.refusals.warn(&format!(
                        "cannot finish a complete transfer that an earlier receiver has left: {error:#}"
                    ));
                }
            }
        }
    }

    /// Returns a transfer that an earlier receiver has left, and whether its file is there.
    fn adopt(&mut self, id: u128) -> Result<(Incoming, bool), Failure> {
        let sender = "the sender of what an earlier receiver has left".to_owned();
        let mut transfer =
            Incoming::begin(&self.destination, id, (sender, None), TransferProgress::hidden())?;
        let is_there = transfer.adopt(&mut self.destination)?;
        Ok((transfer, is_there))
    }

    /// Returns whether a transfer is over as soon as its sender has gone.
    pub(super) fn has_confirmed(&self) -> bool {
        self.current.values().any(Incoming::is_confirmed)
    }

    /// Handles a frame. A frame that is dropped here goes back to its sender, as refused.
    pub(super) fn handle_frame(&mut self, received: Received) -> Option<TransferOutcome> {
        let sender = received.sender();
        let id = transfer_id(received.id().session, sender.certificate_names());
        if self.refusals.ids.contains(&id) {
            return None;
        }
        let Some(header) = Header::decode(received.metadata(), received.len()) else {
            self.refusals.refuse(id, &format!("{sender:?}"), "its frames are not from multinet send");
            return None;
        };
        if let Some(transfer) = self.placed_before.get_mut(&id) {
            // If it fails, the frame has gone back to its sender, and that is all there is to do.
            let _ = transfer.handle_frame(&mut self.destination, header, received, &mut || false);
            return None;
        }
        if !self.current.contains_key(&id) {
            let (name, owner) = (format!("{sender:?}"), Owner::of(sender));
            if let Err(reason) = self.begin(id, &name, owner, header.total) {
                self.refusals.refuse(id, &name, &reason);
                return None;
            }
        }
        // It is out of the map while others may have to give way to it.
        let mut transfer = self.current.remove(&id)?;
        let (was_complete, written) = (transfer.is_complete(), transfer.written());
        let (others, refusals) = (&mut self.current, &mut self.refusals);
        let mut free_space = || drop_still(others, refusals, written);
        let handled = transfer.handle_frame(&mut self.destination, header, received, &mut free_space);
        let is_complete = transfer.is_complete();
        self.current.insert(id, transfer);
        match handled {
            Ok(()) if is_complete && !was_complete => self.refuse_others(id),
            Ok(()) => {}
            Err(failure) => return self.fail(id, failure),
        }
        None
    }

    /// Notes that time has passed. `is_connected` tells whether a session's sender is connected.
    pub(super) fn check(&mut self, is_connected: impl Fn(u128) -> bool) -> Option<TransferOutcome> {
        self.refusals.report();
        self.excuse_senders();
        if self.start.elapsed() > self.wait {
            self.remove_unclaimed();
        }
        let is_connected = |transfer: &Incoming| transfer.session.is_some_and(&is_connected);
        while let Some((id, over)) = self.next_over(is_connected) {
            let outcome = match over {
                Ok(()) => {
                    self.current.remove(&id).map(|transfer| TransferOutcome::Done(self.done(id, transfer)))
                }
                Err(failure) => self.fail(id, failure),
            };
            if outcome.is_some() {
                return outcome;
            }
        }
        let (destination, wait) = (&mut self.destination, self.wait);
        let over = self.placed_before.extract_if(.., |_, transfer| {
            let is_connected = is_connected(transfer);
            transfer.check(destination, is_connected, wait).unwrap_or(true)
        });
        over.for_each(|(_, transfer)| drop(transfer.finish()));
        None
    }

    /// Takes off the time since the last check if it is long, as when a disk was slow.
    fn excuse_senders(&mut self) {
        let late = self.checked.elapsed();
        self.checked = Instant::now();
        if late > LATE {
            let transfers = self.current.values_mut().chain(self.placed_before.values_mut());
            transfers.for_each(|transfer| transfer.excuse(late));
        }
    }

    fn remove_unclaimed(&mut self) {
        let Some(files) = self.destination.files() else { return };
        for id in std::mem::take(&mut self.unclaimed) {
            if !self.current.contains_key(&id) {
                // Another receiver may have it open, or has removed it.
                let _ = Partial::remove_left(files, id);
            }
        }
    }

    /// Ends a transfer that has been received, and returns its result. If its sender has not asked,
    /// it is answered when it does.
    fn done(&mut self, id: u128, transfer: Incoming) -> Done {
        if !self.keeps || transfer.is_confirmed() {
            return transfer.finish();
        }
        let (done, transfer) = transfer.place_unasked();
        self.placed_before.insert(id, transfer);
        if self.placed_before.len() > PLACED
            && let Some((&oldest, _)) = self.placed_before.iter().min_by_key(|(_, other)| other.complete)
        {
            self.placed_before.remove(&oldest).map(Incoming::finish);
        }
        done
    }

    /// Returns a transfer that is over, with the failure if it has failed; `None` if none is over.
    fn next_over(&mut self, is_connected: impl Fn(&Incoming) -> bool) -> Option<(u128, Result<(), Failure>)> {
        self.current.iter_mut().find_map(|(&id, transfer)| {
            let is_connected = is_connected(transfer);
            match transfer.check(&mut self.destination, is_connected, self.wait) {
                Ok(false) => None,
                over => Some((id, over.map(|_| ()))),
            }
        })
    }

    /// Ends all transfers. Returns those whose senders know that the file has been placed.
    pub(super) fn close(self) -> Vec<Done> {
        let confirmed = |transfers: BTreeMap<u128, Incoming>| {
            transfers.into_values().filter(Incoming::is_confirmed).map(Incoming::finish)
        };
        confirmed(self.placed_before).for_each(drop);
        confirmed(self.current).collect()
    }

    /// Begins a transfer. Fails with the reason if there is no room for it, or it cannot be
    /// written.
    fn begin(&mut self, id: u128, name: &str, owner: Owner, total: Option<u64>) -> Result<(), String> {
        self.make_room(&owner)?;
        // Two bars would be written over each other.
        let progress =
            if self.current.is_empty() { TransferProgress::new(total) } else { TransferProgress::hidden() };
        let sender = (name.to_owned(), Some(owner));
        // Another transfer may be written to another file.
        let transfer = Incoming::begin(&self.destination, id, sender, progress)
            .map_err(|Failure { error, .. }| format!("its transfer cannot begin: {error:#}"))?;
        self.current.insert(id, transfer);
        Ok(())
    }

    /// Makes room for another transfer of an owner, or fails with the reason why there is none.
    fn make_room(&mut self, owner: &Owner) -> Result<(), String> {
        let first = self.current.iter().next();
        if let Some((&id, other)) = first.filter(|_| self.destination.files().is_none()) {
            if other.written() > 0 || other.is_complete() {
                let other = &other.sender;
                return Err(format!("{other} is sending, and only a file can have several senders"));
            }
            self.end(id, "it has sent nothing yet, and another sender has come");
            return Ok(());
        }
        if let Some(other) = self.current.values().find(|other| !self.keeps && other.is_complete()) {
            return Err(format!(
                "this receiver takes one transfer, and has all of that of {}; for more, start multinet recv with --keep",
                other.sender
            ));
        }
        // What an earlier receiver has left has no owner, and takes no memory worth counting.
        let counted = self.current.iter().filter(|(_, other)| other.owner.is_some() && !other.is_hurried);
        if counted.clone().count() < MOST {
            return Ok(());
        }
        let owned = counted.filter_map(|(&id, other)| Some((id, other.owner.as_ref()?, other.last_frame)));
        let Some(id) = gives_way(owner, owned) else {
            return Err(format!("{MOST} transfers are under way"));
        };
        match self.current.get_mut(&id) {
            Some(other) if other.is_complete() => other.is_hurried = true,
            _ => self.end(id, &format!("{MOST} others are sending, and it has been still for longest")),
        }
        Ok(())
    }

    /// Refuses all other transfers if one is enough, since all of this one is there.
    fn refuse_others(&mut self, complete: u128) {
        if self.keeps {
            return;
        }
        let others: Vec<u128> = self.current.keys().copied().filter(|&id| id != complete).collect();
        for id in others {
            self.end(id, "another transfer is complete");
        }
    }

    /// Ends a transfer that gives way to another one, and refuses its further frames.
    fn end(&mut self, id: u128, reason: &str) {
        end(&mut self.current, &mut self.refusals, id, reason);
    }

    /// Ends a transfer that has failed. The receiver ends with it only if no other sender may do
    /// better.
    fn fail(&mut self, id: u128, Failure { cause, error }: Failure) -> Option<TransferOutcome> {
        let transfer = self.current.remove(&id)?;
        let (session, is_spoilt) = (transfer.session, transfer.is_spoilt());
        let cause = match cause {
            // Nothing but a connection has come and gone.
            Cause::GaveUp if transfer.written() == 0 => Cause::Theirs,
            cause => cause,
        };
        match cause {
            Cause::Ours => transfer.discard(),
            // The next receiver would take for complete what its sender does not stand by.
            Cause::Theirs | Cause::GaveUp => transfer.reject(),
        }
        self.refusals.add(id);
        // Standard output does not come back.
        if error.is::<PipeClosed>() || is_last(cause, is_spoilt, self.keeps, self.has_senders()) {
            return Some(TransferOutcome::Failed(error, session));
        }
        let next = if self.keeps { "" } else { "; waiting for another sender" };
        self.refusals.note(&format!("{}{next}", message(&error)));
        None
    }

    /// Returns whether any transfer has had a frame lately. A connection that stays silent is not
    /// waited for.
    fn has_senders(&self) -> bool {
        self.current.values().any(|transfer| transfer.is_moving(self.wait))
    }
}

impl Refusals {
    fn add(&mut self, id: u128) {
        if self.ids.contains(&id) {
            return;
        }
        self.ids.push_back(id);
        if self.ids.len() > REFUSED {
            self.ids.pop_front();
        }
    }

    fn refuse(&mut self, id: u128, sender: &str, reason: &str) {
        self.add(id);
        self.warn(&format!("refused {sender}: {reason}"));
    }

    fn warn(&mut self, line: &str) {
        if self.lines.allows(Instant::now()) {
            warn!("{line}");
        }
    }

    fn note(&mut self, line: &str) {
        if self.lines.allows(Instant::now()) {
            note(line);
        }
    }

    /// Logs how many lines about refused transfers have been left out.
    fn report(&mut self) {
        if let Some(count) = self.lines.left_out(Instant::now()) {
            warn!("{count} more lines about refused senders have been left out");
        }
    }
}

fn end(current: &mut BTreeMap<u128, Incoming>, refusals: &mut Refusals, id: u128, reason: &str) {
    if let Some(transfer) = current.remove(&id) {
        refusals.refuse(id, &transfer.sender, reason);
        transfer.discard();
    }
}

/// Ends the transfer that has been still for longest, so that one of which `written` bytes have
/// come finds room on a full disk. Returns whether there was one.
///
/// A transfer that moves does not give way, nor one that is smaller: one that is too large for the
/// disk must not end all others before it fails.
fn drop_still(current: &mut BTreeMap<u128, Incoming>, refusals: &mut Refusals, written: u64) -> bool {
    let still = current.iter().filter(|(_, transfer)| {
        let is_still = !transfer.is_complete() && transfer.last_frame.elapsed() >= STILL;
        is_still && transfer.written() > written
    });
    let stillest = still.min_by_key(|(_, transfer)| transfer.last_frame).map(|(&id, _)| id);
    if let Some(id) = stillest {
        end(current, refusals, id, "the disk is full, and it has been still for longest");
    }
    stillest.is_some()
}

/// Returns whether the receiver ends with a transfer that has failed.
///
/// A sender that has gone, or has sent nonsense, does not end it: another one may come. A sender
/// that gives up does, and so does a full disk, unless others are sending.
fn is_last(cause: Cause, is_spoilt: bool, keeps: bool, has_others: bool) -> bool {
    match cause {
        _ if keeps => false,
        _ if is_spoilt => true,
        Cause::Theirs => false,
        Cause::Ours | Cause::GaveUp => !has_others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_multinet_get_has_left_is_not_the_receivers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let part = |id: u128| folder.path().join(format!("out.{id:032x}.part"));
        for id in [7, 7 | FETCHED] {
            let Destination::Files(files) = Destination::new(&path, false, false).unwrap() else { panic!() };
            drop(Partial::open(&files, id).unwrap());
        }
        let destination = Destination::new(&path, false, false).unwrap();
        let mut transfers = Transfers::new(destination, Duration::ZERO, false);
        transfers.finish_left_behind();
        transfers.remove_unclaimed();
        assert_eq!([7, 7 | FETCHED].map(|id| part(id).exists()), [false, true]);
    }

    #[test]
    fn a_failure_ends_the_receiver_unless_another_sender_may_do_better() {
        for has_others in [false, true] {
            for cause in [Cause::Ours, Cause::Theirs, Cause::GaveUp] {
                assert!(!is_last(cause, true, true, has_others), "--keep: {cause:?}");
                // What is on standard output stays there.
                assert!(is_last(cause, true, false, has_others), "{cause:?}");
            }
            assert!(!is_last(Cause::Theirs, false, false, has_others));
            for cause in [Cause::Ours, Cause::GaveUp] {
                assert_eq!(is_last(cause, false, false, has_others), !has_others, "{cause:?}");
            }
        }
    }
}
