//! Reading of whole files, in parallel. A file that changes meanwhile is not used.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Read as _};
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic;
use std::path::Path;
use std::thread;

use super::files::{Content, FileKey};
use super::scan::{self, FileStamp};
use crate::limits::manifests::MAX_FILE;

/// Result of reading a manifest file.
#[derive(Debug)]
pub(super) enum ReadOutcome {
    /// Its content and the hash of that; or the reason why it cannot be read.
    New(Content, Option<u64>),
    /// The file's content is the same as when it was last read.
    Same,
    /// The file changed while it was read, or is gone, so that its content is not used.
    Torn,
}

/// Reads files, given the hashes of their known contents. Parsing takes most of the time at the
/// start, so all cores take part.
pub(super) fn read_all(wanted: &[(FileKey, FileStamp)], known: &HashMap<FileKey, u64>) -> Vec<ReadOutcome> {
    let outcome =
        |(key, stamp): &(FileKey, FileStamp)| read_outcome(key.path(), stamp, known.get(key).copied());
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        let parts = wanted.chunks(wanted.len().div_ceil(workers).max(1));
        let readers = parts.map(|part| scope.spawn(move || part.iter().map(outcome).collect::<Vec<_>>()));
        let ended = readers.collect::<Vec<_>>().into_iter();
        ended.flat_map(|reader| reader.join().unwrap_or_else(|cause| panic::resume_unwind(cause))).collect()
    })
}

fn read_outcome(path: &Path, stamp: &FileStamp, known: Option<u64>) -> ReadOutcome {
    match read(path, stamp) {
        Ok(Some(bytes)) => {
            let mut hasher = DefaultHasher::new();
            hasher.write(&bytes);
            let hash = Some(hasher.finish());
            if hash == known { ReadOutcome::Same } else { ReadOutcome::New(Content::of(&bytes), hash) }
        }
        Ok(None) => ReadOutcome::Torn,
        Err(error) if error.kind() == io::ErrorKind::NotFound => ReadOutcome::Torn,
        Err(error) => ReadOutcome::New(Content::Unreadable(scan::reason(&error)), None),
    }
}

/// Opens a file for reading. Does not block if a pipe has taken its place.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Reads a file; returns `None` if its stamp was or became another one than `stamp`.
fn read(path: &Path, stamp: &FileStamp) -> io::Result<Option<Vec<u8>>> {
    if stamp.len > MAX_FILE {
        let limit = MAX_FILE >> 20;
        return Err(io::Error::other(format!("is larger than {limit} MiB; split it into several files")));
    }
    let file = open(path)?;
    let looks_alike = || Ok::<_, io::Error>(FileStamp::of(&file.metadata()?) == *stamp);
    if !looks_alike()? {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    (&file).take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    Ok(looks_alike()?.then_some(bytes))
}
