//! A region's bytes are copied in, under a lock, and never lent out.

use multinet_verbs::Region;

fn borrow(region: &Region) -> &[u8] {
    region
}

fn main() {}
