//! Writes messages.

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

/// How many messages are taken to be written by one call.
const BATCH: usize = 16;

/// How many pieces one call writes.
const MAX_SLICES: usize = 64;

/// So many bytes are fetched from GPUs before they are written: more would take memory, and be no faster.
const MAX_FETCHED: usize = 256 << 10;

/// A small message waits for the task's turn if another has been written so short a time ago: a few system calls' time.
const COALESCE_WITHIN: Duration = Duration::from_micros(20);

/// So many batches one caller writes, before it leaves the rest to the task.
const MAX_BATCHES: usize = 4;

/// So many times one caller looks whether others have added something, before it leaves that to the task.
const MAX_ROUNDS: usize = 4;

/// A message that is being written.
pub(crate) struct Message {
    pub(crate) header: [u8; HEADER],
    pub(crate) body: Body,
}

/// What follows a header.
pub(crate) enum Body {
    Frame(Frame),
    Bytes(Bytes),
    /// So many bytes of these, without an allocation.
    Short([u8; SHORT], usize),
}

/// The longest body that is kept in place.
pub(crate) const SHORT: usize = 128;

/// Where messages come from.
pub(crate) trait MessageSource {
    /// The next one, if there is one now.
    fn next(&self) -> Option<Message>;

    /// Whether there is one.
    fn has_work(&self) -> bool;

    /// So many have been written, in the order in which they were taken.
    fn written(&self, _count: usize) {}

    /// Has a payload that lies in a GPU brought to where the processor reads it. If that cannot be, the message is given up, and nobody writes it.
    fn fetch(&self, _message: &mut Message) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// One that has been taken is not written, for this reason.
    fn give_up(&self, _message: &Message, _reason: &GpuError) {}
}

/// No messages at all.
pub(crate) struct NoMessages;

impl MessageSource for NoMessages {
    fn next(&self) -> Option<Message> {
        None
    }

    fn has_work(&self) -> bool {
        false
    }
}

/// The writing side of a connection.
pub(crate) struct MessageWriter {
    /// `None` with TLS, where only the task writes.
    plain: Option<tokio::net::tcp::OwnedWriteHalf>,
    tls: tokio::sync::Mutex<TlsState>,
    state: HandoffLock<State>,
    /// The task has something to do.
    wake: Notify,
}

/// What is written to with TLS.
struct TlsState {
    writer: Option<WriteHalf>,
    /// What has been begun, and how many bytes of it have been written: nothing else can come between.
    begun: Option<(Message, usize)>,
}

#[derive(Default)]
struct State {
    /// When something was written last by somebody who would rather have lingered.
    written: Option<Instant>,
    batch: VecDeque<Message>,
    /// How many bytes of the first one have been written.
    offset: usize,
    error: Option<io::Error>,
    /// Nothing more is taken to be written.
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
        let tls = tokio::sync::Mutex::new(TlsState { writer: tls, begun: None });
        Self { plain, tls, state: HandoffLock::new(State::default()), wake: Notify::new() }
    }

    /// Writes what there is, without waiting; the task goes on with the rest.
    pub(crate) fn try_flush(&self, source: &impl MessageSource) {
        self.write(source, Duration::ZERO);
    }

    /// As [`try_flush`](Self::try_flush), but leaves all to the task if something has been written just now. The task has its turn when
    /// whoever calls this waits for something, and writes by one call what has come together.
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
            // Whoever sends one frame must not write those of all others for ever.
            if rounds > MAX_ROUNDS
                || state.error.is_some()
                || state.is_finished
                || state.was_written_within(coalesce_within)
            {
                return ControlFlow::Break(());
            }
            state.written = (!coalesce_within.is_zero()).then(Instant::now);
            match state.write(source, |pieces| writer.try_write_vectored(pieces)) {
                Progress::Drained => return ControlFlow::Continue(()),
                Progress::Blocked => {}
                Progress::Failed(error) => state.error = Some(error),
            }
            ControlFlow::Break(())
        };
        if self.state.run(write, || source.has_work()).is_break() {
            self.wake.notify_one();
        }
    }

    /// The task's part: writes what could not be written at once. Ends with an error only.
    pub(crate) async fn run(&self, source: &impl MessageSource) -> io::Error {
        match &self.plain {
            Some(writer) => loop {
                self.wake.notified().await;
                if let Some(error) = self.state.lock().error.take() {
                    return error;
                }
                if let Err(error) = writer.writable().await {
                    return error;
                }
                self.try_flush(source);
            },
            None => {
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

    /// Writes all that there is, in place of the task, however long the other side needs for it.
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

    /// Writes the rest, and the last messages; then nothing more.
    pub(crate) async fn finish(&self, last: impl IntoIterator<Item = Message>) -> io::Result<()> {
        let rest = {
            let mut state = self.state.lock();
            // Whoever kicks from now on must not write between what is left.
            state.is_finished = true;
            let offset = std::mem::take(&mut state.offset);
            let mut bytes = Vec::new();
            // What is still in a GPU has not been begun, nor what is behind it.
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
            (None, TlsState { writer: Some(WriteHalf::Tls(writer)), begun: None }) => {
                writer.write_all(&rest).await?;
                writer.shutdown().await
            }
            (None, _) => Ok(()),
        }
    }

    /// The other side sends one message after the other, waiting for something each time, and gets its answers on another connection. So
    /// the kernel does not see that it need not acknowledge each segment by a packet of its own; it forgets what it is told here
    /// after a while.
    pub(crate) fn use_delayed_acks(&self) {
        if let Some(writer) = &self.plain {
            // Only speed is lost.
            let _ = SockRef::from(writer.as_ref()).set_tcp_quickack(false);
        }
    }

    /// Ends the connection, though there may be handles of it for a while.
    pub(crate) async fn hang_up(&self) {
        match &self.plain {
            // It may have ended by itself.
            Some(writer) => drop(SockRef::from(writer.as_ref()).shutdown(Shutdown::Both)),
            None => self.tls.lock().await.writer = None,
        }
    }
}

impl TlsState {
    /// Writes all that there is. Who stops waiting for it loses nothing: what has been begun is gone on with the next time.
    async fn write(&mut self, source: &impl MessageSource) -> io::Result<()> {
        let Self { writer: Some(WriteHalf::Tls(writer)), begun } = self else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        loop {
            let Some((message, offset)) = begun else {
                let Some(mut next) = source.next() else { return writer.flush().await };
                if source.fetch(&mut next).is_continue() {
                    *begun = Some((next, 0));
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
            *begun = None;
            source.written(1);
        }
    }
}

impl State {
    fn was_written_within(&self, time: Duration) -> bool {
        self.written.is_some_and(|written| written.elapsed() < time)
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
                if batches > MAX_BATCHES {
                    return Progress::Blocked;
                }
                self.batch.extend(std::iter::from_fn(|| source.next()).take(BATCH));
                // Whoever adds more from now on sees to it, as [`HandoffLock`] has it.
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

    /// Has what is written next fetched from GPUs.
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
                // It has not been begun: what has been is readable.
                ControlFlow::Break(()) => drop(self.batch.remove(number)),
            }
        }
    }

    /// What is still to be written, as far as there is room.
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

    /// Lets go of what has been written. How many messages were completed by it.
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
    /// As it travels in a stream: the header first.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.header[..]).chain(self.prefix()).chain(self.payload())
    }

    /// As it lies in a slot: key and metadata before the header.
    pub(crate) fn pieces_in_place(&self) -> impl Iterator<Item = &[u8]> {
        self.prefix().chain(std::iter::once(&self.header[..])).chain(self.payload())
    }

    /// How many bytes that is before the header.
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

    /// The payload, if it is one buffer, so that RDMA may send it from where it lies.
    pub(crate) fn whole_payload(&self) -> Option<&Buffer> {
        match &self.body {
            Body::Frame(frame) if frame.rest.is_empty() => Some(&frame.payload),
            _ => None,
        }
    }

    /// Whether the processor can read all of it.
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
