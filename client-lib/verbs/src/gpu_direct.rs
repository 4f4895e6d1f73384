//! The prerequisites of GPUDirect RDMA, which can be checked without memory of a GPU: the
//! registration of dma-bufs, and the kernel module (peermem) that resolves addresses of GPUs for
//! RDMA.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::ffi::c_int;
use std::io;
use std::path::Path;
use std::ptr::NonNull;

use rdma_sys::ibv_access_flags;

use crate::error::{Call, Error};
use crate::library::bits;
use crate::memory::ProtectionDomain;

/// An invalid file descriptor, for the trial registration of a dma-buf.
const NONE: c_int = -1;

/// The length of the trial registration in bytes. The kernel refuses less than a page before it
/// looks at the file descriptor.
const SIZE: usize = 4096;

/// The files that exist while a peermem module for NVIDIA GPUs is loaded, and its name. The last
/// file is in the kernel's own list of such modules (MLNX_OFED).
const PEERMEM: [(&str, &str); 3] = [
    ("module/nvidia_peermem/version", "nvidia_peermem"),
    ("module/nv_peer_mem/version", "nv_peer_mem"),
    ("kernel/mm/memory_peers/nv_mem/version", "nv_mem"),
];

/// Returns the loaded kernel module by which `ibv_reg_mr` accepts addresses of an NVIDIA GPU. It is
/// `None` if there is none, or if `/sys` is not mounted.
pub fn peermem() -> Option<&'static str> {
    peermem_in(Path::new("/sys"))
}

fn peermem_in(sys: &Path) -> Option<&'static str> {
    PEERMEM.into_iter().find(|(file, _)| sys.join(file).exists()).map(|(_, module)| module)
}

impl ProtectionDomain {
    /// Returns whether the device can register dma-bufs, by its drivers in the kernel and in
    /// libibverbs. A particular dma-buf may still be refused.
    ///
    /// Returns `false` where libibverbs is too old
    /// ([`Library::has_dma_buf`](crate::Library::has_dma_buf)).
    ///
    /// # Errors
    ///
    /// [`Error`], if the kernel's answer is neither.
    pub fn supports_dma_buf(&self) -> Result<bool, Error> {
        let library = self.context().library();
        let Some(register) = library.reg_dmabuf_mr else {
            return Ok(false);
        };
        let access = bits(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0);
        // SAFETY: the domain is alive. The kernel looks up the file descriptor, which is invalid.
        let raw = unsafe { register(self.raw(), 0, SIZE, 0, NONE, access) };
        let error = io::Error::last_os_error();
        if let Some(raw) = NonNull::new(raw) {
            // SAFETY: the registration was just made, and nothing uses it.
            let _ = unsafe { (library.dereg_mr)(raw.as_ptr()) };
            return Ok(true);
        }
        match error.raw_os_error() {
            // The kernel has looked up the file descriptor, so the driver supports the call.
            Some(libc::EBADF) => Ok(true),
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => Ok(false),
            errno => Err(Error::returned(Call::DMA_BUF, self.context().name(), errno.unwrap_or(0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_loaded_module_is_named() -> io::Result<()> {
        for (file, module) in PEERMEM {
            let sys = tempfile::tempdir()?;
            assert_eq!(peermem_in(sys.path()), None);
            let file = sys.path().join(file);
            fs::create_dir_all(file.parent().unwrap_or_else(|| sys.path()))?;
            fs::write(file, "535.104.05\n")?;
            assert_eq!(peermem_in(sys.path()), Some(module));
        }
        Ok(())
    }
}
