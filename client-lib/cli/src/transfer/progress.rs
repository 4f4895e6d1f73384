//! A progress bar for people, on terminals only.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress bar of a transfer, on standard error if that is a terminal.
pub(super) struct TransferProgress(ProgressBar);

impl TransferProgress {
    /// Returns a bar that is never shown.
    pub(super) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    pub(super) fn new(total: Option<u64>) -> Self {
        if !io::stderr().is_terminal() {
            return Self::hidden();
        }
        let bar = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::no_length(),
        };
        let template = match total {
            Some(_) => "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
            None => "{spinner} {bytes}, {bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(super) fn at(&self, bytes: u64) {
        self.0.set_position(bytes);
    }
}

impl Drop for TransferProgress {
    /// Clears the bar's line, so that it is free for what is printed next.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
