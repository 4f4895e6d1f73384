//! The output of a transfer, with its checksum so far.

use std::io::{self, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use ring::digest::{Context, SHA256};

use super::Summary;
use super::destination::Destination;
use super::ending::Stage;
use super::partial::Partial;
use super::receipt::Receipt;

/// Output of one transfer that is being written, with the checksum so far.
pub(super) struct Sink {
    id: u128,
    to: To,
    written: u64,
    hash: Context,
}

enum To {
    /// The destination itself, which is a stream, and the stage of the transfer.
    Stream(Stage),
    File(Partial),
    Placed(Receipt),
}

impl Sink {
    /// Opens the output of a transfer. What an earlier receiver of the same transfer has left is
    /// continued.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(super) fn open(destination: &Destination, id: u128) -> anyhow::Result<Self> {
        let to = match destination {
            Destination::Stream(_) => To::Stream(Stage::Open),
            Destination::Files(files) => {
                let cannot_write = || cannot_write(&files.path);
                if let Some(partial) = Partial::complete(files, id).with_context(cannot_write)? {
                    To::File(partial)
                } else if !files.part(id).exists()
                    && let Some(receipt) = Receipt::read(files.receipt(id)).with_context(cannot_write)?
                {
                    To::Placed(receipt)
                } else {
                    To::File(Partial::open(files, id).with_context(cannot_write)?)
                }
            }
        };
        let mut sink = Self { id, to, written: 0, hash: Context::new(&SHA256) };
        sink.read_what_is_there().context("cannot read what an earlier one has left")?;
        Ok(sink)
    }

    /// Returns how many bytes of the transfer have been written, by earlier receivers as well.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn stage(&self) -> Stage {
        match &self.to {
            To::Stream(stage) => *stage,
            To::File(partial) if partial.is_complete => Stage::Safe,
            To::File(_) => Stage::Open,
            To::Placed(_) => Stage::Placed,
        }
    }

    /// Returns the path of what was received if the file is not complete. `None` for a stream.
    pub(super) fn unfinished(&self) -> Option<&Path> {
        match &self.to {
            To::File(partial) if !partial.is_complete => Some(&partial.path),
            _ => None,
        }
    }

    /// Returns whether bytes have gone to a stream, so that they cannot be taken back.
    pub(super) fn is_spoilt(&self) -> bool {
        self.written > 0 && matches!(self.to, To::Stream(_))
    }

    /// Writes all bytes, or, to a file, none of them.
    ///
    /// # Errors
    ///
    /// [`PipeClosed`](crate::output::PipeClosed), or the kernel's error.
    pub(super) fn write(&mut self, destination: &mut Destination, bytes: &[u8]) -> anyhow::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        match (&mut self.to, destination) {
            (To::File(partial), Destination::Files(files)) => {
                let file = &mut partial.file;
                if let Err(error) = file.write_all(bytes) {
                    // The same bytes may be written again, if there is room by then.
                    file.set_len(self.written).with_context(|| cannot_write(&files.path))?;
                    return Err(error).with_context(|| cannot_write(&files.path));
                }
            }
            (_, Destination::Stream(stream)) => stream.write(bytes)?,
            _ => {}
        }
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn summary(&self) -> Summary {
        match &self.to {
            To::Placed(receipt) => receipt.summary.clone(),
            _ => Summary::new(self.written, &self.hash.clone().finish()),
        }
    }

    /// Writes everything to the disk. The caller has written all bytes of the transfer.
    ///
    /// # Errors
    ///
    /// If that fails.
    pub(super) fn sync(&mut self, destination: &mut Destination) -> anyhow::Result<()> {
        let Summary { sha256, .. } = self.summary();
        match (&mut self.to, destination) {
            (To::File(partial), Destination::Files(files)) => {
                partial.sync(files, self.id, sha256).with_context(|| cannot_write(&files.path))
            }
            (To::Stream(stage), Destination::Stream(stream)) => {
                stream.sync()?;
                *stage = Stage::Safe;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Places the file. Returns its path, if that is not the one that was asked for.
    ///
    /// # Errors
    ///
    /// If that fails. What was received is kept, by the name that the error tells.
    pub(super) fn place(&mut self, destination: &mut Destination) -> anyhow::Result<Option<PathBuf>> {
        let Summary { sha256, .. } = self.summary();
        match (&mut self.to, destination) {
            (To::File(partial), Destination::Files(files)) => {
                let placed = partial.place(files, self.id, sha256);
                let (receipt, path) =
                    placed.map_err(|error| not_placed(error, &files.path, &partial.path))?;
                let synced = files.sync_names(&partial.file);
                self.to = To::Placed(receipt);
                synced.with_context(|| cannot_write(&files.path))?;
                Ok(Some(path).filter(|path| *path != files.path))
            }
            (To::Stream(stage), _) => {
                *stage = Stage::Placed;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Returns where the file is that an earlier receiver has placed, unless it has been moved
    /// away.
    pub(super) fn find(&self, destination: &Destination) -> Option<PathBuf> {
        let To::Placed(receipt) = &self.to else { return None };
        destination.files()?.find(receipt.stamp)
    }

    /// Ends the transfer. Its sender knows that the file has been placed, or has not asked for
    /// long.
    pub(super) fn finish(self) {
        if let To::Placed(receipt) = self.to {
            receipt.remove();
        }
    }

    /// Removes what was received of the transfer, unless it is complete.
    pub(super) fn discard(self) {
        if self.stage() != Stage::Safe {
            self.reject();
        }
    }

    /// Removes what was received of the transfer, unless its file has been placed.
    pub(super) fn reject(self) {
        match self.to {
            To::File(partial) => partial.remove(),
            To::Placed(receipt) => receipt.remove(),
            To::Stream(_) => {}
        }
    }

    fn read_what_is_there(&mut self) -> io::Result<()> {
        let partial = match &mut self.to {
            To::Stream(_) => return Ok(()),
            To::Placed(receipt) => {
                self.written = receipt.summary.bytes;
                return Ok(());
            }
            To::File(partial) => partial,
        };
        let mut reader = BufReader::with_capacity(1 << 20, &partial.file);
        let mut bytes = vec![0; 1 << 20];
        loop {
            let read = reader.read(&mut bytes)?;
            if read == 0 {
                return Ok(());
            }
            self.hash.update(&bytes[..read]);
            self.written += read as u64;
        }
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn not_placed(error: io::Error, path: &Path, kept: &Path) -> anyhow::Error {
    let (name, kept) = (path.display(), kept.display());
    match error.kind() {
        io::ErrorKind::AlreadyExists => anyhow!(
            "{name} has appeared meanwhile, and is not replaced: all that was received is in {kept}; move {name} away, and \
             the same command finishes it"
        ),
        _ => anyhow::Error::new(error).context(format!(
            "cannot write {name}: all that was received is in {kept}, and the same command finishes it"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ID: u128 = 7;

    fn destination(path: &Path) -> Destination {
        Destination::new(path, false, false).unwrap()
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut to = destination(&path);
        let mut sink = Sink::open(&to, ID).unwrap();
        sink.write(&mut to, b"ab").unwrap();
        assert!(!path.exists());
        drop(sink);
        // Another receiver goes on.
        let mut sink = Sink::open(&to, ID).unwrap();
        assert_eq!(sink.written(), 2);
        sink.write(&mut to, b"c").unwrap();
        let summary = sink.summary();
        assert!((summary.bytes, &summary.sha256[..8]) == (3, "ba7816bf"), "{summary:?}");
        sink.sync(&mut to).unwrap();
        assert_eq!(sink.place(&mut to).unwrap(), None);
        drop(sink);
        // The next receiver knows it by its receipt.
        let sink = Sink::open(&to, ID).unwrap();
        assert_eq!(
            (sink.stage(), sink.summary(), sink.find(&to)),
            (Stage::Placed, summary, Some(path.clone()))
        );
        sink.finish();
        assert_eq!(fs::read(&path).unwrap(), b"abc");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn transfers_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let mut to = destination(&folder.path().join("out"));
        let mut one = Sink::open(&to, 1).unwrap();
        one.write(&mut to, b"one").unwrap();
        assert_eq!(Sink::open(&to, 2).unwrap().written(), 0);
        one.discard();
        assert_eq!(Sink::open(&to, 1).unwrap().written(), 0);
    }

    #[test]
    fn bytes_of_a_stream_cannot_be_taken_back() {
        let mut to = destination(Path::new("/dev/null"));
        let mut sink = Sink::open(&to, ID).unwrap();
        sink.write(&mut to, b"").unwrap();
        assert!(!sink.is_spoilt());
        sink.write(&mut to, b"bytes").unwrap();
        assert!(sink.is_spoilt());
        sink.sync(&mut to).unwrap();
        assert_eq!((sink.place(&mut to).unwrap(), sink.stage()), (None, Stage::Placed));
    }

    /// A complete transfer is not lost because its name is taken.
    #[test]
    fn a_name_that_is_taken_in_between_keeps_what_was_received() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut to = destination(&path);
        let mut sink = Sink::open(&to, ID).unwrap();
        sink.write(&mut to, b"new").unwrap();
        sink.sync(&mut to).unwrap();
        fs::write(&path, "old").unwrap();
        let error = format!("{:#}", sink.place(&mut to).unwrap_err());
        let expected = format!("{} has appeared meanwhile, and is not replaced", path.display());
        assert!(error.starts_with(&expected) && error.contains(".done; move "), "{error}");
        sink.discard();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        fs::remove_file(&path).unwrap();
        let mut sink = Sink::open(&to, ID).unwrap();
        assert_eq!((sink.written(), sink.stage()), (3, Stage::Safe));
        sink.place(&mut to).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
}
