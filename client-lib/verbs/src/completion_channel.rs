//! Completion channels, which wait for the reports of completion queues.
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

/// A channel to which [armed](crate::CompletionQueue::arm) completion queues report. A clone is
/// another handle of the same channel.
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<ChannelInner>);

/// An event of a completion channel, as [`wait`](CompletionChannel::wait) returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// The completion queue with this number has a completion.
    Completion(u64),
    /// The completion queue with this number, or a queue pair that uses it, has failed. It may
    /// never report again.
    Failed(u64),
    /// No event is pending.
    Nothing,
    /// The channel has been closed, and no more events come.
    Closed,
}

#[derive(Debug)]
struct ChannelInner {
    context: Context,
    raw: NonNull<ibv_comp_channel>,
    /// An eventfd that becomes readable when the channel is closed, which ends every wait.
    closed: EventFd,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

impl CompletionChannel {
    /// Creates a channel for the completion queues of a device.
    ///
    /// # Errors
    ///
    /// [`Error`], if the process may open no more files.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let failed = |errno: Errno| Error::returned(Call::COMPLETION_CHANNEL, context.name(), errno as i32);
        let closed = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(failed)?;
        // SAFETY: the context is open.
        let raw = unsafe { (context.library().create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::COMPLETION_CHANNEL, context.name()))?;
        let created = ChannelInner { context: context.clone(), raw, closed };
        // Non-blocking, since another thread may take the report between `poll` and
        // `ibv_get_cq_event`.
        fcntl(created.file(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(failed)?;
        Ok(Self(Arc::new(created)))
    }

    /// Waits for a report, an asynchronous event of the device, or until the channel is
    /// [closed](Self::close).
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

    /// Returns the next event as [`wait`](Self::wait) does, or [`ChannelEvent::Nothing`].
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

    /// Closes the channel for all its handles, which ends every wait, now and later.
    pub fn close(&self) {
        // It fails only after 2^64 writes.
        let _ = self.0.closed.write(1);
    }

    /// Takes the next report, if there is one. Returns the number of its queue.
    fn next_completion_event(&self) -> Result<Option<u64>, Error> {
        let library = self.0.context.library();
        let (mut queue, mut number): (*mut ibv_cq, *mut c_void) =
            (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is alive. A queue that has reported is not destroyed before the
        // report is acknowledged, which follows.
        match unsafe { (library.get_cq_event)(self.raw(), &raw mut queue, &raw mut number) } {
            0 => {
                // SAFETY: acknowledges the one report.
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
        Error::returned(Call::WAIT, self.0.context.name(), errno as i32)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut ibv_comp_channel {
        self.0.raw.as_ptr()
    }
}

impl ChannelInner {
    fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive, and with it its file.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: completion queues hold the channel that they report to, so none refers to it any
        // more.
        let _ = unsafe { (self.context.library().destroy_comp_channel)(self.raw.as_ptr()) };
    }
}
