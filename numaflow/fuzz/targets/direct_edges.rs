//! Runs `checks/direct_edges.rs` under the fuzzer.

#![no_main]

#[path = "../checks/direct_edges.rs"]
mod direct_edges;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| direct_edges::check(bytes));
