//! What one file says: which objects it claims, and what is wrong with it. Pure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::io;

use multinet_crds::manifest::Object;
use serde::Serialize;

use super::objects::{Candidate, Fault, Item, ObjectId};

/// What a report is about, within its file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// The file as a whole.
    File,
    /// A document that says too little to be called by name.
    Document(usize),
    /// An object.
    Object(ObjectId),
    /// A further mention of an object, in a document.
    Again(ObjectId, usize),
}

/// What is wrong with a file, a document or an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// The line that the document begins on.
    pub(super) line: Option<u64>,
    /// At least one.
    pub(super) faults: Vec<Fault>,
    /// What is made of it.
    pub(super) severity: Severity,
}

/// What is made of something that has faults, from the least to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// It is served, but may not say what was meant.
    Doubtful,
    /// It is no concern of this server, but looks as if it was meant to be.
    PassedOver,
    /// It is bad: this version of it is not served.
    Bad,
}

/// What is known of one version of an object: its hash.
pub(super) type Digest = u64;

/// A file.
#[derive(Debug, Default)]
pub(super) struct File {
    /// The objects that it names, and those that it may have meant to.
    pub(super) claims: BTreeMap<ObjectId, Claim>,
    /// What is wrong with it.
    pub(super) problems: BTreeMap<Subject, Problem>,
    /// Whether nothing can be had of it any more, because it cannot be read or is not YAML.
    pub(super) is_broken: bool,
}

/// What a file says of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// Its last good version.
    pub(super) good: Option<Digest>,
    /// The line of the file that its document begins on.
    pub(super) line: u64,
    /// Whether what the file says now is not that.
    pub(super) is_bad: bool,
}

impl File {
    /// Reads a file that was `before`. Hands its good objects to `keep`.
    pub(super) fn read(items: Vec<Item>, before: &Self, mut keep: impl FnMut(ObjectId, Object)) -> Self {
        let mut file = Self::default();
        let mut has_nameless = false;
        for Item { document, line, found } in items {
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
                let problem = Problem::bad(Some(line), Fault::new("metadata.name", message));
                file.add(Subject::Again(id, document), problem);
                continue;
            }
            file.claims.insert(id.clone(), Claim { good, line, is_bad: severity == Severity::Bad });
            if !problem.faults.is_empty() {
                file.add(Subject::Object(id), problem);
            }
        }
        if has_nameless {
            // An object that is not named any more may be the one that has lost its name.
            for (id, claim) in &before.claims {
                file.claims.entry(id.clone()).or_insert(Claim { is_bad: true, ..*claim });
            }
        }
        file
    }

    /// Notes that nothing can be had of the file now; its claims stay.
    pub(super) fn mark_broken(&mut self, reason: String) {
        self.is_broken = true;
        self.problems = BTreeMap::from([(Subject::File, Problem::bad(None, Fault::new("", reason)))]);
    }

    /// Adds a problem to those of the same subject: all items of a list are one document.
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
    /// Something bad.
    pub(super) fn bad(line: Option<u64>, fault: Fault) -> Self {
        Self { line, faults: vec![fault], severity: Severity::Bad }
    }
}

fn digest(object: &Object) -> Digest {
    match object {
        Object::Service(service) => hash(service),
        Object::Slice(slice) => hash(slice),
    }
}

fn hash(object: &impl Serialize) -> Digest {
    struct Hashing(DefaultHasher);

    impl io::Write for Hashing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut hashing = Hashing(DefaultHasher::new());
    // Neither the writer nor objects that came from JSON values can fail here.
    let _ = serde_json::to_writer(&mut hashing, object);
    hashing.0.finish()
}
