//! The file that `multinet get` puts together from chunks, in a thread that may wait for a disk.

use anyhow::{bail, ensure};
use tokio::sync::mpsc;

use super::destination::Destination;
use super::ending::Stage;
use super::manifest::Manifest;
use super::sink::Sink;

/// File that is being put together from its chunks.
pub(super) struct Assembly {
    destination: Destination,
    sink: Sink,
    manifest: Manifest,
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

    /// Writes the chunks that come, from this one on, and places the file. Removes what was written
    /// if that fails.
    pub(super) fn write_all(
        mut self,
        first: u64,
        mut inbox: mpsc::Receiver<Vec<u8>>,
    ) -> anyhow::Result<Self> {
        let written = self.write(first, std::iter::from_fn(|| inbox.blocking_recv()));
        let (found, expected) = (self.sink.summary(), self.manifest.summary());
        if written.is_ok() && found != expected {
            self.sink.reject();
            bail!(
                "the file that came has {} bytes and the SHA-256 {}, not {} and {}: fetch it again",
                found.bytes,
                found.sha256,
                expected.bytes,
                expected.sha256
            );
        }
        match written.and_then(|()| self.place()) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.sink.discard();
                Err(error)
            }
        }
    }

    fn write(&mut self, first: u64, chunks: impl Iterator<Item = impl AsRef<[u8]>>) -> anyhow::Result<()> {
        for (number, chunk) in (first..).zip(chunks) {
            let (offset, length) = self.manifest.extent(number);
            let bytes = chunk.as_ref();
            ensure!(
                bytes.len() as u64 == length,
                "chunk {number} has {} bytes, not {length}: other data is on offer by this reference",
                bytes.len()
            );
            // An earlier multinet get may have written the beginning of it.
            let written = usize::try_from(self.sink.written().saturating_sub(offset))?;
            self.sink.write(&mut self.destination, bytes.get(written..).unwrap_or_default())?;
        }
        Ok(())
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
            assembly.write(first, CONTENT.chunks(4).skip(kept / 4)).unwrap();
            assembly.place().unwrap();
            assembly.sink.finish();
            assert_eq!(fs::read(&path).unwrap(), CONTENT, "{kept}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_chunk_of_another_length_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut assembly = assembly(&folder.path().join("out"));
        let error = assembly.write(0, [&b"0123"[..], b"456"].into_iter()).unwrap_err().to_string();
        assert!(error.starts_with("chunk 1 has 3 bytes, not 4: other data is on offer"), "{error}");
    }

    #[test]
    fn a_file_with_a_wrong_checksum_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut assembly = assembly(&folder.path().join("out"));
        assembly.write(0, CONTENT.to_ascii_uppercase().chunks(4)).unwrap();
        assembly.sink.write(&mut assembly.destination, b"x").unwrap();
        let (_, inbox) = mpsc::channel(1);
        let error = assembly.write_all(3, inbox).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("the file that came has 11 bytes and the SHA-256 "), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
