//! Choice of the peer and the connection for a frame.

use std::collections::HashMap;

use super::*;

fn by_key(connections: u16) -> Rig {
    let (delivery, choice) = (Delivery::AtLeastOnce, Choice::ByKey);
    Rig::with(SendSettings { delivery, choice, replay: 1000, connections })
}

/// Returns a key whose frames go to this peer.
fn key_of(rig: &mut Rig, peer: PeerId) -> u64 {
    let mut all = 0..1000;
    all.find(|&key| keeper(rig, key) == peer).expect("every peer has keys")
}

/// Returns the peer that gets the frames of a key.
fn keeper(rig: &mut Rig, key: u64) -> PeerId {
    let wanted = crate::outbound::route::Requirements { length: 1, key, only: None, avoid: None };
    rig.outbound.peer_for(wanted).expect("a peer is connected").id
}

#[test]
fn a_frame_that_no_peer_can_take_is_refused_with_the_reason() {
    let mut rig = Rig::at_least_once();
    assert_eq!(rig.send(), Err(Refused::NoPeer));
    let a = rig.endpoints(&["a"])[0];
    assert_eq!(rig.send(), Err(Refused::NoPeer));
    assert_eq!(rig.send_as((1, 0), Some(a)), Err(Refused::NoPeer));
    assert_eq!(rig.send_as((1, 0), Some(PeerId(7))), Err(Refused::Gone));
    let links = rig.connects();
    rig.up(links[0], 1);
    assert_eq!(rig.send_as((101, 0), None), Err(Refused::TooLarge { most: 100 }));
    assert_eq!(rig.send_as((101, 0), Some(a)), Err(Refused::TooLarge { most: 100 }));
    rig.send().unwrap();
    assert_eq!(rig.send(), Err(Refused::Full));
    rig.down(links[0]);
    assert_eq!(rig.send(), Err(Refused::NoPeer));
}

#[test]
fn a_frame_that_is_too_large_for_one_peer_goes_to_another() {
    let mut rig = Rig::at_least_once();
    rig.endpoints(&["a", "b"]);
    let links = rig.connects();
    rig.outbound.on_up(rig.now, links[0], 2, 10);
    rig.outbound.on_up(rig.now, links[1], 2, 20);
    assert_eq!(rig.send_as((20, 0), None), Ok(links[1]));
    assert_eq!(rig.send_as((20, 0), None), Ok(links[1]));
    assert_eq!(rig.send_as((20, 0), None), Err(Refused::Full));
    assert_eq!(rig.send_as((21, 0), None), Err(Refused::TooLarge { most: 20 }));
}

#[test]
fn a_connection_that_is_about_to_end_gets_no_new_frame() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["a", "b"]);
        rig.send_some(2);
        links.iter().for_each(|&link| assert_eq!(rig.write(link).len(), 1));
        rig.outbound.on_ending(links[0]);
        // Its reports still count, but make no room.
        rig.ack(links[0], 1, &[1]);
        assert_eq!([rig.send(), rig.send()], [Ok(links[1]), Err(Refused::Full)]);
        let again = rig.reconnect(links[0]);
        assert_eq!(rig.send(), Ok(again));
    }
}

#[test]
fn frames_of_a_key_wait_for_a_connection_that_is_about_to_end() {
    let mut rig = by_key(1);
    let links = rig.connected(&["a", "b"]);
    let key = key_of(&mut rig, links[0].peer);
    assert_eq!(rig.send_as((1, key), None), Ok(links[0]));
    rig.write(links[0]);
    rig.outbound.on_ending(links[0]);
    // The next frame must not overtake the first, which may be sent again.
    assert_eq!(rig.send_as((1, key), None), Err(Refused::Full));
    rig.down(links[0]);
    assert_eq!(rig.send_as((1, key), None), Ok(links[1]));
    assert_eq!(rig.write(links[1]), [(1, true), (2, false)]);
}

#[test]
fn frames_of_a_key_go_to_one_peer_whatever_their_size() {
    let mut rig = by_key(1);
    rig.endpoints(&["a", "b"]);
    let links = rig.connects();
    rig.outbound.on_up(rig.now, links[0], 2, 10);
    rig.outbound.on_up(rig.now, links[1], 2, 20);
    let (a, b) = (key_of(&mut rig, links[0].peer), key_of(&mut rig, links[1].peer));
    assert_eq!(rig.send_as((20, b), None), Ok(links[1]));
    assert_eq!(rig.send_as((20, a), None), Err(Refused::TooLarge { most: 10 }));
    // A caller that names a peer may name any.
    assert_eq!(rig.send_as((20, a), Some(links[1].peer)), Ok(links[1]));
}

#[test]
fn frames_of_a_key_wait_for_the_first_attempt_to_reach_its_peer() {
    let mut rig = by_key(1);
    let ids = rig.endpoints(&["a", "b"]);
    let links = rig.connects();
    rig.up(links[1], 2);
    let key = key_of(&mut rig, ids[0]);
    assert_eq!(rig.send_as((1, key), None), Err(Refused::Full));
    rig.down(links[0]);
    assert_eq!(rig.send_as((1, key), None), Ok(links[1]));
    rig.actions();
    // A further attempt is no reason to wait.
    rig.advance(Duration::from_millis(50));
    let again = rig.connects()[0];
    assert_eq!(rig.send_as((1, key), None), Ok(links[1]));
    rig.write(links[1]);
    rig.up(again, 2);
    assert_eq!(rig.send_as((1, key), None), Ok(again));
}

#[test]
fn when_a_peer_is_lost_only_its_keys_move() {
    let mut rig = by_key(1);
    let links = rig.connected(&["a", "b", "c", "d"]);
    let before: HashMap<u64, PeerId> = (0..200).map(|key| (key, keeper(&mut rig, key))).collect();
    rig.down(links[2]);
    for (&key, &peer) in &before {
        let is_same = keeper(&mut rig, key) == peer;
        assert_eq!(is_same, peer != links[2].peer);
    }
    // They come back with the peer, or with another pod of the same name.
    rig.endpoints(&["a", "b", "c#2", "d"]);
    let again = rig.connects()[0];
    rig.up(again, 2);
    for (key, peer) in before {
        let expected = if peer == links[2].peer { again.peer } else { peer };
        assert_eq!(keeper(&mut rig, key), expected);
    }
}

#[test]
fn frames_of_a_key_stay_in_order() {
    let mut rig = by_key(1);
    let links = rig.connected(&["a", "b"]);
    let (a, b) = (key_of(&mut rig, links[0].peer), key_of(&mut rig, links[1].peer));
    rig.send_as((1, b), None).unwrap();
    for _ in 0..2 {
        rig.send_as((1, a), None).unwrap();
    }
    rig.down(links[0]);
    // The other peer has room for one of the two. A new frame must not overtake the second.
    assert_eq!(rig.send_as((1, a), None), Err(Refused::Full));
    assert_eq!(rig.write(links[1]), [(1, false), (2, false)]);
    rig.ack(links[1], 1, &[1]);
    assert_eq!(rig.send_as((1, a), None), Err(Refused::Full));
    rig.ack(links[1], 2, &[2]);
    assert_eq!(rig.send_as((1, a), None), Ok(links[1]));
    assert_eq!(rig.write(links[1]), [(3, false), (4, false)]);
}

#[test]
fn queued_frames_move_with_their_key() {
    let mut rig = by_key(1);
    let links = rig.connected(&["a", "b"]);
    let key = key_of(&mut rig, links[0].peer);
    rig.send_as((1, key), None).unwrap();
    rig.write(links[0]);
    rig.send_as((1, key), None).unwrap();
    // Later frames go to b from now on, and so do those that are still queued for a.
    rig.endpoints(&["b"]);
    assert_eq!(rig.send_as((1, key), None), Ok(links[1]));
    assert_eq!(rig.write(links[1]), [(2, false), (3, false)]);
    assert!(rig.write(links[0]).is_empty());
    // And back.
    rig.ack(links[1], 2, &[2, 3]);
    rig.send_as((1, key), None).unwrap();
    rig.endpoints(&["a", "b"]);
    assert_eq!(rig.write(links[0]), [(4, false)]);
}

#[test]
fn a_frame_that_is_too_large_holds_up_its_key() {
    let mut rig = by_key(1);
    let link = rig.connected(&["a"])[0];
    rig.send_as((100, 1), None).unwrap();
    rig.send_as((1, 1), None).unwrap();
    rig.down(link);
    let again = rig.retries()[0];
    rig.outbound.on_up(rig.now, again, 3, 10);
    assert_eq!(rig.write(again), []);
    assert_eq!(rig.send_as((1, 1), None), Err(Refused::Full));
    assert_eq!(rig.send_as((1, 2), None), Ok(again));
}

#[test]
fn a_key_has_one_connection_and_waits_for_it() {
    let mut rig = by_key(3);
    let links = rig.connected(&["a"]);
    for key in 0..6 {
        assert_eq!(rig.send_as((1, key), None), Ok(links[key as usize % 3]));
    }
    // Its frames wait for that connection. On another, they could overtake those already on it.
    rig.down(links[1]);
    assert_eq!(rig.send_as((1, 1), None), Err(Refused::Full));
    let again = rig.retries()[0];
    rig.up(again, 3);
    assert_eq!(rig.send_as((1, 1), None), Ok(again));
    assert_eq!(rig.write(again), [(2, false), (5, false), (7, false)]);
}

#[test]
fn keys_of_a_refused_connection_go_by_the_others() {
    let mut rig = by_key(3);
    rig.endpoints(&["a"]);
    let links = rig.connects();
    rig.up(links[0], 10);
    rig.up(links[1], 10);
    // The first attempt has not ended yet.
    assert_eq!(rig.send_as((1, 2), None), Err(Refused::Full));
    rig.refused(links[2]);
    let stand_ins: HashMap<u64, LinkId> =
        (2..30).step_by(3).map(|key| (key, rig.send_as((1, key), None).unwrap())).collect();
    assert!(stand_ins.values().any(|&on| on == links[0]) && stand_ins.values().any(|&on| on == links[1]));
    // Keys of the other connections stay where they are.
    rig.up(links[0], 10);
    assert_eq!(rig.outbound.peers[0].index_for_key(0), 0);
    assert_eq!(rig.outbound.peers[0].index_for_key(1), 1);
}

#[test]
fn keys_return_to_a_connection_once_the_others_frames_are_taken() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let mut rig =
            Rig::with(SendSettings { delivery, choice: Choice::ByKey, replay: 1000, connections: 2 });
        rig.endpoints(&["a"]);
        let links = rig.connects();
        rig.up(links[0], 10);
        rig.refused(links[1]);
        rig.actions();
        for _ in 0..2 {
            assert_eq!(rig.send_as((1, 1), None), Ok(links[0]));
        }
        assert_eq!(rig.outbound.take(links[0]).unwrap().sequence, 1);
        rig.advance(Duration::from_secs(1));
        let second = rig.connects()[0];
        rig.up(second, 10);
        assert_eq!(rig.send_as((1, 1), None), Err(Refused::Full));
        // The first frame is in flight on the other connection. The second, which is not, goes by
        // its own connection, after the first has been taken.
        assert_eq!(rig.write(second), []);
        assert_eq!(rig.send_as((1, 0), None), Ok(links[0]));
        rig.ack(links[0], 1, &[1]);
        assert_eq!(rig.write(second), [(2, false)]);
        assert_eq!(rig.send_as((1, 1), None), Ok(second));
    }
}

#[test]
fn keys_return_once_the_frames_they_wait_for_are_withdrawn() {
    let mut rig = by_key(2);
    let ids = rig.endpoints(&["a", "b"]);
    let links = rig.connects();
    rig.refused(links[1]);
    [0, 2, 3].iter().for_each(|&at| rig.up(links[at], 10));
    let key = (1..1000).step_by(2).find(|&key| keeper(&mut rig, key) == ids[0]).unwrap();
    let with_b = key_of(&mut rig, ids[1]);
    let on_b = rig.send_as((1, with_b), None).unwrap();
    rig.write(on_b);
    links[2..].iter().for_each(|&link| rig.down(link));
    assert!(rig.outbound.has_work(links[0]), "the frame is a's now");
    let connects = rig.retries();
    let again = |of: LinkId| {
        *connects
            .iter()
            .find(|link| (link.peer, link.index) == (of.peer, of.index))
            .expect("it is tried again")
    };
    rig.up(again(links[1]), 10);
    assert_eq!(rig.send_as((1, key), None), Err(Refused::Full));
    // b did get it before the break.
    rig.up(again(on_b), 10);
    rig.ack(again(on_b), 0, &[1]);
    assert_eq!(rig.send_as((1, key), None), Ok(again(links[1])));
}

#[test]
fn keys_do_not_return_before_a_broken_connection_is_replaced() {
    let mut rig = by_key(2);
    rig.endpoints(&["a"]);
    let links = rig.connects();
    rig.up(links[0], 10);
    rig.refused(links[1]);
    rig.actions();
    assert_eq!(rig.send_as((1, 1), None), Ok(links[0]));
    rig.write(links[0]);
    rig.advance(Duration::from_secs(1));
    let second = rig.connects()[0];
    rig.up(second, 10);
    // The receiver may still read the frame, until the next connection of this index is up.
    rig.down(links[0]);
    assert_eq!(rig.send_as((1, 1), None), Err(Refused::Full));
    let first = rig.retries()[0];
    rig.up(first, 10);
    assert_eq!(rig.write(second), [(1, true)]);
    assert_eq!(rig.send_as((1, 1), None), Ok(second));
    // A connection that the receiver refuses has no frame on its way.
    rig.down(second);
    rig.actions();
    assert_eq!(rig.send_as((1, 1), None), Err(Refused::Full));
    rig.advance(Duration::from_secs(1));
    let again = rig.connects()[0];
    rig.refused(again);
    assert_eq!(rig.write(first), [(1, true), (2, false)]);
    assert_eq!(rig.send_as((1, 1), None), Ok(first));
}

#[test]
fn without_keys_the_connection_with_most_credits_is_taken() {
    let mut rig = Rig::with(SendSettings {
        delivery: Delivery::AtLeastOnce,
        choice: Choice::RoundRobin,
        replay: 1000,
        connections: 3,
    });
    let links = rig.connected(&["a"]);
    let mut counts: HashMap<LinkId, usize> = HashMap::new();
    (0..6).for_each(|_| *counts.entry(rig.send().unwrap()).or_default() += 1);
    assert!(links.iter().all(|link| counts.get(link) == Some(&2)), "{counts:?}");
    assert_eq!(rig.outbound.connected().collect::<Vec<_>>(), [(links[0].peer, 6)]);
}

#[test]
fn a_named_peer_gets_its_frames_and_no_other() {
    let mut rig = Rig::at_least_once();
    let links = rig.connected(&["a", "b"]);
    let a = links[0].peer;
    for _ in 0..2 {
        assert_eq!(rig.send_as((1, 0), Some(a)), Ok(links[0]));
    }
    assert_eq!(rig.send_as((1, 0), Some(a)), Err(Refused::Full));
    rig.write(links[0]);
    // Not even when the peer rejects them, or is disconnected.
    rig.report(links[0], 1, &[], &[1]);
    rig.advance(Duration::from_millis(10));
    assert_eq!(rig.write(links[0]), [(1, true)]);
    rig.down(links[0]);
    assert!(!rig.outbound.has_work(links[1]));
    assert_eq!(rig.send_as((1, 0), Some(a)), Err(Refused::NoPeer));
    assert_eq!(rig.send(), Ok(links[1]), "the others go on");
    let again = rig.retries()[0];
    rig.up(again, 2);
    assert_eq!(rig.write(again), [(1, true), (2, true)]);
}
