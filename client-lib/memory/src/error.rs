//! What can go wrong with a GPU.

use thiserror::Error;

/// Why a GPU did not do what it was asked for: one line, with the driver's own word for it and what to do.
///
/// # Examples
///
/// ```no_run
/// # fn example(gpu: &dyn multinet_memory::Gpu) -> Result<(), Box<dyn std::error::Error>> {
/// use std::num::NonZeroUsize;
///
/// match gpu.allocate(NonZeroUsize::new(1 << 30).ok_or("no length")?) {
///     Ok(memory) => println!("{:#x}", memory.address()),
///     Err(error) => println!("in the machine's memory instead: {error}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct GpuError(String);

impl GpuError {
    /// For this reason.
    ///
    /// ```
    /// use multinet_memory::GpuError;
    ///
    /// // For whoever implements Gpu: the driver's own word, and what to do.
    /// let error = GpuError::new("ENOMEM: 3 of 80 GiB are free; stop who has the rest (nvidia-smi says who)");
    /// assert!(error.to_string().starts_with("ENOMEM: "));
    /// ```
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}
