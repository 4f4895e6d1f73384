//! Buffers of a connection. Both hold frames: messages with their length in front (RFC 1035
//! §4.2.2).
//!
//! An inbox grows with the data that arrived, not with the length that a frame announces. Both
//! buffers keep their memory from query to query. They shrink after a large message, and are freed
//! when the connection is quiet.

use std::io;

use tokio::time::Instant;

use crate::limits::tcp::WRITE_TIME;

/// Size of a new inbox in bytes. Most clients send one query at a time.
const FIRST_INBOX: usize = 512;

/// Size of an inbox in bytes once the client has filled a new one.
const INBOX: usize = 4 << 10;

/// Size in bytes of the largest frame: two bytes of length and the message.
const MAX_FRAME: usize = 2 + u16::MAX as usize;

/// Memory in bytes that an outbox keeps when all of its data are sent.
const KEPT_OUTBOX: usize = 32 << 10;

/// Buffer of received data that are not answered yet: `buffer[start..end]`.
#[derive(Default)]
pub(super) struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Tells whether no received data wait, not even part of a message.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the first received message without its length, or `None` if it is incomplete.
    pub(super) fn frame(&self) -> Option<&[u8]> {
        let (length, rest) = self.buffer[self.start..self.end].split_first_chunk()?;
        rest.get(..usize::from(u16::from_be_bytes(*length)))
    }

    /// Removes a frame of this many bytes, including the length, from the front.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.is_empty() {
            let was_full = self.end == self.buffer.len();
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > INBOX {
                self.buffer.truncate(INBOX);
                self.buffer.shrink_to_fit();
            } else if was_full {
                self.buffer.resize(INBOX, 0);
            }
        }
    }

    /// Returns free space to read into; never empty unless a complete frame is there. Doubles a
    /// full buffer.
    pub(super) fn spare(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.buffer.len() {
            self.buffer.resize((2 * self.end).clamp(FIRST_INBOX, MAX_FRAME), 0);
        }
        &mut self.buffer[self.end..]
    }

    /// Returns the inbox's memory in bytes if it exceeds what ordinary queries need, and otherwise
    /// 0.
    pub(super) fn excess(&self) -> usize {
        Some(self.buffer.capacity()).filter(|&room| room > INBOX).unwrap_or(0)
    }

    /// Tells whether the inbox holds no memory, as before the first query and after a quiet time.
    pub(super) fn is_released(&self) -> bool {
        self.buffer.capacity() == 0
    }

    /// Frees the inbox's memory, unless received data wait in it.
    pub(super) fn release(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Copies data that were read into a buffer of the stack, because the inbox had no memory,
    /// into new memory of the inbox. Returns their length.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> usize {
        if !bytes.is_empty() {
            let length = bytes.len().max(FIRST_INBOX);
            self.buffer.reserve_exact(length);
            self.buffer.resize(length, 0);
            self.buffer[..bytes.len()].copy_from_slice(bytes);
            self.received(bytes.len());
        }
        bytes.len()
    }

    /// Notes that `bytes` bytes were read into the space that [`Self::spare`] returned.
    pub(super) fn received(&mut self, bytes: usize) {
        self.end += bytes;
    }
}

/// Buffer of replies to be written: `buffer[sent..]`.
#[derive(Default)]
pub(super) struct Outbox {
    buffer: Vec<u8>,
    sent: usize,
    /// Whether the stream (TLS) may hold written data that need a flush.
    is_held: bool,
    /// Deadline for the client, as long as data wait to be written or flushed.
    due: Option<WriteDeadline>,
}

/// The time by which the next `bytes` bytes must be written. Then the data that wait at that moment
/// get a deadline of their own, so a client that reads steadily gets all the time it needs.
struct WriteDeadline {
    bytes: usize,
    at: Instant,
}

impl Outbox {
    /// Returns the number of bytes that are not written to the stream yet.
    pub(super) fn waiting(&self) -> usize {
        self.buffer.len() - self.sent
    }

    /// Returns the data that are not written to the stream yet.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.buffer[self.sent..]
    }

    /// Returns the buffer that replies are appended to.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Returns the time by which the client must have read; `None` if no data wait for it.
    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.due.as_ref()?.at)
    }

    /// Tells whether all data were written to the stream, and the stream was flushed.
    pub(super) fn is_flushed(&self) -> bool {
        self.waiting() == 0 && !self.is_held
    }

    /// Begins a frame and returns where its message starts; the caller appends the message to
    /// `buffer`.
    pub(super) fn begin(&mut self) -> usize {
        self.buffer.extend_from_slice(&[0; 2]);
        self.buffer.len()
    }

    /// Ends a frame: writes the length of its message, which started at `begin`.
    pub(super) fn finish(&mut self, begin: usize) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidData, "a reply is longer than 65535 bytes");
        let length = u16::try_from(self.buffer.len() - begin).map_err(too_long)?;
        self.buffer[begin - 2..begin].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// Removes the last frame, whose message started at `begin`.
    pub(super) fn abandon(&mut self, begin: usize) {
        self.buffer.truncate(begin - 2);
    }

    /// Gives the client a deadline to read the waiting data, unless one is set already.
    pub(super) fn arm(&mut self, now: Instant) {
        let bytes = self.waiting();
        if bytes > 0 && self.due.is_none() {
            self.due = Some(WriteDeadline { bytes, at: now + WRITE_TIME });
        }
    }

    /// Notes that `bytes` bytes were written to the stream, and extends the client's deadline.
    pub(super) fn sent(&mut self, bytes: usize, now: Instant) {
        self.sent += bytes;
        self.is_held = true;
        let waiting = self.waiting();
        match &mut self.due {
            Some(due) if due.bytes > bytes => due.bytes -= bytes,
            due => {
                *due = Some(WriteDeadline { bytes: waiting, at: now + WRITE_TIME });
            }
        }
        if waiting == 0 {
            self.buffer.clear();
            self.sent = 0;
        }
    }

    /// Notes that all data were written and flushed, so the client has no deadline any more.
    pub(super) fn flushed(&mut self, may_shrink: bool) {
        self.is_held = false;
        self.due = None;
        if may_shrink {
            self.buffer.shrink_to(KEPT_OUTBOX);
        }
    }

    /// Tells whether the outbox holds no memory, as before the first reply and after a quiet time.
    pub(super) fn is_released(&self) -> bool {
        self.buffer.capacity() == 0
    }

    /// Frees the outbox's memory, unless data wait to be written.
    pub(super) fn release(&mut self) {
        if self.waiting() == 0 {
            self.buffer = Vec::new();
            self.sent = 0;
        }
    }

    /// Moves waiting data to the front if at least as much space is gained as is moved.
    pub(super) fn compact(&mut self) {
        if self.sent > 0 && self.sent >= self.waiting() {
            self.buffer.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn receive(inbox: &mut Inbox, bytes: &[u8]) {
        let room = inbox.spare();
        room[..bytes.len()].copy_from_slice(bytes);
        inbox.received(bytes.len());
    }

    #[test]
    fn a_frame_comes_out_once_it_is_complete() {
        let mut inbox = Inbox::default();
        assert!(inbox.is_empty() && inbox.frame().is_none());
        receive(&mut inbox, &[0]);
        assert!(inbox.frame().is_none());
        receive(&mut inbox, &[2, 7, 8, 0, 0, 0, 1]);
        assert_eq!(inbox.frame(), Some(&[7, 8][..]));
        inbox.consume(4);
        assert_eq!(inbox.frame(), Some(&[][..]));
        inbox.consume(2);
        assert!(!inbox.is_empty() && inbox.frame().is_none());
        receive(&mut inbox, &[9]);
        assert_eq!(inbox.frame(), Some(&[9][..]));
        inbox.consume(3);
        assert!(inbox.is_empty());
    }

    #[test]
    fn an_inbox_grows_with_received_data_and_shrinks_again() {
        let mut inbox = Inbox::default();
        receive(&mut inbox, &[255, 255]);
        assert_eq!(inbox.spare().len(), FIRST_INBOX - 2);
        let mut left = 65_535;
        while left > 0 {
            let room = inbox.spare().len().min(left);
            assert!(room > 0);
            left -= room;
            inbox.received(room);
            assert!(inbox.buffer.len() <= INBOX.max(2 * inbox.end));
        }
        assert_eq!(inbox.frame().map(<[u8]>::len), Some(65_535));
        assert_eq!(inbox.buffer.len(), MAX_FRAME);
        inbox.consume(MAX_FRAME);
        assert_eq!(inbox.buffer.capacity(), INBOX);
    }

    #[test]
    fn an_inbox_is_as_large_as_its_client_needs() {
        let frame = [&[0, 98][..], &[1; 98]].concat();
        let mut inbox = Inbox::default();
        assert!(inbox.is_released());
        assert_eq!(inbox.receive(&frame), 100);
        assert_eq!(inbox.buffer.capacity(), FIRST_INBOX);
        inbox.consume(100);
        receive(&mut inbox, &frame);
        inbox.consume(100);
        assert_eq!(inbox.spare().len(), FIRST_INBOX);
        // A client that fills its inbox gets a larger one.
        receive(&mut inbox, &[&frame.repeat(5)[..], &frame[..12]].concat());
        inbox.consume(500);
        inbox.release();
        assert!(!inbox.is_released(), "a part of a message is there");
        inbox.spare();
        receive(&mut inbox, &frame[12..]);
        inbox.consume(100);
        assert!(inbox.frame().is_none());
        receive(&mut inbox, &frame.repeat(5));
        inbox.release();
        assert_eq!(inbox.frame().map(<[u8]>::len), Some(98));
        inbox.consume(500);
        inbox.release();
        assert!(inbox.is_released());
        // A new inbox takes as much as the buffer on the stack holds.
        assert_eq!(inbox.receive(&frame.repeat(20)), 2000);
        assert_eq!(inbox.buffer.len(), 2000);
        inbox.consume(2000);
        assert_eq!(inbox.spare().len(), INBOX);
    }

    fn push(outbox: &mut Outbox, length: usize) {
        let begin = outbox.begin();
        outbox.buffer().resize(begin + length, 1);
        outbox.finish(begin).unwrap();
    }

    #[test]
    fn frames_are_written_with_their_length() {
        let mut outbox = Outbox::default();
        push(&mut outbox, 3);
        let begin = outbox.begin();
        outbox.buffer().extend([5; 10]);
        outbox.abandon(begin);
        push(&mut outbox, 0x102);
        assert_eq!(outbox.unsent()[..7], [0, 3, 1, 1, 1, 1, 2]);
        assert_eq!(outbox.waiting(), 2 + 3 + 2 + 0x102);
        let begin = outbox.begin();
        outbox.buffer().resize(begin + 65_536, 0);
        assert!(outbox.finish(begin).is_err());
    }

    #[test]
    fn a_deadline_is_for_the_data_that_wait_when_it_is_set() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut outbox = Outbox::default();
        outbox.arm(start);
        assert_eq!(outbox.due(), None);
        push(&mut outbox, 98);
        outbox.arm(start);
        // Later data do not extend the deadline, nor does writing a part.
        push(&mut outbox, 98);
        outbox.arm(start + second);
        outbox.sent(99, start + second);
        assert_eq!(outbox.due(), Some(start + WRITE_TIME));
        // The deadline is now that of the rest.
        outbox.sent(1, start + 2 * second);
        assert_eq!(outbox.due(), Some(start + 2 * second + WRITE_TIME));
        outbox.sent(100, start + 3 * second);
        assert!(outbox.waiting() == 0 && !outbox.is_flushed() && outbox.due().is_some());
        outbox.flushed(true);
        assert!(outbox.is_flushed() && outbox.due().is_none());
    }

    #[test]
    fn an_outbox_does_not_keep_written_data() {
        let now = Instant::now();
        let mut outbox = Outbox::default();
        // Never empty, but at most two messages wait.
        push(&mut outbox, 60_000);
        for _ in 0..100 {
            push(&mut outbox, 60_000);
            outbox.sent(60_002, now);
            outbox.compact();
            assert_eq!(outbox.waiting(), 60_002);
        }
        assert!(outbox.buffer.capacity() < 5 * 60_000, "{}", outbox.buffer.capacity());
        outbox.sent(60_002, now);
        outbox.flushed(true);
        assert!(outbox.buffer.capacity() <= KEPT_OUTBOX);
    }
}
