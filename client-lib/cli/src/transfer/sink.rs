//! Where a transfer is written: standard output, or a file that appears when it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ring::digest::{Context, SHA256};

use super::Summary;
use crate::output::to_stdout;

/// What is being written, and its checksum so far.
pub(super) struct Sink {
    to: To,
    written: u64,
    hash: Context,
}

enum To {
    Stdout(io::Stdout),
    /// What is no regular file, such as a named pipe.
    Special(File, PathBuf),
    File {
        file: File,
        part: PathBuf,
        path: PathBuf,
    },
}

impl Sink {
    /// For one transfer of a sender. What an earlier receiver of the same transfer has left is gone on with.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(super) fn open(path: &Path, session: u128) -> anyhow::Result<Self> {
        let hash = Context::new(&SHA256);
        if path == Path::new("-") {
            return Ok(Self { to: To::Stdout(io::stdout()), written: 0, hash });
        }
        let context = || format!("cannot write {}", path.display());
        // Whatever is no file, say /dev/null, must not be replaced by one.
        if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
            let file = OpenOptions::new().write(true).open(path).with_context(context)?;
            return Ok(Self { to: To::Special(file, path.to_owned()), written: 0, hash });
        }
        check(path).with_context(context)?;
        let part = part_of(path, session);
        let mut options = OpenOptions::new();
        let file = options.create(true).read(true).append(true).open(&part).with_context(context)?;
        let mut sink = Self { to: To::File { file, part, path: path.to_owned() }, written: 0, hash };
        sink.read_what_is_there().with_context(context)?;
        Ok(sink)
    }

    /// How much has been written, by earlier receivers as well.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// # Errors
    ///
    /// [`PipeClosed`](crate::output::PipeClosed), or what went wrong.
    pub(super) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match &mut self.to {
            // The frame is acknowledged after this, so that it must not stay in a buffer of ours.
            To::Stdout(stdout) => {
                stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(to_stdout)?;
            }
            To::Special(file, path) => {
                file.write_all(bytes).with_context(|| format!("cannot write {}", path.display()))?;
            }
            To::File { file, part, .. } => {
                file.write_all(bytes).with_context(|| format!("cannot write {}", part.display()))?;
            }
        }
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn summary(&self) -> Summary {
        Summary::new(self.written, &self.hash.clone().finish())
    }

    /// It is complete: the file appears.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        if let To::File { part, path, .. } = self.to {
            check(&path)
                .and_then(|()| fs::rename(&part, &path))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// It will not become complete.
    pub(super) fn discard(self) {
        if let To::File { part, .. } = self.to {
            // What is left of it harms nobody.
            let _ = fs::remove_file(part);
        }
    }

    fn read_what_is_there(&mut self) -> io::Result<()> {
        let To::File { file, .. } = &self.to else { return Ok(()) };
        let mut reader = BufReader::with_capacity(1 << 20, file);
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

/// Refuses to replace what is no regular file, such as a link: /dev/stdout is one.
fn check(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(about) if !about.is_file() => {
            Err(io::Error::other("it is not a regular file; name one, or - for standard output"))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn part_of(path: &Path, session: u128) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{session:032x}.part"));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut sink = Sink::open(&path, 7).unwrap();
        sink.write(b"ab").unwrap();
        assert!(!path.exists());
        drop(sink);
        // Another receiver goes on.
        let mut sink = Sink::open(&path, 7).unwrap();
        assert_eq!(sink.written(), 2);
        sink.write(b"c").unwrap();
        let summary = sink.summary();
        assert!((summary.bytes, &summary.sha256[..8]) == (3, "ba7816bf"), "{summary:?}");
        sink.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abc");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn transfers_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut one = Sink::open(&path, 1).unwrap();
        one.write(b"one").unwrap();
        assert_eq!(Sink::open(&path, 2).unwrap().written(), 0);
        one.discard();
        assert_eq!(Sink::open(&path, 1).unwrap().written(), 0);
    }

    #[test]
    fn a_device_stays_what_it_is() {
        let mut sink = Sink::open(Path::new("/dev/null"), 1).unwrap();
        sink.write(b"gone").unwrap();
        sink.finish().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_link_to_a_file_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let error = format!("{:#}", Sink::open(&link, 1).err().unwrap());
        assert!(error.contains("link") && error.contains("not a regular file"), "{error}");
        // One that comes while the transfer is under way does, too.
        let sink = Sink::open(&folder.path().join("out"), 1).unwrap();
        fs::rename(&link, folder.path().join("out")).unwrap();
        assert!(sink.finish().is_err());
        assert_eq!(fs::read(&file).unwrap(), b"old");
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = Sink::open(Path::new("/nonexistent/out"), 1).err().unwrap();
        assert_eq!(error.to_string(), "cannot write /nonexistent/out");
    }
}
