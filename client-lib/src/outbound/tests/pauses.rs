//! Frames that a receiver's application rejects.

use super::*;
use crate::outbound::pause::{FIRST_PAUSE, LONGEST_PAUSE};

const MOMENT: Duration = Duration::from_nanos(1);

#[test]
fn pauses_after_rejections_double_up_to_two_seconds() {
    let mut rig = Rig::at_least_once();
    let link = rig.connected(&["a"])[0];
    rig.send().unwrap();
    assert_eq!(rig.write(link), [(1, false)]);
    let milliseconds = [10, 20, 40, 80, 160, 320, 640, 1280, 2000, 2000];
    for (freed, pause) in (1..).zip(milliseconds.map(Duration::from_millis)) {
        rig.report(link, freed, &[], &[1]);
        assert_eq!(rig.outbound.due(), Some(rig.now + pause));
        rig.advance(pause - MOMENT);
        assert!(rig.write(link).is_empty() && rig.outbound.holds(1));
        rig.advance(MOMENT);
        assert_eq!(rig.actions().pop(), Some(Action::Write(link)));
        assert_eq!(rig.write(link), [(1, true)]);
    }
    rig.ack(link, 11, &[1]);
    assert_eq!((rig.outbound.is_idle(), rig.outbound.due()), (true, None));
}

#[test]
fn a_paused_frame_holds_up_no_other() {
    let mut rig = Rig::at_least_once();
    let link = rig.connected(&["a"])[0];
    rig.send().unwrap();
    rig.write(link);
    rig.report(link, 1, &[], &[1]);
    rig.send_some(2);
    assert_eq!(rig.write(link), [(2, false), (3, false)]);
    rig.advance(FIRST_PAUSE);
    rig.ack(link, 3, &[2, 3]);
    assert_eq!(rig.write(link), [(1, true)]);
}

#[test]
fn frames_of_a_key_do_not_overtake_a_paused_one() {
    let mut rig = Rig::new(Delivery::AtLeastOnce, Choice::ByKey);
    let link = rig.connected(&["a"])[0];
    rig.send_as((1, 7), None).unwrap();
    rig.write(link);
    rig.report(link, 1, &[], &[1]);
    assert_eq!(rig.send_as((1, 7), None), Err(Refused::Full));
    assert_eq!(rig.send_as((1, 8), None), Ok(link));
    assert_eq!(rig.send_as((1, 7), Some(link.peer)), Ok(link), "frames that name a peer have no order");
    rig.write(link);
    rig.ack(link, 3, &[2, 3]);
    rig.advance(FIRST_PAUSE);
    assert_eq!(rig.send_as((1, 7), None), Ok(link));
    assert_eq!(rig.write(link), [(1, true), (4, false)]);
}

#[test]
fn a_requeued_frame_does_not_overtake_a_paused_one_of_its_key() {
    let mut rig = Rig::new(Delivery::AtLeastOnce, Choice::ByKey);
    let link = rig.connected(&["a"])[0];
    rig.send_as((1, 7), None).unwrap();
    rig.write(link);
    // So many rejections that the pause outlasts the connection.
    for freed in 1..=8 {
        rig.report(link, freed, &[], &[1]);
        rig.advance(LONGEST_PAUSE);
        rig.write(link);
    }
    rig.send_as((1, 7), None).unwrap();
    rig.write(link);
    rig.report(link, 9, &[], &[1]);
    rig.down(link);
    rig.actions();
    rig.advance(Duration::from_millis(50));
    let again = rig.connects()[0];
    rig.up(again, 2);
    assert!(rig.write(again).is_empty());
    rig.advance(LONGEST_PAUSE);
    assert_eq!(rig.write(again), [(1, true), (2, true)]);
}

#[test]
fn an_older_frame_does_not_wait_for_a_paused_one_of_its_key() {
    let mut rig = Rig::new(Delivery::AtLeastOnce, Choice::ByKey);
    let link = rig.connected(&["a"])[0];
    for _ in 1..=2 {
        rig.send_as((1, 7), None).unwrap();
    }
    rig.write(link);
    for freed in 1..=8 {
        rig.report(link, freed, &[], &[2]);
        rig.advance(LONGEST_PAUSE);
        rig.write(link);
    }
    rig.report(link, 9, &[], &[2]);
    rig.down(link);
    rig.actions();
    rig.advance(Duration::from_millis(50));
    let again = rig.connects()[0];
    rig.up(again, 2);
    assert_eq!(rig.write(again), [(1, true)]);
    rig.advance(LONGEST_PAUSE);
    assert_eq!(rig.write(again), [(2, true)]);
}

#[test]
fn a_paused_frame_that_is_acknowledged_is_not_sent_again() {
    let mut rig = Rig::at_least_once();
    let link = rig.connected(&["a"])[0];
    rig.send().unwrap();
    rig.write(link);
    // The acknowledgement may come over another connection of the same receiver.
    rig.report(link, 1, &[], &[1]);
    rig.ack(link, 1, &[1]);
    assert_eq!((rig.outbound.is_idle(), rig.outbound.due()), (true, None));
    rig.advance(FIRST_PAUSE);
    assert!(rig.write(link).is_empty() && rig.outbound.paused.is_empty());
}

/// As a fetcher does that works on one payload for long, and drops thousands of others meanwhile.
#[test]
fn a_frame_acknowledged_after_many_later_ones_were_given_up_is_not_one_of_them() {
    let mut rig = Rig::at_least_once();
    rig.outbound = rig.outbound.give_up_rejected();
    let link = rig.connected(&["a"])[0];
    rig.send().unwrap();
    for freed in 1..=5000 {
        rig.send().unwrap();
        rig.write(link);
        rig.report(link, freed, &[], &[freed + 1]);
    }
    rig.ack(link, 5001, &[1]);
    assert!(!rig.outbound.holds(1) && !rig.outbound.has_given_up(1));
    assert!(rig.outbound.has_given_up(2) && rig.outbound.has_given_up(5001));
    assert_eq!((rig.outbound.given_up(), rig.outbound.statistics().acknowledged), (5000, 1));
}
