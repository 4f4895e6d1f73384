//! Errors, one type per operation. Messages name the cause and the remedy.

mod connect;
mod fetch;
mod listen;
mod send;

pub use connect::{ConnectError, DialError};
pub use fetch::{FetchError, NotTaken, OfferError};
pub use listen::{BindError, ListenerClosed};
pub use send::{SendError, TrySendError, Unacknowledged};
