//! Where messages lie: in the machine's memory, or in a GPU's.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::Context as _;
use multinet_client::{Buffer, Cuda, Gpu, Received};

/// A kind of memory.
pub(super) struct Memory(Option<Arc<dyn Gpu>>);

impl Memory {
    /// The machine's, or that of the GPU with this number.
    pub(super) fn of(gpu: Option<u32>) -> anyhow::Result<Self> {
        let open = |number| -> anyhow::Result<Arc<dyn Gpu>> {
            let gpu = Cuda::device(number).with_context(|| format!("--use_cuda {number}"))?;
            Ok(gpu)
        };
        gpu.map(open).transpose().map(Self)
    }

    pub(super) fn gpu(&self) -> Option<&Arc<dyn Gpu>> {
        self.0.as_ref()
    }

    /// So many bytes, to be sent again and again. Not zeros: those would all be one page of memory, that of the kernel.
    pub(super) fn message(&self, size: usize) -> anyhow::Result<Buffer> {
        let Some((gpu, length)) = self.0.as_ref().zip(NonZeroUsize::new(size)) else {
            let mut message = Buffer::host(size);
            if let Some(bytes) = message.as_mut() {
                bytes.fill(0xa5);
            }
            return Ok(message);
        };
        let message = Buffer::gpu(&**gpu, length)?;
        if let Some(memory) = message.gpu_memory() {
            memory.write(0, &vec![0xa5; size])?;
        }
        Ok(message)
    }

    /// Has what has come where it is wanted.
    pub(super) fn take(&self, received: &Received) -> anyhow::Result<()> {
        if self.0.is_some() {
            received.gpu()?;
        }
        Ok(())
    }
}
