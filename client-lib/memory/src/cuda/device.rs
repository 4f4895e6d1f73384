//! What is known of a GPU, and what follows from it.
#![allow(unsafe_code, reason = "talks to CUDA")]

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    CUGPUDirectRDMAWritesOrdering, CUdevice, CUdevice_attribute, CUdeviceptr,
    CUflushGPUDirectRDMAWritesOptions,
};
use nix::unistd::{SysconfVar, sysconf};

use super::context::Context;
use super::copy::Lane;
use super::failure;
use super::library::Library;
use crate::error::GpuError;

/// A GPU, ready to be used.
pub(super) struct Device {
    pub(super) context: Arc<Context>,
    pub(super) ordinal: u32,
    pub(super) pci_address: String,
    pub(super) facts: Facts,
    // Only where frames are copied: each locks memory.
    up: Mutex<Option<Lane>>,
    down: Mutex<Option<Lane>>,
}

/// What the driver says of a GPU. `None` if it is too old to know.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// 12020 stands for 12.2.
    pub(super) version: c_int,
    /// `DMA_BUF_SUPPORTED`
    pub(super) dma_buf: Option<c_int>,
    /// `GPU_DIRECT_RDMA_WRITES_ORDERING`
    pub(super) ordering: Option<c_int>,
    /// `GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`
    pub(super) flush: Option<c_int>,
    /// The size of the machine's pages, in bytes.
    pub(super) page: u64,
}

/// What brings other devices' writes to the GPU's sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// Nothing has to.
    Needless,
    /// A call.
    Call,
}

impl Device {
    pub(super) fn open(library: &'static Library, ordinal: u32) -> Result<Self, GpuError> {
        let count = library.count()?;
        let number = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(number) = number else {
            return Err(GpuError::new(format!(
                "there is no gpu {ordinal}: this process sees {count}, and counts from 0 (CUDA_VISIBLE_DEVICES says which)"
            )));
        };
        let mut device: CUdevice = 0;
        // SAFETY: `device` outlives the call.
        library.check("cuDeviceGet", unsafe { (library.cuDeviceGet)(&raw mut device, number) })?;
        // SAFETY: both write no more than the length that they are given, and a zero byte at its end.
        let model = text("cuDeviceGetName", library, |start, length| unsafe {
            (library.cuDeviceGetName)(start, length, device)
        })?;
        // SAFETY: as above.
        let pci_address = text("cuDeviceGetPCIBusId", library, |start, length| unsafe {
            (library.cuDeviceGetPCIBusId)(start, length, device)
        })?
        // As the kernel writes it.
        .to_ascii_lowercase();
        let facts = Facts::ask(library, device)?;
        let name = format!("{model} (gpu {ordinal}, {pci_address})");
        let context = Context::retain(library, device, name)?;
        Ok(Self { context, ordinal, pci_address, facts, up: Mutex::default(), down: Mutex::default() })
    }

    /// Copies bytes to it.
    ///
    /// # Safety
    ///
    /// There is room for them at that address, in memory of this GPU.
    pub(super) unsafe fn write(&self, to: CUdeviceptr, bytes: &[u8]) -> Result<(), GpuError> {
        // SAFETY: as was promised.
        self.with(&self.up, |lane| unsafe { lane.write(to, bytes) })
    }

    /// Copies bytes from it.
    ///
    /// # Safety
    ///
    /// There are that many at that address, in memory of this GPU.
    pub(super) unsafe fn read(&self, from: CUdeviceptr, bytes: &mut [u8]) -> Result<(), GpuError> {
        // SAFETY: as was promised.
        self.with(&self.down, |lane| unsafe { lane.read(from, bytes) })
    }

    fn with(
        &self,
        lane: &Mutex<Option<Lane>>,
        copy: impl FnOnce(&mut Lane) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        // A lane is idle whenever it is given back.
        let mut lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *lane {
            Some(lane) => copy(lane),
            none => copy(none.insert(Lane::new(&self.context)?)),
        }
    }
}

/// A text that a call writes.
fn text(
    call: &str,
    library: &Library,
    write: impl FnOnce(*mut c_char, c_int) -> u32,
) -> Result<String, GpuError> {
    let mut bytes = [0_u8; 256];
    library.check(call, write(bytes.as_mut_ptr().cast(), 256))?;
    Ok(CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned())
}

impl Facts {
    fn ask(library: &Library, device: CUdevice) -> Result<Self, GpuError> {
        let ask = |attribute| {
            let mut value = 0;
            // SAFETY: `value` outlives the call. A driver that does not know the attribute says so.
            let code = unsafe { (library.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
            (code == failure::SUCCESS).then_some(value)
        };
        Ok(Self {
            version: library.version()?,
            dma_buf: ask(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
            ordering: ask(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
            flush: ask(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
            page: sysconf(SysconfVar::PAGE_SIZE)
                .ok()
                .flatten()
                .and_then(|size| u64::try_from(size).ok())
                .ok_or_else(|| GpuError::new("the kernel does not tell the size of its pages"))?,
        })
    }

    /// Whether its memory can be exported at all; if not, why.
    pub(super) fn exports(&self) -> Result<(), String> {
        let old = || {
            let (major, minor) = (self.version / 1000, self.version % 1000 / 10);
            format!(
                "its driver, for CUDA {major}.{minor}, does not export memory: install one for CUDA 11.7 or newer (515)"
            )
        };
        match self.dma_buf {
            _ if self.version < 11070 => Err(old()),
            None => Err(old()),
            Some(1) => Ok(()),
            Some(_) => Err("its driver does not export memory (DMA_BUF_SUPPORTED is 0): probably the kernel's modules are of the proprietary \
                 flavour, where the open one (nvidia-open) and Linux 5.12 or newer are needed"
                .to_owned()),
        }
    }

    /// What has to be done when other devices have written to its memory; if it cannot be done, why.
    pub(super) fn flush(&self) -> Result<Flush, String> {
        // Scopes have numbers, the larger one for more; it is the GPU itself that is to see them (CUDA Driver API, `cuFlushGPUDirectRDMAWrites`).
        const OWNER: c_int = CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as c_int;
        const HOST: c_int =
            CUflushGPUDirectRDMAWritesOptions::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as c_int;
        if self.ordering.is_some_and(|ordering| ordering >= OWNER) {
            Ok(Flush::Needless)
        } else if self.flush.is_some_and(|options| options & HOST != 0) {
            Ok(Flush::Call)
        } else {
            Err("it does not see other devices' writes in order, and the processor cannot make it (GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS): \
                 frames have to come by staging"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_driver_that_says_so_exports() {
        /// Version, attribute; what is said where it does not.
        type Row = (c_int, Option<c_int>, Option<&'static str>);
        let table: [Row; 6] = [
            (12020, Some(1), None),
            (11070, Some(1), None),
            (12020, Some(0), Some("proprietary")),
            (12020, None, Some("CUDA 12.2")),
            (11040, None, Some("CUDA 11.4, does not export")),
            (11040, Some(1), Some("CUDA 11.4")),
        ];
        for (version, dma_buf, expected) in table {
            let exports = Facts { version, dma_buf, ..Facts::default() }.exports();
            match expected {
                None => assert_eq!(exports, Ok(())),
                Some(words) => {
                    assert!(exports.as_ref().is_err_and(|reason| reason.contains(words)), "{exports:?}");
                }
            }
        }
    }

    #[test]
    fn a_flush_is_called_only_where_it_does_something() {
        /// Ordering, options; `None` if it cannot be done.
        type Row = (Option<c_int>, Option<c_int>, Option<Flush>);
        let table: [Row; 9] = [
            (Some(200), Some(0), Some(Flush::Needless)),
            (Some(100), Some(0), Some(Flush::Needless)),
            (Some(100), Some(3), Some(Flush::Needless)),
            (Some(0), Some(1), Some(Flush::Call)),
            (Some(0), Some(3), Some(Flush::Call)),
            // By the GPU's own streams only.
            (Some(0), Some(2), None),
            (Some(0), Some(0), None),
            (None, Some(1), Some(Flush::Call)),
            (None, None, None),
        ];
        for (ordering, flush, expected) in table {
            let outcome = Facts { ordering, flush, ..Facts::default() }.flush();
            assert_eq!(outcome.clone().ok(), expected);
            assert!(outcome.is_ok() || outcome.is_err_and(|reason| reason.contains("staging")));
        }
    }
}
