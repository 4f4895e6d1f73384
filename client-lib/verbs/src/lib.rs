//! RDMA verbs: devices, memory, completion queues and reliable queue pairs (InfiniBand
//! Architecture, volume 1, chapters 10 and 11).
//!
//! Nothing here links libibverbs. rdma-sys provides the types, and the calls that go through a
//! context's own function table. All other functions are looked up in `libibverbs.so.1` when the
//! first one is needed ([`Library::load`]). So a program that contains this crate starts on
//! machines without RDMA, and reports what is missing.
//!
//! Verbs require objects to be destroyed in a certain order. Here ownership guarantees that order:
//! each object holds those that it depends on, and is destroyed before them.
//!
//! ```text
//!   Library <── Device <── Context <──┬── ProtectionDomain <──┬── MemoryRegion, ReceiveBuffer
//!                                     │                       │
//!                                     └── CompletionQueue <───┴── QueuePair
//! ```
//!
//! - [`MemoryRegion`]: memory to send from, which no peer can reach.
//! - [`ReceiveBuffer`]: memory that one peer writes to, and nothing else. The program reads
//!   [`ReceivedBytes`] in place once the peer has announced them.
//! - [`Pages`] and [`GpuPages`]: memory of the program and of a GPU, sent without a copy.
//! - [`GpuReceiveBuffer`]: memory of a GPU that a peer writes to.
//!
//! An error names the call, the device and the kernel's reason. Its `hint()` names the likely cause
//! and the remedy.

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
