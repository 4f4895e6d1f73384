//! Runtime that multinet's servers share: logs, watches, leader election, readiness, admin
//! endpoints, and shutdown.
//!
//! ```text
//!                  API server                                    operator, kubelet, Prometheus
//!                      │                                                  │
//!           ┌──────────┴──────────┐  events, errors                 ┌─────┴─────┐
//!           │ watch, one per kind │ ──────> metrics ──────────────> │   Admin   │
//!           └──────────┬──────────┘                                 └─────┬─────┘
//!                      │        └─ ReadyGuard ─> Readiness ───────────────┤
//!  apply, delete,      v                            ^                     │ debug state
//!  reset, commit    Index ── the binary's own ──────┼─────────────────────┤
//!                                                   │                     │ log filter
//!  SIGTERM ──> drain::on_signal ── not ready ───────┘     log::init ──────┘
//!                      └── lameduck ──> CancellationToken ──> everything ends
//! ```
//!
//! A binary puts the parts together in this order:
//!
//! 1. [`Program::run`], which sets up logs, signals, readiness and the registry of metrics. Every
//!    task takes the program's token. Cancelling it is the only way to stop a task.
//! 2. [`Readiness::register`] for every watch and listener, before the first of them starts.
//! 3. [`client::connect`] and a watch per kind ([`Watches`]). Each feeds an [`Index`], which is the
//!    binary's own code. An index sees neither streams nor errors, so that tests call it directly.
//! 4. [`Program::serve_admin`], early: operators look most at a process that is not ready yet.
//! 5. [`lease::elect`], where only one of several processes may write. Each writer asks its
//!    [`Leadership`] before it writes.
//! 6. [`Program::run_until`], which waits for the end.
//!
//! # Rules of all parts
//!
//! - A failed operation is retried with a pause. State from before the failure stays in use.
//! - A problem is logged once, in one line that says what to do, and its end is logged once.
//!   Metrics count how often it occurred.
//! - Text from outside goes through [`TerminalSafe`] before it becomes part of a line.
//! - All limits are in one file, `limits.rs`, with their reasons. None has a flag, because no user
//!   should have to tune them.

#![forbid(unsafe_code)]

pub mod client;
pub mod command_line;
pub mod drain;
pub mod lease;
pub mod log;
pub mod watch;

mod admin;
mod connection_limit;
mod exposition;
mod guarded;
mod hangups;
mod index;
mod limits;
mod metrics;
mod process;
mod program;
mod random;
mod ready;
mod watches;
mod wildcard;

pub use self::admin::{Admin, Page, page};
pub use self::connection_limit::{ConnectionCloser, ConnectionLimit, ConnectionSlot, network_of};
pub use self::guarded::{Guarded, Undecodable};
pub use self::hangups::Hangups;
pub use self::index::{Index, ObjectKey};
pub use self::lease::{Leadership, LeaseConfig, LeaseMetrics, lease};
pub use self::log::{LogArgs, LogFormat, LogLevel};
pub use self::metrics::{METRICS_PREFIX, WatchMetrics, register_process_metrics};
pub use self::program::{Program, ProgramArgs, ProgramSettings};
pub use self::random::{random_fraction, random_number};
pub use self::ready::{Readiness, ReadyGuard};
pub use self::watch::{Refresh, WatchConfig, watch};
pub use self::watches::Watches;
pub use self::wildcard::ipv4_fallback;
pub use multinet_stderr::{TerminalSafe, UNLIMITED};
