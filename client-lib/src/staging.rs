//! The machine's memory that a GPU's payloads are copied to, to be sent from, where no device reads them where they lie.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use multinet_memory::{GpuError, GpuMemory};

use crate::buffer::{Buffer, Pages};
use crate::frame::Frame;

/// So many bytes are kept to be used again, at most. To lock memory takes long.
const POOL: usize = 256 << 20;

/// Frames of all sizes up to this one use the same memory.
const LEAST: usize = 64 << 10;

/// Locked memory, used again and again.
#[derive(Debug, Default)]
pub(crate) struct Staging(Mutex<Vec<Arc<Pages>>>);

impl Staging {
    /// Copies what a frame has in GPUs to the machine. It is one payload then, without a seam.
    pub(crate) fn fetch(&self, frame: &mut Frame) -> Result<(), GpuError> {
        let Some(gpu) = frame.buffers().find_map(Buffer::gpu_memory) else { return Ok(()) };
        let length = frame.len();
        // Memory that is not locked is slower, and does.
        let locked = self.take(gpu, length).map(|pages| Buffer::of_pages(pages, length));
        let mut host = locked.unwrap_or_else(|_| Buffer::host(length));
        // Nobody else has a handle.
        if let Some(mut rest) = host.as_mut() {
            for buffer in frame.buffers() {
                let (place, behind) = rest.split_at_mut(buffer.len());
                match buffer.gpu_memory() {
                    Some(memory) => memory.read(0, place)?,
                    None => place.copy_from_slice(buffer.bytes()),
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

    /// Memory that nobody uses, of that length or more.
    fn take(&self, gpu: &Arc<dyn GpuMemory>, length: usize) -> Result<Arc<Pages>, GpuError> {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |pages: &mut Arc<Pages>| Arc::get_mut(pages).is_some();
        if let Some(place) = pool.iter_mut().position(|pages| is_free(pages) && pages.bytes().len() >= length)
        {
            return Ok(pool.swap_remove(place));
        }
        // Room for the new one: what is too small goes first.
        let too_small = pool.iter_mut().position(is_free).map(|place| pool.swap_remove(place));
        drop(pool);
        drop(too_small);
        let wanted = length.max(LEAST).next_power_of_two();
        let memory = gpu.gpu().host(NonZeroUsize::MIN.saturating_add(wanted - 1))?;
        if memory.length().get() < length {
            return Err(GpuError::new("the GPU gives less memory than was asked for"));
        }
        Ok(Arc::new(memory.into()))
    }

    fn keep(&self, pages: &Arc<Pages>) {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept: usize = pool.iter().map(|pages| pages.bytes().len()).sum();
        if kept + pages.bytes().len() <= POOL {
            pool.push(Arc::clone(pages));
        }
    }
}
