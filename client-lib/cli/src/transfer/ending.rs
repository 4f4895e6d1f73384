//! The order in which a transfer ends. Pure.
//!
//! ```text
//!            seal: sync, acknowledge            end: place, acknowledge
//!   Open ──────────────────────────────> Safe ─────────────────────────> InPlace
//!     └──── end, of a sender that sends no seal: sync, place, acknowledge ──^
//! ```
//!
//! A receiver that dies goes on from where it was: what is safe or in its place is found there by
//! the next one, and whatever the sender asks again has the same answer.

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Parts are missing, or the sender has not said that none is.
    Open,
    /// All of it is on the disk, under a name that says so.
    Safe,
    /// The file has its own name.
    InPlace,
}

/// An event that brings the end nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The sender asks whether all is there, and it is.
    Seal,
    /// The sender knows that all is there; or it has not asked before.
    End,
    /// The sender has been waited for for long enough.
    Silence,
}

/// A thing to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Has all of it on the disk, and gives it the name that says so.
    Sync,
    /// Gives the file its own name.
    Place,
    /// Acknowledges the frame that asks.
    Tell,
    /// It is over when the sender has heard it.
    Leave,
}

/// Lists what is to be done after an event, in this order.
pub(super) fn steps(stage: Stage, event: Event) -> &'static [Step] {
    use Step::{Leave, Place, Sync, Tell};
    match (stage, event) {
        (Stage::Open, Event::Seal) => &[Sync, Tell],
        (Stage::Open, Event::End) => &[Sync, Place, Tell, Leave],
        (Stage::Open, Event::Silence) => &[],
        (Stage::Safe | Stage::InPlace, Event::Seal) => &[Tell],
        (Stage::Safe, Event::End) => &[Place, Tell, Leave],
        (Stage::Safe, Event::Silence) => &[Place, Leave],
        (Stage::InPlace, Event::End) => &[Tell, Leave],
        (Stage::InPlace, Event::Silence) => &[Leave],
    }
}

#[cfg(test)]
mod tests {
    use super::Event::{End, Seal, Silence};
    use super::*;

    const STAGES: [Stage; 3] = [Stage::Open, Stage::Safe, Stage::InPlace];

    /// A receiver, of which only the disk is left when it dies.
    fn run(mut stage: Stage, events: &[Event], most: usize) -> (Stage, Vec<(Event, Stage)>) {
        let mut told = Vec::new();
        let mut count = 0;
        for &event in events {
            for &step in steps(stage, event) {
                if count == most {
                    return (stage, told);
                }
                count += 1;
                match step {
                    Step::Sync => stage = Stage::Safe,
                    Step::Place => stage = Stage::InPlace,
                    Step::Tell => told.push((event, stage)),
                    Step::Leave => {}
                }
            }
        }
        (stage, told)
    }

    /// Nothing is told that is not so already, however often it dies, and wherever.
    #[test]
    fn a_receiver_that_dies_anywhere_has_told_no_more_than_is_so() {
        for events in [&[Seal, End][..], &[End], &[Seal, Seal, End, End], &[Seal, Silence]] {
            for deaths in 0..8 {
                let (left, told) = run(Stage::Open, events, deaths);
                // The next one is asked all of it again.
                let (end, again) = run(left, events, usize::MAX);
                assert_eq!(end, Stage::InPlace, "{events:?} {deaths}");
                for (event, stage) in told.into_iter().chain(again) {
                    match event {
                        Seal => assert_ne!(stage, Stage::Open),
                        End => assert_eq!(stage, Stage::InPlace),
                        Silence => panic!("nobody asked"),
                    }
                }
            }
        }
    }

    #[test]
    fn whatever_is_asked_is_answered() {
        for stage in STAGES {
            for event in [Seal, End] {
                let told = steps(stage, event).iter().filter(|&&step| step == Step::Tell).count();
                assert_eq!(told, 1, "{stage:?} {event:?}");
            }
            let leaves = |event| steps(stage, event).last() == Some(&Step::Leave);
            assert_eq!((leaves(Seal), leaves(End), leaves(Silence)), (false, true, stage != Stage::Open));
        }
    }
}
