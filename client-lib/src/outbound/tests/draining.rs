//! Peers that DNS no longer names, that come back, and that are replaced.

use super::*;
use crate::outbound::DRAIN_TIMEOUT;
use crate::outbound::pause::FIRST_PAUSE;

#[test]
fn who_has_nothing_to_do_goes_at_once() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["a", "b"]);
        assert_eq!(rig.outbound.connections(), 2);
        rig.endpoints(&["b"]);
        assert_eq!(rig.outbound.connections(), 1, "none but those that get frames");
        assert_eq!(rig.actions(), [Action::Close(links[0])]);
        assert!(rig.outbound.knows(links[0].peer));
        assert_eq!(rig.outbound.due(), None, "all that is left is for the shell to close it");
        rig.down(links[0]);
        assert!(!rig.outbound.knows(links[0].peer));
        assert_eq!(rig.outbound.counts().reconnects, 0, "it did not break");
    }
}

#[test]
fn who_waits_for_an_attempt_is_forgotten_at_once() {
    let mut rig = Rig::kept();
    let a = rig.endpoints(&["a"])[0];
    let link = rig.connects()[0];
    rig.down(link);
    rig.actions();
    rig.endpoints(&[]);
    assert!(!rig.outbound.knows(a) && rig.outbound.due().is_none());
    assert_eq!(rig.actions(), []);
}

#[test]
fn an_attempt_is_ended() {
    let mut rig = Rig::kept();
    let a = rig.endpoints(&["a"])[0];
    let link = rig.connects()[0];
    rig.endpoints(&[]);
    assert_eq!(rig.actions(), [Action::Close(link)]);
    // It is up just before the shell hears of that.
    rig.up(link, 2);
    assert_eq!((rig.send(), rig.actions()), (Err(Refused::NoPeer), vec![]));
    assert_eq!(rig.send_as((1, 0), Some(a)), Err(Refused::Gone));
    rig.down(link);
    assert_eq!(rig.send_as((1, 0), Some(a)), Err(Refused::Gone));
}

#[test]
fn who_has_something_finishes_it() {
    let mut rig = Rig::kept();
    let link = rig.connected(&["a"])[0];
    rig.send_some(2);
    rig.outbound.take(link).unwrap();
    rig.endpoints(&[]);
    assert_eq!(rig.send(), Err(Refused::NoPeer), "nothing new");
    assert_eq!(rig.send_as((1, 0), Some(link.peer)), Err(Refused::Gone), "nor what is for it alone");
    assert!(rig.outbound.knows(link.peer) && !rig.outbound.is_active(link.peer));
    assert_eq!(rig.write(link), [(2, false)], "what it was given already");
    // Slots are free, but an acknowledgement is missing; then the other way round.
    rig.ack(link, 2, &[1]);
    assert_eq!(rig.actions(), []);
    rig.ack(link, 2, &[2]);
    assert_eq!(rig.actions(), [Action::Close(link)]);

    let mut rig = Rig::new(Delivery::AtMostOnce, Choice::RoundRobin);
    let link = rig.connected(&["a"])[0];
    rig.send().unwrap();
    rig.endpoints(&[]);
    rig.write(link);
    assert_eq!(rig.actions(), []);
    rig.ack(link, 1, &[]);
    assert_eq!(rig.actions(), [Action::Close(link)]);
    rig.down(link);
    assert_eq!(rig.outbound.counts().lost, 0);
}

#[test]
fn patience_ends_and_what_is_left_goes_to_others_or_is_lost() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["a", "b"]);
        rig.send_some(3);
        rig.outbound.take(links[0]).unwrap();
        rig.endpoints(&["b"]);
        assert_eq!(rig.outbound.due(), Some(rig.now + DRAIN_TIMEOUT));
        rig.pass(DRAIN_TIMEOUT - Duration::from_nanos(1));
        assert_eq!(rig.actions(), []);
        rig.pass(Duration::from_nanos(1));
        assert_eq!(rig.actions(), [Action::Close(links[0])]);
        // Nothing more is handed to it, or it would be lost.
        assert!(!rig.outbound.has_work(links[0]) && rig.write(links[0]).is_empty());
        rig.pass(Duration::from_secs(3600));
        assert_eq!(rig.actions(), []);
        rig.down(links[0]);
        let is_kept = delivery == Delivery::AtLeastOnce;
        assert_eq!(rig.outbound.counts().lost, u64::from(!is_kept), "{delivery:?}");
        let again = if is_kept { vec![(2, false), (1, true)] } else { vec![(2, false), (3, false)] };
        assert_eq!(rig.write(links[1]), again);
    }
}

#[test]
fn what_is_heard_during_the_farewell_counts() {
    let mut rig = Rig::new(Delivery::AtMostOnce, Choice::RoundRobin);
    let link = rig.connected(&["a"])[0];
    rig.send_some(2);
    rig.write(link);
    rig.endpoints(&[]);
    rig.pass(DRAIN_TIMEOUT);
    rig.ack(link, 1, &[]);
    rig.down(link);
    assert_eq!(rig.outbound.counts().lost, 1);
}

#[test]
fn who_comes_back_in_time_stays_the_same() {
    let mut rig = Rig::kept();
    let link = rig.connected(&["a"])[0];
    rig.send().unwrap();
    rig.endpoints(&[]);
    rig.pass(DRAIN_TIMEOUT / 2);
    assert_eq!(rig.endpoints(&["a"]), [link.peer]);
    rig.pass(DRAIN_TIMEOUT);
    assert_eq!(rig.actions(), []);
    assert_eq!(rig.send(), Ok(link));
}

#[test]
fn who_comes_back_too_late_is_connected_anew() {
    let mut rig = Rig::kept();
    let link = rig.connected(&["a"])[0];
    rig.endpoints(&[]);
    assert_eq!(rig.actions(), [Action::Close(link)]);
    // The shell is about to close it.
    assert_eq!(rig.endpoints(&["a"]), [link.peer]);
    assert_eq!(rig.send(), Err(Refused::NoPeer));
    rig.down(link);
    let again = rig.retries()[0];
    assert_eq!(again.peer, link.peer);
    rig.up(again, 2);
    assert_eq!(rig.send(), Ok(again));
}

#[test]
fn who_comes_back_gets_all_lanes() {
    let mut rig = Rig::with(Settings {
        delivery: Delivery::AtLeastOnce,
        choice: Choice::ByKey,
        replay: 100,
        connections: 3,
    });
    let links = rig.connected(&["a"]);
    assert_eq!(rig.send_as((1, 0), None), Ok(links[0]));
    rig.down(links[1]);
    rig.actions();
    // The first has work, the second waits, the third has none.
    rig.endpoints(&[]);
    assert_eq!(rig.actions(), [Action::Close(links[2])]);
    rig.down(links[2]);
    assert_eq!(rig.endpoints(&["a"]), [links[0].peer]);
    rig.pass(Duration::from_secs(1));
    let again = rig.connects();
    assert_eq!(again.iter().map(|link| link.index).collect::<Vec<_>>(), [1, 2]);
    again.iter().for_each(|&link| rig.up(link, 2));
    for key in 0..3 {
        rig.send_as((1, key), None).unwrap();
    }
}

#[test]
fn another_uid_is_another_peer() {
    let mut rig = Rig::kept();
    let old = rig.connected(&["a#1"])[0];
    rig.send().unwrap();
    rig.write(old);
    let new = rig.endpoints(&["a#2"])[0];
    assert_ne!(new, old.peer);
    let link = rig.connects()[0];
    assert_eq!(link.peer, new);
    rig.up(link, 2);
    // The old one has its frame still, until it turns out that it is dead.
    assert!(!rig.outbound.has_work(link));
    rig.down(old);
    assert_eq!(rig.write(link), [(1, true)]);
    assert!(!rig.outbound.knows(old.peer));
    // A uid that is known at last is another one than none.
    assert_ne!(rig.endpoints(&["a"]), [new]);
}

#[test]
fn frames_for_a_peer_that_has_gone_are_given_up() {
    for (delivery, undeliverable, lost) in [(Delivery::AtMostOnce, 1, 1), (Delivery::AtLeastOnce, 2, 0)] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["a", "b"]);
        let a = links[0].peer;
        rig.send_some_to(2, a);
        rig.outbound.take(links[0]).unwrap();
        rig.down(links[0]);
        rig.actions();
        rig.endpoints(&["b"]);
        let counts = rig.outbound.counts();
        assert_eq!((counts.undeliverable, counts.lost), (undeliverable, lost), "{delivery:?}");
        assert!(rig.outbound.is_idle() && rig.outbound.requeued.is_empty());
        assert_eq!(rig.send_as((1, 0), Some(a)), Err(Refused::Gone));
    }
}

#[test]
fn frames_for_a_peer_that_leaves_are_sent_as_long_as_it_is_there() {
    let mut rig = Rig::kept();
    let link = rig.connected(&["a"])[0];
    rig.send_some_to(2, link.peer);
    rig.write(link);
    rig.endpoints(&[]);
    // Nor is it gone while one of them is not to be sent yet.
    rig.say(link, 2, &[2], &[1]);
    rig.pass(FIRST_PAUSE);
    assert_eq!(rig.write(link), [(1, true)]);
    rig.ack(link, 3, &[1]);
    assert_eq!(rig.actions().pop(), Some(Action::Close(link)));
}
