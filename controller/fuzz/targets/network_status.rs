//! Runs `checks/network_status.rs` under the fuzzer.

#![no_main]

#[path = "../checks/hold.rs"]
mod hold;
#[path = "../checks/network_status.rs"]
mod network_status;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| network_status::check(bytes));
