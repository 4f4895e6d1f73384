//! The objects that are known, and the records that follow from them.
//!
//! [`state`] takes objects into an [`index`]. With each commit [`build`] makes the records of the services
//! that changed, and [`publisher`] puts them into [`answers`], the maps that queries read.

pub mod answers;
pub mod build;
pub mod endpoints;
pub mod group;
pub mod index;
pub mod journal;
pub mod lookup;
pub mod name;
pub mod publisher;
pub mod records;
pub mod reverse;
pub mod rrset;
pub mod slice;
pub mod state;
pub mod txt;
pub mod zone;
pub mod zone_copy;
