//! Pages are not written to while a write that sends from them waits to be posted.

use multinet_verbs::{Error, Pages, QueuePair, RemoteAddress, Write, ZeroCopy};

fn late(pair: &QueuePair, pages: &mut Pages, remote: RemoteAddress) -> Result<(), Error> {
    let zero_copy = Some((ZeroCopy::Pages(&*pages), 0..1));
    let write = Write { id: 1, sge: None, zero_copy, remote, immediate: None, is_signalled: true };
    pages.bytes_mut()[0] = 1;
    pair.post_writes(&[write])
}

fn main() {}
