//! Capture of log lines, per test thread.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use tracing::Level;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// Log of a test so far. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    /// Captures the log of this thread at `level` or above, until the guard is dropped.
    pub fn capture(level: Level) -> (Self, DefaultGuard) {
        let logs = Self::default();
        let writer = logs.clone();
        (logs, log_to(level, move || writer.clone()))
    }

    /// Returns the whole log.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.lock()).into_owned()
    }

    /// Returns and removes the log since the last call.
    pub fn take(&self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut *self.lock())).into_owned()
    }

    /// Returns the lines that contain `text`.
    pub fn with(&self, text: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// Returns the number of lines of `level` that contain `text`.
    pub fn count(&self, level: &str, text: &str) -> usize {
        self.with(text).iter().filter(|line| line.contains(level)).count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the log of this thread at `level` or above to `writer`, until the guard is dropped.
pub fn log_to(level: Level, writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static) -> DefaultGuard {
    // Whether a call site is enabled is cached for all threads. Without a global subscriber that
    // enables everything, the subscriber of another test might disable this test's events.
    static ALL: Once = Once::new();
    ALL.call_once(|| drop(tracing::subscriber::set_global_default(tracing_subscriber::registry())));
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(level).with_writer(writer);
    tracing::subscriber::set_default(subscriber.finish())
}
