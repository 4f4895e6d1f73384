//! An unconnected queue pair takes no writes.

use multinet_verbs::{Error, UnconnectedQueuePair, Write};

fn early(pair: &UnconnectedQueuePair, writes: &[Write<'_>]) -> Result<(), Error> {
    pair.post_writes(writes)
}

fn main() {}
