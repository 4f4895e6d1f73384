//! Memory that programs write to, and that devices read where it lies.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use rdma_sys::{ibv_mr, ibv_sge};

use crate::error::{Call, Error};
use crate::memory::{Domain, LONGEST, Memory, register};

/// Pages of this process, all zero at first. A device reads them under the protection domain of each connection that sends from them. A registration is
/// made when it is needed, and stays until the pages go, or are registered anew after the domain has been [retired](Domain::retire). What goes with the last
/// handle is let go of by a thread of its own, as it takes a while.
///
/// Whoever writes to them while a device reads sends a mixture: [`bytes_mut`](Self::bytes_mut) needs the only handle, and who posts a write holds one until it has
/// completed.
pub struct Pages(ManuallyDrop<Parts>);

struct Parts {
    // Ended before the pages are given back.
    registrations: Mutex<Vec<Registration>>,
    memory: Memory,
}

struct Registration {
    raw: NonNull<ibv_mr>,
    domain: Domain,
}

// SAFETY: verbs may be called from all threads.
unsafe impl Send for Registration {}

impl Pages {
    /// So many bytes.
    ///
    /// # Errors
    ///
    /// If the machine, or this container's limit, has no memory left.
    pub fn new(length: NonZeroUsize) -> std::io::Result<Self> {
        let memory = Memory::new(length)?;
        Ok(Self(ManuallyDrop::new(Parts { registrations: Mutex::default(), memory })))
    }

    /// What is in them.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: our pages, initialized; they are written to through `bytes_mut` only, which borrows all of this.
        unsafe { NonNull::slice_from_raw_parts(self.0.memory.start(), self.0.memory.length()).as_ref() }
    }

    /// The same, to be written to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has a handle. A device that still reads, against what is said above, reads a mixture.
        unsafe { NonNull::slice_from_raw_parts(self.0.memory.start(), self.0.memory.length()).as_mut() }
    }

    /// Has them registered under a domain, if they are not yet. Domains that have been retired are forgotten.
    ///
    /// # Errors
    ///
    /// [`Error`], most of all where too little memory may be locked.
    pub fn register(&self, domain: &Domain) -> Result<(), Error> {
        let mut registrations = self.registrations();
        registrations.retain(|known| !known.domain.is_retired());
        if !registrations.iter().any(|known| known.domain.is(domain)) {
            // Devices read, and nobody writes.
            let raw = register(domain, &self.0.memory, 0)?;
            registrations.push(Registration { raw, domain: domain.clone() });
        }
        Ok(())
    }

    /// A part, as a work request names it. It has to be registered.
    pub(crate) fn part(&self, domain: &Domain, range: &Range<usize>) -> Result<ibv_sge, Error> {
        let registrations = self.registrations();
        let known = registrations.iter().find(|known| known.domain.is(domain));
        let length = range.end.checked_sub(range.start).and_then(|length| u32::try_from(length).ok());
        let is_within = range.end <= self.0.memory.length();
        let (Some(known), Some(length @ 0..=LONGEST), true) = (known, length, is_within) else {
            return Err(Error::returned(Call::Reach, domain.context().name(), libc::EINVAL));
        };
        // SAFETY: registered; the key does not change.
        let lkey = unsafe { known.raw.as_ref() }.lkey;
        Ok(ibv_sge { addr: (self.0.memory.start().addr().get() + range.start) as u64, length, lkey })
    }

    fn registrations(&self) -> MutexGuard<'_, Vec<Registration>> {
        self.0.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: nobody looks at it any more.
        let parts = unsafe { ManuallyDrop::take(&mut self.0) };
        let is_registered = !parts.registrations.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if let (true, Some(reaper)) = (is_registered, reaper()) {
            // If it has ended, they come back, and are let go of here.
            let _ = reaper.send(parts);
        }
    }
}

/// Where registered pages are let go of: whoever drops the last handle may have others wait.
fn reaper() -> Option<&'static Sender<Parts>> {
    static REAPER: OnceLock<Option<Sender<Parts>>> = OnceLock::new();
    let start = || {
        let (send, parts) = channel::<Parts>();
        let reap = move || parts.into_iter().for_each(drop);
        thread::Builder::new().name("multinet-pages".to_owned()).spawn(reap).ok()?;
        Some(send)
    };
    REAPER.get_or_init(start).as_ref()
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.memory.length())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: when this returns the device has done with the pages, and fails what is still to be sent from them.
        let _ = unsafe { (self.domain.context().library().dereg_mr)(self.raw.as_ptr()) };
    }
}
