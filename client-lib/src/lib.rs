//! Ask for a service on a secondary network by name, get connected peers.
//!
//! Pods with a second NIC are found by the name of a MultiNetworkService, which multinet-dns answers for. This library turns that name into
//! connections between those NICs, and moves frames over them.
//!
//! ```text
//!   Connector ── connect(name, port) ──> PeerSet ── send(frame) ──────> a peer, chosen by Choice
//!       │                                   │ └──── Sent ── acknowledged()
//!     Resolver (DNS, followed)              └────── Peer ── send(frame), closed()
//!
//!   Listener ── recv() ──> Received ── bytes(), acknowledge(), drop: the credit goes back
//! ```
//!
//! # Examples
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use multinet_client::{Connector, Listener};
//!
//! // In a pod of the service.
//! let listener = Listener::builder().port(18515).bind().await?;
//! let frame = listener.recv().await?;
//! println!("{} bytes from {}", frame.len(), frame.sender().name());
//! frame.acknowledge();
//!
//! // In another pod.
//! let peers = Connector::builder().build()?.connect("infer.vision.svc.multinet", "rdma").await?;
//! peers.send("a frame").await?;
//! # Ok(()) }
//! ```
//!
//! # What is promised
//!
//! [`Delivery::AtMostOnce`]: a frame arrives once or not at all; what was under way when a connection broke is counted
//! ([`Statistics::lost`]). [`Delivery::AtLeastOnce`]: a frame is kept until a receiver's code has acknowledged it. If its peer goes, another gets it,
//! marked as a repeat; no receiver hands one to its code twice.
//!
//! Frames of one key go to one peer in order ([`Choice::ByKey`]); when a peer goes, only its keys move.
//!
//! # What is bounded
//!
//! A receiver promises slots to each sender, and a sender sends no more than that: [`PeerSet::send`] waits instead, so that slow code slows down its
//! senders and nobody else. Memory on both sides follows from slots, frame sizes and the number of connections, whatever a peer does.
//!
//! # Where frames travel
//!
//! On the second NIC: the source address is bound to the interface that leads to the peer, and a way by the default network is refused unless it is
//! allowed. Peers know each other by the uid of their pods, so that an address with a new owner is noticed, and by mutual TLS where
//! [`Tls`] is given.
//!
//! # Features
//!
//! Features only add. `cuda`: GPUs by CUDA (`Cuda`); libcuda is loaded at run time. `metrics`: [`metrics::Collector`](crate::metrics) for prometheus-client. `rdma`: frames go by RDMA
//! ([`Transport`]); libibverbs is loaded at run time. The crate of verbs is there as `verbs`, too.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "rdma"),
    allow(
        dead_code,
        unused_imports,
        unreachable_code,
        reason = "without RDMA, what only RDMA uses stays where it is"
    )
)]

mod blocking;
mod buffer;
mod cgroup;
mod channel;
mod choose;
mod connector;
mod endpoint;
mod error;
mod fallback;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(clippy::expect_used, reason = "a check that cannot be set up has failed")]
#[path = "../fuzz/doors/peers.rs"]
pub mod fuzzing;
pub mod gid;
mod handshake;
mod identity;
mod inbound;
mod listener;
pub mod metrics;
mod near;
pub mod nic;
mod outbound;
pub mod pci;
mod peers;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "rdma/absent.rs"]
mod rdma;
pub mod resolve;
mod staging;
mod stream;
mod tls;
mod transport;
mod wire;

pub use buffer::Buffer;
pub use choose::Choice;
pub use connector::{Connector, ConnectorBuilder};
pub use endpoint::{Endpoint, EndpointAddress, PodRef};
pub use error::{
    BindError, ConnectError, DialError, ListenerClosed, SendError, TrySendError, Unacknowledged,
};
pub use frame::{Frame, FrameId};
pub use handshake::{Delivery, HandshakeError, RefusalCode, TransportKind};
pub use identity::Identity;
pub use listener::{Acknowledge, Listener, ListenerBuilder, ListenerStatistics, Received, Sender};
#[cfg(feature = "cuda")]
pub use multinet_memory::{Cuda, CudaArray};
pub use multinet_memory::{DmaBuf, Forced, Gpu, GpuError, GpuMemory, GpuSlice, HostMemory, Method};
pub use peers::{Closed, Peer, PeerClosed, PeerSet, PeerStatus, Sent, Statistics};
pub use resolve::{Change, ResolveError, Resolved, Resolver, ResolverBuilder, Watch};
pub use tls::{Tls, TlsError};
pub use transport::{Rdma, Transport};

#[cfg(feature = "rdma")]
pub use multinet_verbs as verbs;

/// Another one.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../docs/rdma.md")]
mod rdma_page {}

/// The page for users, whose code has to compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/client.md")]
mod page {}
