//! Copies payloads from the machine's memory to a GPU, when the program asks for one. The GPU's
//! memory is used again.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use multinet_memory::{Gpu, GpuError, GpuMemory, GpuSlice};
use parking_lot::Mutex;

/// Most pieces of memory that are kept to be used again. The total is bounded by the slots of all
/// connections.
const POOL: usize = 32;

/// Smallest piece of memory. Payloads up to this size use the same pieces.
const LEAST: usize = 64 << 10;

/// Pieces of GPU memory to which payloads are copied from the machine's memory, used again.
pub(super) struct UploadPool {
    gpu: Arc<dyn Gpu>,
    free: Mutex<Vec<Arc<dyn GpuMemory>>>,
}

/// Copy of a frame's payload in a GPU, made when it is first asked for.
pub(super) struct Upload {
    pool: Arc<UploadPool>,
    payload: OnceLock<GpuSlice>,
}

impl UploadPool {
    pub(super) fn new(gpu: Arc<dyn Gpu>) -> Self {
        Self { gpu, free: Mutex::default() }
    }

    fn take(&self, length: usize) -> Result<Arc<dyn GpuMemory>, GpuError> {
        let free = {
            let mut free = self.free.lock();
            let fitting = free.iter().position(|memory| memory.length() >= length);
            fitting.map(|place| free.swap_remove(place))
        };
        match free {
            Some(memory) => Ok(memory),
            None => {
                // Does not overflow, as payloads are at most 4 GiB long.
                let length = length.max(LEAST).next_power_of_two();
                self.gpu.allocate(NonZeroUsize::MIN.saturating_add(length - 1))
            }
        }
    }

    fn give_back(&self, mut memory: Arc<dyn GpuMemory>) {
        if Arc::get_mut(&mut memory).is_none() {
            // The program still uses it.
            return;
        }
        let mut free = self.free.lock();
        if free.len() < POOL {
            free.push(memory);
        }
    }
}

impl Upload {
    pub(super) fn new(pool: Arc<UploadPool>) -> Self {
        Self { pool, payload: OnceLock::new() }
    }

    /// Returns the payload in the GPU, and copies it there the first time.
    pub(super) fn payload(&self, payload: &[u8]) -> Result<&GpuSlice, GpuError> {
        if let Some(known) = self.payload.get() {
            return Ok(known);
        }
        let memory = self.pool.take(payload.len())?;
        memory.write(0, payload)?;
        let slice = GpuSlice::new(memory, 0..payload.len());
        let slice = slice.ok_or_else(|| GpuError::new("the GPU gives less memory than was asked for"))?;
        // Another thread may have been faster. Its copy is the same.
        Ok(self.payload.get_or_init(|| slice))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(payload) = self.payload.take() {
            self.pool.give_back(payload.into_memory());
        }
    }
}
