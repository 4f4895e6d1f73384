//! Whether a device can reach a GPU's memory, before there is any: by dma-buf, or by a kernel module (peermem) that tells RDMA what a GPU's
//! addresses are.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::ffi::c_int;
use std::io;
use std::path::Path;
use std::ptr::NonNull;

use rdma_sys::ibv_access_flags;

use crate::error::{Call, Error};
use crate::library::bits;
use crate::memory::ProtectionDomain;

/// A file descriptor that is none.
const NONE: c_int = -1;

/// What is asked for, in bytes. The kernel refuses less than a page before it looks at the file descriptor.
const SIZE: usize = 4096;

/// What there is when a module is loaded that lets devices reach the memory of NVIDIA's GPUs, and the module. The last one is of the kernel's list
/// of all such modules (MLNX_OFED), which does not name this one.
const PEERMEM: [(&str, &str); 3] = [
    ("module/nvidia_peermem/version", "nvidia_peermem"),
    ("module/nv_peer_mem/version", "nv_peer_mem"),
    ("kernel/mm/memory_peers/nv_mem/version", "nv_mem"),
];

/// The loaded kernel module by which `ibv_reg_mr` takes addresses of an NVIDIA GPU; `None` if there is none, or `/sys` is not to be seen.
pub fn peermem() -> Option<&'static str> {
    peermem_in(Path::new("/sys"))
}

fn peermem_in(sys: &Path) -> Option<&'static str> {
    PEERMEM.into_iter().find(|(file, _)| sys.join(file).exists()).map(|(_, module)| module)
}

impl ProtectionDomain {
    /// Whether the device's driver, in the kernel and in libibverbs, can register a dma-buf. That a certain one can be registered is not said.
    ///
    /// `false`, too, where libibverbs is older than that ([`Library::has_dma_buf`](crate::Library::has_dma_buf)).
    ///
    /// # Errors
    ///
    /// [`Error`], if the kernel says neither.
    pub fn supports_dma_buf(&self) -> Result<bool, Error> {
        let library = self.context().library();
        let Some(register) = library.reg_dmabuf_mr else {
            return Ok(false);
        };
        let access = bits(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0);
        // SAFETY: the domain is there; the kernel looks the file descriptor up, and there is none.
        let raw = unsafe { register(self.raw(), 0, SIZE, 0, NONE, access) };
        let error = io::Error::last_os_error();
        if let Some(raw) = NonNull::new(raw) {
            // SAFETY: as it was given, once. Nothing uses it.
            let _ = unsafe { (library.dereg_mr)(raw.as_ptr()) };
            return Ok(true);
        }
        match error.raw_os_error() {
            // That it got so far as to look is what was to be known.
            Some(libc::EBADF) => Ok(true),
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => Ok(false),
            errno => Err(Error::returned(Call::DmaBuf, self.context().name(), errno.unwrap_or(0))),
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
