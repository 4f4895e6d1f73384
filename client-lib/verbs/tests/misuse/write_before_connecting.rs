//! Nothing is posted to a queue pair that is connected to nobody.

use multinet_verbs::{Error, Fresh, Write};

fn early(fresh: &Fresh, writes: &[Write<'_>]) -> Result<(), Error> {
    fresh.write(writes)
}

fn main() {}
