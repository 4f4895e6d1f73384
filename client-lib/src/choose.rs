//! Which peer gets a frame.
//!
//! Pure: what is known of each peer comes in, an index goes out.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

/// Which peer gets a frame. Peers that have no credit left, because their code does not keep up, are passed over, except under
/// [`ByKey`](Self::ByKey): there a frame waits for its peer.
///
/// # Examples
///
/// ```no_run
/// # async fn example(picture: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Choice, Connector, Frame};
///
/// // Whoever follows what moves in a picture needs those of one camera in order.
/// let connector = Connector::builder().choice(Choice::ByKey).build()?;
/// let peers = connector.connect("track.vision.svc.multinet", "rdma").await?;
/// peers.send(Frame::new(picture).key("camera-17")).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Choice {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest frames under way.
    LeastOutstanding,
    /// By the frame's key: frames of one key reach the same peer, in order, from every sender; when a peer goes, only its keys move
    /// (rendezvous hashing, Thaler and Ravishankar 1998). Frames without a key have the empty key. At least once, a frame that the receiver's code
    /// does not want holds up the later ones of its key until it is wanted, as order needs: with pauses, of 2 s at most.
    ByKey,
    /// The nearest: same node, else same zone, else any; among those, same rail (it is on a network that this pod has a NIC on); among those, same NUMA node (of its NIC and of
    /// ours on that network). Among equals the one with the fewest frames under way. While the near ones can take nothing, it goes farther.
    Nearest,
}

/// What a choice needs to know of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// What it is called, hashed by [`hash`].
    pub(crate) name: u64,
    /// How many frames it would take now.
    pub(crate) credits: u64,
    /// How many frames are under way.
    pub(crate) outstanding: u64,
    /// How far it is: less is nearer.
    pub(crate) distance: u8,
}

/// Picks one of `count` peers, `None` if the frame has to wait. A place without a candidate is never picked; under
/// [`ByKey`](Choice::ByKey) the one that is picked may have no credit, and the frame has to wait for that. `turn` is where round robin
/// goes on, also among equals, and is remembered. Round robin looks at no more peers than it passes over.
pub(crate) fn choose(
    choice: Choice,
    key: u64,
    turn: &mut usize,
    count: usize,
    candidate: impl Fn(usize) -> Option<Candidate>,
) -> Option<usize> {
    let any = |index: usize| Some((index, candidate(index)?));
    let ready = |index: usize| any(index).filter(|(_, peer)| peer.credits > 0);
    // Equals take turns.
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

/// A hash that is the same in every process and version: SipHash-1-3 with a key of zero.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

/// How much a peer wants a key.
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
    fn round_robin_takes_turns_among_those_with_credit() {
        let mut peers = peers(4);
        peers[2].credits = 0;
        let mut turn = 0;
        let picked: Vec<_> =
            (0..6).map(|_| pick(Choice::RoundRobin, 0, &mut turn, &peers).unwrap()).collect();
        assert_eq!(picked, [0, 1, 3, 0, 1, 3]);
    }

    #[test]
    fn equals_take_turns() {
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
    fn nearest_goes_further_when_the_near_are_busy() {
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
    fn a_key_waits_for_its_peer() {
        let mut peers = peers(5);
        let at = pick(Choice::ByKey, 7, &mut 0, &peers).unwrap();
        peers[at].credits = 0;
        assert_eq!(pick(Choice::ByKey, 7, &mut 0, &peers), Some(at));
    }

    #[test]
    fn the_hash_never_changes() {
        // SipHash-1-3 of nothing and of "camera-17", key zero: what other versions and languages have to agree on.
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
        fn nobody_without_credit_is_chosen(
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
