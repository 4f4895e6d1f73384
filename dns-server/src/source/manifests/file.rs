//! The content of one file: the objects that it claims, and its problems. Pure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use multinet_crds::manifest::Object;
use multinet_crds::validate::Violation;

use super::objects::{Candidate, ManifestItem, ObjectId};

/// The part of a manifest file that a problem concerns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// The file as a whole.
    File,
    /// The document with this number, which names no object.
    Document(usize),
    /// The object with this identity.
    Object(ObjectId),
    /// A repeated mention of an object, in the document with this number.
    Again(ObjectId, usize),
}

/// A problem of a manifest: of a file, a document or an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// Line on which the document with the problem begins; `None` if the whole file is concerned.
    pub(super) line: Option<u64>,
    /// Faults that the problem consists of; at least one.
    pub(super) faults: Vec<Violation>,
    pub(super) severity: Severity,
}

/// Consequence of a problem, from the mildest to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// The object is served, but may not mean what was intended.
    Doubtful,
    /// The object is ignored, but looks as if it was meant for this server.
    PassedOver,
    /// This version of the object is not served.
    Bad,
}

/// Hash of one version of an object, by which versions are compared.
pub(super) type Digest = u64;

/// Objects and problems of one manifest file.
#[derive(Debug, Default)]
pub(super) struct File {
    /// The objects that it names, and those that it named before and may have meant.
    pub(super) claims: BTreeMap<ObjectId, ObjectClaim>,
    pub(super) problems: BTreeMap<Subject, Problem>,
    /// Whether nothing can be read from the file now, because it is unreadable or not YAML.
    pub(super) is_broken: bool,
}

/// A file's claim to define an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectClaim {
    /// Hash of the object's last good version in the file; `None` if there was none.
    pub(super) good: Option<Digest>,
    /// Line of the file on which the object's document begins.
    pub(super) line: u64,
    /// Whether the object's current version in the file is bad.
    pub(super) is_bad: bool,
}

impl File {
    /// Builds the state of a file from its current items and its state `before`. Passes good
    /// objects to `keep`.
    pub(super) fn read(
        items: Vec<ManifestItem>,
        before: &Self,
        mut keep: impl FnMut(ObjectId, Object),
    ) -> Self {
        let mut file = Self::default();
        let mut has_nameless = false;
        for ManifestItem { document, line, found } in items {
            let (id, good, severity, faults) = match found {
                Candidate::Good(id, object, doubts) => {
                    let digest = digest(&object);
                    if !file.claims.contains_key(&id) {
                        keep(id.clone(), object);
                    }
                    (Some(id), Some(digest), Severity::Doubtful, doubts)
                }
                Candidate::Bad(id, faults) => {
                    has_nameless |= id.is_none();
                    let last = id.as_ref().and_then(|id| before.claims.get(id)?.good);
                    (id, last, Severity::Bad, faults)
                }
                Candidate::Unsupported(fault) => (None, None, Severity::PassedOver, vec![fault]),
            };
            let problem = Problem { line: Some(line), faults, severity };
            let Some(id) = id else {
                file.add(Subject::Document(document), problem);
                continue;
            };
            if let Some(first) = file.claims.get(&id) {
                let message =
                    format!("is in this file already, on line {}; remove one of the two", first.line);
                let problem = Problem::bad(Some(line), Violation::new("metadata.name", message));
                file.add(Subject::Again(id, document), problem);
                continue;
            }
            file.claims.insert(id.clone(), ObjectClaim { good, line, is_bad: severity == Severity::Bad });
            if !problem.faults.is_empty() {
                file.add(Subject::Object(id), problem);
            }
        }
        if has_nameless {
            // An object that is no longer named may be the one that has lost its name.
            for (id, claim) in &before.claims {
                file.claims.entry(id.clone()).or_insert(ObjectClaim { is_bad: true, ..*claim });
            }
        }
        file
    }

    /// Marks the file as unreadable for this reason; its claims to objects remain.
    pub(super) fn mark_broken(&mut self, reason: String) {
        self.is_broken = true;
        self.problems = BTreeMap::from([(Subject::File, Problem::bad(None, Violation::new("", reason)))]);
    }

    /// Adds a problem, merged with others of the same subject: all items of a list are in one
    /// document.
    fn add(&mut self, subject: Subject, problem: Problem) {
        match self.problems.get_mut(&subject) {
            Some(known) => {
                known.severity = known.severity.max(problem.severity);
                known.faults.extend(problem.faults);
            }
            None => {
                self.problems.insert(subject, problem);
            }
        }
    }
}

impl Problem {
    /// Returns a problem, of one fault, that keeps an object from being served.
    pub(super) fn bad(line: Option<u64>, fault: Violation) -> Self {
        Self { line, faults: vec![fault], severity: Severity::Bad }
    }
}

fn digest(object: &Object) -> Digest {
    let json = match object {
        Object::Service(service) => serde_json::to_vec(service),
        Object::Slice(slice) => serde_json::to_vec(slice),
    };
    let mut hasher = DefaultHasher::new();
    // Objects that were parsed from JSON values can always be written as JSON.
    hasher.write(&json.unwrap_or_default());
    hasher.finish()
}
