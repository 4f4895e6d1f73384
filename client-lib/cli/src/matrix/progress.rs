//! Progress of the measurements, on standard error.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::note;

/// Progress: a bar on a terminal, and elsewhere a line for each round.
pub(super) struct MeasurementProgress {
    bar: Option<ProgressBar>,
    rounds: usize,
    round: usize,
    measured: usize,
    all: usize,
}

impl MeasurementProgress {
    pub(super) fn new(rounds: usize, all: usize) -> Self {
        let bar = io::stderr().is_terminal().then(|| ProgressBar::new(all as u64));
        if let (Some(bar), Ok(style)) =
            (&bar, ProgressStyle::with_template("{wide_bar} {pos} of {len} measured, {eta} left"))
        {
            bar.set_style(style);
        }
        Self { bar, rounds, round: 0, measured: 0, all }
    }

    /// Begins the next round.
    pub(super) fn round(&mut self) {
        self.round += 1;
        if self.bar.is_none() {
            let Self { rounds, round, measured, all, .. } = self;
            note(&format!("round {round} of {rounds}, {measured} of {all} measured"));
        }
    }

    pub(super) fn add(&mut self, measured: usize) {
        self.measured += measured;
        if let Some(bar) = &self.bar {
            bar.set_position(self.measured as u64);
        }
    }
}

impl Drop for MeasurementProgress {
    /// Clears the bar's line, so that it is free for what is printed next.
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
