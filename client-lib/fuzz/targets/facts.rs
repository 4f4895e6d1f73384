//! Any strings of a TXT record, separated by newlines: what is not as it should be is left out.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| multinet_client::fuzzing::facts(bytes));
