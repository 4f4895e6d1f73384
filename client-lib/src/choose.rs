//! The choice of a peer for each frame.
//!
//! Pure: the function takes the state of each peer, and returns an index.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

/// How a peer is chosen for a frame. Peers without credit, whose code does not keep up, are
/// skipped. Only under [`ByKey`](Self::ByKey) does a frame wait for its peer.
///
/// # Examples
///
/// ```no_run
/// # async fn example(picture: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Choice, Connector, Frame};
///
/// // A tracker needs the pictures of one camera in order.
/// let connector = Connector::builder().choice(Choice::ByKey).build()?;
/// let peers = connector.connect("track.vision.svc.multinet", "rdma").await?;
/// peers.send(Frame::new(picture).key("camera-17")).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Choice {
    /// Each frame goes to the next peer in turn.
    #[default]
    RoundRobin,
    /// Each frame goes to the peer with the fewest frames under way.
    LeastOutstanding,
    /// By the frame's key. Frames of one key reach the same peer, in order, from every sender. If a
    /// peer goes, only its keys move (rendezvous hashing, Thaler and Ravishankar 1998). Frames
    /// without a key have the empty key.
    ///
    /// With [`Delivery::AtLeastOnce`](crate::Delivery::AtLeastOnce), a frame that the receiver's
    /// code rejects holds up the later frames of its key, to keep their order. It is repeated after
    /// pauses of at most 2 s.
    ByKey,
    /// The nearest peer: on the same node, else in the same zone, else any. Of equally near ones, a
    /// peer on the same rail (a network that this pod has a NIC on) comes first, and of these one
    /// whose NIC has the same NUMA node as this pod's NIC. Of equal ones, the peer with the fewest
    /// frames under way. While the near peers have no credit, farther ones are used.
    Nearest,
}

/// State of a peer, as far as the choice of a frame's peer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Hash of the peer's name, by [`hash`].
    pub(crate) name: u64,
    /// Number of further frames that the peer has room for now.
    pub(crate) credits: u64,
    /// Number of frames under way to the peer.
    pub(crate) outstanding: u64,
    /// Distance of the peer from this process; 0 is nearest.
    pub(crate) distance: u8,
}

/// Returns the index of one of `count` peers, or `None` if the frame must wait.
///
/// An index without a candidate is never chosen. Under [`ByKey`](Choice::ByKey), the chosen peer
/// may have no credit, and the frame must wait for it. `turn` is the index at which round robin
/// goes on, also among equal peers; it is advanced. Round robin examines no more peers than it
/// skips.
pub(crate) fn choose(
    choice: Choice,
    key: u64,
    turn: &mut usize,
    count: usize,
    candidate: impl Fn(usize) -> Option<Candidate>,
) -> Option<usize> {
    let any = |index: usize| Some((index, candidate(index)?));
    let ready = |index: usize| any(index).filter(|(_, peer)| peer.credits > 0);
    // Equal peers take turns: those before `next` come last.
    let next = (*turn).min(count);
    let is_past = |index: usize| index < next;
    let (index, _) = match choice {
        Choice::RoundRobin => (next..count).chain(0..next).find_map(ready),
        Choice::LeastOutstanding => {
            (0..count).filter_map(ready).min_by_key(|&(index, peer)| (peer.outstanding, is_past(index)))
        }
        Choice::Nearest => (0..count)
            .filter_map(ready)
            .min_by_key(|&(index, peer)| (peer.distance, peer.outstanding, is_past(index))),
        Choice::ByKey => (0..count).filter_map(any).max_by_key(|(_, peer)| weight(key, peer.name)),
    }?;
    *turn = index + 1;
    Some(index)
}

/// Returns a hash that is the same in every process and version: SipHash-1-3 with the key 0.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns the weight of a peer for a key. The peer with the greatest weight gets the key.
pub(crate) fn weight(key: u64, name: u64) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u64(key.to_be());
    hasher.write_u64(name.to_be());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peers(count: usize) -> Vec<Candidate> {
        let name = |i: usize| hash(format!("pod-{i}").as_bytes());
        (0..count).map(|i| Candidate { name: name(i), credits: 1, outstanding: 0, distance: 0 }).collect()
    }

    fn pick(choice: Choice, key: u64, turn: &mut usize, peers: &[Candidate]) -> Option<usize> {
        choose(choice, key, turn, peers.len(), |index| peers.get(index).copied())
    }

    #[test]
    fn round_robin_alternates_among_peers_with_credit() {
        let mut peers = peers(4);
        peers[2].credits = 0;
        let mut turn = 0;
        let picked: Vec<_> =
            (0..6).map(|_| pick(Choice::RoundRobin, 0, &mut turn, &peers).unwrap()).collect();
        assert_eq!(picked, [0, 1, 3, 0, 1, 3]);
    }

    #[test]
    fn equally_good_peers_take_turns() {
        let mut peers = peers(4);
        peers[1].outstanding = 1;
        peers[1].distance = 1;
        for choice in [Choice::LeastOutstanding, Choice::Nearest] {
            let mut turn = 0;
            let picked: Vec<_> = (0..6).map(|_| pick(choice, 0, &mut turn, &peers).unwrap()).collect();
            assert_eq!(picked, [0, 2, 3, 0, 2, 3], "{choice:?}");
        }
    }

    #[test]
    fn a_farther_peer_is_chosen_when_the_near_ones_have_no_credit() {
        let mut peers = peers(3);
        peers[0].distance = 2;
        peers[1].distance = 1;
        (peers[2].distance, peers[2].outstanding) = (1, 3);
        assert_eq!(pick(Choice::Nearest, 0, &mut 0, &peers), Some(1));
        peers[1].credits = 0;
        assert_eq!(pick(Choice::Nearest, 0, &mut 0, &peers), Some(2));
        peers[2].credits = 0;
        assert_eq!(pick(Choice::Nearest, 0, &mut 0, &peers), Some(0));
    }

    #[test]
    fn a_key_without_credit_at_its_peer_waits_for_it() {
        let mut peers = peers(5);
        let at = pick(Choice::ByKey, 7, &mut 0, &peers).unwrap();
        peers[at].credits = 0;
        assert_eq!(pick(Choice::ByKey, 7, &mut 0, &peers), Some(at));
    }

    #[test]
    fn the_hash_never_changes() {
        // SipHash-1-3 of the empty string, with the key 0. Other versions and languages rely on it.
        assert_eq!(hash(b""), 0xd1fb_a762_150c_532c);
    }

    #[test]
    fn keys_are_spread_evenly() {
        let peers = peers(10);
        let mut counts = [0; 10];
        for key in 0..10_000_u64 {
            counts[pick(Choice::ByKey, hash(&key.to_be_bytes()), &mut 0, &peers).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn only_the_keys_of_a_lost_peer_move(count in 2..20_usize, lost in any::<prop::sample::Index>(), keys in prop::collection::vec(any::<u64>(), 1..50)) {
            let all = peers(count);
            let lost = lost.index(count);
            let mut rest = all.clone();
            rest.remove(lost);
            for key in keys {
                let before = pick(Choice::ByKey, key, &mut 0, &all).unwrap();
                let after = rest[pick(Choice::ByKey, key, &mut 0, &rest).unwrap()];
                if before != lost {
                    prop_assert_eq!(after.name, all[before].name);
                }
            }
        }

        #[test]
        fn a_peer_without_credit_is_chosen_only_by_key(
            choice in prop::sample::select(vec![Choice::RoundRobin, Choice::LeastOutstanding, Choice::ByKey, Choice::Nearest]),
            peers in prop::collection::vec((0..3_u64, 0..5_u64, 0..3_u8), 0..10), turn in any::<usize>(), key in any::<u64>(),
        ) {
            let peers: Vec<_> = peers.into_iter().enumerate().map(|(i, (credits, outstanding, distance))|
                Candidate { name: hash(&i.to_be_bytes()), credits, outstanding, distance }).collect();
            match pick(choice, key, &mut turn.clone(), &peers) {
                Some(at) => prop_assert!(choice == Choice::ByKey || peers[at].credits > 0),
                None => prop_assert!(peers.iter().all(|peer| peer.credits == 0)),
            }
        }
    }
}
