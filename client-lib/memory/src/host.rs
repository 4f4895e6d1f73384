//! The machine's memory, of a program's own making.
#![allow(unsafe_code, reason = "memory by its address")]

use std::any::Any;
use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// Memory of this machine that belongs to something else, which is kept as long as this is.
pub struct HostMemory {
    start: NonNull<u8>,
    length: NonZeroUsize,
    // Only held.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: who makes it promises that nobody else reaches the bytes, and the owner may be passed on.
unsafe impl Send for HostMemory {}
// SAFETY: shared handles only read.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Memory that a program has by other means: mapped, or from another library.
    ///
    /// # Safety
    ///
    /// All bytes are initialized and may be read and written; until the owner is dropped they stay where they are, and nobody else reads or writes
    /// them, the owner included.
    pub unsafe fn new(start: NonNull<u8>, length: NonZeroUsize, owner: impl Any + Send + Sync) -> Self {
        Self { start, length, _owner: Box::new(owner) }
    }

    /// Where it begins.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length in bytes.
    pub fn length(&self) -> NonZeroUsize {
        self.length
    }

    /// What is in it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: initialized, in its place, and written to through `bytes_mut` only, as was promised.
        unsafe { NonNull::slice_from_raw_parts(self.start, self.length.get()).as_ref() }
    }

    /// The same, to be written to.
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
    fn the_owner_stays_as_long_as_the_memory() {
        let mut bytes = vec![7_u8; 3];
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        let owner = Arc::new(bytes);
        // SAFETY: the vector is the owner, and is not touched again.
        let mut memory = unsafe { HostMemory::new(start, NonZeroUsize::new(3).unwrap(), Arc::clone(&owner)) };
        memory.bytes_mut()[1] = 8;
        assert_eq!(memory.bytes(), [7, 8, 7]);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(memory);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
