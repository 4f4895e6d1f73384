//! Callers that wait for room, first come, first served.

use std::collections::BTreeMap;

/// Place in line. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LinePlace(u64);

#[derive(Debug, Default)]
pub(super) struct Line {
    /// Length of each caller's payload, in bytes.
    places: BTreeMap<LinePlace, usize>,
    next: u64,
    /// Number of places whose turn has come: those below it.
    called: u64,
}

impl Line {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn has(&self, place: LinePlace) -> bool {
        self.places.contains_key(&place)
    }

    pub(super) fn first(&self) -> Option<LinePlace> {
        self.places.first_key_value().map(|(&place, _)| place)
    }

    /// Adds a caller at the end.
    pub(super) fn join(&mut self, length: usize) -> LinePlace {
        let place = LinePlace(self.next);
        self.next += 1;
        self.places.insert(place, length);
        place
    }

    pub(super) fn leave(&mut self, place: LinePlace) {
        self.places.remove(&place);
    }

    /// Returns the first caller, once, if its payload fits in `room`.
    pub(super) fn next_turn(&mut self, room: usize) -> Option<LinePlace> {
        let (&place, &length) = self.places.first_key_value()?;
        let is_new = place.0 >= self.called && length <= room;
        is_new.then(|| {
            self.called = place.0 + 1;
            place
        })
    }

    /// Returns all callers, one after the other, whether or not there is room for them.
    pub(super) fn next_of_all(&mut self) -> Option<LinePlace> {
        let (&place, _) = self.places.range(LinePlace(self.called)..).next()?;
        self.called = place.0 + 1;
        Some(place)
    }
}
