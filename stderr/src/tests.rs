use std::io::{self, Write};
use std::sync::mpsc;
use std::time::Duration;

use multinet_testing::logs::Logs;
use tracing::subscriber::with_default;
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;

/// Longer than a busy machine may keep a thread waiting.
const LONG: Duration = Duration::from_secs(60);

/// Stream whose writes block, each until a message arrives on `permits` or its sender is dropped.
struct Unread {
    permits: mpsc::Receiver<()>,
    written: Logs,
}

impl Write for Unread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.permits.recv();
        self.written.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn lines_beyond_the_queue_are_dropped_and_counted_and_never_block() {
    let (read, permits) = mpsc::channel();
    let written = Logs::default();
    let queue = LineQueue::to(Unread { permits, written: written.clone() }, 100);
    // The queue holds ten of these. The thread may have taken up to ten more.
    for _ in 0..1000 {
        queue.write(b"ten octets");
    }
    let dropped = queue.dropped();
    assert!((980..=990).contains(&dropped), "{dropped}");
    queue.flush(Duration::from_millis(1));
    drop(read);
    queue.flush(LONG);
    assert_eq!(written.text().len() as u64, 10 * (1000 - dropped));
    queue.write(b"more");
    queue.flush(LONG);
    assert!(written.text().ends_with("more"));
    assert_eq!(queue.dropped(), dropped);
}

const FOREIGN: &str =
    "name\n2026-11-21T09:00:00Z ERROR forged\r\x1b[2J\u{9b}1m\u{7f}\u{202e}\u{200f}\u{2028}";

#[derive(Debug, thiserror::Error)]
#[error("{FOREIGN}")]
struct Foreign;

/// Returns the log lines of a program that escapes nothing itself.
fn logged(format: Format) -> String {
    let lines = Logs::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::registry().with(layer(format, move || writer.clone()));
    with_default(subscriber, || {
        let span = tracing::warn_span!("span", inside = %FOREIGN).entered();
        tracing::warn!(object = %FOREIGN, text = FOREIGN, debug = ?FOREIGN, error = &Foreign as &dyn std::error::Error, "{FOREIGN}");
        drop(span);
    });
    lines.take()
}

#[test]
fn text_from_outside_stays_in_its_line_and_steers_no_terminal() {
    for format in [Format::Plain { colours: false }, Format::Json] {
        let line = logged(format);
        let line = line.strip_suffix('\n').unwrap();
        assert!(!line.contains(escape::needs_escape), "{line:?}");
        assert!(line.contains("forged"), "{line:?}");
    }
    // The program's own colours remain.
    let line = logged(Format::Plain { colours: true });
    assert!(line.contains("\x1b[33m WARN\x1b[0m") && !line.contains("\x1b[2J"), "{line:?}");
    assert!(!line.trim_end().replace('\x1b', "").contains(escape::needs_escape), "{line:?}");
}

#[test]
fn json_fields_decode_to_the_original_text() {
    let line: serde_json::Value = serde_json::from_str(&logged(Format::Json)).unwrap();
    for field in ["message", "object", "text"] {
        assert_eq!(line[field], FOREIGN, "{field}");
    }
}

#[test]
fn repeated_lines_are_dropped_unless_they_are_debug_or_unlimited() {
    let lines = Logs::default();
    let writer = lines.clone();
    let format = Format::Plain { colours: false };
    let subscriber = tracing_subscriber::registry().with(layer(format, move || writer.clone()));
    let before = dropped_repeated();
    with_default(subscriber, || {
        for _ in 0..1000 {
            tracing::warn!("provoked");
            tracing::info!(name: UNLIMITED, "wanted");
            tracing::debug!("in detail");
        }
    });
    let provoked = lines.with("provoked").len();
    assert!((200..400).contains(&provoked), "{provoked}");
    assert_eq!((lines.with("wanted").len(), lines.with("in detail").len()), (1000, 1000));
    assert_eq!(dropped_repeated() - before, 1000 - provoked as u64);
}
