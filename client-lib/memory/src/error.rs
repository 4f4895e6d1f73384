//! What can go wrong with a GPU.

use thiserror::Error;

/// Why a GPU did not do what it was asked for: one line, with the driver's own word for it and what to do.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct GpuError(String);

impl GpuError {
    /// For this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}
