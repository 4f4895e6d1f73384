//! What can go wrong, one type per operation. Messages say who is at fault and what to do.

mod connect;
mod listen;
mod send;

pub use connect::{ConnectError, DialError};
pub use listen::{BindError, ListenerClosed};
pub use send::{SendError, TrySendError, Unacknowledged};
