//! A queue pair is connected to one peer.

use multinet_verbs::{Endpoint, Error, Fresh, Pair, Path};

fn both(fresh: Fresh, path: Path, peers: [Endpoint; 2]) -> Result<[Pair; 2], Error> {
    Ok([fresh.connect(path, peers[0])?, fresh.connect(path, peers[1])?])
}

fn main() {}
