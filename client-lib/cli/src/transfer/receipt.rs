//! The receipt of a transfer: a small file, `FILE.ID.placed`, that says what a transfer's file is;
//! and, when no other file of the transfer is there, that it has been placed.
//!
//! The receipt stays until the sender has heard so. The file itself may be moved away before: then
//! only the receipt can answer a sender that asks again.

use std::fs::{self, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Summary, own_file};

/// The longest receipt, in bytes.
const MAX_LENGTH: u64 = 1024;

/// A receipt that is on the disk.
#[derive(Debug)]
pub(super) struct Receipt {
    path: PathBuf,
    pub(super) summary: Summary,
    pub(super) stamp: Stamp,
}

/// Stamp by which a file is recognised under another name. The inode number alone does not tell: a
/// file that is created later may get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Stamp {
    inode: u64,
    size: u64,
    /// Time of the last change to the content: seconds since 1970, and nanoseconds.
    modified: (i64, i64),
}

/// Content of a receipt's file, in JSON.
#[derive(Deserialize, Serialize)]
struct Content {
    sha256: String,
    file: Stamp,
}

impl Stamp {
    pub(super) fn of(about: &Metadata) -> Self {
        let modified = (about.mtime(), about.mtime_nsec());
        Self { inode: about.ino(), size: about.len(), modified }
    }
}

impl Receipt {
    /// Writes a receipt for the file with that checksum and stamp.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub(super) fn write(path: PathBuf, sha256: String, stamp: Stamp) -> io::Result<Self> {
        remove(&path)?;
        let content = Content { sha256, file: stamp };
        let mut file = own_file::create(&path)?;
        let written = file.write_all(&serde_json::to_vec(&content)?).and_then(|()| file.sync_all());
        // A part of a receipt, as on a full disk, is of no use.
        written.inspect_err(|_| drop(remove(&path)))?;
        Ok(Self::new(path, content))
    }

    fn new(path: PathBuf, Content { sha256, file }: Content) -> Self {
        Self { path, summary: Summary { bytes: file.size, sha256 }, stamp: file }
    }

    /// Reads the receipt of that name. A receipt that a power failure has cut off is removed.
    ///
    /// # Errors
    ///
    /// If the file is not this program's, or the kernel's error.
    pub(super) fn read(path: PathBuf) -> io::Result<Option<Self>> {
        let Some((file, _)) = own_file::open(&path)? else { return Ok(None) };
        let mut text = Vec::new();
        file.take(MAX_LENGTH).read_to_end(&mut text)?;
        let Ok(content) = serde_json::from_slice(&text) else {
            remove(&path)?;
            return Ok(None);
        };
        Ok(Some(Self::new(path, content)))
    }

    /// Removes the receipt: its sender knows that the file has been placed, or does not ask.
    pub(super) fn remove(&self) {
        // A receipt that stays does no harm: the next receiver removes it.
        let _ = remove(&self.path);
    }
}

/// Removes a receipt, if it exists.
///
/// # Errors
///
/// The kernel's.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_read_as_it_was_written_and_a_torn_one_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.placed");
        assert!(Receipt::read(path.clone()).unwrap().is_none());
        let sha256 = "ab".repeat(32);
        let stamp = |inode| Stamp { inode, size: 3, modified: (5, 6) };
        Receipt::write(path.clone(), sha256.clone(), stamp(7)).unwrap();
        // An earlier attempt to place the file may have left one.
        Receipt::write(path.clone(), sha256.clone(), stamp(8)).unwrap();
        let read = Receipt::read(path.clone()).unwrap().unwrap();
        assert_eq!((read.summary, read.stamp), (Summary { bytes: 3, sha256 }, stamp(8)));
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() - 1]).unwrap();
        assert!(Receipt::read(path.clone()).unwrap().is_none());
        assert!(!path.exists());
    }
}
