//! The rules of the API as functions: what the API server checks by schema and CEL, for objects that
//! never see it.
//!
//! The rules are written twice because they are asked twice: by the API server, of everything that is
//! applied to a cluster, and here, of files. `tests/rules` is the table that both must agree on.

mod check;
mod common;
mod metadata;
mod service;
mod slice;

use std::fmt;

use crate::{MultiNetworkEndpointSlice, MultiNetworkService};
use check::Check;

/// A rule that an object breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// Path of the field, such as `spec.networks[1].alias`.
    pub field: String,
    /// What is allowed there, and what was found.
    pub message: String,
}

/// The path, a colon, the message: `spec.networks[1].alias: must be …`.
impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// A kind with rules. Implemented by the kinds of this crate and by none other.
pub trait Validate: sealed::Rules {}

impl Validate for MultiNetworkService {}
impl Validate for MultiNetworkEndpointSlice {}

mod sealed {
    use super::Check;

    /// The rules of a kind.
    pub trait Rules {
        /// Those of an object by itself.
        fn check(&self, check: &mut Check);

        /// Those of a change, beside the ones of the new object by itself.
        fn check_change(&self, _old: &Self, _check: &mut Check) {}
    }
}

/// Checks an object as the API server does when it is created; all that is wrong, in the order of the
/// fields.
///
/// Of `metadata` it checks name, namespace, labels and the keys of annotations. A namespace may be absent:
/// clients fill it in.
pub fn validate<T: Validate>(object: &T) -> Result<(), Vec<Violation>> {
    let mut check = Check::default();
    object.check(&mut check);
    check.finish()
}

/// Checks an object as the API server does when it takes the place of `old`: as [`validate`], and that
/// nothing immutable changes.
///
/// The API server lets invalid values be if the change does not touch them; this function does not.
pub fn validate_update<T: Validate>(old: &T, new: &T) -> Result<(), Vec<Violation>> {
    let mut check = Check::default();
    new.check(&mut check);
    new.check_change(old, &mut check);
    check.finish()
}
