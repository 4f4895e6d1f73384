//! Pages are not written to while a write is to be sent from them.

use multinet_verbs::{Error, Lent, Pages, Pair, Remote, Write};

fn late(pair: &Pair, pages: &mut Pages, remote: Remote) -> Result<(), Error> {
    let lent = Some((Lent::Pages(&*pages), 0..1));
    let write = Write { id: 1, part: None, lent, remote, immediate: None, is_signalled: true };
    pages.bytes_mut()[0] = 1;
    pair.write(&[write])
}

fn main() {}
