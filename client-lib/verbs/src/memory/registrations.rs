//! The registrations of memory that is sent without a copy: one for each protection domain.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use parking_lot::Mutex;
use rdma_sys::{ibv_mr, ibv_sge};

use super::{MAX_SGE_BYTES, ProtectionDomain};
use crate::error::{Call, Error};

/// The registrations of one piece of memory, made when they are needed. Each ends when the memory
/// is dropped or its domain is [released](ProtectionDomain::release), or, once its domain has been
/// [retired](ProtectionDomain::retire), when the next registration is made.
#[derive(Debug, Default)]
pub(crate) struct Registrations(Arc<RegistrationList>);

type RegistrationList = Mutex<Vec<Registration>>;

/// The pieces of memory that are registered under one protection domain.
#[derive(Debug, Default)]
pub(crate) struct DomainRegistrations(Mutex<Vec<Weak<RegistrationList>>>);

#[derive(Debug)]
struct Registration {
    raw: NonNull<ibv_mr>,
    domain: ProtectionDomain,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Registration {}

impl Registrations {
    /// Registers the memory under a domain by calling `register`, unless it is registered already.
    pub(crate) fn ensure<E>(
        &self,
        domain: &ProtectionDomain,
        register: impl FnOnce() -> Result<NonNull<ibv_mr>, E>,
    ) -> Result<(), E> {
        let mut all = self.0.lock();
        all.retain(|known| !known.domain.is_retired());
        if !all.iter().any(|known| known.domain.is_same(domain)) {
            all.push(Registration { raw: register()?, domain: domain.clone() });
            domain.registrations().add(Arc::downgrade(&self.0));
            // If another thread has released the domain in the meantime, it may have missed this
            // registration.
            all.retain(|known| !known.domain.is_retired());
        }
        Ok(())
    }

    /// Returns whether the memory is registered under this protection domain.
    pub(crate) fn has(&self, domain: &ProtectionDomain) -> bool {
        self.0.lock().iter().any(|known| known.domain.is_same(domain))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Returns a range of the memory, which begins at `start`, as a scatter/gather entry.
    pub(crate) fn sge(
        &self,
        domain: &ProtectionDomain,
        (start, length): (usize, usize),
        range: &Range<usize>,
    ) -> Result<ibv_sge, Error> {
        let all = self.0.lock();
        let known = all.iter().find(|known| known.domain.is_same(domain));
        let wanted = range.end.checked_sub(range.start).and_then(|wanted| u32::try_from(wanted).ok());
        let (Some(known), Some(wanted @ 0..=MAX_SGE_BYTES), true) = (known, wanted, range.end <= length)
        else {
            return Err(Error::returned(Call::REACH, domain.context().name(), libc::EINVAL));
        };
        // SAFETY: the memory is registered, and its key never changes.
        let lkey = unsafe { known.raw.as_ref() }.lkey;
        Ok(ibv_sge { addr: (start + range.start) as u64, length: wanted, lkey })
    }
}

/// Ends the registrations here, since a thread that releases a domain may hold the list for longer
/// than the memory lives.
impl Drop for Registrations {
    fn drop(&mut self) {
        self.0.lock().clear();
    }
}

impl DomainRegistrations {
    fn add(&self, known: Weak<RegistrationList>) {
        let mut all = self.0.lock();
        // Entries of dropped memory are removed whenever the list would have to grow.
        if all.len() == all.capacity() {
            all.retain(|known| known.strong_count() > 0);
        }
        all.push(known);
    }

    /// Ends the registrations of all this memory under retired domains.
    pub(crate) fn end(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        for known in all.iter().filter_map(Weak::upgrade) {
            known.lock().retain(|known| !known.domain.is_retired());
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: after the call the device fails our requests, so it does not use the memory any
        // more.
        let _ = unsafe { (self.domain.context().library().dereg_mr)(self.raw.as_ptr()) };
    }
}

/// Drops registered memory on a thread of its own, since that takes a while and the thread that
/// drops the last handle may be needed elsewhere.
pub(crate) fn drop_in_background(memory: impl Any + Send) {
    static REAPER: OnceLock<Option<Sender<Box<dyn Any + Send>>>> = OnceLock::new();
    let start = || {
        let (send, memory) = channel::<Box<dyn Any + Send>>();
        let drop_all = move || memory.into_iter().for_each(drop);
        thread::Builder::new().name("multinet-pages".to_owned()).spawn(drop_all).ok()?;
        Some(send)
    };
    if let Some(reaper) = REAPER.get_or_init(start) {
        // If the thread has ended, `send` returns the memory, which is dropped here.
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
    fn registrations_end_with_their_memory_even_if_another_thread_holds_the_list() {
        let fake = Fake::new();
        let domain = ProtectionDomain::new(&fake.open()).unwrap();
        let memory = Memory::new(NonZeroUsize::MIN).unwrap();
        let registrations = Registrations::default();
        registrations
            .ensure(&domain, || register(&domain, Call::REGISTER, memory.start(), memory.length(), 0))
            .unwrap();
        // The handle of a thread that releases the domain.
        let held = Arc::clone(&registrations.0);
        assert_eq!(fake.registrations(), 1);
        drop(registrations);
        assert_eq!(fake.registrations(), 0);
        drop(held);
    }
}
