//! Memory that frames lie in: a program's own, and that of GPUs.
//!
//! ```text
//!                     ┌─ HostMemory ── of a program, or locked by a GPU's driver
//!   frames lie in ────┤
//!                     └─ GpuMemory ──┬─ export ──> dma-buf ──────────> RDMA device   (Method::DmaBuf)
//!                                    ├─ address ──> peer memory ─────> RDMA device   (Method::PeerMemory)
//!                                    └─ read, write <──> HostMemory <─> any network  (Method::Staging)
//! ```
//!
//! What a GPU can do stands behind two traits, [`Gpu`] and [`GpuMemory`], so that the rest need not know whose it is, and so that all but the
//! calls to its driver is tested where there is none. [`choose`] says by which [`Method`] frames come to and from it: a table of what has been
//! found out, without a device.
//!
//! `unsafe` is in [`host`] and behind the traits. With the feature `cuda`, `Cuda` implements them for GPUs of NVIDIA.

#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod gpu;
pub mod host;
mod method;

#[cfg(feature = "cuda")]
pub use cuda::{Cuda, CudaArray};
pub use error::GpuError;
pub use gpu::{DmaBuf, Gpu, GpuMemory, GpuSlice};
pub use host::HostMemory;
pub use method::{Choice, Findings, Forced, Method, choose};
