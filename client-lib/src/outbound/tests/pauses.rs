//! Frames that receivers' code does not want.

use super::*;
use crate::outbound::pause::{FIRST_PAUSE, LONGEST_PAUSE};

const MOMENT: Duration = Duration::from_nanos(1);

#[test]
fn what_nobody_wants_comes_less_and_less_often() {
    let mut rig = Rig::kept();
    let link = rig.connected(&["a"])[0];
    rig.send().unwrap();
    assert_eq!(rig.write(link), [(1, false)]);
    let milliseconds = [10, 20, 40, 80, 160, 320, 640, 1280, 2000, 2000];
    for (freed, pause) in (1..).zip(milliseconds.map(Duration::from_millis)) {
        rig.say(link, freed, &[], &[1]);
        assert_eq!(rig.outbound.due(), Some(rig.now + pause));
        rig.pass(pause - MOMENT);
        assert!(rig.write(link).is_empty() && rig.outbound.holds(1));
        rig.pass(MOMENT);
        assert_eq!(rig.actions().pop(), Some(Action::Write(link)));
        assert_eq!(rig.write(link), [(1, true)]);
    }
    rig.ack(link, 11, &[1]);
    assert_eq!((rig.outbound.is_idle(), rig.outbound.due()), (true, None));
}

#[test]
fn a_pause_holds_up_no_other_frame() {
    let mut rig = Rig::kept();
    let link = rig.connected(&["a"])[0];
    rig.send().unwrap();
    rig.write(link);
    rig.say(link, 1, &[], &[1]);
    rig.send_some(2);
    assert_eq!(rig.write(link), [(2, false), (3, false)]);
    rig.pass(FIRST_PAUSE);
    rig.ack(link, 3, &[2, 3]);
    assert_eq!(rig.write(link), [(1, true)]);
}

#[test]
fn nothing_of_its_key_overtakes_what_pauses() {
    let mut rig = Rig::new(Delivery::AtLeastOnce, Choice::ByKey);
    let link = rig.connected(&["a"])[0];
    rig.send_as((1, 7), None).unwrap();
    rig.write(link);
    rig.say(link, 1, &[], &[1]);
    assert_eq!(rig.send_as((1, 7), None), Err(Refused::Full));
    assert_eq!(rig.send_as((1, 8), None), Ok(link));
    assert_eq!(rig.send_as((1, 7), Some(link.peer)), Ok(link), "no order is promised for it");
    rig.write(link);
    rig.ack(link, 3, &[2, 3]);
    rig.pass(FIRST_PAUSE);
    assert_eq!(rig.send_as((1, 7), None), Ok(link));
    assert_eq!(rig.write(link), [(1, true), (4, false)]);
}

#[test]
fn nor_does_one_that_was_sent_with_it_and_comes_back() {
    let mut rig = Rig::new(Delivery::AtLeastOnce, Choice::ByKey);
    let link = rig.connected(&["a"])[0];
    rig.send_as((1, 7), None).unwrap();
    rig.write(link);
    // So often that its pause outlasts the connection.
    for freed in 1..=8 {
        rig.say(link, freed, &[], &[1]);
        rig.pass(LONGEST_PAUSE);
        rig.write(link);
    }
    rig.send_as((1, 7), None).unwrap();
    rig.write(link);
    rig.say(link, 9, &[], &[1]);
    rig.down(link);
    rig.actions();
    rig.pass(Duration::from_millis(50));
    let again = rig.connects()[0];
    rig.up(again, 2);
    assert!(rig.write(again).is_empty());
    rig.pass(LONGEST_PAUSE);
    assert_eq!(rig.write(again), [(1, true), (2, true)]);
}

#[test]
fn an_older_one_of_its_key_does_not_wait_for_it() {
    let mut rig = Rig::new(Delivery::AtLeastOnce, Choice::ByKey);
    let link = rig.connected(&["a"])[0];
    for _ in 1..=2 {
        rig.send_as((1, 7), None).unwrap();
    }
    rig.write(link);
    for freed in 1..=8 {
        rig.say(link, freed, &[], &[2]);
        rig.pass(LONGEST_PAUSE);
        rig.write(link);
    }
    rig.say(link, 9, &[], &[2]);
    rig.down(link);
    rig.actions();
    rig.pass(Duration::from_millis(50));
    let again = rig.connects()[0];
    rig.up(again, 2);
    assert_eq!(rig.write(again), [(1, true)]);
    rig.pass(LONGEST_PAUSE);
    assert_eq!(rig.write(again), [(2, true)]);
}

#[test]
fn what_is_acknowledged_meanwhile_is_over() {
    let mut rig = Rig::kept();
    let link = rig.connected(&["a"])[0];
    rig.send().unwrap();
    rig.write(link);
    // Another connection of the same receiver may have told of it, too.
    rig.say(link, 1, &[], &[1]);
    rig.ack(link, 1, &[1]);
    assert_eq!((rig.outbound.is_idle(), rig.outbound.due()), (true, None));
    rig.pass(FIRST_PAUSE);
    assert!(rig.write(link).is_empty() && rig.outbound.paused.is_empty());
}
