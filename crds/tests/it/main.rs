//! The definitions in `deploy/crds`, and the rules of the table in `tests/rules`.

mod manifests;
mod rules;
