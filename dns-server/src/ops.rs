//! Observability: metrics, the most frequent queries, dnstap.

pub mod dnstap;
pub mod metrics;
pub mod top;
