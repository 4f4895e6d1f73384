//! Any first words of a peer: they are read to what can be, or refused in one line that can be sent.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| multinet_client::fuzzing::handshake(bytes));
