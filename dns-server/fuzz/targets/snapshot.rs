//! Any snapshot file: it is refused, or read, and then written and read again to the same.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use multinet_dns::source::snapshot::{decode, encode};

fuzz_target!(|bytes: &[u8]| {
    let now = "2026-11-21T09:00:00Z".parse().expect("a constant");
    let age = Duration::from_secs(3600);
    if let Ok(objects) = decode(bytes, now, age) {
        let again = encode(now, &objects).expect("objects are encodable");
        assert_eq!(decode(&again, now, age).expect("what was written is read"), objects);
    }
});
