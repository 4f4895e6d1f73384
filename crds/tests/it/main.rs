//! Tests of the definitions in `deploy/crds`, and of the rules by the table in `tests/rules`.

mod manifests;
mod rules;
