//! The clock of the model. Each reading advances it by a millisecond.

use std::cell::Cell;

use jiff::{SignedDuration, Timestamp};

thread_local! {
    static MILLISECONDS: Cell<i64> = const { Cell::new(0) };
}

/// Resets the clock, so that every case has the same times.
pub(crate) fn reset() {
    MILLISECONDS.set(0);
}

pub(crate) fn now() -> Timestamp {
    MILLISECONDS.set(MILLISECONDS.get() + 1);
    Timestamp::from_second(1_800_000_000).expect("a time") + SignedDuration::from_millis(MILLISECONDS.get())
}

/// Advances the clock by a second.
pub(crate) fn next_second() -> i64 {
    MILLISECONDS.set(MILLISECONDS.get() + 1000);
    now().as_second()
}
