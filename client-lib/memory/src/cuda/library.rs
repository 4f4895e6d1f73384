//! The functions of libcuda, looked up when the first one is needed.
//!
//! cudarc's own functions are not called. They panic if libcuda lacks one, and they return an enum,
//! which must not hold the error numbers of newer drivers. Its loader is not used either: it tries
//! `libcuda.so` first, which is the stub of the CUDA toolkit. Its types are used, and our
//! signatures are checked against its own.
#![allow(unsafe_code, reason = "talks to CUDA")]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUflushGPUDirectRDMAWritesScope,
    CUflushGPUDirectRDMAWritesTarget, CUmemRangeHandleType, CUpointer_attribute, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::failure;
use crate::error::GpuError;

macro_rules! library {
    (
        always { $($always:ident($($argument:ty),* $(,)?);)* }
        newer { $($newer:ident($($newer_argument:ty),* $(,)?);)* }
    ) => {
        /// The functions of libcuda. Once all are found, the library is never unloaded.
        #[allow(non_snake_case, reason = "CUDA's own names")]
        pub(super) struct Library {
            $(pub(super) $always: unsafe extern "C" fn($($argument),*) -> u32,)*
            // Missing in very old drivers.
            $(pub(super) $newer: Option<unsafe extern "C" fn($($newer_argument),*) -> u32>,)*
            cuGetErrorName: Words,
            cuGetErrorString: Words,
            // Held, since the functions are valid only while it is loaded.
            _loaded: libloading::Library,
        }

        // cudarc's signatures are generated from CUDA's header.
        $(const _: unsafe fn($($argument),*) -> CUresult = sys::$always;)*
        $(const _: unsafe fn($($newer_argument),*) -> CUresult = sys::$newer;)*

        impl Library {
            /// Looks up all functions. Returns the name of the first one that is missing.
            ///
            /// # Safety
            ///
            /// The library is NVIDIA's libcuda.
            unsafe fn find(loaded: libloading::Library) -> Result<Self, &'static str> {
                // SAFETY: the caller's promise. The types are those of CUDA's header, with a number
                // for the returned enum. The library is kept next to the functions.
                unsafe {
                    Ok(Self {
                        $($always: symbol(&loaded, concat!(stringify!($always), "\0")).ok_or(stringify!($always))?,)*
                        $($newer: symbol(&loaded, concat!(stringify!($newer), "\0")),)*
                        cuGetErrorName: symbol(&loaded, "cuGetErrorName\0").ok_or("cuGetErrorName")?,
                        cuGetErrorString: symbol(&loaded, "cuGetErrorString\0").ok_or("cuGetErrorString")?,
                        _loaded: loaded,
                    })
                }
            }
        }
    };
}

/// The type of `cuGetErrorName` and `cuGetErrorString`, which are called with numbers that cudarc's
/// enum lacks.
type Words = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;

/// Looks up a function by its name, which ends in a zero byte.
///
/// # Safety
///
/// The function has this type, and is not called after the library has been dropped.
unsafe fn symbol<F: Copy>(loaded: &libloading::Library, name: &str) -> Option<F> {
    // SAFETY: the caller's promise.
    unsafe { loaded.get::<F>(name.as_bytes()) }.ok().map(|function| *function)
}

// In the order of the CUDA Driver API's manual. Each name is that of the symbol, as <cuda.h> maps
// it. The names have no suffix for streams, so that stream 0 is the legacy default stream.
library! {
    always {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuCtxPopCurrent_v2(*mut CUcontext);
        cuCtxPushCurrent_v2(CUcontext);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemFreeHost(*mut c_void);
        cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
        cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr);
        cuPointerSetAttribute(*const c_void, CUpointer_attribute, CUdeviceptr);
        cuStreamCreate(*mut CUstream, c_uint);
        cuStreamDestroy_v2(CUstream);
        cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
        cuStreamSynchronize(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventRecord(CUevent, CUstream);
    }
    newer {
        cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope);
        cuMemGetHandleForAddressRange(*mut c_void, CUdeviceptr, usize, CUmemRangeHandleType, c_ulonglong);
    }
}

impl Library {
    /// Returns the library, which is loaded once for the whole program, and initialized. A fault of
    /// the driver or the machine shows here.
    pub(super) fn ready() -> Result<&'static Self, GpuError> {
        static LIBRARY: OnceLock<Result<Library, GpuError>> = OnceLock::new();
        let library = LIBRARY.get_or_init(Self::open).as_ref().map_err(Clone::clone)?;
        // Called each time: in a forked child of a program that has used CUDA it fails.
        // SAFETY: 0 is the only flag, and the call may be repeated.
        library.check("cuInit", unsafe { (library.cuInit)(0) })?;
        Ok(library)
    }

    fn open() -> Result<Self, GpuError> {
        // The driver's own file name first: `LD_LIBRARY_PATH` may lead to the toolkit's stub, which
        // has only the other one.
        let loaded = ["libcuda.so.1", "libcuda.so"].into_iter().find_map(|name| {
            // SAFETY: the constructors of libcuda only read its environment.
            unsafe { libloading::Library::new(name) }.ok()
        });
        let Some(loaded) = loaded else {
            return Err(GpuError::new(failure::NO_LIBRARY));
        };
        // SAFETY: the file name is that of NVIDIA's libcuda.
        unsafe { Self::find(loaded) }.map_err(|function| GpuError::new(failure::missing_function(function)))
    }

    /// Converts the result of a call of libcuda to an error, with the likely cause and the remedy.
    pub(super) fn check(&self, call: &str, code: u32) -> Result<(), GpuError> {
        if code == failure::SUCCESS {
            return Ok(());
        }
        let (name, words) = (self.words(self.cuGetErrorName, code), self.words(self.cuGetErrorString, code));
        Err(GpuError::new(failure::message(call, code, name, words)))
    }

    fn words(&self, of: Words, code: u32) -> Option<&'static str> {
        let mut text = ptr::null();
        // SAFETY: any number is allowed; `text` outlives the call.
        let known = unsafe { of(code, &raw mut text) } == failure::SUCCESS && !text.is_null();
        // SAFETY: a constant of the library, which stays loaded.
        known.then(|| unsafe { CStr::from_ptr(text) }).and_then(|text| text.to_str().ok())
    }

    /// Returns the CUDA version of the driver: 12020 stands for 12.2.
    pub(super) fn version(&self) -> Result<c_int, GpuError> {
        let mut version = 0;
        // SAFETY: `version` outlives the call.
        self.check("cuDriverGetVersion", unsafe { (self.cuDriverGetVersion)(&raw mut version) })?;
        Ok(version)
    }

    /// Returns the number of GPUs that this process may see (`CUDA_VISIBLE_DEVICES`).
    pub(super) fn count(&self) -> Result<u32, GpuError> {
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        self.check("cuDeviceGetCount", unsafe { (self.cuDeviceGetCount)(&raw mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }
}
