//! Waiting until completion queues have something.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::ffi::c_void;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rdma_sys::{ibv_comp_channel, ibv_cq};

use crate::context::Context;
use crate::error::{Call, Error};

/// Where [armed](crate::CompletionQueue::arm) queues report that something has completed. A clone is another handle.
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<Inner>);

/// What a channel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// Something has completed in the queue that was made with this number.
    Completion(u64),
    /// The queue that was made with this number, or a pair that uses it, can be used no more: it may never report again.
    Failed(u64),
    /// No queue reports.
    Nothing,
    /// The channel has been closed.
    Closed,
}

struct Inner {
    context: Context,
    raw: NonNull<ibv_comp_channel>,
    /// Readable when nobody is to wait any more.
    closed: EventFd,
}

// SAFETY: verbs may be called from all threads.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl CompletionChannel {
    /// A channel for queues of this device.
    ///
    /// # Errors
    ///
    /// [`Error`], if the process may have no more files.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let failed = |errno: Errno| Error::returned(Call::CompletionChannel, context.name(), errno as i32);
        let closed = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(failed)?;
        // SAFETY: the context is open.
        let raw = unsafe { (context.library().create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::CompletionChannel, context.name()))?;
        let created = Inner { context: context.clone(), raw, closed };
        // One of several queues may be asked of between our look and our call.
        fcntl(created.file(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(failed)?;
        Ok(Self(Arc::new(created)))
    }

    /// Waits until a queue reports, or the channel is [closed](Self::close). It hears of the device's own events, too.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device is gone.
    pub fn wait(&self) -> Result<ChannelEvent, Error> {
        loop {
            match self.poll_event(PollTimeout::NONE)? {
                ChannelEvent::Nothing => {}
                report => return Ok(report),
            }
        }
    }

    /// As [`wait`](Self::wait), without waiting.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device is gone.
    pub fn try_wait(&self) -> Result<ChannelEvent, Error> {
        self.poll_event(PollTimeout::ZERO)
    }

    fn poll_event(&self, timeout: PollTimeout) -> Result<ChannelEvent, Error> {
        let mut files = [
            PollFd::new(self.0.closed.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.0.file(), PollFlags::POLLIN),
            PollFd::new(self.0.context.events(), PollFlags::POLLIN),
        ];
        match poll(&mut files, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(self.error(errno)),
        }
        match files.map(|file| file.any().unwrap_or_default()) {
            [true, ..] => Ok(ChannelEvent::Closed),
            [_, _, true] => {
                Ok(self.0.context.next_event()?.map_or(ChannelEvent::Nothing, ChannelEvent::Failed))
            }
            [_, true, _] => {
                Ok(self.next_completion_event()?.map_or(ChannelEvent::Nothing, ChannelEvent::Completion))
            }
            _ => Ok(ChannelEvent::Nothing),
        }
    }

    /// Nobody waits any more, from now on.
    pub fn close(&self) {
        // It fails only when it has been written to 2^64 times.
        let _ = self.0.closed.write(1);
    }

    /// The next report, if there is one.
    fn next_completion_event(&self) -> Result<Option<u64>, Error> {
        let library = self.0.context.library();
        let (mut queue, mut number): (*mut ibv_cq, *mut c_void) =
            (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is there. A queue that has reported is not destroyed before the report is acknowledged, which is next.
        match unsafe { (library.get_cq_event)(self.raw(), &raw mut queue, &raw mut number) } {
            0 => {
                // SAFETY: once for the one report.
                unsafe { (library.ack_cq_events)(queue, 1) };
                Ok(Some(number.addr() as u64))
            }
            _ => match Errno::last() {
                Errno::EAGAIN | Errno::EINTR => Ok(None),
                errno => Err(self.error(errno)),
            },
        }
    }

    fn error(&self, errno: Errno) -> Error {
        Error::returned(Call::Wait, self.0.context.name(), errno as i32)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut ibv_comp_channel {
        self.0.raw.as_ptr()
    }
}

impl Inner {
    fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is there, and with it its file.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: queues hold the channel that they report to, so nothing refers to it.
        let _ = unsafe { (self.context.library().destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.context.fmt(f)
    }
}
