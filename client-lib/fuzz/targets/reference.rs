//! Any text as a reference: it reads back as the same, or is refused in one line.

#![no_main]
#![forbid(unsafe_code)]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| multinet_client::fuzzing::reference(bytes));
