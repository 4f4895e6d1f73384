//! Memory of the machine that a program or a driver owns.
#![allow(unsafe_code, reason = "memory by its address")]

use std::any::Any;
use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// Memory of this machine that belongs to an owner, which is kept as long as this value.
///
/// # Examples
///
/// ```no_run
/// # fn example(gpu: &dyn multinet_memory::Gpu) -> Result<(), Box<dyn std::error::Error>> {
/// use std::num::NonZeroUsize;
///
/// // Locked, so that the GPU copies from it fastest.
/// let mut memory = gpu.host(NonZeroUsize::new(4096).ok_or("no length")?)?;
/// memory.bytes_mut().fill(7);
/// # Ok(())
/// # }
/// ```
pub struct HostMemory {
    start: NonNull<u8>,
    length: NonZeroUsize,
    // Held, since it owns the memory.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the caller of `new` promised that nothing else accesses the bytes, and the owner is
// `Send`.
unsafe impl Send for HostMemory {}
// SAFETY: shared handles only read.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Wraps memory that a program has by other means, such as a mapping or another library.
    ///
    /// ```
    /// use std::num::NonZeroUsize;
    /// use std::ptr::NonNull;
    ///
    /// use multinet_memory::HostMemory;
    ///
    /// let mut bytes = vec![7_u8; 4096]; // for example memory that a camera's driver has mapped
    /// let start = NonNull::new(bytes.as_mut_ptr()).ok_or("no memory")?;
    /// let length = NonZeroUsize::new(bytes.len()).ok_or("no bytes")?;
    /// // SAFETY: the vector keeps the bytes where they are, and is not touched any more.
    /// let memory = unsafe { HostMemory::new(start, length, bytes) };
    /// assert_eq!(memory.bytes(), [7; 4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// All bytes are initialized, and may be read and written. Until the owner is dropped they stay
    /// where they are, and nothing else reads or writes them, not even the owner.
    pub unsafe fn new(start: NonNull<u8>, length: NonZeroUsize, owner: impl Any + Send + Sync) -> Self {
        Self { start, length, _owner: Box::new(owner) }
    }

    /// Returns the address of the first byte.
    ///
    /// ```no_run
    /// # fn example(
    /// #     memory: &multinet_memory::HostMemory,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // For a library in C, as long as `memory` is there.
    /// let (start, length) = (memory.start().as_ptr(), memory.length().get());
    /// println!("{length} bytes at {start:p}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes.
    ///
    /// ```no_run
    /// # fn example(
    /// #     gpu: &dyn multinet_memory::Gpu,
    /// #     memory: &multinet_memory::HostMemory,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // As much of the GPU's.
    /// let there = gpu.allocate(memory.length())?;
    /// there.write(0, memory.bytes())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn length(&self) -> NonZeroUsize {
        self.length
    }

    /// Returns the bytes.
    ///
    /// ```no_run
    /// # fn example(
    /// #     memory: &multinet_memory::HostMemory,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let zeros = memory.bytes().iter().filter(|byte| **byte == 0).count();
    /// println!("{zeros} of {} bytes are zero", memory.length());
    /// # Ok(())
    /// # }
    /// ```
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: initialized, in place, and only written to through `bytes_mut`, as the caller of
        // `new` promised.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.length.get()).as_ref() }
    }

    /// Returns the bytes for writing.
    ///
    /// ```no_run
    /// # fn example(
    /// #     gpu: &dyn multinet_memory::Gpu,
    /// #     length: std::num::NonZeroUsize,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::fs::File;
    /// use std::io::Read as _;
    ///
    /// let mut memory = gpu.host(length)?;
    /// File::open("/data/weights")?.read_exact(memory.bytes_mut())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this is the only handle.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.length.get()).as_mut() }
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.length)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_owner_is_dropped_with_the_memory() {
        let mut bytes = vec![7_u8; 3];
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        let owner = Arc::new(bytes);
        // SAFETY: the vector is the owner, and is not used again.
        let mut memory = unsafe { HostMemory::new(start, NonZeroUsize::new(3).unwrap(), Arc::clone(&owner)) };
        memory.bytes_mut()[1] = 8;
        assert_eq!(memory.bytes(), [7, 8, 7]);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(memory);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
