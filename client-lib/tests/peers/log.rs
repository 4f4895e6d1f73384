//! Capture of the library's log on the thread of a test.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use multinet_testing::logs::Logs;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

use crate::rig::{PATIENCE, at_most};

/// Captures the log of this thread, on which the test's whole runtime runs, until the guard is
/// dropped.
pub(crate) fn capture() -> (Logs, DefaultGuard) {
    Logs::capture(Level::DEBUG)
}

/// Makes the log of this thread panic at the first line with this text, until the guard is dropped.
pub(crate) fn trap(text: &'static str) -> DefaultGuard {
    let trap = Trap { text, has_sprung: Arc::default() };
    multinet_testing::logs::log_to(Level::DEBUG, move || trap.clone())
}

/// Waiting for lines of a log.
pub(crate) trait WaitFor {
    /// Waits for a line of this level that contains `part`.
    async fn wait_for(&self, level: &str, part: &str);
}

impl WaitFor for Logs {
    async fn wait_for(&self, level: &str, part: &str) {
        let heard = tokio::time::timeout(at_most(PATIENCE), async {
            while self.count(level, part) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(heard.await.is_ok(), "no {level} line with {part:?} in:\n{}", self.text());
    }
}

#[derive(Clone)]
struct Trap {
    text: &'static str,
    has_sprung: Arc<AtomicBool>,
}

impl io::Write for Trap {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_it = String::from_utf8_lossy(bytes).contains(self.text);
        assert!(!is_it || self.has_sprung.swap(true, Ordering::Relaxed), "the panic that the test expects");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
