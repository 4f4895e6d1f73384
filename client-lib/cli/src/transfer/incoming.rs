//! One transfer that comes: puts its parts in order, writes them, and brings it to its end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Error, anyhow};
use multinet_client::Received;

use super::Summary;
use super::destination::Destination;
use super::ending::{Event, Stage, Step, steps};
use super::header::{Abort, Header, Meaning};
use super::progress::Progress;
use super::reorder::{Ready, Reorder, TooMany};
use super::sink::Sink;

/// Frames that may come too early; less than the slots of a connection, or the one that is missing
/// could not come.
const EARLY: usize = 8;

/// How long a frame may be missing while later ones are there.
const GAP: Duration = Duration::from_secs(5);

/// How long a sender has to go when it has been told that all is well.
const GOODBYE: Duration = Duration::from_secs(5);

/// A transfer that has begun.
pub(super) struct Incoming {
    sender: String,
    sink: Sink,
    parts: Reorder<(Meaning, Received)>,
    progress: Progress,
    /// Bytes that were there already.
    before: u64,
    start: Instant,
    /// Since when a frame is missing.
    gap: Option<Instant>,
    /// When the sender was seen last.
    seen: Instant,
    /// When its last frame came.
    moved: Instant,
    /// Where the file is, if it is not where it was asked for.
    place: Option<PathBuf>,
    /// Since when the sender's next question is waited for.
    safe: Option<Instant>,
    /// Since when the sender knows that it is over.
    told: Option<Instant>,
}

/// A transfer that has been received.
pub(super) struct Done {
    pub(super) summary: Summary,
    /// Bytes that this process has written of it.
    pub(super) came: u64,
    pub(super) took: Duration,
    pub(super) place: Option<PathBuf>,
}

/// Why a transfer will not come to its end.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) cause: Cause,
    pub(super) error: Error,
}

/// The side that is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It could not be written.
    Ours,
    /// The sender: what it says does not fit, or what it has sent is not here.
    Theirs,
    /// The sender says that it gives up.
    GaveUp,
    /// The sender has not come back.
    Gone,
}

impl Incoming {
    /// # Errors
    ///
    /// If it cannot be written.
    pub(super) fn begin(
        destination: &Destination,
        session: u128,
        sender: String,
        progress: Progress,
    ) -> Result<Self, Failure> {
        let sink = Sink::open(destination, session).map_err(Failure::ours)?;
        let now = Instant::now();
        Ok(Self {
            sender,
            parts: Reorder::new(sink.written(), EARLY),
            before: sink.written(),
            safe: (sink.stage() != Stage::Open).then_some(now),
            sink,
            progress,
            start: now,
            gap: None,
            seen: now,
            moved: now,
            place: None,
            told: None,
        })
    }

    pub(super) fn sender(&self) -> &str {
        &self.sender
    }

    pub(super) fn written(&self) -> u64 {
        self.sink.written()
    }

    /// Whether what it has written stays, whatever becomes of it.
    pub(super) fn is_spoilt(&self) -> bool {
        self.sink.is_spoilt()
    }

    /// Returns whether a frame has come within `time`, or all of it is there.
    pub(super) fn is_moving(&self, time: Duration) -> bool {
        self.is_complete() || self.moved.elapsed() <= time
    }

    /// Whether all of it is there.
    pub(super) fn is_complete(&self) -> bool {
        self.sink.stage() != Stage::Open
    }

    /// Whether it is over as soon as the sender has gone.
    pub(super) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Takes a frame. One that is dropped goes back to its sender, as refused.
    pub(super) fn take(
        &mut self,
        destination: &mut Destination,
        header: Header,
        received: Received,
    ) -> Result<(), Failure> {
        self.moved = Instant::now();
        self.seen = self.moved;
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
                    self.write(&received, skip)?;
                    received.acknowledge();
                    self.progress.at(self.sink.written());
                }
                Ready::Write { part: (Meaning::Seal(summary), received), .. } => {
                    self.compare(&summary)?;
                    self.go(destination, Event::Seal, Some(received))?;
                }
                Ready::Write { part: (Meaning::End(summary), received), .. } => {
                    self.compare(&summary)?;
                    self.go(destination, Event::End, Some(received))?;
                }
                Ready::Write { part: (Meaning::Abort(reason), _), .. } => return Err(self.gave_up(reason)),
            }
        }
        self.gap = self.parts.has_gap().then(|| self.gap.unwrap_or_else(Instant::now));
        Ok(())
    }

    fn write(&mut self, received: &Received, skip: u64) -> Result<(), Failure> {
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let bytes = received.bytes().get(skip..).unwrap_or_default();
        if self.is_complete() && !bytes.is_empty() {
            return Err(Failure::theirs(anyhow!("{} sends more than it said was all", self.sender)));
        }
        self.sink.write(bytes).map_err(Failure::ours)
    }

    /// Does what brings it nearer to its end.
    fn go(
        &mut self,
        destination: &mut Destination,
        event: Event,
        mut asks: Option<Received>,
    ) -> Result<(), Failure> {
        for step in steps(self.sink.stage(), event) {
            match step {
                Step::Sync => {
                    self.sink.sync(destination).map_err(Failure::ours)?;
                    self.safe = Some(Instant::now());
                }
                Step::Place => self.place = self.sink.place(destination).map_err(Failure::ours)?,
                Step::Tell => asks.take().into_iter().for_each(Received::acknowledge),
                Step::Leave => self.told = Some(self.told.unwrap_or_else(Instant::now)),
            }
        }
        Ok(())
    }

    /// Has a file appear that an earlier receiver had completed, whether its sender asks or not.
    pub(super) fn adopt(&mut self, destination: &mut Destination) -> Result<(), Failure> {
        if self.sink.stage() == Stage::Safe {
            self.place = self.sink.place(destination).map_err(Failure::ours)?;
        }
        Ok(())
    }

    /// Some time has passed; its sender is connected, or not. Whether it is over.
    pub(super) fn look(
        &mut self,
        destination: &mut Destination,
        is_connected: bool,
        wait: Duration,
    ) -> Result<bool, Failure> {
        if is_connected {
            self.seen = Instant::now();
        }
        if let Some(told) = self.told {
            return Ok(!is_connected || told.elapsed() > GOODBYE);
        }
        if self.safe.is_some_and(|since| since.elapsed() > wait) {
            self.go(destination, Event::Silence, None)?;
            return Ok(true);
        }
        if self.gap.is_some_and(|since| since.elapsed() > GAP) {
            return Err(self.missing());
        }
        if self.safe.is_none() && !is_connected && self.seen.elapsed() > wait {
            let (sender, written) = (&self.sender, self.sink.written());
            let error = anyhow!("{sender} has gone for {} s, after {written} bytes", wait.as_secs());
            return Err(Failure { cause: Cause::Gone, error });
        }
        Ok(false)
    }

    /// It is over.
    pub(super) fn leave(self) -> Done {
        let summary = self.sink.summary();
        self.sink.leave();
        let came = summary.bytes.saturating_sub(self.before);
        Done { summary, came, took: self.start.elapsed(), place: self.place }
    }

    /// It will not come to its end.
    pub(super) fn discard(self) {
        self.sink.discard();
    }

    /// Ends it without leaving anything, not even what seemed complete.
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
            next => anyhow!("what follows {next} bytes of {} is missing", self.sender),
        })
    }

    fn compare(&self, wanted: &Summary) -> Result<(), Failure> {
        let got = self.sink.summary();
        if got == *wanted {
            return Ok(());
        }
        Err(Failure::theirs(anyhow!(
            "{} sent {} bytes with SHA-256 {}, but here are {} bytes with SHA-256 {}",
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
