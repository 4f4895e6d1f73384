//! The rules of the API as functions.
//!
//! The API server checks the same rules by schema and CEL, for objects that are applied to a
//! cluster. These functions check objects from files, which no API server sees. `tests/rules` is
//! the table on which both must agree.

pub(crate) mod check;
mod common;
mod metadata;
mod service;
mod slice;

use std::fmt;

use check::Check;

/// Violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// Path of the field, such as `spec.networks[1].alias`; empty for the object as a whole.
    pub field: String,
    /// Message that says what is allowed and what the object has.
    pub message: String,
}

impl Violation {
    /// Returns the violation of a rule by the field at this path.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// Formats as path and message: `spec.networks[1].alias: must be …`.
impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Kind of object that has rules. Only the kinds of this crate can implement it.
pub trait Validate {
    /// Checks an object. Adds the violations to `check`.
    fn check(&self, check: &mut Check);
}

/// Checks an object as the API server does on create. Returns all violations, in the order of the
/// fields.
///
/// Of `metadata` it checks name, namespace, labels and the keys of annotations. A namespace may be
/// absent, because clients fill it in.
pub fn validate<T: Validate>(object: &T) -> Result<(), Vec<Violation>> {
    let mut check = Check::default();
    object.check(&mut check);
    check.finish()
}
