//! An output that is written as the bytes come: standard output, a device, a named pipe or a
//! socket.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use nix::unistd::geteuid;

use crate::output::stdout_error;

/// Mode of a folder, such as `/tmp`, in which everybody may create files and remove their own only.
const STICKY: u32 = 0o1000;

/// Bits of a file's mode that are its type (S_IFMT).
const FILE_TYPE: u32 = 0o170_000;

/// Mode of a folder in which users other than its owner may create files.
const SHARED: u32 = 0o022;

/// An output without partial file and rename.
///
/// It is opened once, when the first byte is to be written. If it were opened for each sender, the
/// reader of a named pipe would see the end of the file whenever a sender is refused, and go.
#[derive(Debug)]
pub(super) struct Stream {
    target: StreamTarget,
    file: Option<File>,
}

#[derive(Debug)]
enum StreamTarget {
    Stdout,
    Path(PathBuf, Identity),
}

/// A device, named pipe or socket as it was when the program started. The inode number alone does
/// not tell: a file that is created when the pipe has been removed may get its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    file_system: u64,
    inode: u64,
    owner: u32,
    kind: u32,
    device: u64,
}

impl Stream {
    pub(super) fn stdout() -> Self {
        Self { target: StreamTarget::Stdout, file: None }
    }

    /// The device, named pipe or socket at a path. A path that leads to this program's standard
    /// output, such as `/dev/stdout`, counts as that, so that messages go elsewhere.
    ///
    /// # Errors
    ///
    /// If another user may have put it there, in a folder such as `/tmp`.
    pub(super) fn at(path: &Path, about: &Metadata) -> anyhow::Result<Self> {
        let stdout = StreamTarget::Stdout.open().and_then(|file| file.metadata());
        if stdout.is_ok_and(|stdout| Identity::of(&stdout) == Identity::of(about)) {
            return Ok(Self::stdout());
        }
        // Links such as /dev/stdout lead to no path.
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let folder = real.parent().unwrap_or(&real);
        let folder = fs::metadata(folder).with_context(|| cannot_write(path))?;
        check_owner(path, about.uid(), (folder.uid(), folder.mode()))?;
        Ok(Self { target: StreamTarget::Path(path.to_owned(), Identity::of(about)), file: None })
    }

    pub(super) fn is_stdout(&self) -> bool {
        matches!(self.target, StreamTarget::Stdout)
    }

    /// Writes all bytes.
    ///
    /// # Errors
    ///
    /// [`PipeClosed`](crate::output::PipeClosed), or the kernel's error.
    pub(super) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = self.file().and_then(|file| file.write_all(bytes));
        written.map_err(|error| {
            // With --keep, another reader may come.
            self.file = None;
            self.target.error(error)
        })
    }

    /// Syncs what has been written, if there is a disk behind it. An output to which nothing has
    /// been written is opened, so that the reader of a named pipe sees its end.
    ///
    /// # Errors
    ///
    /// [`PipeClosed`](crate::output::PipeClosed), or the kernel's error.
    pub(super) fn sync(&mut self) -> anyhow::Result<()> {
        use io::ErrorKind::{InvalidInput, ReadOnlyFilesystem, Unsupported};
        match self.file().and_then(|file| file.sync_data()) {
            Err(error) if !matches!(error.kind(), InvalidInput | ReadOnlyFilesystem | Unsupported) => {
                Err(self.target.error(error))
            }
            _ => Ok(()),
        }
    }

    fn file(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.target.open()?,
        };
        Ok(self.file.insert(file))
    }
}

impl StreamTarget {
    fn open(&self) -> io::Result<File> {
        let Self::Path(path, expected) = self else {
            return io::stdout().as_fd().try_clone_to_owned().map(File::from);
        };
        let about = fs::metadata(path)?;
        if about.file_type().is_socket() {
            expected.check(&about)?;
            return UnixStream::connect(path).map(|stream| OwnedFd::from(stream).into());
        }
        let file = OpenOptions::new().write(true).open(path)?;
        // What is open is what counts: the path may lead elsewhere by now.
        expected.check(&file.metadata()?)?;
        Ok(file)
    }

    fn error(&self, error: io::Error) -> anyhow::Error {
        match self {
            Self::Stdout => stdout_error(error),
            Self::Path(path, _) => anyhow::Error::new(error).context(cannot_write(path)),
        }
    }
}

impl Identity {
    fn of(about: &Metadata) -> Self {
        Self {
            file_system: about.dev(),
            inode: about.ino(),
            owner: about.uid(),
            kind: about.mode() & FILE_TYPE,
            device: about.rdev(),
        }
    }

    fn check(self, now: &Metadata) -> io::Result<()> {
        match Self::of(now) == self {
            true => Ok(()),
            false => Err(io::Error::other("something else has taken its place since the start")),
        }
    }
}

/// Refuses what another user may have put in place of the expected device, pipe or socket.
///
/// The rule is the kernel's for named pipes in such folders (`fs.protected_fifos`).
fn check_owner(path: &Path, owner: u32, (folder_owner, folder_mode): (u32, u32)) -> anyhow::Result<()> {
    let is_shared = folder_mode & STICKY != 0 && folder_mode & SHARED != 0;
    ensure!(
        !is_shared || owner == geteuid().as_raw() || owner == folder_owner,
        "{}: it belongs to user {owner}, in a folder where everybody may create files; name one of your own",
        cannot_write(path)
    );
    Ok(())
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn at(path: &Path) -> Stream {
        Stream::at(path, &fs::metadata(path).unwrap()).unwrap()
    }

    #[test]
    fn pipes_sockets_and_devices_are_written_and_stay() {
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
            let mut stream = at(path);
            stream.write(b"by").unwrap();
            stream.write(b"tes").unwrap();
            stream.sync().unwrap();
            assert!(!fs::metadata(path).unwrap().is_file());
        }
        assert_eq!(reading.join().unwrap(), ["bytes", "bytes"]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_reader_of_a_pipe_to_which_nothing_is_written_sees_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let mut stream = at(&pipe);
        let reading = std::thread::spawn(move || fs::read_to_string(pipe).unwrap());
        stream.sync().unwrap();
        drop(stream);
        assert_eq!(reading.join().unwrap(), "");
    }

    #[test]
    fn a_file_that_takes_the_place_of_a_pipe_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let mut stream = at(&path);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "old").unwrap();
        let error = format!("{:#}", stream.write(b"new").unwrap_err());
        assert!(error.ends_with("out: something else has taken its place since the start"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn a_pipe_of_another_user_in_a_sticky_folder_is_refused() {
        let (own, other) = (geteuid().as_raw(), 4711);
        let allowed = |owner, folder| check_owner(Path::new("pipe"), owner, folder).is_ok();
        for (owner, folder, expected) in [
            (own, (0, 0o41777), true),
            (other, (0, 0o41777), false),
            (other, (0, 0o41770), false),
            (other, (0, 0o41755), true),
            (other, (0, 0o40777), true),
            (other, (other, 0o41777), true),
        ] {
            assert_eq!(allowed(owner, folder), expected, "{owner} {folder:?}");
        }
    }

    #[test]
    fn a_full_device_is_named() {
        let error = format!("{:#}", at(Path::new("/dev/full")).write(b"bytes").unwrap_err());
        assert_eq!(error, "cannot write /dev/full: No space left on device (os error 28)");
    }
}
