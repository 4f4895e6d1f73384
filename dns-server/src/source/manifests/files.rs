//! Which objects are served, by what the files said: contents in, changes out. Pure, and it remembers.
//!
//! Every file claims the objects that it names. The first claim in the order of the files is served, the
//! others wait. A claim that goes bad, alone or with its whole file, keeps what is served of it; only
//! a file that can be read and no longer names an object gives it up.
//!
//! Objects themselves are handed on and not kept, only their hashes: an index keeps them already. When a
//! claim is to take over, its file is read again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use multinet_crds::manifest::Object;

use super::file::{Digest, File, Problem, Severity, Subject};
use super::objects::{self, Fault, Item, ObjectId};

/// A file, in the order in which files come before each other: as given, then by
/// their paths as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileKey {
    /// Which of the paths on the command line it was found under.
    pub(super) root: usize,
    /// Its path, as a user would write it. Text compares faster than paths do.
    text: Arc<OsStr>,
}

impl FileKey {
    /// The key of a file at `path`, found under the path that was given at position `root`.
    pub(super) fn new(root: usize, path: &Path) -> Self {
        Self { root, text: Arc::from(path.as_os_str()) }
    }

    /// The file's path, as a user would write it.
    pub(super) fn path(&self) -> &Path {
        Path::new(&self.text)
    }
}

/// What is known of a file.
#[derive(Debug)]
pub(super) enum Content {
    /// It was read, and this is in it.
    Items(Vec<Item>),
    /// It cannot be read, for this reason.
    Unreadable(String),
}

impl Content {
    /// What is in a file.
    pub(super) fn of(bytes: &[u8]) -> Self {
        objects::items(bytes).map_or_else(Self::Unreadable, Self::Items)
    }
}

/// Transition about a problem.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) file: FileKey,
    pub(super) subject: Subject,
    pub(super) transition: Transition,
}

/// What is new.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// It is new, or not what it was; what is served all the same.
    Found(Problem, Served),
    /// This one is gone.
    Healed(Problem),
}

/// What is served of something bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    /// Nothing.
    Nothing,
    /// The version before it went bad.
    LastGood,
    /// The same object of another file.
    Other,
}

/// What is to be done to an object.
#[derive(Debug)]
pub(super) enum Update {
    /// It is new or has changed.
    Apply(Object),
    /// It is gone.
    Delete(ObjectId),
}

/// What has changed since the last time.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// What is to be done to objects, in this order.
    pub(super) updates: Vec<Update>,
    /// Problems that came and went.
    pub(super) reports: Vec<Report>,
    /// Files to be read again, because an object of theirs is to be served that was not kept.
    pub(super) reread: BTreeSet<FileKey>,
}

/// All files and what they claim.
#[derive(Debug, Default)]
pub(super) struct Files {
    files: BTreeMap<FileKey, File>,
    claims: BTreeMap<ObjectId, BTreeSet<FileKey>>,
    served: BTreeMap<ObjectId, Digest>,
    /// Objects whose claims have changed.
    touched: BTreeSet<ObjectId>,
    /// Objects as just read.
    fresh: HashMap<(FileKey, ObjectId), Object>,
    /// Objects that several files claim.
    rivals: BTreeMap<ObjectId, Rivals>,
    reported: BTreeMap<(FileKey, Subject), Problem>,
}

/// The files that have a good version of an object that several claim.
#[derive(Debug)]
struct Rivals {
    /// The one that is served.
    first: FileKey,
    /// Those that wait for it to go.
    others: Vec<FileKey>,
}

impl Files {
    /// Takes note of what a file holds now.
    pub(super) fn set(&mut self, key: &FileKey, content: Content) {
        let reason = match content {
            Content::Items(items) => return self.replace(key, items),
            Content::Unreadable(reason) => reason,
        };
        let file = self.files.entry(key.clone()).or_default();
        file.mark_broken(reason);
        self.touched.extend(file.claims.keys().cloned());
    }

    /// Forgets a file that is gone.
    pub(super) fn remove(&mut self, key: &FileKey) {
        let Some(file) = self.files.remove(key) else {
            return;
        };
        for id in file.claims.into_keys() {
            self.withdraw(id, key);
        }
    }

    fn withdraw(&mut self, id: ObjectId, key: &FileKey) {
        if let Some(claimants) = self.claims.get_mut(&id) {
            claimants.remove(key);
        }
        self.touched.insert(id);
    }

    fn replace(&mut self, key: &FileKey, items: Vec<Item>) {
        let before = self.files.remove(key).unwrap_or_default();
        let file = File::read(items, &before, |id, object| {
            self.fresh.insert((key.clone(), id), object);
        });
        for id in before.claims.into_keys().filter(|id| !file.claims.contains_key(id)) {
            self.withdraw(id, key);
        }
        for id in file.claims.keys() {
            self.claims.entry(id.clone()).or_default().insert(key.clone());
            self.touched.insert(id.clone());
        }
        self.files.insert(key.clone(), file);
    }

    /// What has changed since the last call.
    ///
    /// Files to read again are to be [`set`](Self::set) and this to be called once more.
    pub(super) fn take_changes(&mut self) -> Changes {
        let mut changes = Changes::default();
        for id in std::mem::take(&mut self.touched) {
            self.decide(id, &mut changes);
        }
        self.fresh.clear();
        changes.reports = self.report();
        changes
    }

    /// How many bad manifests there are.
    pub(super) fn count_bad(&self) -> usize {
        self.reported.values().filter(|problem| problem.severity == Severity::Bad).count()
    }

    /// The objects that are served.
    pub(super) fn served(&self) -> impl Iterator<Item = &ObjectId> {
        self.served.keys()
    }

    /// How many files there are.
    pub(super) fn count(&self) -> usize {
        self.files.len()
    }

    fn decide(&mut self, id: ObjectId, changes: &mut Changes) {
        self.rivals.remove(&id);
        let served = self.served.get(&id).copied();
        let claimants = self.claims.get(&id).filter(|claimants| !claimants.is_empty());
        let Some(claimants) = claimants else {
            self.claims.remove(&id);
            if self.served.remove(&id).is_some() {
                changes.updates.push(Update::Delete(id));
            }
            return;
        };
        // Of a claim that is bad now, only what is served already can be served.
        let servable = |key: &&FileKey| {
            self.files.get(key).is_some_and(|file| {
                let claim = file.claims.get(&id);
                claim.is_some_and(|claim| match claim.good {
                    Some(good) => !(claim.is_bad || file.is_broken) || served == Some(good),
                    None => false,
                })
            })
        };
        let mut servable = claimants.iter().filter(servable);
        let first = servable.next().cloned();
        let others: Vec<FileKey> = servable.cloned().collect();
        // Nobody servable, but somebody still names it: what is served stays.
        let Some(first) = first else { return };
        if claimants.len() > 1 {
            self.rivals.insert(id.clone(), Rivals { first: first.clone(), others });
        }
        let good = self.files.get(&first).and_then(|file| file.claims.get(&id)).and_then(|claim| claim.good);
        if good == served {
            return;
        }
        if let (Some(object), Some(digest)) = (self.fresh.remove(&(first.clone(), id.clone())), good) {
            changes.updates.push(Update::Apply(object));
            self.served.insert(id, digest);
        } else {
            changes.reread.insert(first);
            self.touched.insert(id);
        }
    }

    /// The difference between the problems there are and the problems that were reported.
    fn report(&mut self) -> Vec<Report> {
        let mut problems: BTreeMap<(FileKey, Subject), Problem> = BTreeMap::new();
        for (key, file) in &self.files {
            for (subject, problem) in &file.problems {
                problems.insert((key.clone(), subject.clone()), problem.clone());
            }
        }
        for (id, Rivals { first, others }) in &self.rivals {
            for key in others {
                let claim =
                    self.files.get(key).and_then(|file| file.claims.get(id).filter(|claim| !claim.is_bad));
                let Some(claim) = claim else { continue };
                let message =
                    format!("is in {} too, which comes first; remove one of the two", first.path().display());
                let problem = Problem::bad(Some(claim.line), Fault::new("metadata.name", message));
                problems.insert((key.clone(), Subject::Object(id.clone())), problem);
            }
        }
        let mut reports = Vec::new();
        for ((key, subject), problem) in &problems {
            let before = self.reported.get(&(key.clone(), subject.clone()));
            if before.is_none_or(|before| before.faults != problem.faults) {
                let transition = Transition::Found(problem.clone(), self.served_of(key, subject));
                reports.push(Report { file: key.clone(), subject: subject.clone(), transition });
            }
        }
        for ((key, subject), problem) in std::mem::take(&mut self.reported) {
            let key = (key, subject);
            // In a file that has become broken nothing has healed.
            let is_hidden =
                key.1 != Subject::File && self.files.get(&key.0).is_some_and(|file| file.is_broken);
            if is_hidden || problems.contains_key(&key) {
                continue;
            }
            let (file, subject) = key;
            reports.push(Report { file, subject, transition: Transition::Healed(problem) });
        }
        self.reported = problems;
        reports
    }

    fn served_of(&self, key: &FileKey, subject: &Subject) -> Served {
        let of = |id: &ObjectId| match self.rivals.get(id) {
            _ if !self.served.contains_key(id) => Served::Nothing,
            Some(rivals) if rivals.first != *key => Served::Other,
            _ => Served::LastGood,
        };
        match subject {
            Subject::Object(id) => of(id),
            Subject::Again(..) => Served::Other,
            Subject::File | Subject::Document(_) => {
                // Of a folder that cannot be read, that is what its files said.
                let is_within =
                    |other: &FileKey| other.root == key.root && other.path().starts_with(key.path());
                let mut files = self.files.iter().filter(|(other, _)| is_within(other));
                let any = files.any(|(_, file)| file.claims.keys().any(|id| of(id) == Served::LastGood));
                if any { Served::LastGood } else { Served::Nothing }
            }
        }
    }
}

#[cfg(test)]
mod tests;
