//! Takes the frames of one transfer after the other, and writes them.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use multinet_client::Received;
use tracing::warn;

use super::Summary;
use super::header::Header;
use super::progress::Progress;
use super::reorder::{Ready, Reorder, TooMany};
use super::sink::Sink;

/// Frames that may come too early; less than the slots of a connection, or the one that is missing could not come.
const EARLY: usize = 8;

/// How long a frame may be missing while later ones are there.
const GAP: Duration = Duration::from_secs(5);

/// Senders that have been refused and are remembered, so that their next frame is not taken for a beginning.
const REFUSED: usize = 64;

/// How a transfer ended.
pub(super) enum Outcome {
    Done {
        summary: Summary,
        /// Bytes that this process has written of it.
        came: u64,
        took: Duration,
    },
    Failed(anyhow::Error),
}

/// One transfer at a time.
pub(super) struct Taker {
    output: PathBuf,
    /// For a sender that has gone.
    wait: Duration,
    current: Option<Transfer>,
    refused: VecDeque<u128>,
}

struct Transfer {
    session: u128,
    sender: String,
    sink: Sink,
    parts: Reorder<(Header, Received)>,
    progress: Progress,
    /// What was there already.
    before: u64,
    start: Instant,
    /// Since when a frame is missing.
    gap: Option<Instant>,
    /// When the sender was seen last.
    seen: Instant,
}

impl Taker {
    pub(super) fn new(output: PathBuf, wait: Duration) -> Self {
        Self { output, wait, current: None, refused: VecDeque::new() }
    }

    /// A frame has come. A frame that is dropped here goes back to its sender, as refused.
    pub(super) fn take(&mut self, received: Received) -> Option<Outcome> {
        let session = received.id().session;
        if self.refused.contains(&session) {
            return None;
        }
        let Some(header) = Header::decode(received.metadata()) else {
            warn!("refused a frame of {:?}, which multinet send did not write", received.sender());
            return None;
        };
        match &self.current {
            Some(transfer) if transfer.session != session => {
                warn!("refused {:?}: {} is sending", received.sender(), transfer.sender);
                self.refuse(session);
                return None;
            }
            Some(_) => {}
            None => match Transfer::begin(&self.output, &received, &header) {
                Ok(transfer) => self.current = Some(transfer),
                Err(error) => {
                    self.refuse(session);
                    return Some(Outcome::Failed(error));
                }
            },
        }
        let outcome = self.current.as_mut()?.take(header, received);
        self.end(outcome)
    }

    /// Some time has passed; a session's sender is connected, or not.
    pub(super) fn look(&mut self, is_connected: impl Fn(u128) -> bool) -> Option<Outcome> {
        let transfer = self.current.as_mut()?;
        let outcome = transfer.look(is_connected(transfer.session), self.wait);
        self.end(outcome.map(|()| None))
    }

    fn end(&mut self, outcome: anyhow::Result<Option<Received>>) -> Option<Outcome> {
        let last = outcome.transpose()?;
        let transfer = self.current.take()?;
        let session = transfer.session;
        let outcome = match last {
            Ok(last) => transfer.finish(last),
            Err(error) => {
                transfer.sink.discard();
                Err(error)
            }
        };
        if outcome.is_err() {
            self.refuse(session);
        }
        Some(outcome.unwrap_or_else(Outcome::Failed))
    }

    fn refuse(&mut self, session: u128) {
        self.refused.push_back(session);
        if self.refused.len() > REFUSED {
            self.refused.pop_front();
        }
    }
}

impl Transfer {
    fn begin(output: &std::path::Path, first: &Received, header: &Header) -> anyhow::Result<Self> {
        let session = first.id().session;
        let sink = Sink::open(output, session)?;
        Ok(Self {
            session,
            sender: format!("{:?}", first.sender()),
            parts: Reorder::new(sink.written(), EARLY),
            before: sink.written(),
            sink,
            progress: Progress::new(header.total),
            start: Instant::now(),
            gap: None,
            seen: Instant::now(),
        })
    }

    /// The last frame, if all the others have been written.
    fn take(&mut self, header: Header, received: Received) -> anyhow::Result<Option<Received>> {
        self.seen = Instant::now();
        let (offset, length) = (header.offset, received.bytes().len() as u64);
        self.parts.insert(offset, length, (header, received)).map_err(|TooMany| self.missing())?;
        while let Some(ready) = self.parts.ready() {
            match ready {
                Ready::Repeat((_, received)) => received.acknowledge(),
                Ready::Write { part: (header, received), skip } => {
                    if let Some(summary) = header.summary() {
                        self.compare(&summary)?;
                        return Ok(Some(received));
                    }
                    let skip = usize::try_from(skip).unwrap_or(usize::MAX);
                    self.sink.write(received.bytes().get(skip..).unwrap_or_default())?;
                    received.acknowledge();
                    self.progress.at(self.sink.written());
                }
            }
        }
        self.gap = self.parts.has_gap().then(|| self.gap.unwrap_or_else(Instant::now));
        Ok(None)
    }

    fn look(&mut self, is_connected: bool, wait: Duration) -> anyhow::Result<()> {
        if self.gap.is_some_and(|since| since.elapsed() > GAP) {
            return Err(self.missing());
        }
        if is_connected {
            self.seen = Instant::now();
        } else if self.seen.elapsed() > wait {
            bail!("{} has gone for {} s, after {} bytes", self.sender, wait.as_secs(), self.sink.written());
        }
        Ok(())
    }

    fn missing(&self) -> anyhow::Error {
        match self.parts.next() {
            0 => anyhow!("the beginning is missing: {} has sent it to another receiver", self.sender),
            next => anyhow!("what follows {next} bytes of {} is missing", self.sender),
        }
    }

    fn compare(&self, wanted: &Summary) -> anyhow::Result<()> {
        let got = self.sink.summary();
        if got == *wanted {
            return Ok(());
        }
        bail!(
            "{} sent {} bytes with SHA-256 {}, but here are {} bytes with SHA-256 {}",
            self.sender,
            wanted.bytes,
            wanted.sha256,
            got.bytes,
            got.sha256
        )
    }

    /// Everything is there and right; the sender learns it when the file is in its place.
    fn finish(self, last: Received) -> anyhow::Result<Outcome> {
        let summary = self.sink.summary();
        self.sink.finish()?;
        last.acknowledge();
        Ok(Outcome::Done {
            came: summary.bytes.saturating_sub(self.before),
            summary,
            took: self.start.elapsed(),
        })
    }
}
