//! The registered memory that the other side writes to: its form, and its allocation.
//!
//! Where a device reaches the GPU that payloads are to arrive in, payloads have memory of their own
//! there. The device was only tried with little memory. The slots of a connection may be more than
//! the GPU has free, or more than it maps for other devices (its BAR1). Then payloads arrive in the
//! machine's memory and are copied to the GPU.

use std::num::NonZeroUsize;
use std::sync::Arc;

use multinet_memory::{Forced, Gpu, Method};
use multinet_verbs::{GpuReceiveBuffer, LockedMemory, LockedMemoryShortage, ProtectionDomain, ReceiveBuffer};
use tracing::warn;

use super::device::RdmaDevice;
use super::layout::{Layout, MAX_MEMORY};
use super::role::Role;
use super::unusable::Unusable;

/// The form of the memory that one end needs for the other side's writes.
#[derive(Clone, Debug)]
struct MemoryPlan {
    layout: Layout,
    gpu: Option<GpuPlan>,
}

/// The form of separate memory for payloads in a GPU.
#[derive(Clone, Debug)]
struct GpuPlan {
    gpu: Arc<dyn Gpu>,
    method: Method,
    stride: usize,
}

/// Memory that is registered for one peer to write to. As long as no peer has been told its key, it
/// can be used for another connection of the same form.
pub(crate) struct ReceiveMemory {
    pub(super) buffer: ReceiveBuffer,
    pub(super) layout: Layout,
    pub(super) gpu: Option<GpuPayloads>,
    pub(super) domain: ProtectionDomain,
    // Dropped last: everything above belongs to it.
    pub(super) device: Arc<RdmaDevice>,
}

/// Memory in a GPU for received payloads, one place for each slot.
pub(super) struct GpuPayloads {
    pub(super) buffer: GpuReceiveBuffer,
    /// The distance from one payload's place to the next, in bytes.
    pub(super) stride: usize,
}

impl MemoryPlan {
    /// Plans the memory for an end with this role, whose device reaches the GPU by this method.
    fn new(role: &Role, method: Method) -> Result<Self, Unusable> {
        let (slots, frame_size, wanted) = match role {
            Role::Sender => return Ok(Self { layout: Layout::ring(), gpu: None }),
            Role::Receiver { slots, frame_size, gpu, .. } => (*slots, *frame_size, gpu),
        };
        let (layout, gpu) = match wanted {
            Some((gpu, slots)) if method != Method::Staging => {
                let (layout, stride) = Layout::split(*slots, frame_size);
                (layout, Some(GpuPlan { gpu: Arc::clone(gpu), method, stride }))
            }
            _ => (Layout::slots(slots, frame_size), None),
        };
        if layout.stride.max(gpu.as_ref().map_or(0, |gpu| gpu.stride)) > MAX_MEMORY {
            return Err(Unusable::TooLarge(frame_size));
        }
        Ok(Self { layout, gpu })
    }
}

impl ReceiveMemory {
    /// Returns memory for a role whose device reaches the GPU by `method`: `spare` if it has the
    /// same form, which is then taken, or else new memory. The caller will lock `more` bytes beside
    /// it.
    pub(super) fn obtain(
        device: &Arc<RdmaDevice>,
        (role, method): (&Role, Method),
        spare: &mut Option<Self>,
        more: usize,
    ) -> Result<Self, Unusable> {
        let mut obtain = |method| {
            let plan = MemoryPlan::new(role, method)?;
            if let Some(spare) =
                spare.take_if(|spare| Arc::ptr_eq(&spare.device, device) && spare.fits(&plan))
            {
                return check_memlock(more).map(|()| spare).map_err(Unusable::from);
            }
            check_memlock(plan.layout.size() + more)?;
            Self::new(device, &plan)
        };
        or_staged(device.gpu_methods.forced, obtain(method), |error| {
            if let Some(gpu) = role.gpu().filter(|gpu| device.gpu_methods.should_warn_about_slots(&***gpu)) {
                let (device, gpu) = (device.context().name(), gpu.name());
                warn!(
                    device,
                    gpu, "frames of connections whose slots do not fit in the GPU are copied to it: {error}"
                );
            }
            obtain(Method::Staging)
        })
    }

    fn new(device: &Arc<RdmaDevice>, MemoryPlan { layout, gpu }: &MemoryPlan) -> Result<Self, Unusable> {
        let domain = ProtectionDomain::new(device.context())?;
        let buffer = domain.receive_buffer(NonZeroUsize::MIN.saturating_add(layout.size() - 1))?;
        let gpu = match gpu {
            Some(GpuPlan { gpu, method, stride }) => {
                let size = usize::from(layout.count) * stride;
                let memory = gpu.allocate(NonZeroUsize::MIN.saturating_add(size - 1))?;
                let buffer = domain.gpu_receive_buffer(memory, *method)?;
                Some(GpuPayloads { buffer, stride: *stride })
            }
            None => None,
        };
        Ok(Self { buffer, layout: *layout, gpu, domain, device: Arc::clone(device) })
    }

    fn fits(&self, MemoryPlan { layout, gpu }: &MemoryPlan) -> bool {
        let wanted = gpu.as_ref().map(|GpuPlan { gpu, stride, .. }| (gpu.name(), *stride));
        let own = self.gpu.as_ref().map(|own| (own.buffer.memory().gpu().name(), own.stride));
        self.layout == *layout && own == wanted
    }
}

/// Returns what was obtained, or `staged` if only the GPU is short of memory and no method is
/// forced.
fn or_staged<T>(
    forced: Forced,
    obtained: Result<T, Unusable>,
    staged: impl FnOnce(&Unusable) -> Result<T, Unusable>,
) -> Result<T, Unusable> {
    match obtained {
        Err(error) if forced == Forced::No && error.is_of_the_gpu() => staged(&error),
        obtained => obtained,
    }
}

/// Checks that the process may lock `length` bytes more. The kernel itself checks only after it has
/// allocated the memory, and does not say what is missing.
pub(super) fn check_memlock(length: usize) -> Result<(), LockedMemoryShortage> {
    LockedMemory::read().map_or(Ok(()), |locked| locked.check(length as u64))
}

#[cfg(test)]
mod tests {
    use multinet_memory::{GpuError, GpuMemory, HostMemory};
    use multinet_verbs::GpuAccessError;

    use super::*;

    #[derive(Debug)]
    struct FullGpu;

    impl Gpu for FullGpu {
        fn name(&self) -> &str {
            "full"
        }

        fn allocate(&self, _: NonZeroUsize) -> Result<Arc<dyn GpuMemory>, GpuError> {
            Err(GpuError::new("full"))
        }

        fn host(&self, _: NonZeroUsize) -> Result<HostMemory, GpuError> {
            Err(GpuError::new("full"))
        }
    }

    #[test]
    fn payloads_lie_apart_where_the_device_reaches_the_gpu() {
        let receiver = |gpu: Option<Arc<dyn Gpu>>| {
            let gpu = gpu.map(|gpu| (gpu, 3));
            Role::Receiver { slots: 4, frame_size: 1000, extra_pairs: 0, gpu }
        };
        let plan = |role: &Role, method| {
            let plan = MemoryPlan::new(role, method).unwrap();
            (plan.layout, plan.gpu.map(|gpu| (gpu.method, gpu.stride)))
        };
        let (split, whole) = (Layout::split(3, 1000), Layout::slots(4, 1000));
        for method in [Method::DmaBuf, Method::PeerMemory] {
            let found = plan(&receiver(Some(Arc::new(FullGpu))), method);
            assert_eq!(found, (split.0, Some((method, split.1))));
            assert_eq!(plan(&receiver(None), method), (whole, None));
        }
        assert_eq!(plan(&receiver(Some(Arc::new(FullGpu))), Method::Staging), (whole, None));
        assert_eq!(plan(&Role::Sender, Method::DmaBuf), (Layout::ring(), None));
    }

    #[test]
    fn slots_are_staged_only_if_the_gpu_is_short_of_memory_and_no_method_is_forced() {
        let full = || Unusable::Gpu(GpuError::new("full"));
        let unreachable = || Unusable::GpuMemory(GpuAccessError::Gpu(GpuError::new("BAR1")));
        let other = || Unusable::TooLarge(1);
        let is_staged = |forced, error| or_staged(forced, Err(error), |_| Ok(())).is_ok();
        assert!(is_staged(Forced::No, full()) && is_staged(Forced::No, unreachable()));
        assert!(!is_staged(Forced::No, other()) && !is_staged(Forced::To(Method::DmaBuf), full()));
        assert!(or_staged(Forced::No, Ok(1), |_| Ok(2)).is_ok_and(|it| it == 1));
        // A failure of the staged memory is the one that is returned.
        let failed = or_staged::<()>(Forced::No, Err(full()), |_| Err(other()));
        assert!(matches!(failed, Err(Unusable::TooLarge(1))));
    }
}
