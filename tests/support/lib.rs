//! Fixtures of the cross-crate tests.
