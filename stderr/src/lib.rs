//! Log lines on standard error, for every program. Writing one never blocks, their number is
//! bounded, and text from outside cannot forge a line or steer a terminal.
//!
//! ```text
//!  events ──> rate_limit ────> fields, json ──> queue ──────────────> a thread ──> standard error
//!             a bounded rate  escaped          a bounded queue; lines              may not be read
//!             per call site                    that do not fit are dropped
//! ```
//!
//! - While standard error is not read (a stalled container runtime, a stopped terminal), lines fill
//!   the queue. Further lines are dropped and counted ([`dropped_unread`]). Only the thread blocks.
//! - A call site may log 200 lines at once, then one a second, because a peer might provoke its
//!   line. Further lines are dropped and counted ([`dropped_repeated`]). Events named [`UNLIMITED`]
//!   are exempt.
//! - Control characters and Unicode direction marks are escaped in every field of an event.
//!
//! The writer of the crate tracing-appender does not do: when a program ends, it reports a full
//! queue on standard error itself, and so blocks on the reader that is not there.

#![forbid(unsafe_code)]

mod escape;
mod fields;
mod filter;
mod queue;
mod rate_limit;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic;
use std::time::Duration;

use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::registry::LookupSpan;

pub use escape::TerminalSafe;
pub use filter::filter;
pub use queue::{LineQueue, dropped_unread, flush, stderr, write_line};
pub use rate_limit::{UNLIMITED, dropped_repeated};

/// Longest time that a panicking thread waits for its message to be written.
const PANIC_FLUSH: Duration = Duration::from_millis(100);

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One line of text per event, for people.
    Plain {
        /// Whether to colour the text with terminal escape sequences.
        colours: bool,
    },
    /// One JSON object per line.
    Json,
}

/// Returns a layer that writes events to `writer`, which in programs is [`stderr`].
pub fn layer<S, W>(format: Format, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // tracing would report a failed write on standard error as well, and block there.
    let lines = tracing_subscriber::fmt::layer().log_internal_errors(false);
    let lines: Box<dyn Layer<S> + Send + Sync> = match format {
        Format::Plain { colours } => {
            lines.with_ansi(colours).fmt_fields(fields::Plain).with_writer(writer).boxed()
        }
        Format::Json => {
            lines.json().flatten_event(true).with_span_list(false).with_writer(fields::Json(writer)).boxed()
        }
    };
    lines.with_filter(rate_limit::RateLimit::default()).boxed()
}

/// Installs a panic hook that logs panics as errors. The default hook writes to standard error
/// itself, and blocks if it is not read.
pub fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("no message");
        // A filter must not hide a panic.
        if tracing::enabled!(tracing::Level::ERROR) {
            tracing::error!(thread, place, "panicked: {message}");
        } else {
            write_line(&format!("the thread {thread} panicked at {place}: {message}"));
        }
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            trace.to_string().lines().for_each(write_line);
        }
        flush(PANIC_FLUSH);
    }));
}

#[cfg(test)]
mod tests;
