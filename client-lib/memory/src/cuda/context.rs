//! What belongs to a GPU's context: the context itself, streams, events and memory that it has locked.
#![allow(unsafe_code, reason = "talks to CUDA")]

use std::ffi::c_void;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_PORTABLE, CUcontext, CUdevice, CUdeviceptr, CUevent, CUevent_flags, CUstream,
    CUstream_flags, CUstreamCaptureMode,
};

use super::library::Library;
use crate::error::GpuError;

/// The primary context of a GPU, which all libraries of a process share, kept.
pub(super) struct Context {
    pub(super) library: &'static Library,
    /// The GPU's name, for errors.
    pub(super) name: String,
    device: CUdevice,
    raw: CUcontext,
}

// SAFETY: the driver lets any thread use a context, and several at once (CUDA Driver API, "Context Management").
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn retain(
        library: &'static Library,
        device: CUdevice,
        name: String,
    ) -> Result<Arc<Self>, GpuError> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call; the device is one of the driver's.
        let code = unsafe { (library.cuDevicePrimaryCtxRetain)(&raw mut raw, device) };
        let failed = |error| GpuError::new(format!("{name}: {error}"));
        library.check("cuDevicePrimaryCtxRetain", code).map_err(failed)?;
        Ok(Arc::new(Self { library, name, device, raw }))
    }

    /// Makes it the calling thread's current one, until what is returned is dropped: then the thread has its own again.
    ///
    /// So long, the thread may do all things while the program captures a CUDA graph. By default, allocating and freeing memory would fail then,
    /// and the capture with it, whichever thread it is of. Nothing of ours has to be in a graph: it is all done when a call returns.
    pub(super) fn enter(&self) -> Result<Current<'_>, GpuError> {
        // SAFETY: the context is kept.
        self.check("cuCtxPushCurrent", unsafe { (self.library.cuCtxPushCurrent_v2)(self.raw) })?;
        let mut current = Current { context: self, outer: None, thread: PhantomData };
        let mode = current.exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32)?;
        current.outer = Some(mode);
        Ok(current)
    }

    /// Whether it is this one.
    pub(super) fn is(&self, other: CUcontext) -> bool {
        self.raw == other
    }

    /// What a call has returned, in words, with the GPU's name.
    pub(super) fn check(&self, call: &str, code: u32) -> Result<(), GpuError> {
        self.library.check(call, code).map_err(|error| self.error(error))
    }

    /// An error of this GPU.
    pub(super) fn error(&self, reason: impl std::fmt::Display) -> GpuError {
        GpuError::new(format!("{}: {reason}", self.name))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once. Where the driver is ending, it says so and does nothing.
        let _ = unsafe { (self.library.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// Proof that a context is the calling thread's current one. It does not leave the thread.
pub(super) struct Current<'a> {
    pub(super) context: &'a Context,
    /// The thread's own capture mode, which it is given again.
    outer: Option<u32>,
    thread: PhantomData<*const ()>,
}

impl Current<'_> {
    /// Sets the calling thread's capture mode, and returns the one before. A number, as there may be modes that cudarc's enumeration does not have.
    fn exchange(&self, mode: u32) -> Result<u32, GpuError> {
        let mut mode = mode;
        // SAFETY: `mode` outlives the call, and is as large as the enumeration.
        let code =
            unsafe { (self.context.library.cuThreadExchangeStreamCaptureMode)((&raw mut mode).cast()) };
        self.context.check("cuThreadExchangeStreamCaptureMode", code)?;
        Ok(mode)
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(outer) = self.outer {
            let _ = self.exchange(outer);
        }
        let mut raw = ptr::null_mut();
        // SAFETY: what was pushed on this thread is popped from it; `raw` outlives the call.
        let _ = unsafe { (self.context.library.cuCtxPopCurrent_v2)(&raw mut raw) };
    }
}

/// A stream that waits for no other by itself.
pub(super) struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: the driver lets any thread use it.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, GpuError> {
        let _current = context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `raw` outlives the call, and the context is current.
        let code = unsafe { (context.library.cuStreamCreate)(&raw mut raw, flags) };
        context.check("cuStreamCreate", code)?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Has what is asked of the stream from now on wait for what was recorded last.
    pub(super) fn wait_for(&self, event: &Event) -> Result<(), GpuError> {
        let _current = self.context.enter()?;
        // SAFETY: both are there, and of one context.
        let code = unsafe { (self.context.library.cuStreamWaitEvent)(self.raw, event.raw, 0) };
        self.context.check("cuStreamWaitEvent", code)
    }

    /// Has bytes set to zero.
    ///
    /// # Safety
    ///
    /// They are memory of the GPU's until that is done.
    pub(super) unsafe fn zero(&self, to: CUdeviceptr, length: usize) -> Result<(), GpuError> {
        let _current = self.context.enter()?;
        // SAFETY: as was promised.
        let code = unsafe { (self.context.library.cuMemsetD8Async)(to, 0, length, self.raw) };
        self.context.check("cuMemsetD8Async", code)
    }

    /// Has bytes copied from the machine's memory to the GPU's.
    ///
    /// # Safety
    ///
    /// Until that is done, they stay in their places, and nobody writes to them.
    pub(super) unsafe fn upload(
        &self,
        to: CUdeviceptr,
        from: *const u8,
        length: usize,
    ) -> Result<(), GpuError> {
        let _current = self.context.enter()?;
        let from = from.cast::<c_void>();
        // SAFETY: as was promised.
        let code = unsafe { (self.context.library.cuMemcpyHtoDAsync_v2)(to, from, length, self.raw) };
        self.context.check("cuMemcpyHtoDAsync", code)
    }

    /// Has bytes copied from the GPU's memory to the machine's.
    ///
    /// # Safety
    ///
    /// Until that is done, they stay in their places, and nobody else reaches where they come to.
    pub(super) unsafe fn download(
        &self,
        from: CUdeviceptr,
        to: *mut u8,
        length: usize,
    ) -> Result<(), GpuError> {
        let _current = self.context.enter()?;
        let to = to.cast::<c_void>();
        // SAFETY: as was promised.
        let code = unsafe { (self.context.library.cuMemcpyDtoHAsync_v2)(to, from, length, self.raw) };
        self.context.check("cuMemcpyDtoHAsync", code)
    }

    /// Returns when all that was asked of it is done.
    pub(super) fn settle(&self) -> Result<(), GpuError> {
        let _current = self.context.enter()?;
        // SAFETY: the stream is there.
        let code = unsafe { (self.context.library.cuStreamSynchronize)(self.raw) };
        self.context.check("cuStreamSynchronize", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: made once, and not used again.
            let _ = unsafe { (self.context.library.cuStreamDestroy_v2)(self.raw) };
        }
    }
}

/// A place in the order of what is asked of a GPU.
pub(super) struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: the driver lets any thread use it.
unsafe impl Send for Event {}

impl Event {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, GpuError> {
        let _current = context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: `raw` outlives the call, and the context is current.
        let code = unsafe { (context.library.cuEventCreate)(&raw mut raw, flags) };
        context.check("cuEventCreate", code)?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Puts it after all that has been asked of the legacy default stream and of those that it waits for: all streams of the context that were
    /// not made to be non-blocking (CUDA Driver API, "Stream synchronization behavior"). If one of those is being captured, that is an error.
    pub(super) fn record(&self) -> Result<(), GpuError> {
        /// `CU_STREAM_LEGACY` of <cuda.h>, a macro.
        const LEGACY: CUstream = ptr::without_provenance_mut(1);
        let _current = self.context.enter()?;
        // Recording would fail as well, but end the capture with that. To ask does not (CUDA Driver API, `cuStreamIsCapturing`). Against a capture
        // that begins between the two calls nothing helps.
        let mut status = 0_u32;
        // SAFETY: the stream is always there; `status` outlives the call, and is as large as the enumeration.
        let code = unsafe { (self.context.library.cuStreamIsCapturing)(LEGACY, (&raw mut status).cast()) };
        self.context.check("cuStreamIsCapturing", code)?;
        // SAFETY: the event is there, and the stream is always.
        let code = unsafe { (self.context.library.cuEventRecord)(self.raw, LEGACY) };
        self.context.check("cuEventRecord", code)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: made once, and not used again.
            let _ = unsafe { (self.context.library.cuEventDestroy_v2)(self.raw) };
        }
    }
}

/// Memory of the machine's that stays in its place, where the GPU reaches it by itself.
pub(super) struct Locked {
    context: Arc<Context>,
    start: NonNull<u8>,
}

// SAFETY: memory that any thread may free.
unsafe impl Send for Locked {}
// SAFETY: shared, it only says where it is.
unsafe impl Sync for Locked {}

impl Locked {
    /// So many bytes, all zero. Processors read it as fast as other memory: it is not write-combined.
    pub(super) fn new(context: &Arc<Context>, length: NonZeroUsize) -> Result<Self, GpuError> {
        let _current = context.enter()?;
        let mut start = ptr::null_mut();
        // SAFETY: `start` outlives the call, and the context is current.
        let code = unsafe {
            (context.library.cuMemHostAlloc)(&raw mut start, length.get(), CU_MEMHOSTALLOC_PORTABLE)
        };
        context.check("cuMemHostAlloc", code)?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(context.error("cuMemHostAlloc gave no memory"));
        };
        // SAFETY: so many bytes are there, and nobody else knows of them.
        unsafe { start.write_bytes(0, length.get()) };
        Ok(Self { context: Arc::clone(context), start })
    }

    /// Where it begins.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: allocated once, and not used again.
            let _ = unsafe { (self.context.library.cuMemFreeHost)(self.start.as_ptr().cast()) };
        }
    }
}
