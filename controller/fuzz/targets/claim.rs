//! Runs `checks/claim.rs` under the fuzzer.

#![no_main]

#[path = "../checks/claim.rs"]
mod claim;
#[path = "../checks/hold.rs"]
mod hold;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| claim::check(bytes));
