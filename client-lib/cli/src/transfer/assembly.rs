//! The file that `multinet get` puts together from chunks, in a thread that may wait for a disk.

use anyhow::{Error, anyhow, ensure};
use multinet_client::FetchError;
use tokio::sync::mpsc;

use super::Summary;
use super::destination::Destination;
use super::ending::Stage;
use super::manifest::Manifest;
use super::sink::Sink;
use crate::output::message;

/// File that is being put together from its chunks.
pub(super) struct Assembly {
    destination: Destination,
    sink: Sink,
    manifest: Manifest,
}

/// Error that says that what came is not the file of the manifest.
#[derive(Debug, thiserror::Error)]
enum WrongData {
    #[error("chunk {number} has {found} bytes, not {expected}: other data is on offer by this reference")]
    Length { number: u64, found: usize, expected: u64 },
    #[error("the file that came has {} bytes and the SHA-256 {}, not {} and {}: fetch it again",
            found.bytes, found.sha256, expected.bytes, expected.sha256)]
    Checksum { found: Summary, expected: Summary },
}

impl Assembly {
    /// Opens the output. What an earlier `multinet get` has left of the same file is continued.
    pub(super) fn open(destination: Destination, id: u128, manifest: Manifest) -> anyhow::Result<Self> {
        let mut sink = Sink::open(&destination, id)?;
        if sink.stage() == Stage::Placed && sink.find(&destination).is_none() {
            // The file has been moved away or removed, and is wanted again.
            sink.finish();
            sink = Sink::open(&destination, id)?;
        }
        Ok(Self { destination, sink, manifest })
    }

    pub(super) fn stage(&self) -> Stage {
        self.sink.stage()
    }

    /// Returns how many bytes of the file have been written, by an earlier `multinet get` as well.
    pub(super) fn written(&self) -> u64 {
        self.sink.written()
    }

    /// Ends the transfer, whose file has been placed.
    pub(super) fn finish(self) {
        self.sink.finish();
    }

    /// Returns how many bytes of the file have not been written.
    pub(super) fn missing(&self) -> u64 {
        self.manifest.bytes.saturating_sub(self.sink.written())
    }

    /// Writes the chunks that come, from this one on, and places the file. After an error, keeps
    /// what the same command can continue, and removes the rest.
    ///
    /// # Errors
    ///
    /// The first error among the chunks, or the one of the output.
    pub(super) fn write_all(
        mut self,
        first: u64,
        mut inbox: mpsc::Receiver<anyhow::Result<Vec<u8>>>,
    ) -> anyhow::Result<Self> {
        match self.write(first, std::iter::from_fn(|| inbox.blocking_recv())).and_then(|()| self.place()) {
            Ok(()) => Ok(self),
            Err(error) => Err(self.leave(error)),
        }
    }

    fn write(
        &mut self,
        first: u64,
        chunks: impl Iterator<Item = anyhow::Result<impl AsRef<[u8]>>>,
    ) -> anyhow::Result<()> {
        for (number, chunk) in (first..).zip(chunks) {
            let (chunk, (offset, expected)) = (chunk?, self.manifest.extent(number));
            let (bytes, found) = (chunk.as_ref(), chunk.as_ref().len());
            if found as u64 != expected {
                return Err(WrongData::Length { number, found, expected }.into());
            }
            // An earlier multinet get may have written the beginning of it.
            let written = usize::try_from(self.sink.written().saturating_sub(offset))?;
            self.sink.write(&mut self.destination, bytes.get(written..).unwrap_or_default())?;
        }
        let (found, expected) = (self.sink.summary(), self.manifest.summary());
        // As after a signal to the first process of a container.
        ensure!(found.bytes >= expected.bytes, "not all chunks have been fetched");
        if found != expected {
            return Err(WrongData::Checksum { found, expected }.into());
        }
        Ok(())
    }

    /// Ends the transfer after an error. Returns the error, which says where the bytes are that the
    /// same command continues.
    fn leave(self, error: Error) -> Error {
        let is_over = error.is::<WrongData>() || is_taken(&error);
        match self.sink.unfinished() {
            Some(path) if !is_over && self.sink.written() > 0 => {
                let (written, path) = (self.sink.written(), path.display());
                anyhow!(
                    "{}; {written} bytes are in {path}, and the same command continues there",
                    message(&error)
                )
            }
            _ if is_over => {
                self.sink.reject();
                error
            }
            _ => {
                self.sink.discard();
                error
            }
        }
    }

    /// Places the complete file.
    fn place(&mut self) -> anyhow::Result<()> {
        if self.sink.stage() == Stage::Open {
            self.sink.sync(&mut self.destination)?;
        }
        self.sink.place(&mut self.destination)?;
        Ok(())
    }
}

/// Returns whether an error says that the payload of a reference was taken.
pub(super) fn is_taken(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(FetchError::Taken { .. }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use ring::digest::{SHA256, digest};

    use super::*;
    use crate::transfer::Summary;
    use crate::transfer::manifest::token;

    /// Content of the file in the tests below, which is cut into chunks of 4 bytes.
    const CONTENT: &[u8] = b"0123456789";

    fn manifest() -> Manifest {
        let summary = Summary::new(10, &digest(&SHA256, CONTENT));
        Manifest::new(&summary, 4, "infer-0", token())
    }

    fn assembly(path: &Path) -> Assembly {
        Assembly::open(Destination::new(path, false, false).unwrap(), 7, manifest()).unwrap()
    }

    #[test]
    fn a_file_that_was_written_in_part_is_continued_in_the_middle_of_a_chunk() {
        for kept in [0, 1, 4, 6, 9] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("out");
            let Assembly { mut destination, mut sink, .. } = assembly(&path);
            sink.write(&mut destination, &CONTENT[..kept]).unwrap();
            drop(sink);
            let mut assembly = assembly(&path);
            assert_eq!(assembly.missing(), 10 - kept as u64);
            let first = manifest().chunk_at(kept as u64);
            assembly.write(first, CONTENT.chunks(4).skip(kept / 4).map(Ok)).unwrap();
            assembly.place().unwrap();
            assembly.sink.finish();
            assert_eq!(fs::read(&path).unwrap(), CONTENT, "{kept}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    /// Has chunks come, and returns the error with what is left of the file.
    fn fail(chunks: Vec<anyhow::Result<Vec<u8>>>) -> (String, Vec<Vec<u8>>) {
        let folder = tempfile::tempdir().unwrap();
        let (sender, inbox) = mpsc::channel(8);
        chunks.into_iter().for_each(|chunk| sender.try_send(chunk).unwrap());
        drop(sender);
        let error = assembly(&folder.path().join("out")).write_all(0, inbox).map(drop).unwrap_err();
        let left = fs::read_dir(folder.path()).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
        (format!("{error:#}"), left.collect())
    }

    #[test]
    fn what_has_come_is_kept_if_the_rest_may_still_come() {
        let (error, left) = fail(vec![Ok(b"0123".to_vec()), Err(anyhow!("no pod has it"))]);
        assert!(error.starts_with("no pod has it; 4 bytes are in "), "{error}");
        assert!(error.ends_with(".part, and the same command continues there"), "{error}");
        assert_eq!(left, [b"0123"]);
        // The fetching side has ended without a word.
        let (error, left) = fail(vec![Ok(b"0123".to_vec())]);
        assert!(error.starts_with("not all chunks have been fetched; 4 bytes are in "), "{error}");
        assert_eq!(left, [b"0123"]);
        let (error, left) = fail(vec![Err(anyhow!("no pod has it"))]);
        assert_eq!((&*error, left.len()), ("no pod has it", 0));
    }

    #[test]
    fn what_has_come_is_removed_if_the_rest_cannot_come() {
        let reference = "infer-0/file".parse().unwrap();
        let taken = Error::new(FetchError::Taken { reference }).context("infer-0/file after 4 of 10 bytes");
        let cases = [
            (vec![Ok(b"0123".to_vec()), Err(taken)], "infer-0/file after 4 of 10 bytes: "),
            (
                vec![Ok(b"0123".to_vec()), Ok(b"456".to_vec())],
                "chunk 1 has 3 bytes, not 4: other data is on offer by this reference",
            ),
            (
                ["ABCD", "EFGH", "IJ"].map(|chunk| Ok(chunk.into())).into(),
                "the file that came has 10 bytes and the SHA-256 ",
            ),
        ];
        for (chunks, expected) in cases {
            let (error, left) = fail(chunks);
            assert!(error.starts_with(expected), "{error}");
            assert_eq!(left, Vec::<Vec<u8>>::new(), "{error}");
        }
    }
}
