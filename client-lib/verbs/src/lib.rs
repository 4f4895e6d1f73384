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
//!   Library <── Device <── Context <──┬── Domain <──┬── Region, Landing (and their memory)
//!                                     │             │
//!                                     └── Queue <───┴── Pair
//! ```
//!
//! Memory that we send from ([`Region`]) is out of the peers' reach. Memory that a peer writes to ([`Landing`]) is written to by nobody else,
//! and can be read where it lies once the peer has said that it has done with it ([`Landed`]). Memory of the program's own ([`Pages`]), and of a GPU
//! ([`GpuPages`]), is sent from where it lies; a GPU's can be written to, too ([`GpuLanding`]).
//!
//! Errors name the call, the device and the kernel's reason. What is probably wrong, and what to do, is their `hint()`.

mod channel;
mod context;
mod error;
#[cfg(test)]
mod fake;
mod gpu;
mod gpu_direct;
mod library;
mod locking;
mod memory;
mod pages;
mod pair;
mod probe;
mod queue;
mod reach;
mod registrations;
#[cfg(test)]
mod tests;

pub use channel::{Channel, Report};
pub use context::{Context, Device, Port};
pub use error::{Call, Error, LoadError};
pub use gpu::{GpuLanding, GpuPages, Unreachable};
pub use gpu_direct::peermem;
pub use library::Library;
pub use locking::{Locking, Privileges, Shortage};
pub use memory::{Domain, Landed, Landing, Region, Remote};
pub use pages::Pages;
pub use pair::{Class, Depths, Endpoint, Fresh, Lent, MOST_WRITES, Pair, Path, Write};
pub use probe::{ProbeError, Probed, probe, probe_gpu};
pub use queue::{Completion, Queue, Status};
pub use reach::{Reached, TRIED, reach_gpu};
