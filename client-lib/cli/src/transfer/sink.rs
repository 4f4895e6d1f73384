//! The output of a transfer, with its checksum so far.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ring::digest::{Context, SHA256};

use super::Summary;
use super::destination::Destination;
use super::ending::Stage;
use super::partial::Partial;
use crate::output::to_stdout;

/// An output that is being written.
pub(super) struct Sink {
    to: To,
    written: u64,
    hash: Context,
}

enum To {
    Stdout(io::Stdout, Stage),
    /// A device or a named pipe.
    Special(File, PathBuf, Stage),
    Socket(UnixStream, PathBuf, Stage),
    File(Partial, PathBuf),
}

impl Sink {
    /// For one transfer of a sender. What an earlier receiver of the same transfer has left is gone
    /// on with.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(super) fn open(destination: &Destination, session: u128) -> anyhow::Result<Self> {
        let to = match destination {
            Destination::Stdout => To::Stdout(io::stdout(), Stage::Open),
            Destination::Direct(path) => direct(path).with_context(|| cannot_write(path))?,
            Destination::Files(files) => {
                let partial = Partial::open(files, session).with_context(|| cannot_write(files.path()))?;
                To::File(partial, files.path().to_owned())
            }
        };
        let mut sink = Self { to, written: 0, hash: Context::new(&SHA256) };
        sink.read_what_is_there()?;
        Ok(sink)
    }

    /// How much has been written, by earlier receivers as well.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// How far its end has come.
    pub(super) fn stage(&self) -> Stage {
        match &self.to {
            To::Stdout(_, stage) | To::Special(_, _, stage) | To::Socket(_, _, stage) => *stage,
            To::File(partial, _) => partial.stage(),
        }
    }

    /// Whether what has been written cannot be taken back.
    pub(super) fn is_spoilt(&self) -> bool {
        self.written > 0 && !matches!(self.to, To::File(..))
    }

    /// # Errors
    ///
    /// [`PipeClosed`](crate::output::PipeClosed), or what went wrong.
    pub(super) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match &mut self.to {
            // The frame is acknowledged after this, so that it must not stay in a buffer of ours.
            To::Stdout(stdout, _) => {
                stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(to_stdout)?;
            }
            To::Special(file, path, _) => file.write_all(bytes).with_context(|| cannot_write(path))?,
            To::Socket(socket, path, _) => socket.write_all(bytes).with_context(|| cannot_write(path))?,
            To::File(partial, path) => {
                partial.file().write_all(bytes).with_context(|| cannot_write(path))?;
            }
        }
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn summary(&self) -> Summary {
        Summary::new(self.written, &self.hash.clone().finish())
    }

    /// All of it has been written: has it on the disk.
    ///
    /// # Errors
    ///
    /// If that fails.
    pub(super) fn sync(&mut self, destination: &Destination) -> anyhow::Result<()> {
        match (&mut self.to, destination) {
            (To::File(partial, path), Destination::Files(files)) => {
                partial.sync(files).with_context(|| cannot_write(path))?;
            }
            (To::File(..), _) => {}
            (To::Stdout(stdout, stage), _) => {
                let file = stdout.as_fd().try_clone_to_owned().map(File::from);
                file.and_then(|file| sync(&file)).map_err(to_stdout)?;
                *stage = Stage::Safe;
            }
            (To::Special(file, path, stage), _) => {
                sync(file).with_context(|| cannot_write(path))?;
                *stage = Stage::Safe;
            }
            (To::Socket(_, _, stage), _) => *stage = Stage::Safe,
        }
        Ok(())
    }

    /// The file gets its own name, which is given if it is not the one that was asked for.
    ///
    /// # Errors
    ///
    /// If that fails. What was received is kept, by the name that the error tells.
    pub(super) fn place(&mut self, destination: &mut Destination) -> anyhow::Result<Option<PathBuf>> {
        match (&mut self.to, destination) {
            (To::File(partial, path), Destination::Files(files)) => {
                let placed = partial.place(files).with_context(|| {
                    let kept = partial.path().display();
                    format!(
                        "cannot write {}: all of it is in {kept}, and the next multinet recv finishes it",
                        path.display()
                    )
                })?;
                Ok(Some(placed).filter(|placed| placed != path))
            }
            (To::File(..), _) => Ok(None),
            (To::Stdout(_, stage) | To::Special(_, _, stage) | To::Socket(_, _, stage), _) => {
                *stage = Stage::InPlace;
                Ok(None)
            }
        }
    }

    /// The sender knows that it is complete.
    pub(super) fn leave(self) {
        if let To::File(partial, _) = self.to {
            partial.leave();
        }
    }

    /// It will not become complete.
    pub(super) fn discard(self) {
        if let To::File(partial, _) = self.to {
            partial.discard();
        }
    }

    /// Removes what was received, unless the file is in its place.
    pub(super) fn reject(self) {
        if let To::File(partial, _) = self.to {
            partial.reject();
        }
    }

    fn read_what_is_there(&mut self) -> anyhow::Result<()> {
        let To::File(partial, path) = &mut self.to else { return Ok(()) };
        let mut reader = BufReader::with_capacity(1 << 20, &*partial.file());
        let mut bytes = vec![0; 1 << 20];
        loop {
            let read = reader.read(&mut bytes).with_context(|| cannot_write(path))?;
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

fn direct(path: &Path) -> io::Result<To> {
    let path = path.to_owned();
    if fs::metadata(&path)?.file_type().is_socket() {
        return Ok(To::Socket(UnixStream::connect(&path)?, path, Stage::Open));
    }
    let file = OpenOptions::new().write(true).open(&path)?;
    Ok(To::Special(file, path, Stage::Open))
}

/// Syncs a file, unless it has no disk behind it.
fn sync(file: &File) -> io::Result<()> {
    match file.sync_data() {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn destination(path: &Path) -> Destination {
        Destination::new(path, false, false).unwrap()
    }

    fn finish(mut sink: Sink, destination: &mut Destination) {
        sink.sync(destination).unwrap();
        assert_eq!(sink.place(destination).unwrap(), None);
        sink.leave();
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut to = destination(&path);
        let mut sink = Sink::open(&to, 7).unwrap();
        sink.write(b"ab").unwrap();
        assert!(!path.exists());
        drop(sink);
        // Another receiver goes on.
        let mut sink = Sink::open(&to, 7).unwrap();
        assert_eq!(sink.written(), 2);
        sink.write(b"c").unwrap();
        let summary = sink.summary();
        assert!((summary.bytes, &summary.sha256[..8]) == (3, "ba7816bf"), "{summary:?}");
        finish(sink, &mut to);
        assert_eq!(fs::read(&path).unwrap(), b"abc");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn transfers_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let to = destination(&folder.path().join("out"));
        let mut one = Sink::open(&to, 1).unwrap();
        one.write(b"one").unwrap();
        assert_eq!(Sink::open(&to, 2).unwrap().written(), 0);
        one.discard();
        assert_eq!(Sink::open(&to, 1).unwrap().written(), 0);
    }

    /// Neither a partial file beside it, nor a file in its place.
    #[test]
    fn what_is_no_regular_file_is_written_directly_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, socket] = ["pipe", "socket"].map(|name| folder.path().join(name));
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let reading = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                let accepted = listener.accept().unwrap().0;
                [io::read_to_string(accepted), fs::read_to_string(pipe)].map(Result::unwrap)
            }
        });
        for path in [&socket, &pipe, Path::new("/dev/null")] {
            let mut to = destination(path);
            let mut sink = Sink::open(&to, 1).unwrap();
            sink.write(b"bytes").unwrap();
            assert!(sink.is_spoilt());
            finish(sink, &mut to);
            assert!(!fs::metadata(path).unwrap().is_file());
        }
        assert_eq!(reading.join().unwrap(), ["bytes", "bytes"]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_full_disk_is_named() {
        let mut sink = Sink::open(&destination(Path::new("/dev/full")), 1).unwrap();
        let error = format!("{:#}", sink.write(b"bytes").unwrap_err());
        assert_eq!(error, "cannot write /dev/full: No space left on device (os error 28)");
    }

    /// A complete transfer is not lost because its place is taken.
    #[test]
    fn a_place_that_is_taken_in_between_keeps_what_was_received() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut to = destination(&path);
        let mut sink = Sink::open(&to, 7).unwrap();
        sink.write(b"new").unwrap();
        sink.sync(&to).unwrap();
        fs::write(&path, "old").unwrap();
        let error = format!("{:#}", sink.place(&mut to).unwrap_err());
        assert!(error.contains(".done, and the next multinet recv finishes it: File exists"), "{error}");
        sink.discard();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        fs::remove_file(&path).unwrap();
        let mut sink = Sink::open(&to, 7).unwrap();
        assert_eq!((sink.written(), sink.stage()), (3, Stage::Safe));
        sink.place(&mut to).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
}
