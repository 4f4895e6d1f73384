//! Decides when a changed file is read. Pure; the time is an argument.
//!
//! Part of a YAML file is often a valid one with fewer objects or endpoints. So a file is read only
//! when it has not changed for a moment. It is read again later if a further change could have left
//! the same time stamp.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::files::FileKey;
use super::scan::{FileStamp, FileState};
use crate::limits::manifests::{COARSE, LONGEST, QUIET};

/// Action that is due for the file at a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read the file again, which has this stamp.
    Read(FileKey, FileStamp),
    /// Store that the path cannot be read, for this reason.
    Unreadable(FileKey, String),
    /// Remove the file, which is gone.
    Remove(FileKey),
}

/// The state in which each path was last handled, and its state since.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    paths: BTreeMap<FileKey, Tracked>,
}

#[derive(Debug, Default)]
struct Tracked {
    /// The state of the path when it was last handled; `None` for a new path.
    done: Option<FileState>,
    /// The current state if it differs (`None` if the path is gone), and since when.
    pending: Option<(Option<FileState>, Instant)>,
    /// When the state began to differ from `done`; `None` while it does not.
    differs_since: Option<Instant>,
    /// When to read the file again although its stamp is the same; `None` for no such time.
    again: Option<Instant>,
}

impl Tracker {
    /// Returns the steps that are due now. The first scan is handled without waiting.
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
                tracked.differs_since = None;
                return true;
            }
            let is_due_again = tracked.again.is_some_and(|again| again <= now);
            if tracked.done == state && !is_due_again {
                tracked.pending = None;
                tracked.differs_since = None;
                return state.is_some();
            }
            let since = match &tracked.pending {
                Some((pending, since)) if *pending == state => *since,
                _ => now,
            };
            let is_there = state.is_some();
            let differs_since = *tracked.differs_since.get_or_insert(now);
            let is_due = is_first
                || now >= since + QUIET
                || is_there && now >= differs_since + LONGEST
                || is_due_again && tracked.done == state;
            if !is_due {
                tracked.pending = Some((state, since));
                return true;
            }
            steps.push(match &state {
                Some(FileState::File(stamp)) => Step::Read(key.clone(), stamp.clone()),
                Some(FileState::Unreadable(reason)) => Step::Unreadable(key.clone(), reason.clone()),
                None => Step::Remove(key.clone()),
            });
            *tracked = Tracked { done: state, ..Tracked::default() };
            is_there
        });
        steps
    }

    /// Notes that a file was read, `age` after its last write, in case its stamp is too coarse.
    pub(super) fn was_read(&mut self, key: &FileKey, age: Duration, now: Instant) {
        if let Some(tracked) = self.paths.get_mut(key)
            && age < COARSE
        {
            tracked.again = Some(now + COARSE);
        }
    }

    /// Notes that a file must be read again: it changed while it was read, or its objects were not
    /// kept.
    pub(super) fn forget(&mut self, key: &FileKey, now: Instant) {
        if let Some(tracked) = self.paths.get_mut(key) {
            tracked.again = Some(now);
        }
    }
}

#[cfg(test)]
mod tests;
