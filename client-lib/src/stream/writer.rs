//! Writing of messages.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use bytes::Bytes;
use multinet_memory::GpuError;
use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Notify;

use super::WriteHalf;
use super::handoff::HandoffLock;
use crate::buffer::Buffer;
use crate::frame::Frame;
use crate::wire::HEADER;

/// Number of messages that the writer takes from its source at a time.
const BATCH: usize = 16;

/// Maximum number of slices that one system call writes.
const MAX_SLICES: usize = 64;

/// The most payload bytes that are copied from GPUs ahead of a write. More would take memory and be
/// no faster.
const MAX_FETCHED: usize = 256 << 10;

/// Time since the last write within which a small message is left to the task, to be written with
/// others. A few system calls take as long.
const COALESCE_WITHIN: Duration = Duration::from_micros(20);

/// The most batches that one call writes before it leaves the rest to the task.
const MAX_BATCHES: usize = 4;

/// The most times that one call looks for messages that other threads have added, before it leaves
/// them to the task.
const MAX_ROUNDS: usize = 4;

/// Message to write to a peer: a frame or control data behind a header.
pub(crate) struct Message {
    pub(crate) header: [u8; HEADER],
    pub(crate) body: Body,
}

/// Part of a message after its header: a frame, or the body of a control message.
pub(crate) enum Body {
    Frame(Frame),
    Bytes(Bytes),
    /// The first bytes of an array; the number is their count. Nothing is allocated.
    Short([u8; SHORT], usize),
}

/// Longest body of a [`Body::Short`], in bytes.
pub(crate) const SHORT: usize = 128;

/// Queue of messages that a writer takes to write them to a peer.
pub(crate) trait MessageSource {
    /// Takes the next message. `None` if the queue is empty.
    fn next(&self) -> Option<Message>;

    /// Returns whether the queue has a message.
    fn has_work(&self) -> bool;

    /// Notes that the next `count` messages have been written, in the order in which they were
    /// taken.
    fn written(&self, _count: usize) {}

    /// Copies a payload from a GPU to where the processor can read it. Breaks if that fails. The
    /// message is then given up, and must not be written.
    fn fetch(&self, _message: &mut Message) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Notes that a message that was taken is not written, for this reason.
    fn give_up(&self, _message: &Message, _reason: &GpuError) {}
}

/// Source of messages that is always empty.
pub(crate) struct NoMessages;

impl MessageSource for NoMessages {
    fn next(&self) -> Option<Message> {
        None
    }

    fn has_work(&self) -> bool {
        false
    }
}

/// Writer of messages to a peer over a connection.
pub(crate) struct MessageWriter {
    /// Writing half of a connection without TLS. `None` with TLS, where only the task writes.
    plain: Option<tokio::net::tcp::OwnedWriteHalf>,
    tls: tokio::sync::Mutex<TlsState>,
    state: HandoffLock<State>,
    /// Wakes the connection's task to write messages, or to notice an error.
    wake: Notify,
}

/// State of writing over a TLS connection.
struct TlsState {
    writer: Option<WriteHalf>,
    /// Message of which the first bytes have been written, and how many. It has to be finished
    /// before any other.
    partial: Option<(Message, usize)>,
}

#[derive(Default)]
struct State {
    /// Time of the last write. `None` if another method than [`MessageWriter::try_flush_later`] did
    /// it.
    last_write: Option<Instant>,
    batch: VecDeque<Message>,
    /// Number of bytes of the first message in `batch` that have been written.
    offset: usize,
    error: Option<io::Error>,
    /// Whether the last message has been handed over, so that no more are taken.
    is_finished: bool,
}

enum Progress {
    Drained,
    Blocked,
    Failed(io::Error),
}

impl MessageWriter {
    pub(crate) fn new(writer: WriteHalf) -> Self {
        let (plain, tls) = match writer {
            WriteHalf::Plain(writer) => (Some(writer), None),
            tls @ WriteHalf::Tls(_) => (None, Some(tls)),
        };
        let tls = tokio::sync::Mutex::new(TlsState { writer: tls, partial: None });
        Self { plain, tls, state: HandoffLock::new(State::default()), wake: Notify::new() }
    }

    /// Writes the queued messages without waiting, and leaves the rest to the task.
    pub(crate) fn try_flush(&self, source: &impl MessageSource) {
        self.write(source, Duration::ZERO);
    }

    /// As [`try_flush`](Self::try_flush), but leaves the messages to the task if another write has
    /// just taken place. The task runs when the caller awaits something, and writes by one system
    /// call whatever has come together until then.
    pub(crate) fn try_flush_later(&self, source: &impl MessageSource) {
        self.write(source, COALESCE_WITHIN);
    }

    fn write(&self, source: &impl MessageSource, coalesce_within: Duration) {
        let Some(writer) = &self.plain else {
            return self.wake.notify_one();
        };
        let mut rounds = 0;
        let write = |state: &mut State| {
            rounds += 1;
            // Bounds the work of one caller, who must not write the messages of all others for
            // ever.
            if rounds > MAX_ROUNDS
                || state.error.is_some()
                || state.is_finished
                || state.has_written_within(coalesce_within)
            {
                return ControlFlow::Break(());
            }
            // Only a write that was allowed to wait makes the next one wait.
            state.last_write = (!coalesce_within.is_zero()).then(Instant::now);
            match state.write(source, |pieces| writer.try_write_vectored(pieces)) {
                Progress::Drained => return ControlFlow::Continue(()),
                Progress::Blocked => {}
                Progress::Failed(error) => state.error = Some(error),
            }
            ControlFlow::Break(())
        };
        // Not earlier: the task needs the lock. notify_one keeps a permit, so the wake-up is not
        // lost if the task is not waiting yet.
        if self.state.run(write, || source.has_work()).is_break() {
            self.wake.notify_one();
        }
    }

    /// Runs the task, which writes messages that could not be written at once. Ends only with an
    /// error.
    pub(crate) async fn run(&self, source: &impl MessageSource) -> io::Error {
        match &self.plain {
            Some(writer) => loop {
                self.wake.notified().await;
                if let Some(error) = self.state.lock().error.take() {
                    return error;
                }
                // The socket may be full.
                if let Err(error) = writer.writable().await {
                    return error;
                }
                self.try_flush(source);
            },
            None => {
                // Held until the task is cancelled. Only then flush and finish write in its place.
                let mut tls = self.tls.lock().await;
                loop {
                    if let Err(error) = tls.write(source).await {
                        return error;
                    }
                    self.wake.notified().await;
                }
            }
        }
    }

    /// Writes all queued messages in place of the task, however long the peer takes.
    pub(crate) async fn flush(&self, source: &impl MessageSource) -> io::Result<()> {
        let Some(writer) = &self.plain else {
            return self.tls.lock().await.write(source).await;
        };
        loop {
            self.try_flush(source);
            {
                let mut state = self.state.lock();
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                if state.batch.is_empty() && !source.has_work() {
                    return Ok(());
                }
            }
            writer.writable().await?;
        }
    }

    /// Writes what has been begun or taken, then the messages `last`. Nothing can be written
    /// afterwards.
    pub(crate) async fn finish(&self, last: impl IntoIterator<Item = Message>) -> io::Result<()> {
        let rest = {
            let mut state = self.state.lock();
            // From here on, a concurrent try_flush must not write in between.
            state.is_finished = true;
            let offset = std::mem::take(&mut state.offset);
            let mut bytes = Vec::new();
            // A message whose payload is still in a GPU has not been begun, nor have those behind
            // it.
            for message in state.batch.drain(..).take_while(Message::is_readable).chain(last) {
                message.pieces().for_each(|piece| bytes.extend_from_slice(piece));
            }
            bytes.split_off(offset)
        };
        match (&self.plain, &mut *self.tls.lock().await) {
            (Some(writer), _) => {
                let mut rest = &rest[..];
                while !rest.is_empty() {
                    writer.writable().await?;
                    match writer.try_write(rest) {
                        Ok(written) => rest = &rest[written..],
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            }
            (None, TlsState { writer: Some(WriteHalf::Tls(writer)), partial: None }) => {
                writer.write_all(&rest).await?;
                writer.shutdown().await
            }
            (None, _) => Ok(()),
        }
    }

    /// Asks the kernel to delay TCP acknowledgements.
    ///
    /// The peer waits for something after each message, and gets its answers over another
    /// connection. The kernel cannot see that these take the place of acknowledgements, so it
    /// acknowledges each segment by a packet of its own. It forgets this setting after a while.
    pub(crate) fn use_delayed_acks(&self) {
        if let Some(writer) = &self.plain {
            // Without it, only speed is lost.
            let _ = SockRef::from(writer.as_ref()).set_tcp_quickack(false);
        }
    }

    /// Ends the connection in both directions at once, even if other handles of it remain.
    pub(crate) async fn hang_up(&self) {
        match &self.plain {
            // It may have ended by itself.
            Some(writer) => drop(SockRef::from(writer.as_ref()).shutdown(Shutdown::Both)),
            None => self.tls.lock().await.writer = None,
        }
    }
}

impl TlsState {
    /// Writes all queued messages. Cancelling it loses nothing: the next call continues the partial
    /// message.
    async fn write(&mut self, source: &impl MessageSource) -> io::Result<()> {
        let Self { writer: Some(WriteHalf::Tls(writer)), partial } = self else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        loop {
            let Some((message, offset)) = partial else {
                let Some(mut next) = source.next() else { return writer.flush().await };
                if source.fetch(&mut next).is_continue() {
                    *partial = Some((next, 0));
                }
                continue;
            };
            let mut skip = *offset;
            for piece in message.pieces() {
                let skipped = skip.min(piece.len());
                skip -= skipped;
                let mut rest = &piece[skipped..];
                while !rest.is_empty() {
                    let written = writer.write(rest).await?;
                    if written == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    *offset += written;
                    rest = &rest[written..];
                }
            }
            *partial = None;
            source.written(1);
        }
    }
}

impl State {
    fn has_written_within(&self, time: Duration) -> bool {
        self.last_write.is_some_and(|at| at.elapsed() < time)
    }

    fn write(
        &mut self,
        source: &impl MessageSource,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> Progress {
        let (mut is_last, mut batches) = (false, 0);
        loop {
            if self.batch.is_empty() {
                if is_last {
                    return Progress::Drained;
                }
                batches += 1;
                // The task goes on, even if the socket has room.
                if batches > MAX_BATCHES {
                    return Progress::Blocked;
                }
                self.batch.extend(std::iter::from_fn(|| source.next()).take(BATCH));
                // A thread that adds more from now on sees to it, as [`HandoffLock`] explains.
                is_last = self.batch.len() < BATCH;
                if self.batch.is_empty() {
                    return Progress::Drained;
                }
            }
            self.fetch(source);
            if self.batch.is_empty() {
                continue;
            }
            let mut pieces = [IoSlice::new(&[]); MAX_SLICES];
            let count = self.pieces(&mut pieces);
            match write(&pieces[..count]) {
                Ok(0) => return Progress::Failed(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    let count = self.advance(written);
                    if count > 0 {
                        source.written(count);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Blocked,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Progress::Failed(error),
            }
        }
    }

    /// Copies the payloads of the next messages in the batch from GPUs to host memory.
    fn fetch(&mut self, source: &impl MessageSource) {
        let (mut bytes, mut number) = (0, 0);
        while bytes < MAX_FETCHED
            && let Some(message) = self.batch.get_mut(number)
        {
            match source.fetch(message) {
                ControlFlow::Continue(()) => {
                    bytes += message.len();
                    number += 1;
                }
                // No byte of it has been written: a message that was begun is readable.
                ControlFlow::Break(()) => drop(self.batch.remove(number)),
            }
        }
    }

    /// Collects the slices that are still to be written, as many as fit.
    fn pieces<'a>(&'a self, to: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut skip = self.offset;
        let readable = self.batch.iter().take_while(|message| message.is_readable());
        let all = readable.flat_map(Message::pieces).filter_map(|piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            piece.get(skipped..).filter(|rest| !rest.is_empty())
        });
        let mut count = 0;
        for (place, piece) in to.iter_mut().zip(all) {
            *place = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    /// Removes written bytes from the batch. Returns the number of messages that are complete.
    fn advance(&mut self, written: usize) -> usize {
        self.offset += written;
        let mut count = 0;
        while let Some(first) = self.batch.front()
            && let length = first.len()
            && self.offset >= length
        {
            self.offset -= length;
            self.batch.pop_front();
            count += 1;
        }
        count
    }
}

impl Message {
    /// Returns the parts of the message in the order of a TCP stream: the header first.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.header[..]).chain(self.prefix()).chain(self.payload())
    }

    /// Returns the parts in the order of an RDMA slot: key and metadata before the header.
    #[cfg(feature = "rdma")]
    pub(crate) fn pieces_in_place(&self) -> impl Iterator<Item = &[u8]> {
        self.prefix().chain(std::iter::once(&self.header[..])).chain(self.payload())
    }

    /// Returns the number of bytes (key and metadata) that precede the header in an RDMA slot.
    pub(crate) fn before_header(&self) -> usize {
        self.prefix().map(<[u8]>::len).sum()
    }

    fn prefix(&self) -> impl Iterator<Item = &[u8]> {
        let prefix = match &self.body {
            Body::Frame(frame) => [&frame.key[..], &frame.metadata[..]],
            Body::Bytes(_) | Body::Short(..) => [&[][..], &[]],
        };
        prefix.into_iter()
    }

    fn payload(&self) -> impl Iterator<Item = &[u8]> {
        let (frame, bytes) = match &self.body {
            Body::Frame(frame) => (Some(frame), None),
            Body::Bytes(bytes) => (None, Some(&bytes[..])),
            Body::Short(bytes, length) => (None, bytes.get(..*length)),
        };
        frame.into_iter().flat_map(|frame| frame.buffers().map(Buffer::bytes)).chain(bytes)
    }

    /// Returns the payload if it is a single buffer, which RDMA may send without a copy.
    #[cfg(feature = "rdma")]
    pub(crate) fn whole_payload(&self) -> Option<&Buffer> {
        match &self.body {
            Body::Frame(frame) if frame.rest.is_empty() => Some(&frame.payload),
            _ => None,
        }
    }

    /// Returns whether the processor can read the whole message: no part of it is in a GPU.
    pub(crate) fn is_readable(&self) -> bool {
        match &self.body {
            Body::Frame(frame) => frame.buffers().all(|buffer| buffer.gpu_memory().is_none()),
            Body::Bytes(_) | Body::Short(..) => true,
        }
    }

    pub(crate) fn len(&self) -> usize {
        let payload = match &self.body {
            Body::Frame(frame) => frame.len(),
            Body::Bytes(bytes) => bytes.len(),
            Body::Short(_, length) => *length,
        };
        HEADER + self.before_header() + payload
    }
}
