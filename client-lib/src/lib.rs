//! Ask for a service on a secondary network by name, get connected peers.

#![forbid(unsafe_code)]

mod buffer;
mod choose;
mod connector;
mod endpoint;
mod error;
mod frame;
mod handshake;
mod identity;
mod inbound;
mod listener;
pub mod metrics;
pub mod nic;
mod outbound;
mod peers;
pub mod resolve;
mod stream;
mod tls;
mod wire;

pub use buffer::Buffer;
pub use choose::Choice;
pub use connector::{Connector, ConnectorBuilder, Transport};
pub use endpoint::{Endpoint, EndpointAddress, PodRef};
pub use error::{BindError, ConnectError, DialError, ListenerClosed, SendError, TrySendError};
pub use frame::{Frame, FrameId};
pub use handshake::{Delivery, HandshakeError, RefusalCode, TransportKind};
pub use identity::Identity;
pub use listener::{Acknowledge, Listener, ListenerBuilder, ListenerStatistics, Received, Sender};
pub use peers::{Closed, Peer, PeerSet, PeerStatus, Sent, Statistics};
pub use resolve::{Change, ResolveError, Resolved, Resolver, ResolverBuilder, Watch};
pub use tls::{Tls, TlsError};
