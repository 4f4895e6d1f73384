//! Memory in a build without the feature `rdma`, which is never registered with a device.

use std::sync::Arc;

use multinet_memory::{GpuMemory, HostMemory};

#[derive(Debug)]
pub(crate) struct Pages(HostMemory);

impl Pages {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

impl From<HostMemory> for Pages {
    fn from(memory: HostMemory) -> Self {
        Self(memory)
    }
}

#[derive(Debug)]
pub(crate) struct GpuPages(Arc<dyn GpuMemory>);

impl GpuPages {
    pub(crate) fn new(memory: Arc<dyn GpuMemory>) -> Self {
        Self(memory)
    }

    pub(crate) fn memory(&self) -> &Arc<dyn GpuMemory> {
        &self.0
    }
}
