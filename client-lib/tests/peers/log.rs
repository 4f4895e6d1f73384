//! What the library logs, caught for a test on its own thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use tracing::Level;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

use crate::rig::{PATIENCE, at_most};

/// The lines so far.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

#[derive(Clone)]
struct Trap {
    text: &'static str,
    has_sprung: Arc<AtomicBool>,
}

/// Catches what is logged on this thread, which is all of a test's runtime, until the guard is dropped.
pub(crate) fn capture() -> (Log, DefaultGuard) {
    let log = Log::default();
    (log.clone(), log_to(log))
}

/// Panics at the first line with this text that is logged on this thread, until the guard is dropped.
pub(crate) fn trap(text: &'static str) -> DefaultGuard {
    let trap = Trap { text, has_sprung: Arc::default() };
    log_to(move || trap.clone())
}

fn log_to(writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static) -> DefaultGuard {
    // Else whether a line or its span is made at all would depend on the subscribers that other tests come and go with.
    static ALL: Once = Once::new();
    ALL.call_once(|| drop(tracing::subscriber::set_global_default(tracing_subscriber::registry())));
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_max_level(Level::DEBUG).with_writer(writer);
    tracing::subscriber::set_default(subscriber.finish())
}

impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines that have a text.
    pub(crate) fn lines(&self, part: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }

    /// Waits for a line of this level with this text.
    pub(crate) async fn says(&self, level: &str, part: &str) {
        let heard = tokio::time::timeout(at_most(PATIENCE), async {
            while !self.lines(part).iter().any(|line| line.contains(level)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(heard.await.is_ok(), "no line of {level} with {part:?} in:\n{}", self.text());
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
