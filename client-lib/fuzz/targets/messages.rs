//! Any stream of messages: each is within limits and encodes to the same bytes, or is refused.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| multinet_client::fuzzing::messages(bytes));
