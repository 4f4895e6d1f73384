//! A bounded queue in front of a stream whose reader may stall. Writers never block.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

use crate::{TerminalSafe, rate_limit};

/// Capacity of the queue, in bytes. The writing thread may hold as many again.
const CAPACITY: usize = 1 << 20;

/// Queue of lines for a stream, with a thread that writes them. Clones share the queue.
#[derive(Clone, Debug)]
pub struct LineQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    capacity: usize,
    queue: Mutex<Queue>,
    /// Wakes the thread when a line is queued, and callers of `flush` when the queue is empty. Both
    /// check the queue again after waking, so one condition variable does for the two.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<u8>,
    /// Whether the writing thread is writing the bytes that it took last.
    is_writing: bool,
    /// Number of lines dropped since the process started, for lack of space or a failed write.
    dropped: u64,
    /// Number of lines dropped since the last warning about dropped lines.
    unreported: u64,
}

/// Returns the queue in front of this process' standard error.
pub fn stderr() -> LineQueue {
    static STDERR: OnceLock<LineQueue> = OnceLock::new();
    let queue = STDERR.get_or_init(|| match io::stderr().as_fd().try_clone_to_owned() {
        // A write through io::stderr() holds its lock, and other users of that handle would block.
        Ok(fd) => LineQueue::to(File::from(fd), CAPACITY),
        Err(_) => LineQueue::to(io::stderr(), CAPACITY),
    });
    queue.clone()
}

/// Writes a line to standard error that is not a log event, such as why a program cannot start.
pub fn write_line(line: &str) {
    stderr().write(format!("{}\n", TerminalSafe(line)).as_bytes());
}

/// Waits until all queued lines have been written to standard error, for at most `within`.
pub fn flush(within: Duration) {
    stderr().flush(within);
}

/// Returns how many lines were dropped because standard error was not read in time.
pub fn dropped_unread() -> u64 {
    stderr().0.queue.lock().dropped
}

impl LineQueue {
    /// Creates a queue of `capacity` bytes in front of `stream`. Its thread ends with the process.
    pub(crate) fn to(mut stream: impl Write + Send + 'static, capacity: usize) -> Self {
        let queue = Self(Arc::new(Shared { capacity, queue: Mutex::default(), changed: Condvar::new() }));
        let source = queue.clone();
        let thread = thread::Builder::new().name("stderr".to_owned());
        let thread = thread.spawn(move || {
            let mut taken = Vec::new();
            loop {
                let lines = source.take(&mut taken);
                if stream.write_all(&taken).and_then(|()| stream.flush()).is_err() {
                    source.0.queue.lock().dropped +=
                        taken.iter().filter(|&&byte| byte == b'\n').count() as u64;
                }
                if lines > 0 {
                    tracing::warn!(lines, "dropped log lines: standard error was not read in time");
                }
                rate_limit::report_dropped();
            }
        });
        // If the thread cannot be spawned, lines are queued and then dropped. A process that cannot
        // spawn one thread will not get far anyway.
        drop(thread);
        queue
    }

    /// Waits for bytes to write and moves them to `taken`. Returns how many lines were dropped
    /// since the last call.
    fn take(&self, taken: &mut Vec<u8>) -> u64 {
        let mut queue = self.0.queue.lock();
        queue.is_writing = false;
        while queue.waiting.is_empty() {
            self.0.changed.notify_all();
            self.0.changed.wait(&mut queue);
        }
        queue.is_writing = true;
        taken.clear();
        std::mem::swap(taken, &mut queue.waiting);
        std::mem::take(&mut queue.unreported)
    }

    /// Queues whole lines, or drops all of them if they do not fit.
    pub(crate) fn write(&self, lines: &[u8]) {
        let mut queue = self.0.queue.lock();
        if queue.waiting.len() + lines.len() > self.0.capacity {
            queue.dropped += 1;
            queue.unreported += 1;
            return;
        }
        queue.waiting.extend_from_slice(lines);
        drop(queue);
        self.0.changed.notify_all();
    }

    pub(crate) fn flush(&self, within: Duration) {
        let is_busy = |queue: &mut Queue| queue.is_writing || !queue.waiting.is_empty();
        // A timeout is no error: the caller goes on either way.
        self.0.changed.wait_while_for(&mut self.0.queue.lock(), is_busy, within);
    }

    #[cfg(test)]
    pub(crate) fn dropped(&self) -> u64 {
        self.0.queue.lock().dropped
    }
}

impl<'w> MakeWriter<'w> for LineQueue {
    type Writer = LineWriter;

    fn make_writer(&'w self) -> LineWriter {
        LineWriter(self.clone())
    }
}

/// Writer that queues the lines of each call of `write` as a whole.
#[derive(Debug)]
pub struct LineWriter(LineQueue);

impl Write for LineWriter {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.0.write(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
