//! Decides when a changed file is read. Pure; time is an argument.
//!
//! Half a YAML file is often a valid one, with fewer objects or endpoints. So a file is read when it has not changed for
//! a moment. It is then read again if a later change could have left the same time stamp.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::files::FileKey;
use super::scan::FileState;

/// How long a file has to stay the same before it is read: longer than the pauses of programs that write piece by
/// piece, and short enough that a change is served within a second.
pub(super) const QUIET: Duration = Duration::from_millis(700);

/// Changes within this time of each other may leave the same time stamp on coarse file systems.
const COARSE: Duration = Duration::from_secs(3);

/// What is to be done about a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read the file, which is in this state.
    Read(FileKey),
    /// Note that it cannot be read, for this reason.
    Unreadable(FileKey, String),
    /// Forget it.
    Remove(FileKey),
}

/// The state in which every path was last dealt with, and the state that it has had since.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    paths: BTreeMap<FileKey, Tracked>,
}

#[derive(Debug, Default)]
struct Tracked {
    /// The state that was last dealt with; none for a path that is new.
    done: Option<FileState>,
    /// The state now, if that is different (none: it is gone), and since when.
    pending: Option<(Option<FileState>, Instant)>,
    /// When to read the file again although it looks the same.
    again: Option<Instant>,
}

impl Tracker {
    /// Returns what is to be done now. The first scan is taken as it is, without waiting.
    pub(super) fn due(
        &mut self,
        mut seen: BTreeMap<FileKey, FileState>,
        unknown: &[FileKey],
        now: Instant,
        is_first: bool,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        for key in seen.keys() {
            if !self.paths.contains_key(key) {
                self.paths.insert(key.clone(), Tracked::default());
            }
        }
        self.paths.retain(|key, tracked| {
            let state = seen.remove(key);
            let is_hidden =
                |folder: &FileKey| folder.root == key.root && key.path().starts_with(folder.path());
            if state.is_none() && unknown.iter().any(is_hidden) {
                tracked.pending = None;
                return true;
            }
            let is_due_again = tracked.again.is_some_and(|again| again <= now);
            if tracked.done == state && !is_due_again {
                tracked.pending = None;
                return state.is_some();
            }
            let since = match &tracked.pending {
                Some((pending, since)) if *pending == state => *since,
                _ => now,
            };
            let is_due = is_first || now >= since + QUIET || (is_due_again && tracked.done == state);
            if !is_due {
                tracked.pending = Some((state, since));
                return true;
            }
            steps.push(match &state {
                Some(FileState::File(_)) => Step::Read(key.clone()),
                Some(FileState::Unreadable(reason)) => Step::Unreadable(key.clone(), reason.clone()),
                None => Step::Remove(key.clone()),
            });
            let is_there = state.is_some();
            *tracked = Tracked { done: state, ..Tracked::default() };
            is_there
        });
        steps
    }

    /// Notes that a file was read that was last written to `age` before.
    pub(super) fn was_read(&mut self, key: &FileKey, age: Duration, now: Instant) {
        if let Some(tracked) = self.paths.get_mut(key)
            && age < COARSE
        {
            tracked.again = Some(now + COARSE);
        }
    }

    /// Returns the state in which a file is to be read.
    pub(super) fn state(&self, key: &FileKey) -> Option<&FileState> {
        self.paths.get(key)?.done.as_ref()
    }

    /// Notes that a file has to be read once more: it changed while it was read, or was not kept.
    pub(super) fn forget(&mut self, key: &FileKey, now: Instant) {
        if let Some(tracked) = self.paths.get_mut(key) {
            tracked.again = Some(now);
        }
    }
}

#[cfg(test)]
mod tests;
