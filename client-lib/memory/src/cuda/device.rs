//! A GPU as the driver describes it, and what that implies for exporting and flushing.
#![allow(unsafe_code, reason = "talks to CUDA")]

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUGPUDirectRDMAWritesOrdering, CUdevice, CUdevice_attribute, CUdeviceptr,
    CUflushGPUDirectRDMAWritesOptions,
};
use nix::unistd::{SysconfVar, sysconf};
use parking_lot::Mutex;

use super::context::Context;
use super::copy::Copier;
use super::failure;
use super::library::Library;
use crate::error::GpuError;

/// A GPU that is ready for use, with its primary context and the slots for copies.
pub(super) struct Device {
    pub(super) context: Arc<Context>,
    pub(super) ordinal: u32,
    pub(super) pci_address: String,
    pub(super) facts: Facts,
    // Created with the first copy, since each locks memory.
    up: Mutex<Option<Copier>>,
    down: Mutex<Option<Copier>>,
}

/// The driver's facts about a GPU; `None` for those that it is too old to know.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The CUDA version of the driver: 12020 stands for 12.2.
    pub(super) version: c_int,
    /// Whether the GPU exports memory: the attribute `DMA_BUF_SUPPORTED`.
    pub(super) dma_buf: Option<c_int>,
    /// The scope to which other devices' writes are ordered: `GPU_DIRECT_RDMA_WRITES_ORDERING`.
    pub(super) ordering: Option<c_int>,
    /// The ways to flush other devices' writes, as bits: `GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`.
    pub(super) flush: Option<c_int>,
    /// The page size of the machine, in bytes, to which exports are aligned.
    pub(super) page: u64,
}

/// How writes of other devices become visible to the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// The writes are visible without any call.
    Unneeded,
    /// The writes are visible after a call of `cuFlushGPUDirectRDMAWrites`.
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
        // SAFETY: both calls write at most the given length, with a zero byte at the end.
        let model = text("cuDeviceGetName", library, |start, length| unsafe {
            (library.cuDeviceGetName)(start, length, device)
        })?;
        // SAFETY: as above.
        let pci_address = text("cuDeviceGetPCIBusId", library, |start, length| unsafe {
            (library.cuDeviceGetPCIBusId)(start, length, device)
        })?
        // The spelling of the kernel.
        .to_ascii_lowercase();
        let facts = Facts::ask(library, device)?;
        let name = format!("{model} (gpu {ordinal}, {pci_address})");
        let context = Context::retain(library, device, name)?;
        Ok(Self { context, ordinal, pci_address, facts, up: Mutex::default(), down: Mutex::default() })
    }

    /// Copies bytes to the GPU.
    ///
    /// # Safety
    ///
    /// The destination has room for them, in memory of this GPU.
    pub(super) unsafe fn write(&self, to: CUdeviceptr, bytes: &[u8]) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        self.with(&self.up, |copier| unsafe { copier.write(to, bytes) })
    }

    /// Copies bytes from the GPU.
    ///
    /// # Safety
    ///
    /// The source has that many bytes, in memory of this GPU.
    pub(super) unsafe fn read(&self, from: CUdeviceptr, bytes: &mut [u8]) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        self.with(&self.down, |copier| unsafe { copier.read(from, bytes) })
    }

    fn with(
        &self,
        copier: &Mutex<Option<Copier>>,
        copy: impl FnOnce(&mut Copier) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let mut copier = copier.lock();
        match &mut *copier {
            Some(copier) => copy(copier),
            none => copy(none.insert(Copier::new(&self.context)?)),
        }
    }
}

/// Returns the text that a call of libcuda writes, up to 255 bytes.
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
            // SAFETY: `value` outlives the call, which fails if the driver does not know the
            // attribute.
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

    /// Returns the reason if memory of this GPU cannot be exported at all.
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

    /// Returns how writes of other devices become visible, or the reason if they cannot.
    pub(super) fn flush(&self) -> Result<Flush, String> {
        // A larger number is a larger scope. The GPU itself has to see the writes (CUDA Driver API,
        // `cuFlushGPUDirectRDMAWrites`).
        const OWNER: c_int = CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as c_int;
        const HOST: c_int =
            CUflushGPUDirectRDMAWritesOptions::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as c_int;
        if self.ordering.is_some_and(|ordering| ordering >= OWNER) {
            Ok(Flush::Unneeded)
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
    fn memory_is_exported_only_if_the_driver_supports_it() {
        /// Version, attribute; the expected reason, if it cannot be exported.
        type Case = (c_int, Option<c_int>, Option<&'static str>);
        let table: [Case; 6] = [
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
    fn a_flush_is_called_only_if_writes_need_it() {
        /// Ordering, options; `None` if the writes cannot become visible.
        type Case = (Option<c_int>, Option<c_int>, Option<Flush>);
        let table: [Case; 9] = [
            (Some(200), Some(0), Some(Flush::Unneeded)),
            (Some(100), Some(0), Some(Flush::Unneeded)),
            (Some(100), Some(3), Some(Flush::Unneeded)),
            (Some(0), Some(1), Some(Flush::Call)),
            (Some(0), Some(3), Some(Flush::Call)),
            // Only streams of the GPU can flush.
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
