//! A write borrows its memory region until it is posted.

use multinet_verbs::{Error, MemoryRegion, QueuePair, RemoteAddress, Write};

fn gone(pair: &QueuePair, region: MemoryRegion, remote: RemoteAddress) -> Result<(), Error> {
    let sge = Some((&region, 0..1));
    let write = Write { id: 1, sge, zero_copy: None, remote, immediate: None, is_signalled: true };
    drop(region);
    pair.post_writes(&[write])
}

fn main() {}
