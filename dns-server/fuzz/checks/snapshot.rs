//! Check for any snapshot file: it is refused, or it is read, and written and read again with the
//! same result. The same file with a correct checksum is checked too, since the fuzzer would never
//! reach the code behind the checksum otherwise.

use std::time::Duration;

use multinet_dns::source::snapshot::{decode, encode};

/// Checks a file as it is, and with a correct checksum.
pub(crate) fn check(bytes: &[u8]) {
    check_as_it_is(bytes);
    let (summed, _) = bytes.split_at(bytes.len().saturating_sub(4));
    check_as_it_is(&[summed, &crc32fast::hash(summed).to_le_bytes()].concat());
}

fn check_as_it_is(bytes: &[u8]) {
    let now = "2026-11-22T18:30:00Z".parse().expect("a constant");
    let age = Duration::from_secs(3600);
    if let Ok(objects) = decode(bytes, now, age) {
        let mut again = Vec::new();
        encode(&mut again, now, &objects).expect("objects are encodable");
        assert_eq!(decode(again.as_slice(), now, age).expect("a written snapshot"), objects);
    }
}
