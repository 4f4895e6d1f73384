//! UDP: one socket and one thread per worker, datagrams in batches.
//!
//! ```text
//!            ┌──────── Slot × 32 ────────┐
//!  recvmmsg ─┤ packet, peer, asked       ├─> Worker::answer ─> one buffer of replies
//!  sendmmsg <┤ to the peer, from `asked` ├<─ cut up ─────────────┘
//!            └───────────────────────────┘
//! ```
//!
//! Under load one pair of system calls moves up to 32 queries, and replies of one size to one peer go out as one piece
//! (`udp/gso.rs`); with little to do a query is answered as soon as it is there. All buffers are made once, so a
//! query allocates nothing. What has arrived when a worker is told to stop is still answered. Of more than it can answer
//! a worker passes over the oldest (`udp/overload.rs`).
//!
//! The kernel chooses the socket by a hash of both addresses and ports, so that a client's port stays with
//! its worker.
//!
//! This file is the threads; the system calls, and what of them is unsafe, are in `udp/batch.rs` and `udp/send.rs`,
//! what the kernel says of a datagram is in `udp/control.rs`.

#[expect(unsafe_code, reason = "recvmmsg has no safe wrapper")]
mod batch;
#[expect(unsafe_code, reason = "packet info has no safe wrapper")]
mod control;
mod gso;
mod overload;
#[expect(unsafe_code, reason = "sendmmsg has no safe wrapper")]
mod send;

use std::io;
use std::mem;
use std::net::UdpSocket;
use std::panic::{self, AssertUnwindSafe};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use batch::{Slot, Wait};
use overload::{Overload, TimestampSwitch};
use send::ReplySender;

use crate::answer::peer::Proto;
use crate::net::engine::{Engine, Handled, Worker};

/// How long a worker sleeps when nothing comes, and so how late it may notice that it is to stop.
const RECEIVE_TIME: Duration = Duration::from_millis(100);

/// How long a worker waits for room in the socket's send buffer. Meanwhile it answers nobody.
const SEND_TIME: Duration = Duration::from_millis(20);

/// How often a busy worker looks whether it is to stop: not at each batch, since looking takes a lock.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Datagrams per system call.
const BATCH: usize = 32;

/// Batches that are answered after stopping. A receive buffer of 4 MiB does not hold more datagrams.
const DRAIN_BATCHES: usize = 512;

/// Pause after a failure to receive that is not about a single datagram.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

/// The threads that answer at one address.
#[derive(Debug)]
pub struct UdpListener {
    threads: Vec<JoinHandle<()>>,
}

impl UdpListener {
    /// Starts a thread for each of `sockets`, which blocks and answers until `stop` is cancelled.
    ///
    /// # Errors
    ///
    /// If the system gives no more threads, or refuses an option that replies depend on.
    pub fn spawn(sockets: Vec<UdpSocket>, engine: &Engine, stop: &CancellationToken) -> io::Result<Self> {
        for socket in &sockets {
            configure(socket)?;
        }
        let mut threads = Vec::with_capacity(sockets.len());
        for (number, socket) in sockets.into_iter().enumerate() {
            let (engine, stop) = (engine.clone(), stop.clone());
            let thread = thread::Builder::new().name(format!("udp-{number}"));
            threads.push(thread.spawn(move || keep_running(&socket, &engine, &stop))?);
        }
        Ok(Self { threads })
    }

    /// Waits until all threads have ended; blocks.
    pub fn join(self) {
        for thread in self.threads {
            // They catch their panics.
            let _ = thread.join();
        }
    }

    /// Waits until all threads have ended, without blocking the runtime that it is called on.
    pub async fn finished(self) {
        let _ = tokio::task::spawn_blocking(|| self.join()).await;
    }
}

/// Sets what the loop depends on.
fn configure(socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(RECEIVE_TIME))?;
    socket.set_write_timeout(Some(SEND_TIME))?;
    batch::configure(socket)
}

/// Runs until told to stop. A panic would be a bug, in what answers one datagram; losing a part of all
/// clients for good is too high a price for it. Its batch is.
fn keep_running(socket: &UdpSocket, engine: &Engine, stop: &CancellationToken) {
    let run = || Runner::new(socket, engine.worker(Proto::Udp)).run(stop);
    while panic::catch_unwind(AssertUnwindSafe(run)).is_err() {
        error!("a UDP worker panicked and starts anew; the queries that it was at are lost");
    }
}

/// One thread.
struct Runner<'a> {
    socket: &'a UdpSocket,
    worker: Worker,
    slots: Box<[Slot]>,
    /// How many datagrams to take at a time.
    batch_size: usize,
    replies: Vec<u8>,
    sender: ReplySender,
    /// When the last batch came.
    begun: Instant,
    /// Whether the last attempt to receive failed, so that a lasting failure is logged once.
    is_failing: bool,
    timestamps: TimestampSwitch,
    overload: Overload,
    /// Whether arrival times come with datagrams.
    is_stamped: bool,
}

impl<'a> Runner<'a> {
    fn new(socket: &'a UdpSocket, worker: Worker) -> Self {
        let slots = (0..BATCH).map(|_| Slot::default()).collect();
        Self {
            socket,
            worker,
            slots,
            batch_size: BATCH,
            replies: Vec::new(),
            sender: ReplySender::new(socket),
            begun: Instant::now(),
            is_failing: false,
            timestamps: TimestampSwitch::default(),
            overload: Overload::No(None),
            is_stamped: false,
        }
    }

    fn run(mut self, stop: &CancellationToken) {
        // Of a run that panicked.
        let _ = batch::set_timestamps(self.socket, false);
        let mut stop_check_at = self.begun;
        loop {
            let has_answered = self.serve_batch(Wait::ForOne);
            if !has_answered || self.begun >= stop_check_at {
                if stop.is_cancelled() {
                    break;
                }
                stop_check_at = self.begun + STOP_INTERVAL;
            }
        }
        for _ in 0..DRAIN_BATCHES {
            if !self.serve_batch(Wait::Never) {
                break;
            }
        }
    }

    /// Receives a batch and answers it; says whether there was one.
    fn serve_batch(&mut self, wait: Wait) -> bool {
        let slots = &mut self.slots[..self.batch_size];
        match batch::receive(self.socket, slots, wait, self.is_stamped) {
            Ok(received) => {
                self.is_failing = false;
                // To look for one more than there is, is work for the system: where queries come one by one, they are
                // taken one by one.
                self.batch_size = if received == self.batch_size { BATCH } else { received.max(1) };
                self.answer(received);
                true
            }
            Err(error) => {
                self.handle_failure(&error);
                false
            }
        }
    }

    fn answer(&mut self, received: usize) {
        let begun = Instant::now();
        self.begun = begun;
        let now = if self.is_stamped { SystemTime::now() } else { SystemTime::UNIX_EPOCH };
        let slots = &mut self.slots[..received];
        self.replies.clear();
        let (mut count, mut shed) = (0, 0);
        for slot in &mut *slots {
            if slot.waited(now).is_some_and(|waited| self.overload.sheds(waited, begun)) {
                slot.reply = 0..0;
                shed += 1;
                continue;
            }
            let begin = self.replies.len();
            // Nothing can be sent to port 0; who sends from there wants trouble.
            let handled = match slot.peer().filter(|peer| peer.port() != 0) {
                Some(peer) => self.worker.answer(slot.packet(), peer, &mut self.replies),
                None => Handled::Ignore,
            };
            match handled {
                Handled::Reply => count += 1,
                // Transfers are for streams.
                Handled::Ignore | Handled::Transfer(_) => self.replies.truncate(begin),
            }
            slot.reply = begin..self.replies.len();
        }
        if count > 0 {
            if let Some((lost, error)) = self.sender.send(self.socket, slots, &self.replies) {
                debug!(lost, %error, "replies not sent");
            }
            if self.worker.should_time() {
                self.worker.record_duration(count, begun.elapsed());
            }
        }
        if shed > 0 {
            self.worker.shed(shed);
        }
        let is_full = received == BATCH;
        if !is_full {
            self.overload.drained();
        }
        if let Some(are_wanted) = self.timestamps.note_batch(is_full, begun) {
            match batch::set_timestamps(self.socket, are_wanted) {
                Ok(()) => self.is_stamped = are_wanted,
                Err(error) => debug!(%error, "no arrival times; nothing is passed over"),
            }
        }
    }

    fn handle_failure(&mut self, error: &io::Error) {
        match error.raw_os_error() {
            // Nothing came.
            Some(libc::EAGAIN | libc::EINTR) => self.is_failing = false,
            // Some network answered an earlier reply with an ICMP error.
            Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EPROTO) => {}
            _ => {
                if !mem::replace(&mut self.is_failing, true) {
                    warn!(%error, "cannot receive UDP; trying on");
                }
                thread::sleep(FAILURE_PAUSE);
            }
        }
    }
}
