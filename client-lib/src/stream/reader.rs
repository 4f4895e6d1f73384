//! Reading of messages.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::ReadHalf;
use crate::wire::HEADER;

/// Reader of a peer's messages from a connection.
pub(crate) struct MessageReader {
    reader: ReadHalf,
    /// Buffer of bytes that were read ahead: those from `start` to `end` have not been used yet.
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes that have come.
    count: Arc<AtomicU64>,
}

impl MessageReader {
    /// Creates a reader that reads up to `ahead` bytes at a time: many small messages by one system
    /// call. Large payloads bypass the buffer.
    pub(crate) fn new(reader: ReadHalf, ahead: usize) -> Self {
        let ahead = vec![0; ahead.max(HEADER)].into_boxed_slice();
        Self { reader, ahead, start: 0, end: 0, count: Arc::default() }
    }

    /// Returns the number of bytes that have come, which grows while a message is being read.
    pub(crate) fn count(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.count)
    }

    /// Returns the next header, or `None` if the connection ends between two messages. Cancelling
    /// this loses nothing.
    pub(crate) async fn header(&mut self) -> io::Result<Option<[u8; HEADER]>> {
        while self.end - self.start < HEADER {
            let had = self.end - self.start;
            if self.start > 0 {
                self.ahead.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, had);
            }
            let read = self.reader.read(&mut self.ahead[had..]).await?;
            if read == 0 {
                return if had == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            self.end += read;
            self.count.fetch_add(read as u64, Ordering::Relaxed);
        }
        let bytes = std::array::from_fn(|i| self.ahead[self.start + i]);
        self.start += HEADER;
        Ok(Some(bytes))
    }

    /// Fills a buffer with the next bytes of the connection. Fails if the connection ends before.
    pub(crate) async fn fill(&mut self, mut to: &mut [u8]) -> io::Result<()> {
        let at_hand = (self.end - self.start).min(to.len());
        let (first, rest) = to.split_at_mut(at_hand);
        first.copy_from_slice(&self.ahead[self.start..self.start + at_hand]);
        self.start += at_hand;
        to = rest;
        while !to.is_empty() {
            // Everything that was read ahead is used up, or it would have filled this.
            (self.start, self.end) = (0, 0);
            let read = self.reader.read_past(to, &mut self.ahead).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.count.fetch_add(read as u64, Ordering::Relaxed);
            let inside = read.min(to.len());
            self.end = read - inside;
            to = &mut to[inside..];
        }
        Ok(())
    }
}

impl ReadHalf {
    async fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.read(to).await,
            Self::Tls(reader) => ended(read_once(reader, to).await),
        }
    }

    /// Reads into `to` and, by the same system call, the bytes after that into `after`.
    async fn read_past(&mut self, to: &mut [u8], after: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => loop {
                reader.readable().await?;
                match reader.try_read_vectored(&mut [IoSliceMut::new(to), IoSliceMut::new(after)]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    result => return result,
                }
            },
            Self::Tls(reader) => ended(read_once(reader, to).await),
        }
    }
}

async fn read_once(reader: &mut (impl AsyncRead + Unpin), to: &mut [u8]) -> io::Result<usize> {
    reader.read(to).await
}

/// Turns an abrupt end of TLS into an ordinary one. A peer that is killed does not end TLS
/// properly. Since every message has a length, a truncation is noticed anyway.
fn ended(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        result => result,
    }
}
