//! A queue pair has one handle, which destroys it.

use multinet_verbs::QueuePair;

fn two(pair: &QueuePair) -> QueuePair {
    pair.clone()
}

fn main() {}
