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
//!   Library <── Device <── Context <──┬── Domain <──┬── Region (its memory, too)
//!                                     │             │      ▲
//!                                     └── Queue <───┴── Pair
//! ```
//!
//! Memory that a device writes to is never lent out as a slice, because no borrow could keep the other side from writing. It is copied in and
//! out ([`Region::write`], [`Region::read`]).
//!
//! Errors name the call, the device and the kernel's reason. What is probably wrong, and what to do, is their `hint()`.

mod context;
mod error;
mod library;
mod memory;
mod pair;
mod probe;
mod queue;

pub use context::{Context, Device, Port};
pub use error::{Call, Error, LoadError};
pub use library::Library;
pub use memory::{Domain, Region, Remote};
pub use pair::{Endpoint, Fresh, Pair, Path};
pub use probe::{ProbeError, Probed, probe};
pub use queue::{Completion, Queue, Status};
