//! Any DNS message: it yields endpoints that can be connected to.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| multinet_client::fuzzing::answer(bytes));
