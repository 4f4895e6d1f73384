//! Frames: how long each is kept, and which connection gets it next.

use super::*;
use crate::outbound::pause::FIRST_PAUSE;
use crate::wire::WINDOW;

#[test]
fn a_connection_gets_no_more_frames_than_it_has_slots() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["a", "b"]);
        let to: Vec<_> = (0..4).map(|_| rig.send().unwrap()).collect();
        assert_eq!(to, [links[0], links[1], links[0], links[1]]);
        assert_eq!(rig.send(), Err(Refused::Full));
        assert_eq!(rig.write(links[0]), [(1, false), (3, false)]);
        // The slot is free, and the frame in it decided.
        rig.ack(links[0], 1, &[1]);
        // Its place is free for another frame.
        assert_eq!(rig.send(), Ok(links[0]));
        assert_eq!(rig.send(), Err(Refused::Full));
    }
}

/// Before the system call, no caller may believe that the frame is in the kernel or its memory
/// free.
#[test]
fn a_frame_that_was_taken_but_not_written_is_held() {
    let mut rig = Rig::new(Delivery::AtMostOnce, Choice::RoundRobin);
    let links = rig.connected(&["a"]);
    rig.send_some(2);
    rig.outbound.take(links[0]).unwrap();
    rig.outbound.take(links[0]).unwrap();
    assert!(rig.outbound.holds(1) && rig.outbound.holds(2) && !rig.outbound.is_idle());
    rig.outbound.on_written(links[0], 1);
    assert!(!rig.outbound.holds(1) && rig.outbound.holds(2));
    assert_eq!((rig.outbound.held(), rig.outbound.is_idle()), (1, false));
    // A frame that breaks with its connection counts as lost.
    rig.down(links[0]);
    assert!(!rig.outbound.holds(2) && rig.outbound.is_idle());
    assert_eq!(rig.outbound.statistics().lost, 2);
}

/// Frames that were sent and never taken hint at a fault of the path, such as its MTU.
#[test]
fn frames_that_no_application_has_taken_are_counted() {
    let mut rig = Rig::at_least_once();
    assert_eq!(rig.outbound.untaken(), 0);
    let links = rig.connected(&["a"]);
    rig.send_some(2);
    assert_eq!(rig.outbound.untaken(), 2);
    rig.write(links[0]);
    assert_eq!(rig.outbound.untaken(), 2);
    // The receiver's application has both, and has not decided on them.
    let none = std::iter::empty::<u64>;
    rig.outbound.on_control(rig.now, links[0], (0, 2), none(), none()).unwrap();
    assert_eq!(rig.outbound.untaken(), 0);
    rig.down(links[0]);
    assert_eq!(rig.outbound.untaken(), 2, "they will be sent again");
    let again = rig.retries();
    rig.up(again[0], 2);
    assert_eq!(rig.outbound.untaken(), 2);
    rig.write(again[0]);
    // The receiver drops them as repeats.
    rig.outbound.on_control(rig.now, again[0], (2, 2), none(), none()).unwrap();
    assert_eq!(rig.outbound.untaken(), 0);
    rig.outbound.on_control(rig.now, again[0], (2, 2), [1].into_iter(), [2].into_iter()).unwrap();
    assert_eq!(rig.outbound.untaken(), 1, "it will be sent again after a pause");
}

#[test]
fn a_frame_that_cannot_be_read_is_given_up_and_no_other() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["a"]);
        rig.send_some(2);
        assert_eq!(rig.outbound.credits(), 0);
        let unreadable = rig.outbound.take(links[0]).unwrap();
        rig.outbound.on_unreadable(links[0], unreadable.sequence);
        assert!(!rig.outbound.holds(1) && rig.outbound.holds(2));
        assert_eq!((rig.outbound.statistics().undeliverable, rig.outbound.credits()), (1, 1));
        assert_eq!(rig.send(), Ok(links[0]));
        assert_eq!(rig.write(links[0]), [(2, false), (3, false)]);
        rig.ack(links[0], 2, &[2, 3]);
        assert_eq!((rig.outbound.credits(), rig.outbound.is_idle()), (2, true));
    }
}

#[test]
fn a_frame_that_is_rejected_while_it_is_read_is_not_given_up() {
    let mut rig = Rig::at_least_once();
    let links = rig.connected(&["a", "b"]);
    rig.send_some(1);
    rig.outbound.take(links[0]).unwrap();
    rig.outbound.on_control(rig.now, links[0], (0, 0), [].into_iter(), [1].into_iter()).unwrap();
    rig.outbound.on_unreadable(links[0], 1);
    assert_eq!((rig.outbound.statistics().undeliverable, rig.outbound.holds(1)), (0, true));
    rig.advance(FIRST_PAUSE);
    assert_eq!(rig.outbound.credits(), 3, "all but the one in flight to b");
    assert_eq!(rig.write(links[1]), [(1, true)]);
}

#[test]
fn a_report_of_a_frame_that_was_never_sent_breaks_no_counter() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["a"]);
        rig.send_some(1);
        rig.outbound.take(links[0]).unwrap();
        rig.outbound.on_control(rig.now, links[0], (1, 1), [].into_iter(), [].into_iter()).unwrap();
        rig.outbound.on_unreadable(links[0], 1);
        assert_eq!((rig.outbound.credits(), rig.outbound.is_idle()), (2, true));
        rig.down(links[0]);
        assert_eq!(rig.outbound.statistics().lost, 0);
    }
}

#[test]
fn a_frame_that_cannot_be_read_is_left_to_the_next_connection_after_a_break() {
    let mut rig = Rig::at_least_once();
    let links = rig.connected(&["a", "b"]);
    rig.send_some(1);
    rig.outbound.take(links[0]).unwrap();
    rig.down(links[0]);
    rig.outbound.on_unreadable(links[0], 1);
    assert_eq!((rig.outbound.statistics().undeliverable, rig.outbound.holds(1)), (0, true));
    let next = rig.outbound.take(links[1]).unwrap();
    rig.outbound.on_unreadable(links[1], next.sequence);
    assert_eq!((rig.outbound.statistics().undeliverable, rig.outbound.is_idle()), (1, true));
}

#[test]
fn at_most_once_a_frame_that_was_taken_is_never_sent_again() {
    let mut rig = Rig::new(Delivery::AtMostOnce, Choice::RoundRobin);
    let links = rig.connected(&["a", "b"]);
    rig.send_some(2);
    assert!(rig.outbound.holds(1) && rig.outbound.has_work(links[0]));
    assert_eq!(rig.write(links[0]), [(1, false)]);
    assert!(!rig.outbound.holds(1) && !rig.outbound.has_work(links[0]));
    assert_eq!(rig.outbound.held(), 1);
    rig.down(links[0]);
    // The frame that was taken is lost. The queued one goes to another peer, so no receiver gets a
    // frame twice.
    assert_eq!(rig.outbound.statistics().lost, 1);
    assert_eq!(rig.send(), Ok(links[1]));
    rig.down(links[1]);
    assert_eq!((rig.outbound.statistics().lost, rig.outbound.held()), (1, 2));
    let again = rig.retries();
    rig.up(again[0], 2);
    assert_eq!(rig.actions(), [Action::Write(again[0]); 2]);
    assert_eq!(rig.write(again[0]), [(2, false), (3, false)]);
    assert!(rig.outbound.is_idle());
}

#[test]
fn a_frame_that_the_application_has_taken_is_not_lost() {
    let mut rig = Rig::new(Delivery::AtMostOnce, Choice::RoundRobin);
    let link = rig.connected(&["a"])[0];
    let again = {
        rig.send_some(2);
        rig.write(link);
        let nothing = std::iter::empty;
        rig.outbound.on_control(rig.now, link, (0, 1), nothing(), nothing()).unwrap();
        rig.reconnect(link)
    };
    assert_eq!(rig.outbound.statistics().lost, 1);
    // Late reports of the old connection change nothing.
    rig.ack(link, 2, &[1, 2]);
    rig.down(link);
    assert_eq!(rig.outbound.statistics().lost, 1);
    assert!(rig.outbound.link(again).is_some());
}

#[test]
fn at_least_once_a_frame_is_kept_until_it_is_acknowledged() {
    let mut rig = Rig::at_least_once();
    let links = rig.connected(&["a", "b"]);
    rig.send_some(3);
    assert_eq!(rig.write(links[0]), [(1, false), (3, false)]);
    // A free slot is not an acknowledgement.
    rig.ack(links[0], 2, &[3]);
    assert!(rig.outbound.holds(1) && !rig.outbound.holds(3));
    rig.down(links[0]);
    // The second was never taken, so it is no repeat. The first may have arrived.
    assert!(rig.actions().contains(&Action::Write(links[1])));
    assert_eq!(rig.write(links[1]), [(2, false), (1, true)]);
    rig.ack(links[1], 2, &[1, 2]);
    assert!(rig.outbound.is_idle());
    let counts = rig.outbound.statistics();
    assert_eq!((counts.frames, counts.acknowledged, counts.repeats, counts.lost), (3, 3, 1, 0));
}

#[test]
fn the_floor_is_the_oldest_frame_that_is_kept() {
    let mut rig = Rig::at_least_once();
    let link = rig.connected(&["a"])[0];
    rig.send_some(2);
    assert_eq!(rig.outbound.take(link).unwrap().floor, 1);
    assert_eq!(rig.outbound.take(link).unwrap().floor, 1);
    rig.ack(link, 2, &[1]);
    rig.send().unwrap();
    assert_eq!(rig.outbound.take(link).unwrap().floor, 2);
}

#[test]
fn a_late_acknowledgement_prevents_the_repeat() {
    let mut rig = Rig::at_least_once();
    let links = rig.connected(&["a", "b"]);
    assert_eq!(rig.send(), Ok(links[0]));
    rig.write(links[0]);
    let again = rig.reconnect(links[0]);
    assert_eq!(rig.outbound.statistics().repeats, 0);
    // The frame is queued for b. Over its new connection, a reports that it got the frame before.
    assert_eq!(rig.outbound.ring.get(1).unwrap().link, Some(links[1]));
    rig.ack(again, 0, &[1]);
    assert!(rig.outbound.is_idle() && rig.write(links[1]).is_empty());
    // The slot at b is free again.
    for _ in 0..4 {
        rig.send().unwrap();
    }
    assert_eq!(rig.send(), Err(Refused::Full));
}

#[test]
fn a_frame_that_waits_for_a_peer_can_be_acknowledged() {
    let mut rig = Rig::at_least_once();
    let link = rig.connected(&["a"])[0];
    rig.send_some(2);
    rig.write(link);
    rig.down(link);
    let again = rig.retries()[0];
    // With one slot, the second has to wait.
    rig.up(again, 1);
    rig.ack(again, 0, &[2]);
    assert_eq!(rig.write(again), [(1, true)]);
    rig.ack(again, 1, &[1]);
    assert!(rig.outbound.is_idle() && rig.outbound.requeued.is_empty());
}

#[test]
fn a_rejected_frame_goes_to_another_peer_if_one_is_connected() {
    let mut rig = Rig::at_least_once();
    let links = rig.connected(&["a", "b"]);
    rig.send_some(4);
    rig.write(links[0]);
    rig.write(links[1]);
    // b has no room. The frame waits for b although a has room.
    rig.report(links[0], 1, &[], &[1]);
    rig.advance(FIRST_PAUSE);
    assert!(!rig.outbound.has_work(links[0]) && !rig.outbound.has_work(links[1]));
    rig.ack(links[1], 1, &[2]);
    assert_eq!(rig.write(links[1]), [(1, true)]);
    // No other peer is left, so the frame goes back to a.
    rig.down(links[1]);
    rig.report(links[0], 2, &[3], &[]);
    assert_eq!(rig.write(links[0]), [(1, true), (4, true)]);
    assert_eq!(rig.outbound.statistics().rejected, 1);
}

#[test]
fn a_rejected_frame_goes_back_if_no_other_peer_is_connected() {
    let mut rig = Rig::at_least_once();
    let link = rig.connected(&["a"])[0];
    rig.send().unwrap();
    rig.write(link);
    rig.report(link, 1, &[], &[1]);
    rig.advance(FIRST_PAUSE);
    assert_eq!(rig.write(link), [(1, true)]);
    // A frame cannot be rejected again before it is taken again.
    rig.report(link, 2, &[1], &[1]);
    assert!(rig.outbound.is_idle());
}

#[test]
fn no_more_frames_are_held_than_the_replay_buffer_has_room_for() {
    for (delivery, most) in [(Delivery::AtLeastOnce, 3), (Delivery::AtMostOnce, 3)] {
        let mut rig =
            Rig::with(SendSettings { delivery, choice: Choice::RoundRobin, replay: 3, connections: 1 });
        rig.endpoints(&["a", "b", "c", "d"]);
        for link in rig.connects() {
            rig.up(link, 100);
        }
        let sent = (0..10).filter(|_| rig.send().is_ok()).count();
        assert_eq!(sent, most, "{delivery:?}");
        assert_eq!(rig.send(), Err(Refused::Full));
    }
}

#[test]
fn at_least_once_frames_keep_within_the_window() {
    for (delivery, is_held_up) in [(Delivery::AtLeastOnce, true), (Delivery::AtMostOnce, false)] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["slow", "a"]);
        assert_eq!(rig.send(), Ok(links[0]));
        let to_a = |rig: &mut Rig| rig.send_as((1, 0), Some(links[1].peer));
        for sequence in 2..=WINDOW {
            assert_eq!(to_a(&mut rig), Ok(links[1]));
            rig.outbound.take(links[1]).unwrap();
            let acked = std::iter::once(sequence);
            let counters = (sequence - 1, sequence - 1);
            rig.outbound.on_control(rig.now, links[1], counters, acked, std::iter::empty()).unwrap();
        }
        // The first is not written yet. A receiver may have to tell it apart from all that follow.
        let outcome = to_a(&mut rig);
        match is_held_up {
            true => assert_eq!(outcome, Err(Refused::Undecided { sequence: 1 })),
            false => assert_eq!(outcome, Ok(links[1])),
        }
        assert_eq!(rig.outbound.peer_of(1), Some(links[0].peer));
        assert_eq!(rig.write(links[0]), [(1, false)]);
        rig.ack(links[0], 1, &[1]);
        assert_eq!(to_a(&mut rig), Ok(links[1]), "{delivery:?}");
    }
}

#[test]
fn a_frame_that_no_peer_can_take_holds_up_no_other() {
    let mut rig = Rig::at_least_once();
    let links = rig.connected(&["a", "b"]);
    assert_eq!(rig.send_as((100, 0), None), Ok(links[0]));
    rig.down(links[1]);
    rig.down(links[0]);
    let again = rig.retries();
    rig.outbound.on_up(rig.now, again[1], 2, 10);
    assert!(rig.outbound.holds(1) && !rig.outbound.has_work(again[1]));
    assert_eq!(rig.send_as((10, 0), None), Ok(again[1]));
    assert_eq!(rig.send_as((11, 0), None), Err(Refused::TooLarge { most: 10 }));
    rig.up(again[0], 2);
    assert_eq!(rig.write(again[0]), [(1, false)]);
}

#[test]
fn queued_frames_beyond_a_lower_limit_go_to_another_peer() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        rig.endpoints(&["a", "b"]);
        let links = rig.connects();
        let (first, second) = (links[0], links[1]);
        rig.up(first, 4);
        rig.send_some(4);
        assert_eq!(rig.outbound.take(first).map(|frame| frame.sequence), Some(1));
        rig.outbound.on_limit(first, 2);
        rig.up(second, 4);
        // One is in flight, and one more has room.
        assert_eq!(rig.outbound.take_limit_answer(first), Some(2));
        assert_eq!(rig.outbound.take_limit_answer(first), None);
        rig.outbound.on_written(first, 1);
        assert_eq!(rig.write(first).len(), 1);
        assert_eq!(rig.write(second).iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(rig.outbound.link(first).unwrap().ledger.credits(), 0);
        // The limit rises again.
        rig.outbound.on_limit(first, 5);
        assert_eq!(rig.outbound.link(first).unwrap().ledger.credits(), 3);
        assert!(rig.outbound.has_work(first), "an answer is due");
    }
}

#[test]
fn a_limit_answer_is_not_counted_as_a_frame() {
    let mut rig = Rig::new(Delivery::AtMostOnce, Choice::RoundRobin);
    let link = rig.connected(&["a"])[0];
    rig.outbound.on_limit(link, 1);
    assert_eq!(rig.outbound.take_limit_answer(link), Some(1));
    rig.send_some(1);
    rig.outbound.take(link).unwrap();
    assert_eq!(rig.outbound.held(), 1);
    // The answer is written, and the frame is not.
    rig.outbound.on_written(link, 1);
    assert_eq!(rig.outbound.held(), 1);
    rig.down(link);
    assert_eq!((rig.outbound.given_up(), rig.outbound.statistics().lost), (1, 1));
    assert_eq!(rig.outbound.take_limit_answer(link), None);
}
