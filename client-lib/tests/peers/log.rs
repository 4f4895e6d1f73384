//! What the library logs, caught for a test on its own thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use multinet_testing::logs::Logs;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

use crate::rig::{PATIENCE, at_most};

/// Catches what is logged on this thread, which is all of a test's runtime, until the guard is dropped.
pub(crate) fn capture() -> (Logs, DefaultGuard) {
    Logs::capture(Level::DEBUG)
}

/// Panics at the first line with this text that is logged on this thread, until the guard is dropped.
pub(crate) fn trap(text: &'static str) -> DefaultGuard {
    let trap = Trap { text, has_sprung: Arc::default() };
    multinet_testing::logs::log_to(Level::DEBUG, move || trap.clone())
}

pub(crate) trait Says {
    /// Waits for a line of this level with this text.
    async fn says(&self, level: &str, part: &str);
}

impl Says for Logs {
    async fn says(&self, level: &str, part: &str) {
        let heard = tokio::time::timeout(at_most(PATIENCE), async {
            while self.count(level, part) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(heard.await.is_ok(), "no line of {level} with {part:?} in:\n{}", self.text());
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
        assert!(!is_it || self.has_sprung.swap(true, Ordering::Relaxed), "a log panics, as it should");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
