//! The time: it goes on by a millisecond whenever somebody looks.

use std::cell::Cell;

use jiff::{SignedDuration, Timestamp};

thread_local! {
    static MILLISECONDS: Cell<i64> = const { Cell::new(0) };
}

/// Begins anew, so that every case has the same times.
pub(crate) fn reset() {
    MILLISECONDS.set(0);
}

pub(crate) fn now() -> Timestamp {
    MILLISECONDS.set(MILLISECONDS.get() + 1);
    Timestamp::from_second(1_800_000_000).expect("a time") + SignedDuration::from_millis(MILLISECONDS.get())
}

/// Lets a second pass.
pub(crate) fn next_second() -> i64 {
    MILLISECONDS.set(MILLISECONDS.get() + 1000);
    now().as_second()
}
