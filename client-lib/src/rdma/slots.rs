//! The memory that the other side writes to: which form it has, and how it is got.
//!
//! Where a device reaches the GPU that payloads are wanted in, they have a place of their own there. What a device was tried with is little; the slots of a
//! connection may be more than the GPU has left, or than it shows to other devices (its BAR1). They are the machine's then, and frames are copied.

use std::num::NonZeroUsize;
use std::sync::Arc;

use multinet_memory::{Forced, Gpu, Method};
use multinet_verbs::{Domain, GpuLanding, Landing, Locking, Shortage};
use tracing::warn;

use super::layout::{Layout, MOST_MEMORY};
use super::rail::Rail;
use super::role::Role;
use super::unusable::Unusable;

/// The form of the memory that the other side writes to.
#[derive(Clone, Debug)]
struct Form {
    layout: Layout,
    /// The GPU that payloads come to, how, and how far it is from one to the next.
    gpu: Option<(Arc<dyn Gpu>, Method, usize)>,
}

/// Memory that has been registered for a peer to write to, and that no peer has been told of.
pub(crate) struct Spare {
    pub(super) landing: Landing,
    pub(super) gpu: Option<(GpuLanding, usize)>,
    pub(super) domain: Domain,
    pub(super) layout: Layout,
    // Closed after what is of it.
    pub(super) rail: Arc<Rail>,
}

impl Form {
    /// What an end needs, whose device gets at the GPU by this method.
    fn of(role: &Role, method: Method) -> Result<Self, Unusable> {
        let (slots, frame_size, wanted) = match role {
            Role::Sender => return Ok(Self { layout: Layout::ring(), gpu: None }),
            Role::Receiver { slots, frame_size, gpu, .. } => (*slots, *frame_size, gpu),
        };
        let (layout, gpu) = match wanted {
            Some((gpu, slots)) if method != Method::Staging => {
                let (layout, stride) = Layout::split(*slots, frame_size);
                (layout, Some((Arc::clone(gpu), method, stride)))
            }
            _ => (Layout::slots(slots, frame_size), None),
        };
        if layout.stride.max(gpu.as_ref().map_or(0, |(_, _, stride)| *stride)) > MOST_MEMORY {
            return Err(Unusable::TooLarge(frame_size));
        }
        Ok(Self { layout, gpu })
    }
}

impl Spare {
    /// What an end needs, whose device gets at the GPU by this method: what there is to spare, if it fits, which is taken then. So much more memory is
    /// going to be locked.
    pub(super) fn get(
        rail: &Arc<Rail>,
        (role, method): (&Role, Method),
        spare: &mut Option<Self>,
        more: usize,
    ) -> Result<Self, Unusable> {
        let mut get = |method| {
            let form = Form::of(role, method)?;
            if let Some(spare) = spare.take_if(|spare| Arc::ptr_eq(&spare.rail, rail) && spare.is(&form)) {
                return may_lock(more).map(|()| spare).map_err(Unusable::from);
            }
            may_lock(form.layout.size() + more)?;
            Self::new(rail, &form)
        };
        or_staged(rail.forced(), get(method), |error| {
            if let Some(gpu) = role.gpu().filter(|gpu| rail.is_first_complaint(&***gpu)) {
                let (device, gpu) = (rail.context().name(), gpu.name());
                warn!(
                    device,
                    gpu, "frames of connections whose slots do not fit in a GPU are copied: {error}"
                );
            }
            get(Method::Staging)
        })
    }

    fn new(rail: &Arc<Rail>, Form { layout, gpu }: &Form) -> Result<Self, Unusable> {
        let domain = Domain::new(rail.context())?;
        let landing = domain.landing(NonZeroUsize::MIN.saturating_add(layout.size() - 1))?;
        let gpu = match gpu {
            Some((gpu, method, stride)) => {
                let size = usize::from(layout.count) * stride;
                let memory = gpu.allocate(NonZeroUsize::MIN.saturating_add(size - 1))?;
                Some((domain.gpu_landing(memory, *method)?, *stride))
            }
            None => None,
        };
        Ok(Self { landing, gpu, domain, layout: *layout, rail: Arc::clone(rail) })
    }

    fn is(&self, Form { layout, gpu }: &Form) -> bool {
        let wanted = gpu.as_ref().map(|(gpu, _, stride)| (gpu.name(), *stride));
        let own = self.gpu.as_ref().map(|(landing, stride)| (landing.memory().gpu().name(), *stride));
        self.layout == *layout && own == wanted
    }
}

/// What has been got, or if a GPU has no room for it and nobody insists, what there is without.
fn or_staged<T>(
    forced: Forced,
    got: Result<T, Unusable>,
    staged: impl FnOnce(&Unusable) -> Result<T, Unusable>,
) -> Result<T, Unusable> {
    match got {
        Err(error) if forced == Forced::No && error.is_of_the_gpu() => staged(&error),
        got => got,
    }
}

/// Whether so much more memory may be locked: the kernel does not say what is missing, and says it after it has got the memory.
pub(super) fn may_lock(length: usize) -> Result<(), Shortage> {
    Locking::read().map_or(Ok(()), |locking| locking.may_lock(length as u64))
}

#[cfg(test)]
mod tests {
    use multinet_memory::{GpuError, GpuMemory, HostMemory};
    use multinet_verbs::Unreachable;

    use super::*;

    #[derive(Debug)]
    struct Nowhere;

    impl Gpu for Nowhere {
        fn name(&self) -> &str {
            "nowhere"
        }

        fn allocate(&self, _: NonZeroUsize) -> Result<Arc<dyn GpuMemory>, GpuError> {
            Err(GpuError::new("full"))
        }

        fn host(&self, _: NonZeroUsize) -> Result<HostMemory, GpuError> {
            Err(GpuError::new("full"))
        }
    }

    #[test]
    fn payloads_have_a_place_of_their_own_in_a_gpu_that_is_reached() {
        let receiver = |gpu: Option<Arc<dyn Gpu>>| {
            let gpu = gpu.map(|gpu| (gpu, 3));
            Role::Receiver { slots: 4, frame_size: 1000, further: 0, gpu }
        };
        let form = |role: &Role, method| {
            let form = Form::of(role, method).unwrap();
            (form.layout, form.gpu.map(|(_, method, stride)| (method, stride)))
        };
        let (split, whole) = (Layout::split(3, 1000), Layout::slots(4, 1000));
        for method in [Method::DmaBuf, Method::PeerMemory] {
            let found = form(&receiver(Some(Arc::new(Nowhere))), method);
            assert_eq!(found, (split.0, Some((method, split.1))));
            assert_eq!(form(&receiver(None), method), (whole, None));
        }
        assert_eq!(form(&receiver(Some(Arc::new(Nowhere))), Method::Staging), (whole, None));
        assert_eq!(form(&Role::Sender, Method::DmaBuf), (Layout::ring(), None));
    }

    /// Not what is forced, nor what is no fault of the GPU's.
    #[test]
    fn what_a_gpu_has_no_room_for_is_staged() {
        let full = || Unusable::Gpu(GpuError::new("full"));
        let unreachable = || Unusable::GpuMemory(Unreachable::Gpu(GpuError::new("BAR1")));
        let other = || Unusable::TooLarge(1);
        let got = |forced, error| or_staged(forced, Err(error), |_| Ok(())).is_ok();
        assert!(got(Forced::No, full()) && got(Forced::No, unreachable()) && !got(Forced::No, other()));
        assert!(!got(Forced::To(Method::DmaBuf), full()));
        assert!(or_staged(Forced::No, Ok(1), |_| Ok(2)).is_ok_and(|it| it == 1));
        // What then fails is said.
        let failed = or_staged::<()>(Forced::No, Err(full()), |_| Err(other()));
        assert!(matches!(failed, Err(Unusable::TooLarge(1))));
    }
}
