//! A region that a write names is there when it is posted.

use multinet_verbs::{Error, Pair, Region, Remote, Write};

fn gone(pair: &Pair, region: Region, remote: Remote) -> Result<(), Error> {
    let part = Some((&region, 0..1));
    let write = Write { id: 1, part, lent: None, remote, immediate: None, is_signalled: true };
    drop(region);
    pair.write(&[write])
}

fn main() {}
