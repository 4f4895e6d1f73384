//! One connection: frames in, replies and zone transfers out.
//!
//! ```text
//!           ┌──────────────────── Connection ────────────────────┐
//!  bytes ──>│ Inbox ──frames──> Worker ──replies──────> Outbox   │──> bytes
//!           │                      └─> transfers ──messages─┘    │
//!           └────────────────────────────────────────────────────┘
//! ```
//!
//! One task reads and writes at the same time. All queries that a read completes are answered into one
//! buffer, which goes out with one write; in the steady state nothing is allocated. A zone transfer gives
//! its next message when little else waits, so that replies to other queries pass between its messages.
//!
//! **Bounds.** Nothing is read while [`HIGH_WATER`] waits to be written: who does not read cannot make us
//! store. When much is held for all connections together, of replies that wait and of messages that are not complete,
//! one for which more than a little is held ends. One that has been quiet for [`QUIET_TIME`] gives its buffers back: of
//! the many that clients keep open, few are in use at a time.
//!
//! **Patience** ends after [`IDLE_TIME`] without a query, after [`MESSAGE_TIME`] for a message that has
//! begun, and after [`WRITE_TIME`](super::buffers::WRITE_TIME) for what waits to be written at a moment.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::select;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::buffers::{Inbox, Outbox};
use super::connections::{ConnectionPermit, MemoryAccount};
use crate::answer::peer::Peer;
use crate::net::engine::{Handled, Worker};
use crate::secondary::transfer::Transfer;
use crate::store::rrset::HEADER;

/// How long a connection may be silent. CoreDNS keeps connections for 10 s to use them again: it should be
/// the one who closes, or it loses a query to a connection that is just going away.
const IDLE_TIME: Duration = Duration::from_secs(30);

/// How long a connection without a query keeps its buffers.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// Room on the stack for what comes first on a connection without buffers.
const FIRST_READ: usize = 2 << 10;

/// How long a message may take to arrive, from its first octet on.
const MESSAGE_TIME: Duration = Duration::from_secs(10);

/// How long the client may take to see that we have closed.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Nothing is read, and no query answered, while this much waits to be written.
const HIGH_WATER: usize = 128 << 10;

/// A transfer goes on when less than this waits to be written. With one of its messages, of 64 KiB at
/// most, there still is room for replies below [`HIGH_WATER`].
const LOW_WATER: usize = 32 << 10;

/// Transfers on one connection at a time: the zones that a server has by default. Queries behind them wait until one
/// has ended.
const TRANSFERS: usize = 3;

/// Reads after the shutdown, for queries that were there before it.
const LAST_READS: u32 = 16;

/// Answers the queries of one connection, until the client has enough or `shutdown` is cancelled. All that
/// was read is answered before the end.
///
/// # Errors
///
/// If the connection breaks, or the client is too slow to send or to read.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    peer: impl Into<Peer>,
    worker: Worker,
    permit: &ConnectionPermit,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let mut connection = Connection::new(stream, peer.into(), worker, permit);
    let mut cancelled = pin!(shutdown.cancelled());
    let mut timer = pin!(sleep_until(connection.deadline()));
    let mut is_stopping = false;
    loop {
        connection.answer_queries()?;
        if connection.is_done() {
            break;
        }
        // It may ring too early, not too late: it is not set anew for every query.
        if connection.deadline() < timer.deadline() {
            timer.as_mut().reset(connection.deadline());
        }
        select! {
            biased;
            progressed = poll_fn(|cx| connection.poll_io(cx)) => progressed?,
            () = &mut cancelled, if !is_stopping => {
                is_stopping = true;
                connection.stop();
                // With a fresh budget no read looks as if nothing were there.
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
    // On the heap, for only the end needs it.
    Box::pin(connection.close()).await;
    Ok(())
}

struct Connection<'s, S> {
    permit: &'s ConnectionPermit,
    memory: MemoryAccount,
    stream: S,
    peer: Peer,
    worker: Worker,
    inbox: Inbox,
    outbox: Outbox,
    transfers: VecDeque<Box<Transfer>>,
    reads: Reads,
    /// When something last came or went.
    now: Instant,
    /// When a query last came, or something of a reply went.
    active_at: Instant,
    /// When the message began of which a part is in the inbox.
    begun_at: Option<Instant>,
    /// How many replies the outbox has of which nothing has gone yet, and when their queries came.
    unsent: Option<(u32, Instant)>,
}

/// How much is still read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// All that comes.
    All,
    /// What is there already, with so many reads at most.
    Last(u32),
    /// Nothing.
    None,
}

impl<'s, S: AsyncRead + AsyncWrite + Unpin> Connection<'s, S> {
    fn new(stream: S, peer: Peer, worker: Worker, permit: &'s ConnectionPermit) -> Self {
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

    /// Turns what came into what is to go.
    fn answer_queries(&mut self) -> io::Result<()> {
        self.outbox.compact();
        let (mut frames, mut replies) = (0, 0);
        // What waits for the end of a transfer is looked at again when the last of it has gone.
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
                    transfer.belongs_to(self.permit.evictor());
                    self.transfers.push_back(transfer);
                }
            }
        }
        self.send_transfers()?;
        self.outbox.arm(self.now);
        if frames > 0 {
            self.active_at = self.now;
            self.permit.used(self.now);
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

    /// Whether there is room for replies and transfers.
    fn takes_queries(&self) -> bool {
        self.outbox.waiting() < HIGH_WATER && self.transfers.len() < TRANSFERS
    }

    /// Lets each transfer in turn give a message, as long as there is room.
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

    /// Writes and reads; ready when either has changed something.
    fn poll_io(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wrote = self.poll_write(cx)?;
        let read = self.poll_read(cx)?;
        if wrote.is_ready() || read.is_ready() {
            return Poll::Ready(Ok(()));
        }
        if !self.memory.set(self.outbox.waiting() + self.inbox.excess()) {
            let reason =
                "the client does not read its replies or finish its message, and there is no room for them";
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
            // TLS, if the client has closed without saying so. Each message has its length, so nothing can have
            // been cut off unnoticed.
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

    /// When patience ends if nothing happens.
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

    /// Ends what has gone on for too long: silence in good order, after a while without buffers, anything else
    /// at once.
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

    /// Reads only what has arrived by now.
    fn stop(&mut self) {
        if self.reads == Reads::All {
            self.reads = Reads::Last(LAST_READS);
        }
    }

    /// Reads and answers no more; what has been answered is still sent.
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

    /// Closes, and waits a little for the client to see it: if we went while more of its queries come in,
    /// the system would reset the connection, and replies on their way would be lost.
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
