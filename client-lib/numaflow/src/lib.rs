//! Adapters for Numaflow's user-defined functions: the bytes go from pod to pod on second NICs, and
//! Numaflow keeps orchestrating.
//!
//! | pattern | sends | receives |
//! |---|---|---|
//! | claim check, within a Pipeline | [`OfferingMap`] emits references | [`FetchingSink`] fetches |
//! | boundary, to another Pipeline or a MonoVertex | [`FrameSink`] | [`FrameSource`] |
//!
//! Both deliver at least once. No adapter acknowledges a message before its payload has been
//! processed, or, at a boundary, before the Numaflow of the other side has acknowledged the frame.
//! A repeat has the same id. `docs/numaflow.md` says which side holds what, and what a crash leads
//! to.
//!
//! The crate `numaflow` runs the adapters, as it runs any function. Bind the listener before its
//! server starts: the pod is ready once that answers.
//!
//! # Examples
//!
//! The vertex `decode` of a claim check:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use multinet_client::{Offers, Targets};
//! use multinet_client_numaflow::{Claim, OfferingMap, stable_id};
//! use numaflow::mapstream::{MapStreamRequest, Server};
//!
//! let infer = Targets::from_env()?.target()?.port();
//! let offers = Offers::builder().port(infer);
//! let decode = OfferingMap::bind(offers, async |message: MapStreamRequest| {
//!     let id = stable_id(&message);
//!     Some(Claim::new(id, message.value)) // the decoded picture
//! });
//! Server::new(decode.await?).start().await
//! # }
//! ```
//!
//! The vertex `infer`:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use multinet_client::Targets;
//! use multinet_client_numaflow::FetchingSink;
//! use numaflow::sink::Server;
//!
//! let targets = Targets::from_env()?;
//! let connector = targets.connector().build()?;
//! let infer = FetchingSink::new(connector, targets.sources(), |picture, _message| {
//!     Box::pin(async move {
//!         println!("{} bytes", picture.len());
//!         Ok::<(), String>(()) // the payload is acknowledged now
//!     })
//! })?;
//! Server::new(infer).start().await
//! # }
//! ```

#![forbid(unsafe_code)]

mod boundary;
mod claim_check;

pub use boundary::{FrameSink, FrameSource};
pub use claim_check::{Claim, FetchingSink, OfferingMap, stable_id};
