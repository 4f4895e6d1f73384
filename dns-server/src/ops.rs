//! Observability: metrics, the most frequent queries, dnstap.

pub mod dnstap;
pub mod metrics;
mod top;
