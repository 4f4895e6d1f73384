//! Library for pods with a second NIC: asks for a service by name, and gets connected peers.
//!
//! multinet-dns answers for the names of MultiNetworkServices, which select pods with a second NIC.
//! This library turns such a name into connections between those NICs, and moves frames over them.
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
//! # Guarantees
//!
//! - [`Delivery::AtMostOnce`]: a frame arrives once or not at all. Frames that were in flight when
//!   a connection broke are counted ([`Statistics::lost`]).
//! - [`Delivery::AtLeastOnce`]: a frame is kept until a receiver's application acknowledges it. If
//!   its peer goes away, another peer gets it, marked as a repeat. No receiver hands a frame to its
//!   application twice.
//!
//! Frames of one key go to one peer, in order ([`Choice::ByKey`]). When a peer goes away, only its
//! keys move.
//!
//! # Bounds
//!
//! A receiver grants slots to each sender, and a sender never sends more frames than that.
//! [`PeerSet::send`] waits instead, so slow application code slows down only its own senders.
//! Memory on both sides is bounded by slots, frame sizes and the number of connections, whatever a
//! peer does.
//!
//! # Network
//!
//! Frames travel by the second NIC. The source address is bound to the interface that leads to the
//! peer, and a path by the default network is refused unless it is allowed.
//!
//! Peers identify each other by the uid of their pods, so that an address with a new owner is
//! noticed. With [`Tls`], they also authenticate each other.
//!
//! # Features
//!
//! Features only add.
//!
//! - `cuda`: GPUs by CUDA (`Cuda`). libcuda is loaded at run time.
//! - `metrics`: [`metrics::Collector`](crate::metrics) for prometheus-client.
//! - `rdma`: frames go by RDMA ([`Transport`]). libibverbs is loaded at run time. The crate of
//!   verbs is re-exported as `verbs`.

#![forbid(unsafe_code)]

mod answer;
mod blocking;
mod buffer;
mod cgroup;
mod channel;
mod choose;
mod connector;
mod endpoint;
mod error;
mod fallback;
mod fetch;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(clippy::expect_used, reason = "a check that cannot be set up has failed")]
#[path = "../fuzz/doors/peers.rs"]
pub mod fuzzing;
mod handshake;
mod identity;
mod inbound;
mod listener;
mod local;
pub mod metrics;
mod near;
pub mod nic;
mod offers;
mod outbound;
mod peers;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "rdma/absent.rs"]
mod rdma;
mod reference;
pub mod resolve;
mod staging;
mod stream;
mod targets;
mod tls;
mod transport;
mod wire;

pub use buffer::Buffer;
pub use choose::Choice;
pub use connector::{Connector, ConnectorBuilder};
pub use endpoint::{Endpoint, EndpointAddress, PodRef};
pub use error::{
    BindError, ConnectError, DialError, FetchError, ListenerClosed, NotTaken, OfferError, SendError,
    TrySendError, Unacknowledged,
};
pub use frame::{Frame, FrameId};
pub use handshake::{Delivery, HandshakeError, RefusalCode, TransportKind};
pub use identity::Identity;
pub use listener::{Acknowledge, Listener, ListenerBuilder, ListenerStatistics, Received, Sender};
pub use local::local;
#[cfg(feature = "cuda")]
pub use multinet_memory::{Cuda, CudaArray};
pub use multinet_memory::{DmaBuf, Forced, Gpu, GpuError, GpuMemory, GpuSlice, HostMemory, Method};
pub use offers::{Offer, Offers, OffersBuilder, OffersStatistics};
pub use peers::{Closed, Peer, PeerClosed, PeerSet, PeerStatus, Sent, Statistics};
pub use reference::{OfferId, Reference, ReferenceError};
pub use resolve::{Change, ResolveError, Resolved, Resolver, ResolverBuilder, Watch};
pub use targets::{Target, Targets, TargetsError};
pub use tls::{Tls, TlsError};
pub use transport::{Rdma, Transport};

pub use multinet_rails::{GpuDistance, NoRdma, Pod, Rail, Sources, by_number, env, gid, gpu, pci};
#[cfg(feature = "rdma")]
pub use multinet_verbs as verbs;

/// Documentation page `docs/rdma.md`, included so that its examples are tested.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../docs/rdma.md")]
mod rdma_page {}

/// Documentation page `docs/client.md`, included so that its examples are tested.
#[cfg(doctest)]
#[doc = include_str!("../../docs/client.md")]
mod page {}
