//! Any file: YAML, JSON, streams, lists, rubbish. Reading it ends, without a panic.

#![no_main]
#![forbid(unsafe_code)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    multinet_dns::source::manifests::count_served(bytes);
});
