//! The errors of GPUs.

use thiserror::Error;

/// The failure of a GPU, as one line: the driver's own name for it, and the remedy.
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
    /// Makes an error with this message.
    ///
    /// ```
    /// use multinet_memory::GpuError;
    ///
    /// // For implementations of Gpu: the name of the driver's error, and the remedy.
    /// let error = GpuError::new("ENOMEM: 3 of 80 GiB are free; nvidia-smi lists the users");
    /// assert!(error.to_string().starts_with("ENOMEM: "));
    /// ```
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}
