//! Test kit of this workspace: certificates, logs, metrics, and with features a fake API server and
//! the programs that tests start.

#[cfg(feature = "fake-api")]
pub mod fake_api;
pub mod logs;
pub mod metrics;
pub mod pki;
#[cfg(feature = "programs")]
mod programs;
pub mod skip;

#[cfg(feature = "programs")]
pub use programs::*;
