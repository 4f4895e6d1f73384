//! Memory for messages: the machine's, or a GPU's.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::Context as _;
#[cfg(feature = "devices")]
use multinet_client::Cuda;
use multinet_client::{Buffer, Gpu, Received};

/// Memory in which messages lie: the machine's, or that of the GPU of `--use_cuda`.
pub(super) struct Memory(Option<Arc<dyn Gpu>>);

impl Memory {
    /// Returns the memory of the GPU with this number, or else the machine's.
    pub(super) fn of(gpu: Option<u32>) -> anyhow::Result<Self> {
        let open = |number| open(number).with_context(|| format!("--use_cuda {number}"));
        gpu.map(open).transpose().map(Self)
    }

    pub(super) fn gpu(&self) -> Option<&Arc<dyn Gpu>> {
        self.0.as_ref()
    }

    /// Allocates a message of `size` bytes, which is sent again and again. They are not zeros:
    /// those would all be one page of the kernel's.
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

    /// Brings a received payload to this memory, if it is a GPU's; the machine's has it already.
    pub(super) fn receive(&self, received: &Received) -> anyhow::Result<()> {
        if self.0.is_some() {
            received.gpu()?;
        }
        Ok(())
    }
}

#[cfg(feature = "devices")]
fn open(number: u32) -> anyhow::Result<Arc<dyn Gpu>> {
    Ok(Cuda::device(number)?)
}

#[cfg(not(feature = "devices"))]
fn open(_number: u32) -> anyhow::Result<Arc<dyn Gpu>> {
    anyhow::bail!("this build of multinet has no CUDA: use the one that is not static")
}
