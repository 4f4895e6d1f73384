//! Fuzzes `checks/snapshot.rs`.

#![no_main]

#[path = "../checks/snapshot.rs"]
mod snapshot;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| snapshot::check(bytes));
