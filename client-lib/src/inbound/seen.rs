//! Frames of a session that have come, so that the program gets none twice.
//!
//! Each frame carries its sender's floor, a sequence. The sender repeats no frame below it, and has
//! none under way that is [`WINDOW`] or more above it. So two bytes for each sequence in between
//! are all that has to be remembered, 128 KiB at most.
//!
//! The program's decision on a frame has to be reported by the connection on which the sender waits
//! for it. If that connection breaks, the sender repeats the frame; a report that is lost on
//! another connection is lost for good. It is one of the connections that brought the frame, but
//! not always the last of them, as an old connection may be slow.

use std::collections::VecDeque;

use crate::wire::WINDOW;

/// Fates of the frames of one session, from the sender's floor on.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Fate of each frame, from the sequence `floor` on.
    fates: VecDeque<Fate>,
    floor: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The frame has not come, or the program has rejected it.
    Unknown,
    /// This lane, one of at most 256, has brought it. The program has not decided on it.
    Taken(u8),
    /// Several lanes have brought the frame. The program has not decided on it.
    TakenOften,
    Acknowledged,
}

/// Treatment of a frame that has come, as it may have come before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The frame is new, or was rejected: the program gets it.
    Deliver,
    /// The frame is dropped, as the program has it already and has not decided yet.
    Drop,
    /// The frame is acknowledged again, as the sender has not received the acknowledgement.
    Acknowledge,
}

/// Connections that report the program's decision on a frame to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reporter {
    /// The latest connection of this lane.
    Lane(u16),
    /// The latest connections of all lanes.
    All,
}

impl Seen {
    /// Returns the lowest sequence that the sender may still send again.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// Frees memory that is not needed without connections. Returns how many bytes are still used.
    pub(crate) fn shrink(&mut self) -> usize {
        self.fates.shrink_to_fit();
        self.fates.capacity() * size_of::<Fate>()
    }

    /// Records a frame that a lane has brought, and its sender's floor. Returns how to treat it.
    pub(crate) fn arrived_by(&mut self, lane: u16, sequence: u64, floor: u64) -> Arrival {
        let by_lane = Fate::Taken(lane as u8);
        self.raise(floor);
        let Some(fate) = self.fate(sequence) else {
            // Below the floor: a late frame of a connection that the sender has given up since.
            return Arrival::Acknowledge;
        };
        match *fate {
            Fate::Unknown => {
                *fate = by_lane;
                Arrival::Deliver
            }
            before @ (Fate::Taken(_) | Fate::TakenOften) => {
                *fate = if before == by_lane { by_lane } else { Fate::TakenOften };
                Arrival::Drop
            }
            Fate::Acknowledged => Arrival::Acknowledge,
        }
    }

    /// Records that the program has acknowledged a frame, or has rejected it, so that it may come
    /// again. Returns the connections that report that, or `None` if the sender does not wait for
    /// it.
    pub(crate) fn decided(&mut self, sequence: u64, is_acknowledged: bool) -> Option<Reporter> {
        let place = self.fate(sequence)?;
        let reporter = match *place {
            Fate::Taken(lane) => Reporter::Lane(lane.into()),
            Fate::TakenOften => Reporter::All,
            Fate::Unknown | Fate::Acknowledged => return None,
        };
        *place = if is_acknowledged { Fate::Acknowledged } else { Fate::Unknown };
        Some(reporter)
    }

    /// Returns the place of a sequence, or `None` below the floor, or beyond the window, where
    /// [`crate::wire`] lets no frame be.
    fn fate(&mut self, sequence: u64) -> Option<&mut Fate> {
        let at = sequence.checked_sub(self.floor).filter(|&ahead| ahead < WINDOW)?;
        let at = usize::try_from(at).ok()?;
        if at >= self.fates.len() {
            self.fates.resize(at + 1, Fate::Unknown);
        }
        self.fates.get_mut(at)
    }

    fn raise(&mut self, floor: u64) {
        if let Some(gone) = floor.checked_sub(self.floor) {
            let gone = usize::try_from(gone).unwrap_or(usize::MAX).min(self.fates.len());
            self.fates.drain(..gone);
            self.floor = floor;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rejected_frame_may_come_again() {
        let mut seen = Seen::default();
        assert_eq!(seen.arrived_by(0, 5, 1), Arrival::Deliver);
        assert_eq!(seen.arrived_by(0, 5, 1), Arrival::Drop);
        assert_eq!(seen.decided(5, false), Some(Reporter::Lane(0)));
        assert_eq!(seen.arrived_by(0, 5, 1), Arrival::Deliver);
        assert_eq!(seen.decided(5, true), Some(Reporter::Lane(0)));
        assert_eq!(seen.arrived_by(0, 5, 2), Arrival::Acknowledge);
        assert_eq!(seen.arrived_by(0, 3, 6), Arrival::Acknowledge);
    }

    #[test]
    fn the_lanes_that_brought_a_frame_report_the_decision() {
        let mut seen = Seen::default();
        assert_eq!(seen.arrived_by(0, 5, 1), Arrival::Deliver);
        assert_eq!(seen.arrived_by(3, 5, 1), Arrival::Drop);
        assert_eq!(seen.decided(5, true), Some(Reporter::All));
        // A decision is reported once, and not for frames below the floor, or that have never come.
        assert_eq!((seen.decided(5, true), seen.decided(5, false)), (None, None));
        assert_eq!(seen.arrived_by(1, 6, 1), Arrival::Deliver);
        assert_eq!(seen.arrived_by(1, 9, 8), Arrival::Deliver);
        assert_eq!((seen.decided(6, true), seen.decided(8, false)), (None, None));
        assert_eq!(seen.arrived_by(1, 8, 8), Arrival::Deliver);
    }

    #[test]
    fn no_more_than_a_window_is_remembered() {
        let mut seen = Seen::default();
        assert_eq!(seen.arrived_by(0, 10 + WINDOW - 1, 10), Arrival::Deliver);
        assert_eq!(seen.fates.len() as u64, WINDOW);
        assert_eq!(seen.arrived_by(0, 10, 10), Arrival::Deliver);
        // Floors only rise, however late a frame comes.
        assert_eq!(seen.arrived_by(0, 10 + WINDOW, 11), Arrival::Deliver);
        assert_eq!(seen.arrived_by(0, 10, 10), Arrival::Acknowledge);
        assert_eq!(seen.fates.len() as u64, WINDOW);
        assert_eq!(seen.arrived_by(0, u64::MAX, u64::MAX), Arrival::Deliver);
        assert_eq!(seen.fates.len(), 1);
        assert!(seen.shrink() <= 64);
    }

    proptest! {
        /// Compares with a map that forgets nothing.
        #[test]
        fn no_frame_is_delivered_twice(steps in prop::collection::vec((0..5_u8, 0..40_u64, 0..8_u64, 0..3_u16), 1..300)) {
            let mut seen = Seen::default();
            let mut model: HashMap<u64, Fate> = HashMap::new();
            let mut floor = 0;
            for (step, ahead, raise, lane) in steps {
                let sequence = floor + ahead;
                match step {
                    0 => {
                        let expected = match model.get(&sequence) {
                            None | Some(Fate::Unknown) => Arrival::Deliver,
                            Some(Fate::Taken(_) | Fate::TakenOften) => Arrival::Drop,
                            Some(Fate::Acknowledged) => Arrival::Acknowledge,
                        };
                        prop_assert_eq!(seen.arrived_by(lane, sequence, floor), expected);
                        let taken = Fate::Taken(lane as u8);
                        let is_again = model.get(&sequence).is_some_and(|&before| before != taken);
                        match expected {
                            Arrival::Deliver => drop(model.insert(sequence, taken)),
                            Arrival::Drop if is_again => drop(model.insert(sequence, Fate::TakenOften)),
                            Arrival::Drop | Arrival::Acknowledge => {}
                        }
                    }
                    1 | 2 => {
                        let told = match model.get(&sequence) {
                            Some(&Fate::Taken(lane)) => Some(Reporter::Lane(lane.into())),
                            Some(Fate::TakenOften) => Some(Reporter::All),
                            _ => None,
                        };
                        let (answer, fate) = match step {
                            1 => (seen.decided(sequence, true), Fate::Acknowledged),
                            _ => (seen.decided(sequence, false), Fate::Unknown),
                        };
                        prop_assert_eq!(answer, told);
                        if told.is_some() {
                            model.insert(sequence, fate);
                        }
                    }
                    _ => floor += raise,
                }
                prop_assert!(seen.fates.len() as u64 <= WINDOW);
            }
        }
    }
}
