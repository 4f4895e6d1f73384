//! The errors of verbs: the call, the device, the kernel's reason, and the likely cause.

use std::fmt;
use std::io;

use thiserror::Error;

/// Why libibverbs, the library of RDMA verbs, cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The library cannot be loaded, usually as it is not installed.
    #[error("libibverbs cannot be loaded ({reason})")]
    Missing {
        /// The dynamic loader's reason, which names the file.
        reason: String,
    },
    /// The library was loaded, but is too old: it lacks a function.
    #[error("this libibverbs cannot be used ({reason})")]
    Function {
        /// The dynamic loader's reason, which names the function.
        reason: String,
    },
}

impl LoadError {
    /// Returns the remedy: the packages to install.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "install libibverbs1 and ibverbs-providers, or rdma-core",
            Self::Function { .. } => "install rdma-core 17 or newer",
        }
    }
}

/// The failure of a call of verbs: which call, of which device, and the kernel's reason.
#[derive(Debug)]
pub struct Error {
    call: Call,
    device: String,
    source: io::Error,
}

/// The calls of verbs that may fail, and two steps of this crate beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call(&'static str);

impl Call {
    /// `ibv_get_device_list`
    pub const LIST: Self = Self("list RDMA devices");
    /// `ibv_open_device`
    pub const OPEN: Self = Self("open the device");
    /// `ibv_query_port`
    pub const QUERY: Self = Self("ask for the port's state");
    /// `ibv_alloc_pd`
    pub const PROTECTION_DOMAIN: Self = Self("make a protection domain");
    /// The allocation of memory that is to be registered, by `mmap`
    pub const ALLOCATE: Self = Self("get memory to register");
    /// The check that a range is within registered memory, before any call
    pub const REACH: Self = Self("reach into registered memory");
    /// `ibv_reg_mr`
    pub const REGISTER: Self = Self("register memory");
    /// `ibv_reg_dmabuf_mr`
    pub const DMA_BUF: Self = Self("register a dma-buf");
    /// `ibv_reg_mr` of an address in a GPU
    pub const PEER_MEMORY: Self = Self("register a GPU's memory");
    /// `ibv_create_cq`
    pub const COMPLETION_QUEUE: Self = Self("make a completion queue");
    /// `ibv_create_comp_channel`
    pub const COMPLETION_CHANNEL: Self = Self("make a completion channel");
    /// `ibv_get_cq_event`
    pub const WAIT: Self = Self("wait for completions");
    /// `ibv_get_async_event`
    pub const EVENT: Self = Self("go on with the device");
    /// `ibv_req_notify_cq`
    pub const ARM: Self = Self("arm the completion queue");
    /// `ibv_create_qp`
    pub const QUEUE_PAIR: Self = Self("make a queue pair");
    /// `ibv_modify_qp` to INIT
    pub const INIT: Self = Self("bring the queue pair to INIT");
    /// `ibv_modify_qp` to RTR
    pub const READY_TO_RECEIVE: Self = Self("bring the queue pair to RTR");
    /// `ibv_modify_qp` to RTS
    pub const READY_TO_SEND: Self = Self("bring the queue pair to RTS");
    /// `ibv_post_send`
    pub const SEND: Self = Self("post to the send queue");
    /// `ibv_post_recv`
    pub const RECEIVE: Self = Self("post to the receive queue");
    /// `ibv_poll_cq`
    pub const POLL: Self = Self("poll the completion queue");
}

impl Error {
    /// Makes the error of a call that has just set `errno`.
    pub(crate) fn last(call: Call, device: &str) -> Self {
        let source = io::Error::last_os_error();
        Self { call, device: device.to_owned(), source }
    }

    /// Makes the error of a call that returned this error number, positive or negative.
    pub(crate) fn returned(call: Call, device: &str, errno: i32) -> Self {
        Self { call, device: device.to_owned(), source: io::Error::from_raw_os_error(errno.abs()) }
    }

    /// Returns the call of verbs that failed.
    pub fn call(&self) -> Call {
        self.call
    }

    /// Returns the kernel's reason for the failure, a number of `errno(3)`.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Returns whether something was exhausted that may be available later: memory, file
    /// descriptors, or a resource of the device.
    pub(crate) fn is_out_of_resources(&self) -> bool {
        let scarce = [libc::ENOMEM, libc::EAGAIN, libc::EBUSY, libc::ENOSPC, libc::EMFILE, libc::ENFILE];
        self.errno().is_some_and(|errno| scarce.contains(&errno))
    }

    /// Returns the likely cause and the remedy. It is not part of the message.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match (self.call, self.errno()?) {
            (Call::LIST, libc::ENOSYS) => {
                "the kernel has no RDMA: its modules (ib_uverbs and the device's own) are not loaded"
            }
            (Call::LIST | Call::OPEN, libc::EPERM | libc::EACCES | libc::ENOENT) => {
                "request the device plugin's resource in the pod's spec, so that it may use /dev/infiniband; or the device belongs to another \
                 network namespace, as `rdma system` says"
            }
            (Call::OPEN, libc::EIO | libc::ENXIO | libc::ENODEV) => "the device is gone",
            (Call::EVENT, libc::ENODEV) => {
                "it has been removed, or its driver has given it up; once it is back, it is opened anew"
            }
            // Drivers lock the memory of queues too.
            (Call::REGISTER | Call::PROTECTION_DOMAIN | Call::COMPLETION_QUEUE, libc::ENOMEM) => {
                "too little memory may be locked: raise memlock (containerd's LimitMEMLOCK=infinity, or IPC_LOCK for root)"
            }
            // A dma-buf locks no memory of the machine.
            (Call::DMA_BUF, libc::ENOMEM | libc::ENOSPC) => {
                "the GPU's BAR1 (`nvidia-smi -q`, BAR1 Memory Usage) or the device has no room for it: fewer slots, or smaller frames"
            }
            (Call::PEER_MEMORY, libc::ENOMEM) => {
                "the GPU's BAR1 (`nvidia-smi -q`, BAR1 Memory Usage) or the device has no room for it: fewer slots, or smaller frames; or too little \
                 memory may be locked: raise memlock (containerd's LimitMEMLOCK=infinity, or IPC_LOCK for root)"
            }
            (Call::REGISTER | Call::DMA_BUF | Call::PEER_MEMORY, libc::EAGAIN) => {
                "the device has no keys for memory left: other programs have them, or such as were killed have left them behind, until its driver is \
                 loaded again"
            }
            (Call::ALLOCATE, libc::ENOMEM) => "the machine, or this container's limit, has no memory left",
            (Call::REGISTER, libc::EFAULT) => {
                "the memory is not this process's own, or is a GPU's without nvidia-peermem"
            }
            (Call::PEER_MEMORY, libc::EFAULT) => {
                "the kernel does not know this GPU's addresses: nvidia-peermem is not loaded on the node, or not for this RDMA driver"
            }
            (Call::QUEUE_PAIR, libc::ENOMEM) => {
                "the device does not have queues that deep, or too little memory may be locked: raise memlock (containerd's LimitMEMLOCK=infinity, \
                 or IPC_LOCK for root)"
            }
            (Call::QUEUE_PAIR, libc::EINVAL) => {
                "the device does not have queues that deep, or the completion queue is another device's"
            }
            // The kernel has one error number for all these causes, and does not name the link
            // layer.
            (Call::READY_TO_RECEIVE, libc::EINVAL) => {
                "the kernel finds no route to the peer's GID: wrong GID index, or the interface or its route is not in this network namespace; under \
                 InfiniBand, an end without a GID on a port that needs one (GRH required), or a GID index that has changed since"
            }
            (Call::READY_TO_RECEIVE, libc::ENODEV | libc::ETIMEDOUT | libc::ENETUNREACH) => {
                "the kernel finds no route to the peer's GID: wrong GID index, or the interface or its route is not in this network namespace"
            }
            (Call::COMPLETION_CHANNEL, libc::EMFILE) => {
                "this process may open no more files: raise its limit (nofile)"
            }
            (Call::POLL, libc::EIO) => "it has overflowed, or the device was reset",
            (Call::REACH, libc::EINVAL) => "the range is not within it",
            (Call::SEND, libc::ENOMEM) => "the send queue is full",
            _ => return None,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.device.is_empty() {
            write!(f, "{}: ", self.device)?;
        }
        write!(f, "cannot {}: {}", self.call.0, self.source)
    }
}

// The message contains the reason, so there is no source.
impl std::error::Error for Error {}

/// Returns the message of the innermost source, which the loader's own error wraps.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
