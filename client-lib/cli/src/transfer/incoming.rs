//! One transfer that is being received: puts its parts in order, writes them, and brings it to its
//! end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Error, anyhow};
use multinet_client::Received;

use super::Summary;
use super::destination::Destination;
use super::ending::{Event, Stage, Step, steps};
use super::header::{Abort, Header, Meaning};
use super::progress::TransferProgress;
use super::reorder::{Ready, Reorder, TooMany};
use super::share::Owner;
use super::sink::Sink;

/// Frames that may come too early; less than the slots of a connection, or the one that is missing
/// could not come.
const EARLY: usize = 8;

/// How long a frame may be missing, while later ones are there, before the transfer fails.
const GAP: Duration = Duration::from_secs(5);

/// How long a sender that is connected has to ask for the last answer, and to close its connection
/// when it has got that.
const GOODBYE: Duration = Duration::from_secs(5);

/// A transfer that is being received, with its output and the frames that came too early.
pub(super) struct Incoming {
    /// The sender's name and address, for messages.
    pub(super) sender: String,
    /// Owner of the transfer; `None` while only an earlier receiver has had its frames.
    pub(super) owner: Option<Owner>,
    pub(super) session: Option<u128>,
    sink: Sink,
    parts: Reorder<(Meaning, Received)>,
    progress: TransferProgress,
    /// Bytes of the transfer that an earlier receiver has written.
    before: u64,
    start: Instant,
    /// Time since when a frame is missing while later ones are there; `None` if none is.
    gap: Option<Instant>,
    /// Time at which the sender was known to be connected last.
    seen: Instant,
    pub(super) last_frame: Instant,
    /// Path of the file, if it is not the one that was asked for.
    place: Option<PathBuf>,
    /// Time since when the file is complete; `None` before.
    pub(super) complete: Option<Instant>,
    /// Time since when the sender knows that the file has been placed; `None` before.
    confirmed: Option<Instant>,
    /// Whether a complete transfer ends without waiting until its sender asks again.
    pub(super) is_hurried: bool,
}

/// Result of a transfer that has been received.
pub(super) struct Done {
    pub(super) summary: Summary,
    /// Bytes of the transfer that this process has written; an earlier receiver may have written
    /// others.
    pub(super) came: u64,
    pub(super) took: Duration,
    pub(super) place: Option<PathBuf>,
}

/// Failure of an incoming transfer, and the side that is at fault.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) cause: Cause,
    pub(super) error: Error,
}

/// The side that is at fault if a transfer fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The receiver could not write the transfer.
    Ours,
    /// The sender has gone, has sent what does not fit, or has sent a part to another receiver.
    Theirs,
    /// The sender says that it gives the transfer up.
    GaveUp,
}

impl Incoming {
    /// Begins a transfer, or goes on with what an earlier receiver has left of it.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub(super) fn begin(
        destination: &Destination,
        id: u128,
        (sender, owner): (String, Option<Owner>),
        progress: TransferProgress,
    ) -> Result<Self, Failure> {
        let sink = Sink::open(destination, id).map_err(Failure::ours)?;
        let now = Instant::now();
        Ok(Self {
            sender,
            owner,
            session: None,
            parts: Reorder::new(sink.written(), EARLY),
            before: sink.written(),
            complete: (sink.stage() != Stage::Open).then_some(now),
            sink,
            progress,
            start: now,
            gap: None,
            seen: now,
            last_frame: now,
            place: None,
            confirmed: None,
            is_hurried: false,
        })
    }

    pub(super) fn written(&self) -> u64 {
        self.sink.written()
    }

    /// Returns whether bytes have gone to a stream, so that they cannot be taken back.
    pub(super) fn is_spoilt(&self) -> bool {
        self.sink.is_spoilt()
    }

    /// Returns whether a frame has come within `time`, or all of it is there.
    pub(super) fn is_moving(&self, time: Duration) -> bool {
        self.is_complete() || self.last_frame.elapsed() <= time
    }

    /// Returns whether the whole transfer has been received.
    pub(super) fn is_complete(&self) -> bool {
        self.sink.stage() != Stage::Open
    }

    /// Returns whether the sender knows that the file has been placed.
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed.is_some()
    }

    /// Handles a frame. A frame that is dropped goes back to its sender, as refused. When the disk
    /// is full, `free_space` is called until it returns false.
    pub(super) fn handle_frame(
        &mut self,
        destination: &mut Destination,
        header: Header,
        received: Received,
        free_space: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failure> {
        self.last_frame = Instant::now();
        self.seen = self.last_frame;
        self.session = Some(received.id().session);
        if let Meaning::Abort(reason) = header.meaning {
            received.acknowledge();
            return Err(self.gave_up(reason));
        }
        let length = received.len() as u64;
        self.parts
            .insert(header.offset, length, (header.meaning, received))
            .map_err(|TooMany| self.missing())?;
        while let Some(ready) = self.parts.ready() {
            match ready {
                Ready::Repeat((_, received)) => received.acknowledge(),
                Ready::Write { part: (Meaning::Part, received), skip } => {
                    self.write(destination, &received, skip, free_space)?;
                    received.acknowledge();
                    self.progress.at(self.sink.written());
                }
                Ready::Write { part: (Meaning::Seal(summary), received), .. } => {
                    self.compare(&summary)?;
                    self.advance(destination, Event::Seal, Some(received))?;
                }
                Ready::Write { part: (Meaning::End(summary), received), .. } => {
                    self.compare(&summary)?;
                    self.advance(destination, Event::End, Some(received))?;
                }
                Ready::Write { part: (Meaning::Abort(reason), _), .. } => return Err(self.gave_up(reason)),
            }
        }
        self.gap = self.parts.has_gap().then(|| self.gap.unwrap_or_else(Instant::now));
        Ok(())
    }

    fn write(
        &mut self,
        destination: &mut Destination,
        received: &Received,
        skip: u64,
        free_space: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failure> {
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let bytes = received.bytes().get(skip..).unwrap_or_default();
        if self.is_complete() && !bytes.is_empty() {
            return Err(Failure::theirs(anyhow!("{} sends more than it said was all", self.sender)));
        }
        loop {
            match self.sink.write(destination, bytes) {
                Err(error) if is_full(&error) && free_space() => {}
                outcome => return outcome.map_err(Failure::ours),
            }
        }
    }

    /// Takes the steps towards the transfer's end that an event asks for.
    fn advance(
        &mut self,
        destination: &mut Destination,
        event: Event,
        mut question: Option<Received>,
    ) -> Result<(), Failure> {
        for step in steps(self.sink.stage(), event) {
            match step {
                Step::Sync => {
                    self.sink.sync(destination).map_err(Failure::ours)?;
                    self.complete = Some(Instant::now());
                }
                Step::Place => self.place = self.sink.place(destination).map_err(Failure::ours)?,
                Step::Acknowledge => question.take().into_iter().for_each(Received::acknowledge),
                Step::Finish => self.confirmed = Some(self.confirmed.unwrap_or_else(Instant::now)),
            }
        }
        Ok(())
    }

    /// Places a file that an earlier receiver has completed, whether its sender asks or not.
    /// Returns whether the file is there: if an earlier receiver had placed it, it may be gone by
    /// now.
    pub(super) fn adopt(&mut self, destination: &mut Destination) -> Result<bool, Failure> {
        if self.sink.stage() == Stage::Safe {
            self.place = self.sink.place(destination).map_err(Failure::ours)?;
            return Ok(true);
        }
        let found = self.sink.find(destination);
        let is_there = found.is_some();
        let asked = destination.files().map(|files| files.path.clone());
        self.place = found.filter(|found| Some(found) != asked.as_ref());
        Ok(is_there)
    }

    /// Notes that time has passed, and whether the sender is connected. Returns whether the
    /// transfer is over.
    pub(super) fn check(
        &mut self,
        destination: &mut Destination,
        is_connected: bool,
        wait: Duration,
    ) -> Result<bool, Failure> {
        if is_connected {
            self.seen = Instant::now();
        }
        if let Some(confirmed) = self.confirmed {
            return Ok(!is_connected || self.is_hurried || confirmed.elapsed() > GOODBYE);
        }
        let patience = if is_connected { wait.max(GOODBYE) } else { wait };
        if self.complete.is_some_and(|since| self.is_hurried || since.elapsed() > patience) {
            self.advance(destination, Event::Silence, None)?;
            // Its sender has not asked, so it does not know.
            self.confirmed = None;
            return Ok(true);
        }
        if self.gap.is_some_and(|since| since.elapsed() > GAP) {
            return Err(self.missing());
        }
        if self.complete.is_none() && !is_connected && self.seen.elapsed() > wait {
            let (sender, written) = (&self.sender, self.sink.written());
            let error = anyhow!("{sender} has gone for {} s, after {written} bytes", wait.as_secs());
            return Err(Failure::theirs(error));
        }
        Ok(false)
    }

    /// Takes off the time for which the receiver has not looked, since the disk did not answer: the
    /// sender may have been connected, and what is missing may have come.
    pub(super) fn excuse(&mut self, time: Duration) {
        let now = Instant::now();
        let times = [Some(&mut self.seen), self.gap.as_mut(), self.complete.as_mut()];
        times.into_iter().flatten().for_each(|at| *at = (*at + time).min(now));
    }

    /// Ends a transfer that has been received, and returns its result.
    pub(super) fn finish(self) -> Done {
        let done = self.result();
        self.sink.finish();
        done
    }

    /// Returns the result of a transfer that has been received.
    fn result(&self) -> Done {
        let summary = self.sink.summary();
        let came = summary.bytes.saturating_sub(self.before);
        Done { summary, came, took: self.start.elapsed(), place: self.place.clone() }
    }

    /// Returns the result of a transfer whose file has been placed though its sender had not asked,
    /// and goes on, so that the sender is answered when it asks.
    pub(super) fn place_unasked(mut self) -> (Done, Self) {
        let done = self.result();
        self.progress = TransferProgress::hidden();
        (self.complete, self.is_hurried) = (Some(Instant::now()), false);
        (done, self)
    }

    /// Ends the transfer, and removes what was received of it unless it is complete.
    pub(super) fn discard(self) {
        self.sink.discard();
    }

    /// Ends the transfer, and removes what was received even if it seemed complete.
    pub(super) fn reject(self) {
        self.sink.reject();
    }

    fn gave_up(&self, reason: Abort) -> Failure {
        let (sender, written) = (&self.sender, self.sink.written());
        let reason = match reason {
            Abort::Truncated => "the file that it sends has become shorter",
            Abort::Changed => "the file that it sends has changed meanwhile",
            Abort::Unreadable => "it cannot read what it sends",
            Abort::Other => "it does not say why in words of this version",
        };
        let error = anyhow!("{sender} has given up after {written} bytes: {reason}");
        Failure { cause: Cause::GaveUp, error }
    }

    fn missing(&self) -> Failure {
        Failure::theirs(match self.parts.next() {
            0 => anyhow!("the beginning is missing: {} has sent it to another receiver", self.sender),
            next => anyhow!("the transfer of {} lacks what follows its first {next} bytes", self.sender),
        })
    }

    fn compare(&self, wanted: &Summary) -> Result<(), Failure> {
        let got = self.sink.summary();
        if got == *wanted {
            return Ok(());
        }
        Err(Failure::theirs(anyhow!(
            "{} sent {} bytes with SHA-256 {}, but {} bytes with SHA-256 {} have come",
            self.sender,
            wanted.bytes,
            wanted.sha256,
            got.bytes,
            got.sha256
        )))
    }
}

impl Failure {
    pub(super) fn ours(error: Error) -> Self {
        Self { cause: Cause::Ours, error }
    }

    pub(super) fn theirs(error: Error) -> Self {
        Self { cause: Cause::Theirs, error }
    }
}

/// Returns whether an error means that the disk, or the user's share of it, is full.
fn is_full(error: &Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(StorageFull | QuotaExceeded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_is_not_gone_while_the_disk_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let mut destination = Destination::new(&folder.path().join("out"), false, false).unwrap();
        let sender = ("sender".to_owned(), None);
        let mut transfer = Incoming::begin(&destination, 7, sender, TransferProgress::hidden()).unwrap();
        let (wait, longer) = (Duration::from_millis(100), Duration::from_secs(1));
        transfer.seen -= longer;
        transfer.excuse(longer);
        assert!(!transfer.check(&mut destination, false, wait).unwrap());
        transfer.seen -= longer;
        assert!(transfer.check(&mut destination, false, wait).is_err());
    }
}
