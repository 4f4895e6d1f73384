//! Completion queues, which report the outcome of posted requests.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use crate::completion_channel::CompletionChannel;
use crate::context::Context;
use crate::error::{Call, Error};

/// The most completions that one call of [`CompletionQueue::poll_batch`] takes.
const POLL_BATCH: usize = 16;

/// A queue of the completions of posted requests. A clone is another handle of the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<QueueInner>);

#[derive(Debug)]
struct QueueInner {
    context: Context,
    raw: NonNull<ibv_cq>,
    // Held, since the queue reports to it.
    _channel: Option<CompletionChannel>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for QueueInner {}
// SAFETY: as above.
unsafe impl Sync for QueueInner {}

/// The outcome of a posted work request, taken from a completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The identifier that the request was posted with (`wr_id`).
    pub id: u64,
    /// Whether the request succeeded. When a queue pair fails, only its first error is meaningful:
    /// the requests after it are flushed.
    pub status: Result<(), Status>,
    /// The immediate that the peer sent, if this is a receive request that a write has completed.
    pub immediate: Option<u32>,
}

/// Why a work request failed (InfiniBand Architecture, 11.6.2).
#[derive(Clone, PartialEq, Eq)]
pub struct Status {
    code: ibv_wc_status::Type,
    vendor: u32,
    text: String,
}

impl CompletionQueue {
    /// Creates a queue for `capacity` completions.
    ///
    /// The capacity has to cover all requests, of all queue pairs that use the queue, that have
    /// been posted and whose completions have not been polled. A queue that overflows cannot be
    /// used any more, nor can its queue pairs. Devices may give queue pairs larger capacities than
    /// they were asked for.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device has no queue of that capacity.
    pub fn new(context: &Context, capacity: u16) -> Result<Self, Error> {
        Self::create(context, capacity, None, 0)
    }

    /// Creates a queue as [`new`](Self::new) does, which reports to the channel by this number
    /// whenever it is [armed](Self::arm).
    ///
    /// # Errors
    ///
    /// [`Error`], if the device has no queue of that capacity.
    pub fn with_channel(channel: &CompletionChannel, number: u64, capacity: u16) -> Result<Self, Error> {
        Self::create(channel.context(), capacity, Some(channel.clone()), number)
    }

    fn create(
        context: &Context,
        capacity: u16,
        channel: Option<CompletionChannel>,
        number: u64,
    ) -> Result<Self, Error> {
        let to = channel.as_ref().map_or(std::ptr::null_mut(), CompletionChannel::raw);
        // The pointer is only used as a number. All processors with RDMA have 64 bits.
        let number = std::ptr::without_provenance_mut(number as usize);
        // SAFETY: the context is open, and the channel belongs to it; all devices have a vector 0.
        let raw = unsafe { (context.library().create_cq)(context.raw(), capacity.into(), number, to, 0) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::COMPLETION_QUEUE, context.name()))?;
        Ok(Self(Arc::new(QueueInner { context: context.clone(), raw, _channel: channel })))
    }

    /// Arms the queue: its next completion is reported to the channel. A completion that is in the
    /// queue already is not reported, so the caller polls once more after this call.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device is gone.
    pub fn arm(&self) -> Result<(), Error> {
        // SAFETY: the queue is alive.
        match unsafe { ibv_req_notify_cq(self.raw(), 0) } {
            0 => Ok(()),
            errno => Err(Error::returned(Call::ARM, self.context().name(), errno)),
        }
    }

    /// Takes the next completion, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device is gone.
    pub fn poll(&self) -> Result<Option<Completion>, Error> {
        // SAFETY: a structure of numbers.
        let mut found: [ibv_wc; 1] = unsafe { std::mem::zeroed() };
        Ok(self.poll_into(&mut found)?.first().map(|found| self.read(found)))
    }

    /// Appends the next completions, at most 16, to a list.
    ///
    /// # Errors
    ///
    /// [`Error`], if the device is gone.
    pub fn poll_batch(&self, to: &mut Vec<Completion>) -> Result<(), Error> {
        // SAFETY: structures of numbers.
        let mut found: [ibv_wc; POLL_BATCH] = unsafe { std::mem::zeroed() };
        to.extend(self.poll_into(&mut found)?.iter().map(|found| self.read(found)));
        Ok(())
    }

    fn poll_into<'a, const N: usize>(&self, found: &'a mut [ibv_wc; N]) -> Result<&'a [ibv_wc], Error> {
        // SAFETY: the queue is alive, and the array has room for as many completions as are
        // requested.
        let count = unsafe { ibv_poll_cq(self.raw(), N as i32, found.as_mut_ptr()) };
        let polled = usize::try_from(count).ok().and_then(|count| found.get(..count));
        // A negative result is not an error number.
        polled.ok_or_else(|| Error::returned(Call::POLL, self.context().name(), libc::EIO))
    }

    fn read(&self, found: &ibv_wc) -> Completion {
        let status = match found.status {
            ibv_wc_status::IBV_WC_SUCCESS => Ok(()),
            code => Err(Status {
                code,
                vendor: found.vendor_err,
                text: self.context().library().status_text(code),
            }),
        };
        // Nothing else is defined for a failure. Soft-RoCE also sets the flag in completions of the
        // sender.
        let is_received = status.is_ok() && found.opcode & ibv_wc_opcode::IBV_WC_RECV != 0;
        let has_immediate = is_received && found.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        // SAFETY: both fields of the union are numbers.
        let immediate = u32::from_be(unsafe { found.imm_data_invalidated_rkey_union.imm_data });
        Completion { id: found.wr_id, status, immediate: has_immediate.then_some(immediate) }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    /// Returns the number by which the queue reports to its channel, as a pointer.
    pub(crate) fn number(&self) -> *mut c_void {
        // SAFETY: the queue is alive, and its number never changes.
        unsafe { self.0.raw.as_ref() }.cq_context
    }

    pub(crate) fn raw(&self) -> *mut ibv_cq {
        self.0.raw.as_ptr()
    }
}

impl Status {
    /// Returns the number of the status in `enum ibv_wc_status`; never 0, which stands for success.
    pub fn code(&self) -> u32 {
        self.code
    }

    /// Returns whether the request was only flushed because another one had failed before it.
    pub fn is_flush(&self) -> bool {
        self.code == ibv_wc_status::IBV_WC_WR_FLUSH_ERR
    }

    /// Returns whether the request failed as the peer did not answer, which may be temporary.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self.code, ibv_wc_status::IBV_WC_RETRY_EXC_ERR | ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR)
    }

    /// Returns the likely cause of the failure, if known. It is not part of the message.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self.code {
            ibv_wc_status::IBV_WC_LOC_PROT_ERR => {
                "the device may not reach this memory; with a GPU's, look at PCIe ACS and the route between the two"
            }
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR => {
                "the peer does not allow writing there: its memory is gone, its key is an old one, or its device may not reach it"
            }
            ibv_wc_status::IBV_WC_RETRY_EXC_ERR => {
                "the peer's device does not answer: it is gone, or packets are lost (wrong GID index or RoCE version, MTU, flow control)"
            }
            ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => "the peer has no receive request posted",
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR | ibv_wc_status::IBV_WC_REM_OP_ERR => {
                "the peer's queue pair refused it"
            }
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => "an earlier request of the same queue pair has failed",
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {}, vendor error {:#x})", self.text, self.code, self.vendor)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Drop for QueueInner {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold the queue that they use, so none refers to it any more.
        let _ = unsafe { (self.context.library().destroy_cq)(self.raw.as_ptr()) };
    }
}
