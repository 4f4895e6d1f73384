//! Peers that DNS no longer names, that return, and that are replaced.

use super::*;
use crate::outbound::DRAIN_TIMEOUT;
use crate::outbound::pause::FIRST_PAUSE;

#[test]
fn a_draining_peer_without_frames_is_closed_at_once() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["a", "b"]);
        assert_eq!(rig.outbound.connections(), 2);
        rig.endpoints(&["b"]);
        assert_eq!(rig.outbound.connections(), 1, "only those that get frames");
        assert_eq!(rig.actions(), [Action::Close(links[0])]);
        assert!(rig.outbound.knows(links[0].peer));
        assert_eq!(rig.outbound.due(), None, "the caller has only to close it");
        rig.down(links[0]);
        assert!(!rig.outbound.knows(links[0].peer));
        assert_eq!(rig.outbound.statistics().disconnects, 0, "a close is not a break");
    }
}

#[test]
fn a_draining_peer_that_waits_for_an_attempt_is_forgotten_at_once() {
    let mut rig = Rig::at_least_once();
    let a = rig.endpoints(&["a"])[0];
    let link = rig.connects()[0];
    rig.down(link);
    rig.actions();
    rig.endpoints(&[]);
    assert!(!rig.outbound.knows(a) && rig.outbound.due().is_none());
    assert_eq!(rig.actions(), []);
}

#[test]
fn an_attempt_to_reach_a_draining_peer_is_ended() {
    let mut rig = Rig::at_least_once();
    let a = rig.endpoints(&["a"])[0];
    let link = rig.connects()[0];
    rig.endpoints(&[]);
    assert_eq!(rig.actions(), [Action::Close(link)]);
    // The connection comes up just before the caller closes it.
    rig.up(link, 2);
    assert_eq!((rig.send(), rig.actions()), (Err(Refused::NoPeer), vec![]));
    assert_eq!(rig.send_as((1, 0), Some(a)), Err(Refused::Gone));
    rig.down(link);
    assert_eq!(rig.send_as((1, 0), Some(a)), Err(Refused::Gone));
}

#[test]
fn a_draining_peer_finishes_its_frames() {
    let mut rig = Rig::at_least_once();
    let link = rig.connected(&["a"])[0];
    rig.send_some(2);
    rig.outbound.take(link).unwrap();
    rig.endpoints(&[]);
    assert_eq!(rig.send(), Err(Refused::NoPeer), "no new frame");
    assert_eq!(rig.send_as((1, 0), Some(link.peer)), Err(Refused::Gone), "not even one that names it");
    assert!(rig.outbound.knows(link.peer) && !rig.outbound.is_active(link.peer));
    assert_eq!(rig.write(link), [(2, false)], "the frame that it was assigned before");
    // All slots are free, but one acknowledgement is missing.
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
    assert_eq!(rig.outbound.statistics().lost, 0);
}

#[test]
fn when_the_drain_times_out_frames_go_to_other_peers_or_are_lost() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["a", "b"]);
        rig.send_some(3);
        rig.outbound.take(links[0]).unwrap();
        rig.endpoints(&["b"]);
        assert_eq!(rig.outbound.due(), Some(rig.now + DRAIN_TIMEOUT));
        rig.advance(DRAIN_TIMEOUT - Duration::from_nanos(1));
        assert_eq!(rig.actions(), []);
        rig.advance(Duration::from_nanos(1));
        assert_eq!(rig.actions(), [Action::Close(links[0])]);
        // A closing connection gets nothing more, for it would be lost.
        assert!(!rig.outbound.has_work(links[0]) && rig.write(links[0]).is_empty());
        rig.advance(Duration::from_secs(3600));
        assert_eq!(rig.actions(), []);
        rig.down(links[0]);
        let is_kept = delivery == Delivery::AtLeastOnce;
        assert_eq!(rig.outbound.statistics().lost, u64::from(!is_kept), "{delivery:?}");
        let again = if is_kept { vec![(2, false), (1, true)] } else { vec![(2, false), (3, false)] };
        assert_eq!(rig.write(links[1]), again);
    }
}

#[test]
fn a_report_during_the_close_counts() {
    let mut rig = Rig::new(Delivery::AtMostOnce, Choice::RoundRobin);
    let link = rig.connected(&["a"])[0];
    rig.send_some(2);
    rig.write(link);
    rig.endpoints(&[]);
    rig.advance(DRAIN_TIMEOUT);
    rig.ack(link, 1, &[]);
    rig.down(link);
    assert_eq!(rig.outbound.statistics().lost, 1);
}

#[test]
fn a_peer_that_returns_in_time_keeps_its_connection() {
    let mut rig = Rig::at_least_once();
    let link = rig.connected(&["a"])[0];
    rig.send().unwrap();
    rig.endpoints(&[]);
    rig.advance(DRAIN_TIMEOUT / 2);
    assert_eq!(rig.endpoints(&["a"]), [link.peer]);
    rig.advance(DRAIN_TIMEOUT);
    assert_eq!(rig.actions(), []);
    assert_eq!(rig.send(), Ok(link));
}

#[test]
fn a_peer_that_returns_too_late_is_connected_again() {
    let mut rig = Rig::at_least_once();
    let link = rig.connected(&["a"])[0];
    rig.endpoints(&[]);
    assert_eq!(rig.actions(), [Action::Close(link)]);
    // The caller is about to close it.
    assert_eq!(rig.endpoints(&["a"]), [link.peer]);
    assert_eq!(rig.send(), Err(Refused::NoPeer));
    rig.down(link);
    let again = rig.retries()[0];
    assert_eq!(again.peer, link.peer);
    rig.up(again, 2);
    assert_eq!(rig.send(), Ok(again));
}

#[test]
fn a_peer_that_returns_gets_all_its_connections() {
    let mut rig = Rig::with(SendSettings {
        delivery: Delivery::AtLeastOnce,
        choice: Choice::ByKey,
        replay: 100,
        connections: 3,
    });
    let links = rig.connected(&["a"]);
    assert_eq!(rig.send_as((1, 0), None), Ok(links[0]));
    rig.down(links[1]);
    rig.actions();
    // The first connection has work, the second waits for an attempt, the third is idle.
    rig.endpoints(&[]);
    assert_eq!(rig.actions(), [Action::Close(links[2])]);
    rig.down(links[2]);
    assert_eq!(rig.endpoints(&["a"]), [links[0].peer]);
    rig.advance(Duration::from_secs(1));
    let again = rig.connects();
    assert_eq!(again.iter().map(|link| link.index).collect::<Vec<_>>(), [1, 2]);
    again.iter().for_each(|&link| rig.up(link, 2));
    for key in 0..3 {
        rig.send_as((1, key), None).unwrap();
    }
}

#[test]
fn an_endpoint_with_another_uid_is_another_peer() {
    let mut rig = Rig::at_least_once();
    let old = rig.connected(&["a#1"])[0];
    rig.send().unwrap();
    rig.write(old);
    let new = rig.endpoints(&["a#2"])[0];
    assert_ne!(new, old.peer);
    let link = rig.connects()[0];
    assert_eq!(link.peer, new);
    rig.up(link, 2);
    // The old pod still has its frame, until its connection breaks.
    assert!(!rig.outbound.has_work(link));
    rig.down(old);
    assert_eq!(rig.write(link), [(1, true)]);
    assert!(!rig.outbound.knows(old.peer));
    // An endpoint without a uid is yet another peer.
    assert_ne!(rig.endpoints(&["a"]), [new]);
}

#[test]
fn frames_for_one_peer_are_given_up_when_it_is_gone() {
    for (delivery, undeliverable, lost) in [(Delivery::AtMostOnce, 1, 1), (Delivery::AtLeastOnce, 2, 0)] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["a", "b"]);
        let a = links[0].peer;
        rig.send_some_to(2, a);
        rig.outbound.take(links[0]).unwrap();
        rig.down(links[0]);
        rig.actions();
        rig.endpoints(&["b"]);
        let counts = rig.outbound.statistics();
        assert_eq!((counts.undeliverable, counts.lost), (undeliverable, lost), "{delivery:?}");
        assert!(rig.outbound.is_idle() && rig.outbound.requeued.is_empty());
        assert_eq!(rig.send_as((1, 0), Some(a)), Err(Refused::Gone));
    }
}

#[test]
fn frames_for_one_peer_are_sent_while_it_drains() {
    let mut rig = Rig::at_least_once();
    let link = rig.connected(&["a"])[0];
    rig.send_some_to(2, link.peer);
    rig.write(link);
    rig.endpoints(&[]);
    // A peer with a paused frame is not closed either.
    rig.report(link, 2, &[2], &[1]);
    rig.advance(FIRST_PAUSE);
    assert_eq!(rig.write(link), [(1, true)]);
    rig.ack(link, 3, &[1]);
    assert_eq!(rig.actions().pop(), Some(Action::Close(link)));
}
