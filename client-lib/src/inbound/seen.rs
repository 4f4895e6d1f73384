//! Which frames of a session a receiver has had, so that it gives none to its code twice.
//!
//! The sender says with each frame below which sequence nothing will come again, and keeps within [`WINDOW`] of that. So two
//! bytes for each sequence between the two are all there is to remember, 128 KiB at most.
//!
//! What our code makes of a frame has to be told by the connection that the sender waits for: if that breaks, the frame comes
//! again; if another breaks, nobody learns of it. It is one of those that brought the frame, not always the last of them, as an old
//! connection may be slow.

use std::collections::VecDeque;

use crate::wire::WINDOW;

/// What has become of the frames of one session.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Of the sequences from `floor` on.
    fates: VecDeque<Fate>,
    floor: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It has not come, or our code did not want it.
    Unknown,
    /// Our code has it, or is about to. Which lane brought it; there are fewer than 256.
    Taken(u8),
    /// The same; several lanes brought it.
    TakenOften,
    Acknowledged,
}

/// What to do with a frame that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is new.
    Deliver,
    /// Our code has it, and will acknowledge it in its own time.
    Drop,
    /// It has been acknowledged; the sender has not heard of it.
    Acknowledge,
}

/// Who tells the sender what our code has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Teller {
    /// The latest connection of this lane.
    Lane(u16),
    /// The latest connections of all lanes.
    All,
}

impl Seen {
    /// The oldest sequence that the sender still has.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// No connection is there: takes no more memory than it must. How many bytes that is.
    pub(crate) fn rest(&mut self) -> usize {
        self.fates.shrink_to_fit();
        self.fates.capacity() * size_of::<Fate>()
    }

    /// A frame has come by a lane, and its sender's floor with it.
    pub(crate) fn arrived_by(&mut self, lane: u16, sequence: u64, floor: u64) -> Arrival {
        let by_lane = Fate::Taken(lane as u8);
        self.raise(floor);
        let Some(fate) = self.fate(sequence) else {
            // Below the floor: a straggler of a connection that has since been given up.
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

    /// Our code has acknowledged a frame, or did not want it, so that it may come again. `None`: nobody waits to be told.
    pub(crate) fn decided(&mut self, sequence: u64, is_acknowledged: bool) -> Option<Teller> {
        let place = self.fate(sequence)?;
        let teller = match *place {
            Fate::Taken(lane) => Teller::Lane(lane.into()),
            Fate::TakenOften => Teller::All,
            Fate::Unknown | Fate::Acknowledged => return None,
        };
        *place = if is_acknowledged { Fate::Acknowledged } else { Fate::Unknown };
        Some(teller)
    }

    /// The place of a sequence, `None` below the floor and, which [`crate::wire`] lets nobody ask for, beyond the window.
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
        assert_eq!(seen.decided(5, false), Some(Teller::Lane(0)));
        assert_eq!(seen.arrived_by(0, 5, 1), Arrival::Deliver);
        assert_eq!(seen.decided(5, true), Some(Teller::Lane(0)));
        assert_eq!(seen.arrived_by(0, 5, 2), Arrival::Acknowledge);
        assert_eq!(seen.arrived_by(0, 3, 6), Arrival::Acknowledge);
    }

    #[test]
    fn whoever_brought_it_tells() {
        let mut seen = Seen::default();
        assert_eq!(seen.arrived_by(0, 5, 1), Arrival::Deliver);
        assert_eq!(seen.arrived_by(3, 5, 1), Arrival::Drop);
        assert_eq!(seen.decided(5, true), Some(Teller::All));
        // Once is enough, and nobody waits for what is below the floor or has never come.
        assert_eq!((seen.decided(5, true), seen.decided(5, false)), (None, None));
        assert_eq!(seen.arrived_by(1, 6, 1), Arrival::Deliver);
        assert_eq!(seen.arrived_by(1, 9, 8), Arrival::Deliver);
        assert_eq!((seen.decided(6, true), seen.decided(8, false)), (None, None));
        assert_eq!(seen.arrived_by(1, 8, 8), Arrival::Deliver);
    }

    #[test]
    fn the_window_is_all_there_is() {
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
        assert!(seen.rest() <= 64);
    }

    proptest! {
        /// Next to a map that forgets nothing.
        #[test]
        fn nothing_is_delivered_twice(steps in prop::collection::vec((0..5_u8, 0..40_u64, 0..8_u64, 0..3_u16), 1..300)) {
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
                            Some(&Fate::Taken(lane)) => Some(Teller::Lane(lane.into())),
                            Some(Fate::TakenOften) => Some(Teller::All),
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
