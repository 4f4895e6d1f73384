//! A queue pair is destroyed once: by its only handle.

use multinet_verbs::Pair;

fn two(pair: &Pair) -> Pair {
    pair.clone()
}

fn main() {}
