//! Writes messages.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::ops::ControlFlow;

use bytes::Bytes;
use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Notify;

use super::Writer;
use super::baton::Baton;
use crate::buffer::Buffer;
use crate::frame::Frame;
use crate::wire::HEADER;

/// How many messages are taken to be written by one call.
const BATCH: usize = 16;

/// How many pieces one call writes.
const PIECES: usize = 64;

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
pub(crate) trait Source {
    /// The next one, if there is one now.
    fn next(&self) -> Option<Message>;

    /// Whether there is one.
    fn has_work(&self) -> bool;

    /// Some have been written.
    fn written(&self) {}
}

/// The writing side of a connection.
pub(crate) struct Outlet {
    /// `None` with TLS, where only the task writes.
    plain: Option<tokio::net::tcp::OwnedWriteHalf>,
    tls: tokio::sync::Mutex<Secured>,
    state: Baton<State>,
    /// The task has something to do.
    wake: Notify,
}

/// What is written to with TLS.
struct Secured {
    writer: Option<Writer>,
    /// A message has been written in part: nothing else can follow.
    is_within: bool,
}

#[derive(Default)]
struct State {
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

impl Outlet {
    pub(crate) fn new(writer: Writer) -> Self {
        let (plain, tls) = match writer {
            Writer::Plain(writer) => (Some(writer), None),
            tls @ Writer::Tls(_) => (None, Some(tls)),
        };
        let tls = tokio::sync::Mutex::new(Secured { writer: tls, is_within: false });
        Self { plain, tls, state: Baton::new(State::default()), wake: Notify::new() }
    }

    /// Writes what there is, without waiting; the task goes on with the rest.
    pub(crate) fn kick(&self, source: &impl Source) {
        let Some(writer) = &self.plain else {
            return self.wake.notify_one();
        };
        let write = |state: &mut State| {
            if state.error.is_some() || state.is_finished {
                return ControlFlow::Break(());
            }
            match state.write(source, |pieces| writer.try_write_vectored(pieces)) {
                Progress::Drained => return ControlFlow::Continue(()),
                Progress::Blocked => {}
                Progress::Failed(error) => state.error = Some(error),
            }
            self.wake.notify_one();
            ControlFlow::Break(())
        };
        self.state.pass(write, || source.has_work());
    }

    /// The task's part: writes what could not be written at once. Ends with an error only.
    pub(crate) async fn run(&self, source: &impl Source) -> io::Error {
        match &self.plain {
            Some(writer) => loop {
                self.wake.notified().await;
                if let Some(error) = self.state.tools().error.take() {
                    return error;
                }
                if let Err(error) = writer.writable().await {
                    return error;
                }
                self.kick(source);
            },
            None => match self.run_tls(source).await {
                Ok(never) => match never {},
                Err(error) => error,
            },
        }
    }

    /// Writes the rest, and the last messages; then nothing more.
    pub(crate) async fn finish(&self, last: impl IntoIterator<Item = Message>) -> io::Result<()> {
        let rest = {
            let mut state = self.state.tools();
            // Whoever kicks from now on must not write between what is left.
            state.is_finished = true;
            let offset = std::mem::take(&mut state.offset);
            let mut bytes = Vec::new();
            state.batch.extend(last);
            for message in state.batch.drain(..) {
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
            (None, Secured { writer: Some(Writer::Tls(writer)), is_within: false }) => {
                writer.write_all(&rest).await?;
                writer.shutdown().await
            }
            (None, _) => Ok(()),
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

    async fn run_tls(&self, source: &impl Source) -> io::Result<std::convert::Infallible> {
        let mut secured = self.tls.lock().await;
        let Secured { writer: Some(Writer::Tls(writer)), is_within } = &mut *secured else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        loop {
            while let Some(message) = source.next() {
                *is_within = true;
                for piece in message.pieces() {
                    writer.write_all(piece).await?;
                }
                *is_within = false;
                source.written();
            }
            writer.flush().await?;
            self.wake.notified().await;
        }
    }
}

impl State {
    fn write(
        &mut self,
        source: &impl Source,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> Progress {
        loop {
            if self.batch.is_empty() {
                self.batch.extend(std::iter::from_fn(|| source.next()).take(BATCH));
                if self.batch.is_empty() {
                    return Progress::Drained;
                }
            }
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let count = self.pieces(&mut pieces);
            match write(&pieces[..count]) {
                Ok(0) => return Progress::Failed(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    if self.advance(written) {
                        source.written();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Blocked,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Progress::Failed(error),
            }
        }
    }

    /// What is still to be written, as far as there is room.
    fn pieces<'a>(&'a self, to: &mut [IoSlice<'a>; PIECES]) -> usize {
        let mut skip = self.offset;
        let all = self.batch.iter().flat_map(Message::pieces).filter_map(|piece| {
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

    /// Lets go of what has been written. Whether that was a whole message.
    fn advance(&mut self, written: usize) -> bool {
        self.offset += written;
        let mut is_any = false;
        while let Some(first) = self.batch.front()
            && let length = first.len()
            && self.offset >= length
        {
            self.offset -= length;
            self.batch.pop_front();
            is_any = true;
        }
        is_any
    }
}

impl Message {
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (frame, bytes) = match &self.body {
            Body::Frame(frame) => (Some(frame), None),
            Body::Bytes(bytes) => (None, Some(&bytes[..])),
            Body::Short(bytes, length) => (None, bytes.get(..*length)),
        };
        let of_frame = frame.into_iter().flat_map(|frame| {
            let prefix = [&frame.key[..], &frame.metadata[..]];
            prefix.into_iter().chain(frame.buffers().map(Buffer::bytes))
        });
        std::iter::once(&self.header[..]).chain(of_frame).chain(bytes)
    }

    fn len(&self) -> usize {
        self.pieces().map(<[u8]>::len).sum()
    }
}
