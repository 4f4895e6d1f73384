//! Memory that frames lie in: that of a program, and that of GPUs.
//!
//! ```text
//!                  ┌─ HostMemory ── of a program, or locked by a GPU's driver
//!   frames lie in ─┤
//!                  └─ GpuMemory ─┬─ export ──> dma-buf ────────> RDMA device  (Method::DmaBuf)
//!                                ├─ address ─> peer memory ────> RDMA device  (Method::PeerMemory)
//!                                └─ read, write <─> HostMemory <─> any network  (Method::Staging)
//! ```
//!
//! The traits [`Gpu`] and [`GpuMemory`] hide which kind of GPU it is. So everything but the calls
//! to a GPU's driver is tested on machines without one. [`choose`] decides by which [`Method`]
//! frames reach the memory of a GPU, from what has been found out about the GPU and the RDMA
//! device.
//!
//! `unsafe` code is in [`host`] and behind the traits. With the feature `cuda`, `Cuda` implements
//! them for GPUs of NVIDIA.

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
