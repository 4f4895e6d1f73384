//! DNS over UDP: each worker is a thread with a socket of its own, and receives and sends datagrams
//! in batches.
//!
//! ```text
//!            ┌──────── Slot × 32 ────────┐
//!  recvmmsg ─┤ packet, peer, control     ├─> Worker::answer ─> one buffer of replies
//!  sendmmsg <┤ peer, control, reply range├<─ grouped for GSO ───┘
//!            └───────────────────────────┘
//! ```
//!
//! Under load, one pair of system calls moves up to 32 queries and their replies. Replies of one
//! size to one client go out as one message that the kernel cuts up (`udp/gso.rs`). When queries
//! are rare, each is answered as soon as it arrives. All buffers are made once, so answering a
//! query allocates nothing. A worker that is told to stop still answers the queries that have
//! already arrived. A worker that receives more than it can answer drops the oldest queries
//! (`udp/overload.rs`).
//!
//! The kernel chooses the socket by a hash of both addresses and ports, so that queries from one
//! client port always reach the same worker.
//!
//! This file holds the threads. The system calls and their unsafe code are in `udp/batch.rs` and
//! `udp/send.rs`; control messages are in `udp/control.rs`.

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

use crate::answer::proto::Proto;
use crate::limits::udp::{FAILURE_PAUSE, SEND_TIME};
use crate::net::engine::{Engine, Handled, Worker};

/// Longest sleep of a worker to which no datagram comes. This is also how late it may notice that
/// it should stop.
const RECEIVE_TIME: Duration = Duration::from_millis(100);

/// How often a busy worker checks whether it should stop. Checking takes a lock, so it does not
/// happen per batch.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Number of datagrams that one system call receives or sends at most.
const BATCH: usize = 32;

/// Largest number of batches that are still answered after a stop. A receive buffer of 4 MiB holds
/// no more datagrams.
const DRAIN_BATCHES: usize = 512;

/// Threads that answer UDP queries at one address, each with a socket of its own.
#[derive(Debug)]
pub struct UdpListener {
    threads: Vec<JoinHandle<()>>,
}

impl UdpListener {
    /// Starts one thread for each of `sockets`. The threads answer until `stop` is cancelled.
    ///
    /// # Errors
    ///
    /// If the system has no more threads, or refuses a socket option that replies depend on.
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

    /// Blocks until all threads of the listener have ended.
    pub fn join(self) {
        for thread in self.threads {
            // The threads catch panics themselves.
            let _ = thread.join();
        }
    }

    /// Waits until all threads have ended, without blocking the runtime that polls the future.
    pub async fn finished(self) {
        let _ = tokio::task::spawn_blocking(|| self.join()).await;
    }
}

/// Sets the socket options that a [`Runner`] depends on: timeouts, and the replies' addresses.
fn configure(socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(RECEIVE_TIME))?;
    socket.set_write_timeout(Some(SEND_TIME))?;
    batch::configure(socket)
}

/// Runs a worker until it is told to stop, and restarts it after a panic. Losing one batch is
/// better than losing every client that the kernel hashes to this socket.
fn keep_running(socket: &UdpSocket, engine: &Engine, stop: &CancellationToken) {
    let run = || Runner::new(socket, engine.worker(Proto::Udp)).run(stop);
    while panic::catch_unwind(AssertUnwindSafe(run)).is_err() {
        error!("a UDP worker panicked and is restarted; the queries of its batch are lost");
    }
}

/// State of one worker thread: its socket, its buffers, and the batch in progress.
struct Runner<'a> {
    socket: &'a UdpSocket,
    worker: Worker,
    slots: Box<[Slot]>,
    /// Number of datagrams that the next receiving call asks for.
    batch_size: usize,
    replies: Vec<u8>,
    sender: ReplySender,
    /// When the current batch was received.
    begun: Instant,
    /// Whether the last attempt to receive failed, so that a lasting failure is logged once.
    is_failing: bool,
    timestamps: TimestampSwitch,
    overload: Overload,
    /// Whether the kernel was asked to deliver arrival times with datagrams.
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
        // Clears the option that a run before a panic may have set.
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

    /// Receives one batch of datagrams and answers it. Returns whether any datagram came.
    fn serve_batch(&mut self, wait: Wait) -> bool {
        let slots = &mut self.slots[..self.batch_size];
        match batch::receive(self.socket, slots, wait, self.is_stamped) {
            Ok(received) => {
                self.is_failing = false;
                // Asking for more datagrams than there are costs the kernel a search. When queries
                // come one by one, the worker asks for one at a time.
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
            // Port 0 cannot be sent to. A packet from it is forged or broken.
            let handled = match slot.peer().filter(|peer| peer.port() != 0) {
                Some(peer) => self.worker.answer(slot.packet(), peer, &mut self.replies),
                None => Handled::Ignore,
            };
            match handled {
                Handled::Reply => count += 1,
                // The engine sends transfers over streams only.
                Handled::Ignore | Handled::Transfer(_) => self.replies.truncate(begin),
            }
            slot.reply = begin..self.replies.len();
        }
        if count > 0 {
            if let Some((lost, error)) = self.sender.send(self.socket, slots, &self.replies) {
                debug!(lost, %error, "could not send replies");
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
                Err(error) => {
                    debug!(%error, "cannot get arrival times; late queries are not dropped under overload");
                }
            }
        }
    }

    fn handle_failure(&mut self, error: &io::Error) {
        match error.raw_os_error() {
            // No datagram came in time.
            Some(libc::EAGAIN | libc::EINTR) => self.is_failing = false,
            // A host or router answered an earlier reply with an ICMP error.
            Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EPROTO) => {}
            _ => {
                if !mem::replace(&mut self.is_failing, true) {
                    warn!(%error, "cannot receive on the UDP socket; retrying");
                }
                thread::sleep(FAILURE_PAUSE);
            }
        }
    }
}
