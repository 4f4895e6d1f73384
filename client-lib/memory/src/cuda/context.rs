//! The primary context of a GPU, and the objects that belong to it: streams, events, locked memory.
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

/// The primary context of a GPU, which all libraries of a process share. It is retained as long as
/// this value lives.
pub(super) struct Context {
    pub(super) library: &'static Library,
    /// The name of the GPU, with which its error messages begin.
    pub(super) name: String,
    device: CUdevice,
    raw: CUcontext,
}

// SAFETY: any thread may use a context, and several at once (CUDA Driver API, "Context
// Management").
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
        // SAFETY: `raw` outlives the call, and the driver returned the device.
        let code = unsafe { (library.cuDevicePrimaryCtxRetain)(&raw mut raw, device) };
        let failed = |error| GpuError::new(format!("{name}: {error}"));
        library.check("cuDevicePrimaryCtxRetain", code).map_err(failed)?;
        Ok(Arc::new(Self { library, name, device, raw }))
    }

    /// Makes this the current context of the calling thread, until the returned guard is dropped.
    ///
    /// Until then, the thread may make all calls even while the program captures a CUDA graph. By
    /// default, allocating and freeing memory would fail then, and end the capture of any thread.
    /// Nothing of this crate has to be in a graph, since every call here is complete when it
    /// returns.
    pub(super) fn enter(&self) -> Result<Current<'_>, GpuError> {
        // SAFETY: the context is retained.
        self.check("cuCtxPushCurrent", unsafe { (self.library.cuCtxPushCurrent_v2)(self.raw) })?;
        let mut current = Current { context: self, outer: None, thread: PhantomData };
        let mode = current.exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32)?;
        current.outer = Some(mode);
        Ok(current)
    }

    /// Returns whether a context of the driver is this primary context.
    pub(super) fn is_same(&self, other: CUcontext) -> bool {
        self.raw == other
    }

    /// Converts the result of a call to an error with the name of the GPU.
    pub(super) fn check(&self, call: &str, code: u32) -> Result<(), GpuError> {
        self.library.check(call, code).map_err(|error| self.error(error))
    }

    /// Makes an error whose message begins with the name of the GPU.
    pub(super) fn error(&self, reason: impl std::fmt::Display) -> GpuError {
        GpuError::new(format!("{}: {reason}", self.name))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once. If the driver is shutting down, the call fails without effect.
        let _ = unsafe { (self.library.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// A guard of the current context of the calling thread, which it cannot leave.
pub(super) struct Current<'a> {
    pub(super) context: &'a Context,
    /// The capture mode that the thread had before, which is restored; `None` if it was not
    /// changed.
    outer: Option<u32>,
    thread: PhantomData<*const ()>,
}

impl Current<'_> {
    /// Sets the capture mode of the calling thread, and returns the one before. It is a number,
    /// since drivers may have modes that cudarc's enum lacks.
    fn exchange(&self, mode: u32) -> Result<u32, GpuError> {
        let mut mode = mode;
        // SAFETY: `mode` outlives the call, and has the size of the enum.
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
        // SAFETY: pops what `enter` pushed on this thread; `raw` outlives the call.
        let _ = unsafe { (self.context.library.cuCtxPopCurrent_v2)(&raw mut raw) };
    }
}

/// A non-blocking CUDA stream, which waits for no other stream by itself.
pub(super) struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: any thread may use a stream.
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

    /// Makes later work of the stream wait for the last record of an event.
    pub(super) fn wait_for(&self, event: &Event) -> Result<(), GpuError> {
        let _current = self.context.enter()?;
        // SAFETY: both are alive, and belong to one context.
        let code = unsafe { (self.context.library.cuStreamWaitEvent)(self.raw, event.raw, 0) };
        self.context.check("cuStreamWaitEvent", code)
    }

    /// Starts to set bytes to zero.
    ///
    /// # Safety
    ///
    /// The bytes are memory of the GPU until that is complete.
    pub(super) unsafe fn zero(&self, to: CUdeviceptr, length: usize) -> Result<(), GpuError> {
        let _current = self.context.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.library.cuMemsetD8Async)(to, 0, length, self.raw) };
        self.context.check("cuMemsetD8Async", code)
    }

    /// Starts to copy bytes from the machine's memory to the GPU's.
    ///
    /// # Safety
    ///
    /// Until the copy is complete, the bytes stay where they are, and nothing writes to them.
    pub(super) unsafe fn upload(
        &self,
        to: CUdeviceptr,
        from: *const u8,
        length: usize,
    ) -> Result<(), GpuError> {
        let _current = self.context.enter()?;
        let from = from.cast::<c_void>();
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.library.cuMemcpyHtoDAsync_v2)(to, from, length, self.raw) };
        self.context.check("cuMemcpyHtoDAsync", code)
    }

    /// Starts to copy bytes from the GPU's memory to the machine's.
    ///
    /// # Safety
    ///
    /// Until the copy is complete, the bytes stay where they are, and nothing else accesses the
    /// destination.
    pub(super) unsafe fn download(
        &self,
        from: CUdeviceptr,
        to: *mut u8,
        length: usize,
    ) -> Result<(), GpuError> {
        let _current = self.context.enter()?;
        let to = to.cast::<c_void>();
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.library.cuMemcpyDtoHAsync_v2)(to, from, length, self.raw) };
        self.context.check("cuMemcpyDtoHAsync", code)
    }

    /// Waits until all work of the stream, such as copies, is complete.
    pub(super) fn synchronize(&self) -> Result<(), GpuError> {
        let _current = self.context.enter()?;
        // SAFETY: the stream is alive.
        let code = unsafe { (self.context.library.cuStreamSynchronize)(self.raw) };
        self.context.check("cuStreamSynchronize", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: created once, and not used again.
            let _ = unsafe { (self.context.library.cuStreamDestroy_v2)(self.raw) };
        }
    }
}

/// A CUDA event, which marks a point in the work of a GPU for streams to wait for.
pub(super) struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: any thread may use an event.
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

    /// Records the event after all work so far in the legacy default stream and the streams that it
    /// waits for, which are all blocking streams of the context (CUDA Driver API, "Stream
    /// synchronization behavior"). Fails if one of them is being captured.
    pub(super) fn record(&self) -> Result<(), GpuError> {
        /// The legacy default stream: `CU_STREAM_LEGACY` of <cuda.h>, a macro.
        const LEGACY: CUstream = ptr::without_provenance_mut(1);
        let _current = self.context.enter()?;
        // Recording would fail too, but would end the capture. This query does not (CUDA Driver
        // API, `cuStreamIsCapturing`). A capture that begins between the two calls is ended
        // nevertheless.
        let mut status = 0_u32;
        // SAFETY: this stream always exists; `status` outlives the call, and has the size of the
        // enum.
        let code = unsafe { (self.context.library.cuStreamIsCapturing)(LEGACY, (&raw mut status).cast()) };
        self.context.check("cuStreamIsCapturing", code)?;
        // SAFETY: the event is alive, and this stream always exists.
        let code = unsafe { (self.context.library.cuEventRecord)(self.raw, LEGACY) };
        self.context.check("cuEventRecord", code)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: created once, and not used again.
            let _ = unsafe { (self.context.library.cuEventDestroy_v2)(self.raw) };
        }
    }
}

/// Page-locked memory of the machine, which the GPU copies from and to by itself.
pub(super) struct Locked {
    context: Arc<Context>,
    start: NonNull<u8>,
}

// SAFETY: any thread may free the memory.
unsafe impl Send for Locked {}
// SAFETY: shared, the value only returns its address.
unsafe impl Sync for Locked {}

impl Locked {
    /// Allocates zeroed memory. It is not write-combined, so processors read it at full speed.
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
        // SAFETY: the memory has that many bytes, and nothing else refers to them.
        unsafe { start.write_bytes(0, length.get()) };
        Ok(Self { context: Arc::clone(context), start })
    }

    /// Returns the address of the first byte of the locked memory.
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
