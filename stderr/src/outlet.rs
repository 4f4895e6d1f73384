//! A queue in front of a stream that may not be read: who writes to it never waits.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use crate::{Escaped, few};

/// Octets that may wait. The thread has as many in its hands.
const ROOM: usize = 1 << 20;

/// Lines for a stream, which a thread writes. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct Outlet(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    room: usize,
    queue: Mutex<Queue>,
    /// Something has come, for the thread; or all has been written.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<u8>,
    /// Whether the thread is at what it has taken.
    is_writing: bool,
    /// Lines that there was no room for; and how many of them have not been told of.
    lost: u64,
    untold: u64,
}

/// Returns the outlet of the process' standard error.
pub fn stderr() -> Outlet {
    static STDERR: OnceLock<Outlet> = OnceLock::new();
    let outlet = STDERR.get_or_init(|| match io::stderr().as_fd().try_clone_to_owned() {
        // The standard library's own handle is locked while it writes, and others who want it would wait.
        Ok(fd) => Outlet::to(File::from(fd), ROOM),
        Err(_) => Outlet::to(io::stderr(), ROOM),
    });
    outlet.clone()
}

/// Says a line on standard error that is no event of a log, such as why a program cannot start.
pub fn say(line: &str) {
    stderr().write(format!("{}\n", Escaped(line)).as_bytes());
}

/// Waits until all that was said has been written, for at most so long.
pub fn flush(within: Duration) {
    stderr().flush(within);
}

/// Returns how many lines were lost because standard error was not read.
pub fn lost() -> u64 {
    stderr().0.queue().lost
}

impl Outlet {
    /// An outlet to `stream`, with room for so many octets that wait. Its thread ends with the process.
    pub(crate) fn to(mut stream: impl Write + Send + 'static, room: usize) -> Self {
        let outlet = Self(Arc::new(Shared { room, queue: Mutex::default(), changed: Condvar::new() }));
        let source = outlet.clone();
        let thread = thread::Builder::new().name("stderr".to_owned());
        let thread = thread.spawn(move || {
            let mut taken = Vec::new();
            loop {
                let lost = source.take(&mut taken);
                if stream.write_all(&taken).and_then(|()| stream.flush()).is_err() {
                    source.0.queue().lost += taken.iter().filter(|&&octet| octet == b'\n').count() as u64;
                }
                if lost > 0 {
                    tracing::warn!(lost, "lines were lost, for standard error was not read in time");
                }
                few::tell();
            }
        });
        // A process without room for a thread gets no further, and has nothing to say for long.
        drop(thread);
        outlet
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
        std::mem::take(&mut queue.untold)
    }

    /// Takes whole lines, or none of them if there is no room.
    pub(crate) fn write(&self, lines: &[u8]) {
        let mut queue = self.0.queue();
        if queue.waiting.len() + lines.len() > self.0.room {
            queue.lost += 1;
            queue.untold += 1;
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
    pub(crate) fn lost(&self) -> u64 {
        self.0.queue().lost
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // What is held is whole at every moment.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'w> MakeWriter<'w> for Outlet {
    type Writer = Lines;

    fn make_writer(&'w self) -> Lines {
        Lines(self.clone())
    }
}

/// Writes to an outlet what comes at one time.
#[derive(Debug)]
pub struct Lines(Outlet);

impl Write for Lines {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.0.write(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
