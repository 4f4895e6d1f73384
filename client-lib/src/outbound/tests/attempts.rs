//! Times of attempts to connect.

use super::*;
use crate::outbound::link::Lane;

/// Returns the pauses before the next attempts, all of which fail.
fn pauses(rig: &mut Rig, mut link: LinkId, count: usize) -> Vec<Duration> {
    let mut pauses = Vec::new();
    for _ in 0..count {
        rig.down(link);
        let due = rig.outbound.due().expect("it is tried again");
        pauses.push(due - rig.now);
        rig.actions();
        // Not a nanosecond too soon.
        rig.advance(due - rig.now - Duration::from_nanos(1));
        assert_eq!(rig.actions(), []);
        rig.advance(Duration::from_nanos(1));
        link = rig.connects()[0];
    }
    pauses
}

#[test]
fn pauses_after_failures_double_up_to_ten_seconds() {
    let milliseconds = [50, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000];
    let mut all = Vec::new();
    for seed in 0..50 {
        let settings = SendSettings {
            delivery: Delivery::AtMostOnce,
            choice: Choice::RoundRobin,
            replay: 1,
            connections: 1,
        };
        let mut rig = Rig::with(settings);
        rig.outbound.rng = fastrand::Rng::with_seed(seed);
        rig.endpoints(&["a"]);
        let link = rig.connects()[0];
        for (pause, most) in pauses(&mut rig, link, milliseconds.len()).into_iter().zip(milliseconds) {
            let most = Duration::from_millis(most);
            assert!(pause >= most / 2 && pause <= most, "{pause:?} of {most:?}");
            all.push(pause.as_secs_f64() / most.as_secs_f64());
        }
    }
    // The pauses spread from one half to the whole.
    let (least, most) = all.iter().fold((1.0_f64, 0.0_f64), |(a, b), &x| (a.min(x), b.max(x)));
    assert!(least < 0.52 && most > 0.98, "{least} to {most}");
}

#[test]
fn a_connection_that_lasted_ten_seconds_begins_with_the_first_pause() {
    for (seconds, longest) in [(9, 400), (10, 50), (3600, 50)] {
        let mut rig = Rig::at_least_once();
        rig.endpoints(&["a"]);
        let mut link = rig.connects()[0];
        for _ in 0..3 {
            rig.down(link);
            link = rig.retries()[0];
        }
        rig.up(link, 2);
        rig.advance(Duration::from_secs(seconds));
        let pause = pauses(&mut rig, link, 1)[0];
        let longest = Duration::from_millis(longest);
        assert!(pause <= longest && pause >= longest / 2, "{pause:?} after {seconds} s");
    }
}

#[test]
fn events_of_an_earlier_epoch_change_nothing() {
    let mut rig = Rig::at_least_once();
    let first = rig.connected(&["a"])[0];
    rig.send().unwrap();
    rig.write(first);
    let second = rig.reconnect(first);
    assert!(second.epoch > first.epoch);
    assert_eq!(rig.write(second), [(1, true)]);
    // All of these are stale.
    rig.up(first, 100);
    rig.down(first);
    rig.report(first, 1, &[1], &[1]);
    assert!(rig.write(first).is_empty() && !rig.outbound.has_work(first));
    assert!(rig.outbound.holds(1) && rig.outbound.link(second).is_some_and(Lane::is_up));
    // The same event twice counts once.
    rig.up(second, 100);
    assert_eq!(rig.outbound.link(second).unwrap().ledger.slots, 2);
    rig.down(second);
    rig.down(second);
    assert_eq!(rig.outbound.statistics().disconnects, 2);
}

#[test]
fn epochs_rise_across_all_connections() {
    let mut rig = Rig::with(SendSettings {
        delivery: Delivery::AtLeastOnce,
        choice: Choice::RoundRobin,
        replay: 10,
        connections: 3,
    });
    rig.endpoints(&["a", "b"]);
    let mut links = rig.connects();
    assert_eq!(links.len(), 6);
    rig.down(links[4]);
    rig.advance(Duration::from_secs(1));
    links.extend(rig.connects());
    assert!(links.windows(2).all(|pair| pair[0].epoch < pair[1].epoch), "{links:?}");
    assert_eq!((links[6].peer, links[6].index), (links[4].peer, links[4].index));
}

#[test]
fn a_broken_connection_is_counted_and_dns_is_asked() {
    let mut rig = Rig::at_least_once();
    let link = rig.connected(&["a"])[0];
    rig.down(link);
    assert_eq!(rig.actions(), [Action::Resolve]);
    assert_eq!(rig.outbound.statistics().disconnects, 1);
    rig.advance(Duration::from_secs(1));
    let again = rig.connects()[0];
    // A failed attempt is not a loss.
    rig.down(again);
    assert_eq!(rig.outbound.statistics().disconnects, 1);
}
