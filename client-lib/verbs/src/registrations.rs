//! Registrations of memory that is lent to devices: one for each protection domain that sends from it.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;

use rdma_sys::{ibv_mr, ibv_sge};

use crate::error::{Call, Error};
use crate::memory::{MAX_SGE_BYTES, ProtectionDomain};

/// Made when they are needed; they stay until the memory goes, or their domain is [released](ProtectionDomain::release), or until another one is needed after it has
/// been [retired](ProtectionDomain::retire).
#[derive(Default)]
pub(crate) struct Registrations(Arc<RegistrationList>);

#[derive(Default)]
struct RegistrationList(Mutex<Vec<Registration>>);

/// The registrations under one domain, wherever their memory is.
#[derive(Default)]
pub(crate) struct DomainRegistrations(Mutex<Vec<Weak<RegistrationList>>>);

struct Registration {
    raw: NonNull<ibv_mr>,
    domain: ProtectionDomain,
}

// SAFETY: verbs may be called from all threads.
unsafe impl Send for Registration {}

impl Registrations {
    /// Sees to it that there is one under a domain, unless that has been retired: nothing would end it.
    pub(crate) fn ensure<E>(
        &self,
        domain: &ProtectionDomain,
        register: impl FnOnce() -> Result<NonNull<ibv_mr>, E>,
    ) -> Result<(), E> {
        let mut all = self.all();
        all.retain(|known| !known.domain.is_retired());
        if !all.iter().any(|known| known.domain.is_same(domain)) {
            all.push(Registration { raw: register()?, domain: domain.clone() });
            domain.registrations().add(Arc::downgrade(&self.0));
            // Whoever has released the domain meanwhile has ended what there was before this one.
            all.retain(|known| !known.domain.is_retired());
        }
        Ok(())
    }

    /// Whether there is one under a domain.
    pub(crate) fn has(&self, domain: &ProtectionDomain) -> bool {
        self.all().iter().any(|known| known.domain.is_same(domain))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// A part of the memory, which lies there, as a work request names it.
    pub(crate) fn sge(
        &self,
        domain: &ProtectionDomain,
        (start, length): (usize, usize),
        range: &Range<usize>,
    ) -> Result<ibv_sge, Error> {
        let all = self.all();
        let known = all.iter().find(|known| known.domain.is_same(domain));
        let wanted = range.end.checked_sub(range.start).and_then(|wanted| u32::try_from(wanted).ok());
        let (Some(known), Some(wanted @ 0..=MAX_SGE_BYTES), true) = (known, wanted, range.end <= length)
        else {
            return Err(Error::returned(Call::Reach, domain.context().name(), libc::EINVAL));
        };
        // SAFETY: registered; the key does not change.
        let lkey = unsafe { known.raw.as_ref() }.lkey;
        Ok(ibv_sge { addr: (start + range.start) as u64, length: wanted, lkey })
    }

    fn all(&self) -> MutexGuard<'_, Vec<Registration>> {
        self.0.all()
    }
}

/// Whoever ends those of a domain may look at these just now, and hold them longer than their memory stays.
impl Drop for Registrations {
    fn drop(&mut self) {
        self.all().clear();
    }
}

impl RegistrationList {
    fn all(&self) -> MutexGuard<'_, Vec<Registration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DomainRegistrations {
    fn add(&self, known: Weak<RegistrationList>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Memory that has gone is forgotten, as often as the list would have to grow.
        if all.len() == all.capacity() {
            all.retain(|known| known.strong_count() > 0);
        }
        all.push(known);
    }

    /// Ends those of retired domains.
    pub(crate) fn end(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for known in all.iter().filter_map(Weak::upgrade) {
            known.all().retain(|known| !known.domain.is_retired());
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: when this returns the device has done with the memory, and fails what is still to be sent from it.
        let _ = unsafe { (self.domain.context().library().dereg_mr)(self.raw.as_ptr()) };
    }
}

/// Lets go of registered memory in a thread of its own: it takes a while, and whoever drops the last handle may have others wait.
pub(crate) fn drop_in_background(memory: impl Any + Send) {
    static REAPER: OnceLock<Option<Sender<Box<dyn Any + Send>>>> = OnceLock::new();
    let start = || {
        let (send, memory) = channel::<Box<dyn Any + Send>>();
        let drop_all = move || memory.into_iter().for_each(drop);
        thread::Builder::new().name("multinet-pages".to_owned()).spawn(drop_all).ok()?;
        Some(send)
    };
    if let Some(reaper) = REAPER.get_or_init(start) {
        // If it has ended, it comes back, and is let go of here.
        let _ = reaper.send(Box::new(memory));
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::fake::Fake;
    use crate::memory::{Memory, register};

    #[test]
    fn registrations_end_with_their_memory_whoever_looks_at_them() {
        let fake = Fake::new();
        let domain = ProtectionDomain::new(&fake.open()).unwrap();
        let memory = Memory::new(NonZeroUsize::MIN).unwrap();
        let registrations = Registrations::default();
        registrations
            .ensure(&domain, || register(&domain, Call::Register, memory.start(), memory.length(), 0))
            .unwrap();
        // As whoever ends those of a domain has it.
        let looked_at = Arc::clone(&registrations.0);
        assert_eq!(fake.registrations(), 1);
        drop(registrations);
        assert_eq!(fake.registrations(), 0);
        drop(looked_at);
    }
}
