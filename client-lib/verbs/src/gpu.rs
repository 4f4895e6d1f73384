//! Memory of GPUs that a device reads and writes in place (GPUDirect RDMA).
#![allow(unsafe_code, reason = "talks to verbs")]

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use multinet_memory::{DmaBuf, GpuError, GpuMemory, Method};
use parking_lot::Mutex;
use rdma_sys::{ibv_access_flags, ibv_mr, ibv_sge};
use thiserror::Error;

use crate::error::{Call, Error};
use crate::library::bits;
use crate::memory::registrations::{Registrations, drop_in_background};
use crate::memory::{ProtectionDomain, RemoteAddress, register, relaxed};

/// Why an RDMA device cannot reach a GPU's memory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GpuAccessError {
    /// The GPU refused to share the memory, or its driver cannot.
    #[error("{0}")]
    Gpu(#[from] GpuError),
    /// The RDMA device, or its driver, refused to register the memory.
    #[error("{call}{}", hint_of(call))]
    Call {
        /// The failed call of verbs.
        #[from]
        call: Error,
    },
    /// No device reaches the memory by this method, which is [`Method::Staging`].
    #[error("no RDMA device reaches a GPU's memory by {0}")]
    Method(Method),
}

impl GpuAccessError {
    /// Returns whether the device is gone, which is no fault of the memory.
    pub fn is_device_gone(&self) -> bool {
        let Self::Call { call } = self else { return false };
        matches!(call.errno(), Some(libc::EIO | libc::ENXIO | libc::ENODEV))
    }
}

fn hint_of(call: &Error) -> String {
    call.hint().map(|hint| format!("; {hint}")).unwrap_or_default()
}

/// Memory of a GPU to send from without a copy. [`Pages`](crate::Pages) is the same for memory of
/// the process.
#[derive(Debug)]
pub struct GpuPages(ManuallyDrop<GpuPagesParts>);

#[derive(Debug)]
struct GpuPagesParts {
    // Dropped before the memory is freed.
    registrations: Registrations,
    memory: Arc<dyn GpuMemory>,
    refused: Mutex<Refusal>,
}

/// Whether registrations of the memory are still tried after one has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Refusal {
    #[default]
    No,
    /// Not before this time, since a resource was exhausted. A caller that sends many frames should
    /// not wait for the failure of each.
    Until(Instant),
    Forever,
}

/// The time after which a registration is tried again when a resource was exhausted.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(10);

impl Refusal {
    /// Returns how long a registration is not tried again after this failure.
    pub(crate) fn by(error: &GpuAccessError, now: Instant) -> Self {
        match error {
            GpuAccessError::Call { call } if call.is_out_of_resources() => Self::Until(now + RETRY_AFTER),
            error if error.is_device_gone() => Self::No,
            _ => Self::Forever,
        }
    }

    pub(crate) fn holds(self, clock: impl FnOnce() -> Instant) -> bool {
        match self {
            Self::No => false,
            Self::Until(then) => clock() < then,
            Self::Forever => true,
        }
    }
}

impl GpuPages {
    /// Wraps memory of a GPU, which is registered when it is first sent from.
    pub fn new(memory: Arc<dyn GpuMemory>) -> Self {
        let refused = Mutex::default();
        Self(ManuallyDrop::new(GpuPagesParts { registrations: Registrations::default(), memory, refused }))
    }

    /// Returns the GPU memory behind this handle.
    pub fn memory(&self) -> &Arc<dyn GpuMemory> {
        &self.0.memory
    }

    /// Registers the memory under a domain by this method, if it is not registered yet.
    ///
    /// # Errors
    ///
    /// [`GpuAccessError`]. The memory [is refused](Self::is_refused) from then on, unless the
    /// device is gone; only for a while, if a resource was exhausted.
    pub fn register(&self, domain: &ProtectionDomain, method: Method) -> Result<(), GpuAccessError> {
        // No access flags: devices only read the memory.
        let registered =
            self.0.registrations.ensure(domain, || register_gpu(domain, &*self.0.memory, method, 0));
        registered.inspect_err(|error| {
            let mut refused = self.0.refused.lock();
            // Another device may have refused it forever in the meantime.
            if *refused != Refusal::Forever {
                *refused = Refusal::by(error, Instant::now());
            }
        })
    }

    /// Returns whether the memory is registered under this protection domain.
    pub fn is_registered(&self, domain: &ProtectionDomain) -> bool {
        self.0.registrations.has(domain)
    }

    /// Returns whether a registration has failed before, even if it may be tried again.
    pub fn has_been_refused(&self) -> bool {
        *self.0.refused.lock() != Refusal::No
    }

    /// Returns whether the memory should not be registered: it never can be, which is typical for
    /// memory of a pool, or it could not be lately.
    pub fn is_refused(&self) -> bool {
        let refused = *self.0.refused.lock();
        refused.holds(Instant::now)
    }

    /// Returns a range as a scatter/gather entry. The memory has to be registered under the domain.
    pub(crate) fn sge(&self, domain: &ProtectionDomain, range: &Range<usize>) -> Result<ibv_sge, Error> {
        let place = (self.0.memory.address(), self.0.memory.length());
        self.0.registrations.sge(domain, place, range)
    }
}

impl Drop for GpuPages {
    fn drop(&mut self) {
        // SAFETY: the parts are not used after this.
        let parts = unsafe { ManuallyDrop::take(&mut self.0) };
        // The GPU may finish all its work before it frees memory.
        drop_in_background(parts);
    }
}

/// Memory of a GPU that one peer writes to, once it has been told the key.
/// [`ReceiveBuffer`](crate::ReceiveBuffer) is the same for memory of the process.
#[derive(Clone, Debug)]
pub struct GpuReceiveBuffer(Arc<GpuBufferInner>);

#[derive(Debug)]
struct GpuBufferInner {
    raw: NonNull<ibv_mr>,
    // Freed after the registration has ended.
    memory: Arc<dyn GpuMemory>,
    domain: ProtectionDomain,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for GpuBufferInner {}
// SAFETY: as above.
unsafe impl Sync for GpuBufferInner {}

impl ProtectionDomain {
    /// Registers memory of a GPU for a peer to write to.
    ///
    /// # Errors
    ///
    /// [`GpuAccessError`], if the device cannot reach the memory by this method.
    pub fn gpu_receive_buffer(
        &self,
        memory: Arc<dyn GpuMemory>,
        method: Method,
    ) -> Result<GpuReceiveBuffer, GpuAccessError> {
        // Remote write requires local write (InfiniBand Architecture, 10.6.6.2).
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let raw = register_gpu(self, &*memory, method, access.0)?;
        Ok(GpuReceiveBuffer(Arc::new(GpuBufferInner { raw, memory, domain: self.clone() })))
    }
}

impl GpuReceiveBuffer {
    /// Returns the GPU memory that the peer writes to.
    pub fn memory(&self) -> &Arc<dyn GpuMemory> {
        &self.0.memory
    }

    /// Returns the address and the key that a peer needs to write to the memory.
    pub fn remote(&self) -> RemoteAddress {
        // SAFETY: the memory is registered, and its key never changes.
        let key = unsafe { self.0.raw.as_ref() }.rkey;
        RemoteAddress { address: self.0.memory.address() as u64, key }
    }
}

impl Drop for GpuBufferInner {
    fn drop(&mut self) {
        // SAFETY: after the call the device refuses the peer's writes, so it does not use the
        // memory any more.
        let _ = unsafe { (self.domain.context().library().dereg_mr)(self.raw.as_ptr()) };
    }
}

/// Registers memory of a GPU. The caller keeps it until the registration has ended.
fn register_gpu(
    domain: &ProtectionDomain,
    memory: &dyn GpuMemory,
    method: Method,
    access: u32,
) -> Result<NonNull<ibv_mr>, GpuAccessError> {
    match method {
        Method::DmaBuf => Ok(register_dma_buf(domain, memory.export()?, memory, access)?),
        Method::PeerMemory => {
            let start = NonNull::new(std::ptr::without_provenance_mut::<u8>(memory.address()));
            let start =
                start.ok_or_else(|| GpuError::new("a GPU's memory at address zero cannot be registered"))?;
            Ok(register(domain, Call::PEER_MEMORY, start, memory.length(), access)?)
        }
        Method::Staging => Err(GpuAccessError::Method(method)),
    }
}

fn register_dma_buf(
    domain: &ProtectionDomain,
    DmaBuf { fd, offset }: DmaBuf,
    memory: &dyn GpuMemory,
    access: u32,
) -> Result<NonNull<ibv_mr>, Error> {
    let context = domain.context();
    let Some(register) = context.library().reg_dmabuf_mr else {
        return Err(Error::returned(Call::DMA_BUF, context.name(), libc::EOPNOTSUPP));
    };
    // Work requests name the memory by its address in the GPU. The kernel requires that address to
    // have the same offset within its page as the memory has in the dma-buf.
    let (length, address) = (memory.length(), memory.address() as u64);
    relaxed(access, |access| {
        // SAFETY: the kernel checks the range against the dma-buf. It holds the dma-buf itself, so
        // the file descriptor may be closed.
        let raw = unsafe { register(domain.raw(), offset, length, address, fd.as_raw_fd(), bits(access)) };
        NonNull::new(raw).ok_or_else(|| Error::last(Call::DMA_BUF, context.name()))
    })
}
