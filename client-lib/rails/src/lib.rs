//! Facts about this pod's rails: its second NICs, with their addresses, networks, RDMA devices and
//! nearest GPUs; and the variables by which frameworks use them.
//!
//! ```text
//!   nic (rtnetlink) ──────────┐
//!   gid, pci, gpu (/sys) ─────┼─> Pod ── rails ──> env::Plan ──> a variable, or the reason why not
//!   network names (files) ────┘
//! ```
//!
//! The crate has no asynchronous runtime and asks no DNS server, so that a library which is loaded
//! into other programs can use it. Everything but [`nic`] is read below a root folder
//! ([`Sources`]), which tests replace.
//!
//! # Examples
//!
//! ```no_run
//! use multinet_rails::{Pod, Sources};
//!
//! for rail in Pod::read(&Sources::default())?.rails {
//!     println!("{rail}");
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod env;
pub mod gid;
pub mod gpu;
mod names;
pub mod nic;
mod order;
pub mod pci;
mod pod;
mod rail;
mod sys;

pub use names::DEFAULT_NETWORK_STATUS;
pub use order::by_number;
pub use pod::{Pod, Sources};
pub use rail::{GpuDistance, NoRdma, Rail};
