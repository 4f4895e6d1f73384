//! The order in which a transfer ends. Pure.
//!
//! ```text
//!            seal: sync, acknowledge            end: place, acknowledge
//!   Open ──────────────────────────────> Safe ─────────────────────────> Placed
//!     └──── end, of a sender that sends no seal: sync, place, acknowledge ──^
//! ```
//!
//! Each stage is visible in the folder, so that a receiver that dies is followed by one that goes
//! on from there, and answers whatever the sender asks again as the first one did.

/// The stage of a transfer on the receiver's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Parts of the transfer are missing, or the sender has not said yet that none is.
    Open,
    /// All of it is on the disk, under a name that says so.
    Safe,
    /// The file has been renamed from its temporary name to its own.
    Placed,
}

/// Event that brings a transfer further towards its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The sender asks whether all of the transfer is there, and it is.
    Seal,
    /// The sender knows that all is there; or it has not asked before.
    End,
    /// The sender has not asked again for as long as the receiver waits for it.
    Silence,
}

/// Step by which the receiver brings a transfer to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Writes all of it to the disk, and gives it the name that says so.
    Sync,
    /// Renames the file from its temporary name to its own.
    Place,
    /// Acknowledges the frame by which the sender asks, the seal or the end.
    Acknowledge,
    /// Ends the transfer once the sender has heard the acknowledgement.
    Finish,
}

/// Lists the steps that the receiver takes after an event, in their order.
pub(super) fn steps(stage: Stage, event: Event) -> &'static [Step] {
    use Step::{Acknowledge, Finish, Place, Sync};
    match (stage, event) {
        (Stage::Open, Event::Seal) => &[Sync, Acknowledge],
        (Stage::Open, Event::End) => &[Sync, Place, Acknowledge, Finish],
        (Stage::Open, Event::Silence) => &[],
        (Stage::Safe | Stage::Placed, Event::Seal) => &[Acknowledge],
        (Stage::Safe, Event::End) => &[Place, Acknowledge, Finish],
        (Stage::Safe, Event::Silence) => &[Place, Finish],
        (Stage::Placed, Event::End) => &[Acknowledge, Finish],
        (Stage::Placed, Event::Silence) => &[Finish],
    }
}

#[cfg(test)]
mod tests {
    use super::Event::{End, Seal, Silence};
    use super::*;

    const STAGES: [Stage; 3] = [Stage::Open, Stage::Safe, Stage::Placed];

    /// Runs a receiver that dies after `most` steps, and returns the stage that its disk has then,
    /// with the answers that it has given.
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
                    Step::Place => stage = Stage::Placed,
                    Step::Acknowledge => told.push((event, stage)),
                    Step::Finish => {}
                }
            }
        }
        (stage, told)
    }

    /// Each answer is true when it is given, wherever receivers die.
    #[test]
    fn a_receiver_that_dies_anywhere_has_given_true_answers_only() {
        for events in [&[Seal, End][..], &[End], &[Seal, Seal, End, End], &[Seal, Silence]] {
            for deaths in 0..8 {
                let (left, told) = run(Stage::Open, events, deaths);
                // The next receiver is asked everything again.
                let (end, again) = run(left, events, usize::MAX);
                assert_eq!(end, Stage::Placed, "{events:?} {deaths}");
                for (event, stage) in told.into_iter().chain(again) {
                    match event {
                        Seal => assert_ne!(stage, Stage::Open),
                        End => assert_eq!(stage, Stage::Placed),
                        Silence => panic!("no frame asked"),
                    }
                }
            }
        }
    }

    #[test]
    fn each_question_has_an_answer_at_each_stage() {
        for stage in STAGES {
            for event in [Seal, End] {
                let told = steps(stage, event).iter().filter(|&&step| step == Step::Acknowledge).count();
                assert_eq!(told, 1, "{stage:?} {event:?}");
            }
            let leaves = |event| steps(stage, event).last() == Some(&Step::Finish);
            assert_eq!((leaves(Seal), leaves(End), leaves(Silence)), (false, true, stage != Stage::Open));
        }
    }
}
