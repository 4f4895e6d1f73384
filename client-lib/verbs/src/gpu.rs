//! Memory of GPUs that a device reads and writes where it lies (GPUDirect RDMA).
#![allow(unsafe_code, reason = "talks to verbs")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use multinet_memory::{DmaBuf, GpuError, GpuMemory, Method};
use rdma_sys::{ibv_access_flags, ibv_mr, ibv_sge};
use thiserror::Error;

use crate::error::{Call, Error};
use crate::library::bits;
use crate::memory::{ProtectionDomain, RemoteAddress, register, relaxed};
use crate::registrations::{Registrations, drop_in_background};

/// Why a device cannot reach a GPU's memory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GpuAccessError {
    /// The GPU does not give it.
    #[error("{0}")]
    Gpu(#[from] GpuError),
    /// The device does not take it.
    #[error("{call}{}", hinted(call))]
    Call {
        /// What failed.
        #[from]
        call: Error,
    },
    /// It was asked for what needs no device to reach it.
    #[error("with {0} no device reaches it")]
    Method(Method),
}

impl GpuAccessError {
    /// Whether the device has gone, which says nothing of the memory.
    pub fn is_device_gone(&self) -> bool {
        let Self::Call { call } = self else { return false };
        matches!(call.errno(), Some(libc::EIO | libc::ENXIO | libc::ENODEV))
    }
}

fn hinted(call: &Error) -> String {
    call.hint().map(|hint| format!("; {hint}")).unwrap_or_default()
}

/// A GPU's memory that devices read where it lies, as [`Pages`](crate::Pages) is the machine's.
pub struct GpuPages(ManuallyDrop<Parts>);

struct Parts {
    // Ended before the memory is given back.
    registrations: Registrations,
    memory: Arc<dyn GpuMemory>,
    refused: Mutex<Refusal>,
}

/// Whether memory is to be registered at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Refusal {
    #[default]
    No,
    /// There was no room. Who sends frames is not to wait for each of them to be refused.
    Until(Instant),
    Forever,
}

/// After so long it is tried again where there was no room.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(10);

impl Refusal {
    /// What a failure makes of it.
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
    /// It is registered when it is needed.
    pub fn new(memory: Arc<dyn GpuMemory>) -> Self {
        let refused = Mutex::default();
        Self(ManuallyDrop::new(Parts { registrations: Registrations::default(), memory, refused }))
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<dyn GpuMemory> {
        &self.0.memory
    }

    /// Has it registered under a domain by this method, if it is not yet.
    ///
    /// # Errors
    ///
    /// [`GpuAccessError`]. From then on it [is refused](Self::is_refused), unless the device has gone: for a while, if there was no room for it.
    pub fn register(&self, domain: &ProtectionDomain, method: Method) -> Result<(), GpuAccessError> {
        // Devices read, and nobody writes.
        let registered = self.0.registrations.ensure(domain, || reach(domain, &*self.0.memory, method, 0));
        registered.inspect_err(|error| {
            let mut refused = self.refused();
            // By another device, perhaps.
            if *refused != Refusal::Forever {
                *refused = Refusal::by(error, Instant::now());
            }
        })
    }

    fn refused(&self) -> MutexGuard<'_, Refusal> {
        self.0.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is registered under a domain.
    pub fn is_registered(&self, domain: &ProtectionDomain) -> bool {
        self.0.registrations.has(domain)
    }

    /// Whether it has been refused before, even if that is over.
    pub fn has_been_refused(&self) -> bool {
        *self.refused() != Refusal::No
    }

    /// Whether it could not be registered once: memory of a pool, as a rule, of which that is known to its maker only. Or not lately, where there was no room.
    pub fn is_refused(&self) -> bool {
        let refused = *self.refused();
        refused.holds(Instant::now)
    }

    /// A part, as a work request names it. It has to be registered.
    pub(crate) fn sge(&self, domain: &ProtectionDomain, range: &Range<usize>) -> Result<ibv_sge, Error> {
        let place = (self.0.memory.address(), self.0.memory.length());
        self.0.registrations.sge(domain, place, range)
    }
}

impl Drop for GpuPages {
    fn drop(&mut self) {
        // SAFETY: nobody looks at it any more.
        let parts = unsafe { ManuallyDrop::take(&mut self.0) };
        // A GPU may wait for all of its work before it gives memory back.
        drop_in_background(parts);
    }
}

/// A GPU's memory for a peer to write to, once it is told the key, as [`ReceiveBuffer`](crate::ReceiveBuffer) is the machine's.
#[derive(Clone, Debug)]
pub struct GpuReceiveBuffer(Arc<Inner>);

struct Inner {
    raw: NonNull<ibv_mr>,
    // Given back after the registration has ended.
    memory: Arc<dyn GpuMemory>,
    domain: ProtectionDomain,
}

// SAFETY: verbs may be called from all threads.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl ProtectionDomain {
    /// Has a peer write to a GPU's memory. What it had in it the peer may see.
    ///
    /// # Errors
    ///
    /// [`GpuAccessError`].
    pub fn gpu_receive_buffer(
        &self,
        memory: Arc<dyn GpuMemory>,
        method: Method,
    ) -> Result<GpuReceiveBuffer, GpuAccessError> {
        // The one takes the other (InfiniBand Architecture, 10.6.6.2).
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let raw = reach(self, &*memory, method, access.0)?;
        Ok(GpuReceiveBuffer(Arc::new(Inner { raw, memory, domain: self.clone() })))
    }
}

impl GpuReceiveBuffer {
    /// The memory.
    pub fn memory(&self) -> &Arc<dyn GpuMemory> {
        &self.0.memory
    }

    /// Its beginning, for a peer to write to.
    pub fn remote(&self) -> RemoteAddress {
        // SAFETY: registered; the key does not change.
        let key = unsafe { self.0.raw.as_ref() }.rkey;
        RemoteAddress { address: self.0.memory.address() as u64, key }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: when this returns the device refuses what peers still write.
        let _ = unsafe { (self.domain.context().library().dereg_mr)(self.raw.as_ptr()) };
    }
}

/// Registers a GPU's memory, which has to stay until that has ended.
fn reach(
    domain: &ProtectionDomain,
    memory: &dyn GpuMemory,
    method: Method,
    access: u32,
) -> Result<NonNull<ibv_mr>, GpuAccessError> {
    match method {
        Method::DmaBuf => Ok(import(domain, memory.export()?, memory, access)?),
        Method::PeerMemory => {
            let start = NonNull::new(std::ptr::without_provenance_mut::<u8>(memory.address()));
            let start = start.ok_or_else(|| GpuError::new("memory at address zero"))?;
            Ok(register(domain, Call::PeerMemory, start, memory.length(), access)?)
        }
        Method::Staging => Err(GpuAccessError::Method(method)),
    }
}

fn import(
    domain: &ProtectionDomain,
    DmaBuf { fd, offset }: DmaBuf,
    memory: &dyn GpuMemory,
    access: u32,
) -> Result<NonNull<ibv_mr>, Error> {
    let context = domain.context();
    let Some(register) = context.library().reg_dmabuf_mr else {
        return Err(Error::returned(Call::DmaBuf, context.name(), libc::EOPNOTSUPP));
    };
    // The address by which work requests name it has the same place in its page as the offset has.
    let (length, address) = (memory.length(), memory.address() as u64);
    relaxed(access, |access| {
        // SAFETY: the kernel checks the range against the dma-buf, and holds that itself: the descriptor may be closed.
        let raw = unsafe { register(domain.raw(), offset, length, address, fd.as_raw_fd(), bits(access)) };
        NonNull::new(raw).ok_or_else(|| Error::last(Call::DmaBuf, context.name()))
    })
}

impl fmt::Debug for GpuPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.memory.fmt(f)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.memory, self.domain)
    }
}
