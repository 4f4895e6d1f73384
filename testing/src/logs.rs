//! Log lines of this process, caught for a test on its own thread.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use tracing::Level;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// Log of the test so far.
#[derive(Clone, Debug, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    /// Catches what is logged on this thread at `level` or above, until the guard is dropped.
    pub fn capture(level: Level) -> (Self, DefaultGuard) {
        let logs = Self::default();
        let writer = logs.clone();
        (logs, log_to(level, move || writer.clone()))
    }

    /// Everything so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.lock()).into_owned()
    }

    /// Everything since the last call.
    pub fn take(&self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut *self.lock())).into_owned()
    }

    /// The lines that contain `text`.
    pub fn with(&self, text: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// How many lines of `level` contain `text`.
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

/// Has what is logged on this thread at `level` or above written to `writer`, until the guard is dropped.
pub fn log_to(level: Level, writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static) -> DefaultGuard {
    // Else whether a line is made at all would depend on the subscribers that other tests come and go with.
    static ALL: Once = Once::new();
    ALL.call_once(|| drop(tracing::subscriber::set_global_default(tracing_subscriber::registry())));
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(level).with_writer(writer);
    tracing::subscriber::set_default(subscriber.finish())
}
