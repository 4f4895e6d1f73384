//! Lines on standard error, of every program: they hold up nobody, there is a bound to them, and text from outside
//! stays text.
//!
//! ```text
//!  events ──> few ──────────> fields, json ──> queue ──────────────> a thread ──> standard error
//!             as many as      escaped          a queue; what it has                may not be read
//!             people can read                  no room for is lost
//! ```
//!
//! - What nobody reads (a stalled container runtime, a stopped terminal) fills the queue, and then is lost and counted
//!   ([`dropped_unread`]). Only the thread waits.
//! - A line that peers can provoke is said some hundred times, and then once a second; what is left out is counted, too
//!   ([`dropped_repeated`]). [`UNLIMITED`] is for what people have asked for.
//! - Control characters and those that turn the direction of writing are escaped in all that an event says.
//!
//! tracing-appender's writer is not used: at the end of a program it reports a full queue on standard error itself, and so
//! waits for the reader that is not there.

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

/// How long a thread that panics waits for what it has said to be written.
const PANIC_FLUSH: Duration = Duration::from_millis(100);

/// Form of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people, with colours or without.
    Plain {
        /// Whether there are colours.
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
    // That a line cannot be written would be said on standard error, too.
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

/// Has panics logged as other errors are: the thread that panics would write to standard error itself, and wait.
pub fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("no message");
        // No filter hides that.
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
