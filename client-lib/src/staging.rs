//! A pool of the machine's memory, to which payloads of GPUs are copied where no device reads them
//! in place.

use std::num::NonZeroUsize;
use std::sync::Arc;

use multinet_memory::{GpuError, GpuMemory};
use parking_lot::Mutex;

use crate::buffer::{Buffer, Pages};
use crate::frame::Frame;

/// Maximum size of the memory that the pool keeps, in bytes. Locking new memory takes long.
const MAX_KEPT: usize = 256 << 20;

/// The least size of a piece of memory, which frames of all smaller sizes share.
const MIN_SIZE: usize = 64 << 10;

/// Pool of locked host memory that frames' payloads are copied to from GPUs, kept for later frames.
#[derive(Debug, Default)]
pub(crate) struct StagingPool(Mutex<Vec<Arc<Pages>>>);

impl StagingPool {
    /// Copies all buffers of a frame to one payload in the machine's memory, if any of them is in a
    /// GPU.
    pub(crate) fn fetch(&self, frame: &mut Frame) -> Result<(), GpuError> {
        let Some(gpu) = frame.buffers().find_map(Buffer::gpu_memory) else { return Ok(()) };
        let length = frame.len();
        // Memory that is not locked is slower, but will do.
        let locked = self.take(gpu, length).map(|pages| Buffer::from_pages(pages, length));
        let mut host = locked.unwrap_or_else(|_| Buffer::host(length));
        // This is the only handle.
        if let Some(mut rest) = host.as_mut() {
            for buffer in frame.buffers() {
                let (to, behind) = rest.split_at_mut(buffer.len());
                match buffer.gpu_memory() {
                    Some(memory) => memory.read(0, to)?,
                    None => to.copy_from_slice(buffer.bytes()),
                }
                rest = behind;
            }
        }
        if let Some((pages, _)) = host.pages() {
            self.keep(pages);
        }
        frame.payload = host;
        frame.rest.clear();
        Ok(())
    }

    /// Takes memory of at least this length out of the pool, or allocates some.
    fn take(&self, gpu: &Arc<dyn GpuMemory>, length: usize) -> Result<Arc<Pages>, GpuError> {
        let mut pool = self.0.lock();
        let is_free = |pages: &mut Arc<Pages>| Arc::get_mut(pages).is_some();
        if let Some(place) = pool.iter_mut().position(|pages| is_free(pages) && pages.bytes().len() >= length)
        {
            return Ok(pool.swap_remove(place));
        }
        // Memory that is too small makes room for the new one.
        let too_small = pool.iter_mut().position(is_free).map(|place| pool.swap_remove(place));
        drop(pool);
        drop(too_small);
        let wanted = length.max(MIN_SIZE).next_power_of_two();
        let memory = gpu.gpu().host(NonZeroUsize::MIN.saturating_add(wanted - 1))?;
        if memory.length().get() < length {
            return Err(GpuError::new("the GPU gives less memory than was requested"));
        }
        Ok(Arc::new(memory.into()))
    }

    fn keep(&self, pages: &Arc<Pages>) {
        let mut pool = self.0.lock();
        let kept: usize = pool.iter().map(|pages| pages.bytes().len()).sum();
        if kept + pages.bytes().len() <= MAX_KEPT {
            pool.push(Arc::clone(pages));
        }
    }
}
