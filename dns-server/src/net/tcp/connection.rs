//! One connection: reads frames, writes replies and zone transfers.
//!
//! ```text
//!           ┌──────────────────── Connection ────────────────────┐
//!  bytes ──>│ Inbox ──frames──> Worker ──replies──────> Outbox   │──> bytes
//!           │                      └─> transfers ──messages─┘    │
//!           └────────────────────────────────────────────────────┘
//! ```
//!
//! One task reads and writes at the same time. All queries that one read completes are answered
//! into one buffer, which goes out with one write. In the steady state this allocates nothing. A
//! zone transfer adds its next message only when little else waits, so that replies to other
//! queries pass between its messages.
//!
//! **Bounds.** The connection reads nothing while [`HIGH_WATER`] bytes wait to be written, so a
//! client that does not read cannot make the server buffer without limit. Waiting replies and
//! incomplete messages of all connections share one budget. When it is spent, a connection that
//! holds more than a little of it ends. A connection that was quiet for [`QUIET_TIME`] frees its
//! buffers: clients keep many connections open, of which few are in use at a time.
//!
//! **Timeouts** end a connection after [`IDLE_TIME`] without a query, after [`MESSAGE_TIME`] with
//! an incomplete message, and after [`WRITE_TIME`](crate::limits::tcp::WRITE_TIME) with data that
//! the client does not read.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::select;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::buffers::{Inbox, Outbox};
use crate::limits::tcp::{CLOSE_TIME, HIGH_WATER, IDLE_TIME, LOW_WATER, MESSAGE_TIME, QUIET_TIME, TRANSFERS};
use crate::net::connections::{ConnectionPermit, MemoryAccount};
use crate::net::engine::{Handled, Worker};
use crate::secondary::transfer::Transfer;
use crate::store::rrset::HEADER;

/// Buffer on the stack, in bytes, for the first data of a connection that has no inbox.
const FIRST_READ: usize = 2 << 10;

/// Largest number of reads after the shutdown, for queries that had already arrived.
const LAST_READS: u32 = 16;

/// Serves one connection until the client ends it or `shutdown` is cancelled. Answers every query
/// that was read before the end.
///
/// # Errors
///
/// If the connection breaks, or the client is too slow to send or to read.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    peer: SocketAddr,
    worker: Worker,
    permit: &ConnectionPermit,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let mut connection = Connection::new(stream, peer, worker, permit);
    let mut cancelled = pin!(shutdown.cancelled());
    let mut timer = pin!(sleep_until(connection.deadline()));
    let mut is_stopping = false;
    loop {
        connection.answer_queries()?;
        if connection.is_done() {
            break;
        }
        // The timer may fire too early but not too late, so it is not reset for every query.
        if connection.deadline() < timer.deadline() {
            timer.as_mut().reset(connection.deadline());
        }
        select! {
            biased;
            progressed = poll_fn(|cx| connection.poll_io(cx)) => progressed?,
            () = &mut cancelled, if !is_stopping => {
                is_stopping = true;
                connection.stop();
                // Tokio makes a read return `Pending` when the task's budget is spent. Yielding
                // renews the budget, so that `Pending` means that no data are there.
                tokio::task::yield_now().await;
            }
            () = &mut timer => {
                if connection.deadline() <= Instant::now() {
                    connection.expire()?;
                }
                timer.as_mut().reset(connection.deadline());
            }
        }
    }
    // Boxed, since only the end of a connection needs this state.
    Box::pin(connection.close()).await;
    Ok(())
}

struct Connection<'s, S> {
    permit: &'s ConnectionPermit,
    memory: MemoryAccount,
    stream: S,
    peer: SocketAddr,
    worker: Worker,
    inbox: Inbox,
    outbox: Outbox,
    transfers: VecDeque<Box<Transfer>>,
    reads: Reads,
    /// Time of the last read or write, by which timeouts are counted.
    now: Instant,
    /// The time of the last query, or of the last write of a reply.
    active_at: Instant,
    /// When the incomplete message in the inbox began; `None` if the inbox is empty.
    begun_at: Option<Instant>,
    /// Number of replies of which no byte was written yet, and when their queries arrived.
    unsent: Option<(u32, Instant)>,
}

/// How long the connection goes on reading from its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// Until the client ends the stream.
    All,
    /// Until no arrived data are left, with at most this many further reads.
    Last(u32),
    None,
}

impl<'s, S: AsyncRead + AsyncWrite + Unpin> Connection<'s, S> {
    fn new(stream: S, peer: SocketAddr, worker: Worker, permit: &'s ConnectionPermit) -> Self {
        let now = Instant::now();
        Self {
            permit,
            memory: permit.memory_account(),
            stream,
            peer,
            worker,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            transfers: VecDeque::new(),
            reads: Reads::All,
            now,
            active_at: now,
            begun_at: None,
            unsent: None,
        }
    }

    /// Answers the complete messages in the inbox: replies go to the outbox, transfers begin.
    fn answer_queries(&mut self) -> io::Result<()> {
        self.outbox.compact();
        let (mut frames, mut replies) = (0, 0);
        // A query that has to wait for a transfer to end is looked at again after the last message
        // of that transfer.
        while self.takes_queries()
            && let Some(packet) = self.inbox.frame()
        {
            if packet.len() < HEADER {
                self.end();
                break;
            }
            let begin = self.outbox.begin();
            let handled = self.worker.answer(packet, self.peer, self.outbox.buffer());
            let used = 2 + packet.len();
            self.inbox.consume(used);
            frames += 1;
            match handled {
                Handled::Reply => {
                    self.outbox.finish(begin)?;
                    replies += 1;
                }
                Handled::Ignore => self.outbox.abandon(begin),
                Handled::Transfer(transfer) => {
                    self.outbox.abandon(begin);
                    transfer.set_connection(self.permit.place.closer());
                    self.transfers.push_back(transfer);
                }
            }
        }
        self.send_transfers()?;
        self.outbox.arm(self.now);
        if frames > 0 {
            self.active_at = self.now;
            self.permit.place.touch(self.now);
        }
        if replies > 0 {
            let (count, since) = self.unsent.unwrap_or((0, self.now));
            self.unsent = Some((count + replies, since));
        }
        self.begun_at = match self.begun_at {
            _ if self.inbox.is_empty() => None,
            Some(begun_at) if frames == 0 => Some(begun_at),
            _ => Some(self.now),
        };
        Ok(())
    }

    /// Tells whether another query may be answered: its reply or transfer has room.
    fn takes_queries(&self) -> bool {
        self.outbox.waiting() < HIGH_WATER && self.transfers.len() < TRANSFERS
    }

    /// Lets the transfers add messages in turn, as long as there is room.
    fn send_transfers(&mut self) -> io::Result<()> {
        while self.outbox.waiting() < LOW_WATER
            && let Some(mut transfer) = self.transfers.pop_front()
        {
            if let Some(message) = transfer.next() {
                let begin = self.outbox.begin();
                self.outbox.buffer().extend_from_slice(&message);
                self.outbox.finish(begin)?;
                self.transfers.push_back(transfer);
            }
        }
        Ok(())
    }

    /// Writes waiting data and reads further ones. Ready when either made progress.
    fn poll_io(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wrote = self.poll_write(cx)?;
        let read = self.poll_read(cx)?;
        if wrote.is_ready() || read.is_ready() {
            return Poll::Ready(Ok(()));
        }
        if !self.memory.set(self.outbox.waiting() + self.inbox.excess()) {
            let reason = "the client does not read its replies or finish its message, and the memory for that is used up";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, reason)));
        }
        Poll::Pending
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outbox.is_flushed() {
            return Poll::Pending;
        }
        let stream = Pin::new(&mut self.stream);
        if self.outbox.waiting() == 0 {
            ready!(stream.poll_flush(cx))?;
            self.outbox.flushed(self.transfers.is_empty());
            return Poll::Ready(Ok(()));
        }
        let sent = ready!(stream.poll_write(cx, self.outbox.unsent()))?;
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.now = Instant::now();
        self.active_at = self.now;
        self.outbox.sent(sent, self.now);
        if let Some((count, since)) = self.unsent.take() {
            self.worker.record_duration(count, self.now - since);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_full = self.outbox.waiting() >= HIGH_WATER || self.inbox.frame().is_some();
        if is_full || self.reads == Reads::None {
            return Poll::Pending;
        }
        let stream = Pin::new(&mut self.stream);
        let polled = if self.inbox.is_released() {
            let mut first = [MaybeUninit::uninit(); FIRST_READ];
            let mut room = ReadBuf::uninit(&mut first);
            stream.poll_read(cx, &mut room).map_ok(|()| self.inbox.receive(room.filled()))
        } else {
            let mut room = ReadBuf::new(self.inbox.spare());
            let polled = stream.poll_read(cx, &mut room);
            let received = room.filled().len();
            polled.map_ok(|()| {
                self.inbox.received(received);
                received
            })
        };
        let received = match polled {
            Poll::Pending if self.reads == Reads::All => return Poll::Pending,
            Poll::Pending => 0,
            Poll::Ready(Ok(received)) => received,
            // A TLS client has closed without close_notify. Each message carries its length, so no
            // truncation goes unnoticed.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
        };
        self.now = Instant::now();
        self.reads = match self.reads {
            _ if received == 0 => Reads::None,
            Reads::Last(left @ 2..) => Reads::Last(left - 1),
            Reads::Last(_) | Reads::None => Reads::None,
            Reads::All => Reads::All,
        };
        Poll::Ready(Ok(()))
    }

    /// Returns the time at which [`Self::expire`] is due if nothing is read or written until then.
    fn deadline(&self) -> Instant {
        match (self.outbox.due(), self.begun_at) {
            (Some(due), _) => due,
            (None, Some(begun_at)) => begun_at + MESSAGE_TIME,
            (None, None) if self.is_released() => self.active_at + IDLE_TIME,
            (None, None) => self.active_at + QUIET_TIME,
        }
    }

    fn is_released(&self) -> bool {
        self.inbox.is_released() && self.outbox.is_released()
    }

    /// Handles a timeout. A silent connection first frees its buffers, and later ends in good
    /// order. A client that is too slow ends it with an error.
    fn expire(&mut self) -> io::Result<()> {
        let too_slow = |what| Err(io::Error::new(io::ErrorKind::TimedOut, what));
        match (self.outbox.due(), self.begun_at) {
            (Some(_), _) => too_slow("the client does not read its replies"),
            (None, Some(_)) => too_slow("the client does not finish its message"),
            (None, None) if self.is_released() => {
                self.end();
                Ok(())
            }
            (None, None) => {
                self.inbox.release();
                self.outbox.release();
                Ok(())
            }
        }
    }

    /// Limits further reading to the data that have already arrived, for a shutdown.
    fn stop(&mut self) {
        if self.reads == Reads::All {
            self.reads = Reads::Last(LAST_READS);
        }
    }

    /// Stops reading, and drops unanswered data. Replies in the outbox are still sent.
    fn end(&mut self) {
        self.reads = Reads::None;
        self.inbox = Inbox::default();
    }

    fn is_done(&self) -> bool {
        self.reads == Reads::None
            && self.inbox.frame().is_none()
            && self.transfers.is_empty()
            && self.outbox.is_flushed()
    }

    /// Closes the connection, and waits a little for the client to close too. If the server went
    /// away while further queries arrive, the kernel would reset the connection, and replies under
    /// way would be lost.
    async fn close(mut self) {
        self.end();
        self.outbox.release();
        self.memory.set(0);
        let close = async {
            self.stream.shutdown().await?;
            while self.stream.read(&mut [0; 32]).await? > 0 {}
            Ok::<(), io::Error>(())
        };
        let _ = timeout(CLOSE_TIME, close).await;
    }
}
