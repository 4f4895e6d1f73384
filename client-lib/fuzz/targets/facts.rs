//! Any strings of a TXT record, separated by newlines: malformed ones are ignored.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| multinet_client::fuzzing::facts(bytes));
