//! When a changed file is read: not before its writer is done with it. Pure; time is an argument.
//!
//! Half a YAML file is often a valid one, with fewer objects or endpoints. So a file is left alone
//! until nothing has happened to it for a moment, and while somebody is known to be writing to it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::files::FileKey;
use super::scan::{Print, Seen};

/// How long nothing may have happened to a file before it is taken for finished. Long enough for a program
/// that writes piece by piece, or that removes a file to write it anew.
pub(super) const QUIET: Duration = Duration::from_millis(40);

/// The same for an empty file that nobody is known to have closed: the moment between truncation and the
/// first write of `generate-slow > file` looks like that.
const QUIET_EMPTY: Duration = Duration::from_secs(1);

/// How long a file is left alone that was written to and not closed. Some programs never close theirs.
const OPEN: Duration = Duration::from_secs(5);

/// Changes within this time of each other may leave the same time stamp on coarse file systems.
const COARSE: Duration = Duration::from_secs(3);

/// What was heard of the writers of files, by the files' real paths.
#[derive(Debug, Default)]
pub(super) struct Writers(HashMap<PathBuf, Heard>);

#[derive(Debug, Clone, Copy)]
struct Heard {
    at: Instant,
    is_open: bool,
}

impl Writers {
    /// Somebody wrote to a file.
    pub(super) fn wrote(&mut self, path: PathBuf, at: Instant) {
        self.0.insert(path, Heard { at, is_open: true });
    }

    /// Somebody who could have written closed a file; or the path is another file's now, or nobody's.
    pub(super) fn closed(&mut self, path: PathBuf, at: Instant) {
        self.0.insert(path, Heard { at, is_open: false });
    }

    /// Forgets what is too old to matter, or everything, when something was missed.
    pub(super) fn forget(&mut self, now: Option<Instant>) {
        self.0.retain(|_, heard| now.is_some_and(|now| now.duration_since(heard.at) < 2 * OPEN));
    }

    /// When a file may be read that looks as it does since `since`.
    fn done(&self, print: &Print, since: Instant) -> Instant {
        match self.0.get(&print.real) {
            Some(heard) if heard.is_open => (heard.at + OPEN).max(since + QUIET),
            None if print.len == 0 => since + QUIET_EMPTY,
            _ => since + QUIET,
        }
    }
}

/// What is to be done about a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read the file, which looked like this.
    Read(FileKey, Print),
    /// It cannot be read, for this reason.
    Unreadable(FileKey, String),
    /// It is gone.
    Remove(FileKey),
}

/// What every path looked like when something was last done about it, and what it looks like since.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    paths: BTreeMap<FileKey, Tracked>,
}

#[derive(Debug, Default)]
struct Tracked {
    /// Whether anything was done about it yet.
    is_known: bool,
    /// What it looked like then.
    done: Option<Seen>,
    /// What it looks like now, if that is different (nothing: it is gone), and since when.
    pending: Option<(Option<Seen>, Instant)>,
    /// When to read it once more although it looks the same.
    again: Option<Instant>,
}

impl Tracker {
    /// What is to be done now, and when to look again at the latest. At first nothing is waited for.
    pub(super) fn look(
        &mut self,
        mut seen: BTreeMap<FileKey, Seen>,
        unknown: &[FileKey],
        writers: &Writers,
        now: Instant,
        is_first: bool,
    ) -> (Vec<Step>, Option<Instant>) {
        let mut steps = Vec::new();
        let mut next: Option<Instant> = None;
        for key in seen.keys() {
            if !self.paths.contains_key(key) {
                self.paths.insert(key.clone(), Tracked::default());
            }
        }
        self.paths.retain(|key, tracked| {
            let looks = seen.remove(key);
            let is_hidden =
                |folder: &FileKey| folder.root == key.root && key.path().starts_with(folder.path());
            if looks.is_none() && unknown.iter().any(is_hidden) {
                tracked.pending = None;
                return true;
            }
            let is_same = if looks.is_some() { tracked.done == looks } else { !tracked.is_known };
            let is_due_again = is_same && tracked.again.is_some_and(|again| again <= now);
            if is_same && !is_due_again {
                tracked.pending = None;
                next = earliest(next, tracked.again);
                return looks.is_some();
            }
            let since = match &tracked.pending {
                Some((pending, since)) if *pending == looks => *since,
                _ => now,
            };
            let due = match &looks {
                _ if is_first || is_due_again => now,
                Some(Seen::File(print)) => writers.done(print, since),
                _ => since + QUIET,
            };
            if due > now {
                next = earliest(next, Some(due));
                tracked.pending = Some((looks, since));
                return true;
            }
            steps.push(match &looks {
                Some(Seen::File(print)) => Step::Read(key.clone(), print.clone()),
                Some(Seen::Unreadable(reason)) => Step::Unreadable(key.clone(), reason.clone()),
                None => Step::Remove(key.clone()),
            });
            let is_there = looks.is_some();
            *tracked = Tracked { is_known: true, done: looks, ..Tracked::default() };
            is_there
        });
        (steps, next)
    }

    /// Notes that a file was read that was last written to `age` before. It may be written to once more
    /// without another time stamp, so it is read again later, if it is that young.
    pub(super) fn was_read(&mut self, key: &FileKey, age: Duration, now: Instant) {
        if let Some(tracked) = self.paths.get_mut(key)
            && age < COARSE
        {
            tracked.again = Some(now + COARSE);
        }
    }

    /// What a file looked like when it was read.
    pub(super) fn print(&self, key: &FileKey) -> Option<Print> {
        match self.paths.get(key)?.done.as_ref()? {
            Seen::File(print) => Some(print.clone()),
            Seen::Unreadable(_) => None,
        }
    }

    /// Notes that a file changed while it was read: it is new again.
    pub(super) fn was_torn(&mut self, key: &FileKey) {
        if let Some(tracked) = self.paths.get_mut(key) {
            tracked.done = None;
        }
    }
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    [a, b].into_iter().flatten().min()
}

#[cfg(test)]
mod tests;
