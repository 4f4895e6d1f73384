//! Fixtures of the cross-crate tests.

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
