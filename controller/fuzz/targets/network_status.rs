//! Fuzzes `checks/network_status.rs`.

#![no_main]

#[path = "../checks/network_status.rs"]
mod network_status;
#[path = "../checks/hold.rs"]
mod hold;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| network_status::check(bytes));
