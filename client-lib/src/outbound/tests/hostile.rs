//! Receivers whose reports are wrong.

use proptest::prelude::*;

use super::*;

#[test]
fn counters_that_contradict_what_was_sent_are_an_error() {
    let cases = [
        ((3, 0), "3 frames have left their slots, after it reported 1, of 2"),
        ((0, 1), "0 frames have left their slots, after it reported 1, of 2"),
        ((1, 3), "3 frames have been taken, after it reported 1, of 2"),
        ((2, 0), "0 frames have been taken, after it reported 1, of 2"),
        ((u64::MAX, u64::MAX), "18446744073709551615 frames have left"),
    ];
    for (counters, expected) in cases {
        let mut rig = Rig::new(Delivery::AtMostOnce, Choice::RoundRobin);
        let link = rig.connected(&["a"])[0];
        rig.send_some(2);
        rig.write(link);
        rig.ack(link, 1, &[]);
        let nothing = std::iter::empty;
        let error = rig.outbound.on_control(rig.now, link, counters, nothing(), nothing()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        // The report before still counts.
        rig.down(link);
        assert_eq!(rig.outbound.statistics().lost, 1);
    }
}

#[test]
fn a_receiver_cannot_decide_on_frames_of_another() {
    let mut rig = Rig::at_least_once();
    let links = rig.connected(&["good", "evil"]);
    rig.send_some(4);
    rig.write(links[0]);
    rig.report(links[1], 0, &[1, 3, 2, 4, 5, u64::MAX, 0], &[1, 3, 2, 4, 5, u64::MAX, 0]);
    assert_eq!(rig.outbound.held(), 4, "neither the other's frames, nor those that were not sent yet");
    assert_eq!(rig.write(links[1]), [(2, false), (4, false)]);
    rig.ack(links[0], 2, &[1, 3]);
    rig.ack(links[1], 2, &[2, 4]);
    assert!(rig.outbound.is_idle());
}

#[test]
fn at_most_once_acknowledgements_change_nothing() {
    let mut rig = Rig::new(Delivery::AtMostOnce, Choice::RoundRobin);
    let link = rig.connected(&["a"])[0];
    rig.send_some(2);
    rig.outbound.take(link).unwrap();
    rig.report(link, 0, &[1, 2], &[1, 2]);
    assert_eq!(rig.write(link), [(2, false)]);
    let counts = rig.outbound.statistics();
    assert_eq!((counts.acknowledged, counts.rejected), (0, 0));
}

#[test]
fn a_receiver_with_unlimited_slots_gets_a_bounded_number_of_frames() {
    let mut rig = Rig::with(SendSettings {
        delivery: Delivery::AtMostOnce,
        choice: Choice::RoundRobin,
        replay: 10,
        connections: 1,
    });
    rig.endpoints(&["a", "b", "c"]);
    for link in rig.connects() {
        rig.outbound.on_up(rig.now, link, u32::MAX, usize::MAX);
    }
    assert_eq!((0..100).filter(|_| rig.send().is_ok()).count(), 10);
}

#[derive(Clone, Debug)]
enum Step {
    Send,
    Write,
    Break,
    /// Report with counters within bounds, and any sequences.
    Report(u8, Vec<u64>, Vec<u64>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sequences = || prop::collection::vec(0..40_u64, 0..6);
    let step = prop_oneof![
        3 => Just(Step::Send),
        2 => Just(Step::Write),
        1 => Just(Step::Break),
        3 => (any::<u8>(), sequences(), sequences()).prop_map(|(freed, acked, rejected)| Step::Report(freed, acked, rejected)),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// One receiver reports anything. Frames of the other are delivered all the same.
    #[test]
    fn one_receiver_with_wrong_reports_does_not_affect_the_other(steps in steps(), is_kept: bool) {
        let delivery = if is_kept { Delivery::AtLeastOnce } else { Delivery::AtMostOnce };
        let mut rig = Rig::new(delivery, Choice::RoundRobin);
        let links = rig.connected(&["good", "evil"]);
        let (good, mut evil) = (links[0], links[1]);
        let (mut written, mut freed, mut of_good) = (0, 0, Vec::new());
        for step in steps {
            match step {
                Step::Send => drop(rig.send()),
                Step::Write => {
                    written += rig.write(evil).len() as u64;
                    // A repeat may be acknowledged by the receiver that had it before.
                    of_good.extend(rig.write(good).into_iter().filter(|&(_, is_repeat)| !is_repeat));
                }
                Step::Break => {
                    evil = rig.reconnect(evil);
                    (written, freed) = (0, 0);
                }
                Step::Report(more, acked, rejected) => {
                    freed += u64::from(more) % (written - freed + 1);
                    rig.report(evil, freed, &acked, &rejected);
                }
            }
            for (sequence, _) in &of_good {
                prop_assert_eq!(rig.outbound.holds(*sequence), is_kept, "{} has been released", sequence);
            }
            let ledger = &rig.outbound.link(evil).unwrap().ledger;
            prop_assert!(ledger.outstanding() <= 2 && ledger.queue.len() <= 2);
        }
        of_good.extend(rig.write(good));
        let sequences: Vec<u64> = of_good.iter().map(|&(sequence, _)| sequence).collect();
        rig.ack(good, of_good.len() as u64, &sequences);
        prop_assert!(sequences.iter().all(|&sequence| !rig.outbound.holds(sequence)));
    }
}
