//! Any handshake of a peer: it yields valid values, or a refusal of one line that can be sent.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| multinet_client::fuzzing::handshake(bytes));
