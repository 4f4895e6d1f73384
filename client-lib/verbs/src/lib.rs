//! RDMA verbs: devices, memory, completion queues and reliable queue pairs (InfiniBand Architecture, volume 1, chapters 10 and 11).
//!
//! Nothing here links libibverbs. rdma-sys gives the types and the calls that go through a context's own table; all others are looked up in
//! `libibverbs.so.1` when they are first needed ([`Library::load`]), so that a program which holds this crate starts where there is no RDMA,
//! and says what is missing.
//!
//! What verbs leave to the programmer's care, what must be destroyed before what, is here a matter of ownership: each thing holds the ones
//! that it needs, and is destroyed before them.
//!
//! ```text
//!   Library <── Device <── Context <──┬── ProtectionDomain <──┬── MemoryRegion, ReceiveBuffer (and their memory)
//!                                     │             │
//!                                     └── CompletionQueue <───┴── QueuePair
//! ```
//!
//! Memory that we send from ([`MemoryRegion`]) is out of the peers' reach. Memory that a peer writes to ([`ReceiveBuffer`]) is written to by nobody else,
//! and can be read where it lies once the peer has said that it has done with it ([`ReceivedBytes`]). Memory of the program's own ([`Pages`]), and of a GPU
//! ([`GpuPages`]), is sent from where it lies; a GPU's can be written to, too ([`GpuReceiveBuffer`]).
//!
//! Errors name the call, the device and the kernel's reason. What is probably wrong, and what to do, is their `hint()`.

mod completion_channel;
mod completion_queue;
mod context;
mod error;
#[cfg(test)]
mod fake;
mod gpu;
mod gpu_direct;
mod gpu_method;
mod library;
mod locked_memory;
mod memory;
mod pages;
mod probe;
mod queue_pair;
mod registrations;
#[cfg(test)]
mod tests;

pub use completion_channel::{ChannelEvent, CompletionChannel};
pub use completion_queue::{Completion, CompletionQueue, Status};
pub use context::{Context, Device, PortAttributes, SourceGid};
pub use error::{Call, Error, LoadError};
pub use gpu::{GpuAccessError, GpuPages, GpuReceiveBuffer};
pub use gpu_direct::peermem;
pub use gpu_method::{GPU_PROBE_SIZE, GpuMethodChoice, choose_gpu_method};
pub use library::Library;
pub use locked_memory::{LockedMemory, LockedMemoryShortage, Privileges};
pub use memory::{MemoryRegion, ProtectionDomain, ReceiveBuffer, ReceivedBytes, RemoteAddress};
pub use pages::Pages;
pub use probe::{ProbeError, Probed, probe, probe_gpu};
pub use queue_pair::{
    Capacities, Class, MAX_WRITES, Path, QueuePair, QueuePairAddress, UnconnectedQueuePair, Write, ZeroCopy,
};
