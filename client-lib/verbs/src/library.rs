//! libibverbs, loaded when its first function is needed.
#![allow(unsafe_code, reason = "talks to verbs")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_wc_status,
};

use crate::error::LoadError;

/// The name of the library in all distributions. rdma-core has kept this ABI since 2018.
const FILE: &str = "libibverbs.so.1";

/// The functions of libibverbs, looked up in the loaded library.
pub struct Library {
    pub(crate) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    pub(crate) free_device_list: unsafe extern "C" fn(*mut *mut ibv_device),
    pub(crate) get_device_name: unsafe extern "C" fn(*mut ibv_device) -> *const c_char,
    pub(crate) open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
    pub(crate) close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int,
    // The exported function fills only the fields of the oldest version of the structure.
    pub(crate) query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
    // Since rdma-core 32.
    pub(crate) query_gid_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut GidEntry, u32, usize) -> c_int>,
    pub(crate) alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd,
    pub(crate) dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int,
    pub(crate) reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
    // Since rdma-core 34.
    pub(crate) reg_dmabuf_mr:
        Option<unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr>,
    pub(crate) dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int,
    pub(crate) create_cq: unsafe extern "C" fn(
        *mut ibv_context,
        c_int,
        *mut c_void,
        *mut ibv_comp_channel,
        c_int,
    ) -> *mut ibv_cq,
    pub(crate) destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    pub(crate) create_comp_channel: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel,
    pub(crate) destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int,
    pub(crate) get_cq_event:
        unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
    pub(crate) ack_cq_events: unsafe extern "C" fn(*mut ibv_cq, c_uint),
    pub(crate) get_async_event: unsafe extern "C" fn(*mut ibv_context, *mut AsyncEvent) -> c_int,
    pub(crate) ack_async_event: unsafe extern "C" fn(*mut AsyncEvent),
    pub(crate) create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
    pub(crate) modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
    pub(crate) destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    pub(crate) wc_status_str: unsafe extern "C" fn(ibv_wc_status::Type) -> *const c_char,
    // Held, since it contains the functions above.
    pub(crate) _object: libloading::Library,
}

/// `struct ibv_async_event`, with an integer for the kind: a newer library may have kinds that the
/// enum of rdma-sys lacks.
#[repr(C)]
#[derive(Default)]
pub(crate) struct AsyncEvent {
    /// The object of the event: a pointer, or the number of a port.
    pub(crate) element: u64,
    pub(crate) kind: c_uint,
}

/// The C structure `ibv_gid_entry`, which the headers behind rdma-sys may lack.
#[repr(C)]
#[derive(Default)]
pub(crate) struct GidEntry {
    /// The 16 bytes of the GID, as two halves.
    pub(crate) gid: [u64; 2],
    pub(crate) index: u32,
    pub(crate) port: u32,
    pub(crate) kind: u32,
    /// The index of the interface in its network namespace; 0 if there is none.
    pub(crate) interface: u32,
}

impl Library {
    /// Returns the library, which is loaded once for the whole program.
    ///
    /// A child that is forked later does not take registered pages away from this process by
    /// writing to its copies. Kernels since 5.12 copy such pages for the child; with older ones the
    /// child does not get them (`ibv_fork_init(3)`).
    ///
    /// # Errors
    ///
    /// [`LoadError`], if this machine has no libibverbs, or one that lacks a function.
    pub fn load() -> Result<&'static Self, LoadError> {
        static LIBRARY: OnceLock<Result<Library, LoadError>> = OnceLock::new();
        LIBRARY.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self, LoadError> {
        let missing =
            |error: libloading::Error| LoadError::Missing { reason: crate::error::innermost(&error) };
        // SAFETY: the constructors of libibverbs only read its environment. It is not unloaded as
        // long as its functions are in use.
        let object = unsafe { libloading::Library::new(FILE) }.map_err(missing)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type of the field is that of the function in <infiniband/verbs.h>,
                // where `ibv_query_port` takes a prefix of the structure.
                *unsafe { object.get($name) }
                    .map_err(|error| LoadError::Function { reason: crate::error::innermost(&error) })?
            };
        }
        // SAFETY: as above.
        let fork_init: unsafe extern "C" fn() -> c_int = function!(b"ibv_fork_init\0");
        let library = Self {
            get_device_list: function!(b"ibv_get_device_list\0"),
            free_device_list: function!(b"ibv_free_device_list\0"),
            get_device_name: function!(b"ibv_get_device_name\0"),
            open_device: function!(b"ibv_open_device\0"),
            close_device: function!(b"ibv_close_device\0"),
            query_port: function!(b"ibv_query_port\0"),
            // SAFETY: as above; the inline function of the header calls it by this name.
            query_gid_ex: unsafe { object.get(b"_ibv_query_gid_ex\0") }.ok().map(|function| *function),
            alloc_pd: function!(b"ibv_alloc_pd\0"),
            dealloc_pd: function!(b"ibv_dealloc_pd\0"),
            reg_mr: function!(b"ibv_reg_mr\0"),
            // SAFETY: as above.
            reg_dmabuf_mr: unsafe { object.get(b"ibv_reg_dmabuf_mr\0") }.ok().map(|function| *function),
            dereg_mr: function!(b"ibv_dereg_mr\0"),
            create_cq: function!(b"ibv_create_cq\0"),
            destroy_cq: function!(b"ibv_destroy_cq\0"),
            create_comp_channel: function!(b"ibv_create_comp_channel\0"),
            destroy_comp_channel: function!(b"ibv_destroy_comp_channel\0"),
            get_cq_event: function!(b"ibv_get_cq_event\0"),
            ack_cq_events: function!(b"ibv_ack_cq_events\0"),
            get_async_event: function!(b"ibv_get_async_event\0"),
            ack_async_event: function!(b"ibv_ack_async_event\0"),
            create_qp: function!(b"ibv_create_qp\0"),
            modify_qp: function!(b"ibv_modify_qp\0"),
            destroy_qp: function!(b"ibv_destroy_qp\0"),
            wc_status_str: function!(b"ibv_wc_status_str\0"),
            _object: object,
        };
        // It has to come before the first registration. Where it fails, forking is as unsafe as in
        // any other program that uses verbs. SAFETY: the function takes no arguments.
        let _ = unsafe { fork_init() };
        Ok(library)
    }

    /// Returns whether this libibverbs can register a dma-buf, which rdma-core can since 34.
    pub fn has_dma_buf(&self) -> bool {
        self.reg_dmabuf_mr.is_some()
    }

    /// Returns libibverbs' text for a completion status, or its number if there is none.
    pub(crate) fn status_text(&self, status: ibv_wc_status::Type) -> String {
        // SAFETY: the function takes any number, and returns a constant.
        let text = unsafe { (self.wc_status_str)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: the constant belongs to the library, which stays loaded.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}

/// Converts access flags or a mask to the type that the calls take.
pub(crate) fn bits(flags: c_uint) -> c_int {
    flags.cast_signed()
}
