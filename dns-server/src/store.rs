//! The Kubernetes objects that the server knows, and the DNS records made from them.
//!
//! [`state`] keeps the objects in an [`index`]. On each commit, [`build`] makes the records of the
//! services that changed, and [`publisher`] puts them into [`answers`], the maps that queries read.

pub mod answers;
pub(crate) mod build;
pub mod endpoints;
pub(crate) mod group;
pub mod index;
pub mod journal;
pub(crate) mod lookup;
pub mod name;
pub(crate) mod name_tree;
pub(crate) mod publisher;
pub(crate) mod records;
pub(crate) mod reverse;
pub mod rrset;
pub mod schema;
pub mod slice;
pub mod state;
pub(crate) mod txt;
pub mod zone;
pub mod zone_copy;
