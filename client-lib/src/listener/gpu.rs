//! Memory of a GPU for payloads that have come to the machine's: used when a program asks for one, and used again.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use multinet_memory::{Gpu, GpuError, GpuMemory, GpuSlice};

/// What is kept to be used again, at most. How much there is in all is bounded by the slots of all connections.
const POOL: usize = 32;

/// Payloads of all sizes up to this one use the same memory.
const LEAST: usize = 64 << 10;

pub(super) struct GpuSlots {
    gpu: Arc<dyn Gpu>,
    free: Mutex<Vec<Arc<dyn GpuMemory>>>,
}

/// Where a frame's payload is in a GPU, once somebody has asked.
pub(super) struct Uploaded {
    slots: Arc<GpuSlots>,
    payload: OnceLock<GpuSlice>,
}

impl GpuSlots {
    pub(super) fn new(gpu: Arc<dyn Gpu>) -> Self {
        Self { gpu, free: Mutex::default() }
    }

    fn take(&self, length: usize) -> Result<Arc<dyn GpuMemory>, GpuError> {
        let free = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let fitting = free.iter().position(|memory| memory.length() >= length);
            fitting.map(|place| free.swap_remove(place))
        };
        match free {
            Some(memory) => Ok(memory),
            // A payload is not longer than 4 GiB.
            None => {
                let length = length.max(LEAST).next_power_of_two();
                self.gpu.allocate(NonZeroUsize::MIN.saturating_add(length - 1))
            }
        }
    }

    fn give_back(&self, mut memory: Arc<dyn GpuMemory>) {
        if Arc::get_mut(&mut memory).is_none() {
            // Somebody has it still.
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < POOL {
            free.push(memory);
        }
    }
}

impl Uploaded {
    pub(super) fn new(slots: Arc<GpuSlots>) -> Self {
        Self { slots, payload: OnceLock::new() }
    }

    /// The payload in the GPU, copied there the first time.
    pub(super) fn payload(&self, payload: &[u8]) -> Result<&GpuSlice, GpuError> {
        if let Some(known) = self.payload.get() {
            return Ok(known);
        }
        let memory = self.slots.take(payload.len())?;
        memory.write(0, payload)?;
        let slice = GpuSlice::new(memory, 0..payload.len());
        let slice = slice.ok_or_else(|| GpuError::new("the GPU gives less memory than was asked for"))?;
        // Who comes second copies the same.
        Ok(self.payload.get_or_init(|| slice))
    }
}

impl Drop for Uploaded {
    fn drop(&mut self) {
        if let Some(payload) = self.payload.take() {
            self.slots.give_back(payload.into_memory());
        }
    }
}
