//! A queue pair is connected to one peer.

use multinet_verbs::{Error, Path, QueuePair, QueuePairAddress, UnconnectedQueuePair};

fn both(pair: UnconnectedQueuePair, path: Path, peers: [QueuePairAddress; 2]) -> Result<[QueuePair; 2], Error> {
    Ok([pair.connect(path, peers[0])?, pair.connect(path, peers[1])?])
}

fn main() {}
