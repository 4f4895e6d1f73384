//! Turns the bytes of a query into those of its reply, without a socket.

mod compose;
pub mod cookie;
mod edns;
pub mod limit;
pub mod proto;
pub mod query;
pub mod slow;
