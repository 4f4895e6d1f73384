//! A queue in front of a stream that may not be read: who writes to it never waits.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use crate::{TerminalSafe, rate_limit};

/// Octets that may wait. The thread has as many in its hands.
const CAPACITY: usize = 1 << 20;

/// LineWriter for a stream, which a thread writes. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct LineQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    capacity: usize,
    queue: Mutex<Queue>,
    /// Something has come, for the thread; or all has been written.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<u8>,
    /// Whether the thread is at what it has taken.
    is_writing: bool,
    /// LineWriter that there was no room for; and how many of them have not been told of.
    dropped: u64,
    unreported: u64,
}

/// Returns the queue of the process' standard error.
pub fn stderr() -> LineQueue {
    static STDERR: OnceLock<LineQueue> = OnceLock::new();
    let queue = STDERR.get_or_init(|| match io::stderr().as_fd().try_clone_to_owned() {
        // The standard library's own handle is locked while it writes, and others who want it would wait.
        Ok(fd) => LineQueue::to(File::from(fd), CAPACITY),
        Err(_) => LineQueue::to(io::stderr(), CAPACITY),
    });
    queue.clone()
}

/// Says a line on standard error that is no event of a log, such as why a program cannot start.
pub fn write_line(line: &str) {
    stderr().write(format!("{}\n", TerminalSafe(line)).as_bytes());
}

/// Waits until all that was said has been written, for at most so long.
pub fn flush(within: Duration) {
    stderr().flush(within);
}

/// Returns how many lines were lost because standard error was not read.
pub fn dropped_unread() -> u64 {
    stderr().0.queue().dropped
}

impl LineQueue {
    /// A queue to `stream`, with room for so many octets that wait. Its thread ends with the process.
    pub(crate) fn to(mut stream: impl Write + Send + 'static, capacity: usize) -> Self {
        let queue = Self(Arc::new(Shared { capacity, queue: Mutex::default(), changed: Condvar::new() }));
        let source = queue.clone();
        let thread = thread::Builder::new().name("stderr".to_owned());
        let thread = thread.spawn(move || {
            let mut taken = Vec::new();
            loop {
                let lost = source.take(&mut taken);
                if stream.write_all(&taken).and_then(|()| stream.flush()).is_err() {
                    source.0.queue().dropped += taken.iter().filter(|&&octet| octet == b'\n').count() as u64;
                }
                if lost > 0 {
                    tracing::warn!(lost, "lines were lost, for standard error was not read in time");
                }
                rate_limit::report_dropped();
            }
        });
        // A process without room for a thread gets no further, and has nothing to say for long.
        drop(thread);
        queue
    }

    /// Waits for something to write, and returns how many lines have been lost.
    fn take(&self, taken: &mut Vec<u8>) -> u64 {
        let mut queue = self.0.queue();
        queue.is_writing = false;
        while queue.waiting.is_empty() {
            self.0.changed.notify_all();
            queue = self.0.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.is_writing = true;
        taken.clear();
        std::mem::swap(taken, &mut queue.waiting);
        std::mem::take(&mut queue.unreported)
    }

    /// Takes whole lines, or none of them if there is no room.
    pub(crate) fn write(&self, lines: &[u8]) {
        let mut queue = self.0.queue();
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
        // Late or not, the caller goes on.
        drop(self.0.changed.wait_timeout_while(self.0.queue(), within, is_busy));
    }

    #[cfg(test)]
    pub(crate) fn dropped(&self) -> u64 {
        self.0.queue().dropped
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // What is held is whole at every moment.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'w> MakeWriter<'w> for LineQueue {
    type Writer = LineWriter;

    fn make_writer(&'w self) -> LineWriter {
        LineWriter(self.clone())
    }
}

/// Writes to a queue what comes at one time.
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
