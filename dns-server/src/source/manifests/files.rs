//! Decides which objects are served, from the contents of all files. Pure, but stateful.
//!
//! Each file claims the objects that it names. The first claim in the order of the files is served;
//! the others wait. If a claim becomes bad, alone or with its whole file, its last good version is
//! still served. A file gives up an object only when it can be read and no longer names it.
//!
//! Objects are passed on and not kept, since the index keeps them; only their hashes are kept. When
//! another claim takes over, its file is read again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use multinet_crds::manifest::Object;
use multinet_crds::validate::Violation;

use super::file::{Digest, File, Problem, Severity, Subject};
use super::objects::{self, ManifestItem, ObjectId};

/// A file. The order is that of the given paths, then that of the file paths as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileKey {
    /// Position among the paths of `--manifests` of the path under which the file was found.
    pub(super) root: usize,
    /// Path of the file as text, which compares faster than a `Path`.
    text: Arc<OsStr>,
}

impl FileKey {
    /// Returns the key of the file at `path`, found under the given path at position `root`.
    pub(super) fn new(root: usize, path: &Path) -> Self {
        Self { root, text: Arc::from(path.as_os_str()) }
    }

    /// Returns the file's path.
    pub(super) fn path(&self) -> &Path {
        Path::new(&self.text)
    }
}

/// Content of a manifest file, parsed.
#[derive(Debug)]
pub(super) enum Content {
    /// Possible objects in the file.
    Items(Vec<ManifestItem>),
    /// The reason why the file cannot be read or parsed.
    Unreadable(String),
}

impl Content {
    /// Parses the bytes of a file.
    pub(super) fn of(bytes: &[u8]) -> Self {
        objects::items(bytes).map_or_else(Self::Unreadable, Self::Items)
    }
}

/// A problem of a manifest that appeared, changed or went away, to be logged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) file: FileKey,
    pub(super) subject: Subject,
    pub(super) transition: Transition,
}

/// Change of a manifest's problem.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// The problem is new or has changed. `Served` tells what is served nevertheless.
    Found(Problem, Served),
    /// This problem is gone.
    Healed(Problem),
}

/// Version of an object that is served while its current version is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    /// No version of the object is served.
    Nothing,
    /// The last good version in the same file.
    LastGood,
    /// The same object of another file, or of another place in the file.
    Other,
}

/// A change of an object, to be published.
#[derive(Debug)]
pub(super) enum Update {
    /// The object is new or has changed. This is its new version.
    Apply(Object),
    /// The object with this identity is gone.
    Delete(ObjectId),
}

/// Changes of objects and problems since the last [`ManifestFiles::take_changes`].
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Changes of objects, in the order in which to publish them.
    pub(super) updates: Vec<Update>,
    /// Problems that appeared, changed or went away, to be logged.
    pub(super) reports: Vec<Report>,
    /// Files to read again, since one of their objects takes over and was not kept.
    pub(super) reread: BTreeSet<FileKey>,
}

/// All manifest files, their claims to objects, and the objects that are served.
#[derive(Debug, Default)]
pub(super) struct ManifestFiles {
    files: BTreeMap<FileKey, File>,
    claims: BTreeMap<ObjectId, BTreeSet<FileKey>>,
    served: BTreeMap<ObjectId, Digest>,
    /// Objects whose claims have changed since [`Self::take_changes`] last decided about them.
    touched: BTreeSet<ObjectId>,
    /// Objects that were read since the last decision, by file.
    fresh: HashMap<(FileKey, ObjectId), Object>,
    /// Objects of which several files have a good version.
    rivals: BTreeMap<ObjectId, Rivals>,
    reported: BTreeMap<(FileKey, Subject), Problem>,
}

/// The files that claim the same object, of which only the first is served.
#[derive(Debug)]
struct Rivals {
    /// File whose version of the object is served.
    first: FileKey,
    /// Files with good versions that wait until `first` gives the object up.
    others: Vec<FileKey>,
}

impl ManifestFiles {
    /// Sets the current content of a file, which changes its claims.
    pub(super) fn set(&mut self, key: &FileKey, content: Content) {
        let reason = match content {
            Content::Items(items) => return self.replace(key, items),
            Content::Unreadable(reason) => reason,
        };
        let file = self.files.entry(key.clone()).or_default();
        file.mark_broken(reason);
        self.touched.extend(file.claims.keys().cloned());
    }

    /// Removes a file that is gone, with its claims.
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

    fn replace(&mut self, key: &FileKey, items: Vec<ManifestItem>) {
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

    /// Decides about all objects whose claims have changed, and returns the changes.
    ///
    /// The caller must [`set`](Self::set) the files to read again, and call this once more.
    pub(super) fn take_changes(&mut self) -> Changes {
        let mut changes = Changes::default();
        for id in std::mem::take(&mut self.touched) {
            self.decide(id, &mut changes);
        }
        self.fresh.clear();
        changes.reports = self.report();
        changes
    }

    /// Returns the number of bad manifests: files, documents and objects that cannot be used.
    pub(super) fn count_bad(&self) -> usize {
        self.reported.values().filter(|problem| problem.severity == Severity::Bad).count()
    }

    /// Returns the identities of the objects that are served.
    pub(super) fn served(&self) -> impl Iterator<Item = &ObjectId> {
        self.served.keys()
    }

    /// Returns the number of manifest files.
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
        // A claim that is bad now can only keep what is served of it already.
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
        // No file has a good version, but some file still claims the object: it stays as served.
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

    /// Returns the problems that appeared, changed or went away since the last call.
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
                let problem = Problem::bad(Some(claim.line), Violation::new("metadata.name", message));
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
            // A broken file hides its other problems, which does not mean that they are solved.
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
                // If a folder cannot be read, this considers the files that were in it.
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
