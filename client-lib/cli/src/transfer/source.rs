//! Reads the file or stream that is sent or offered, in a thread of its own: a terminal or a pipe
//! may have nothing for hours. A file that changes meanwhile is an error.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use multinet_client::Buffer;
use ring::digest::{Context, SHA256};
use tokio::sync::mpsc;

use super::Summary;
use super::header::Abort;

/// Most parts of the file that are read ahead of sending.
const AHEAD: usize = 4;

/// Parts whose memory is used again, at most: those that are being sent, and those read ahead.
const POOL: usize = 64;

/// A part of the file that is sent, its end, or the failure to read it.
pub(super) enum Part {
    Bytes(Buffer),
    /// The end of the file, with its size and checksum.
    End(Summary),
    Failed(Fault),
}

/// Reason why the sender ends the transfer early: the file cannot be read, or has changed.
#[derive(Debug)]
pub(super) struct Fault {
    /// The reason that the receiver is told.
    pub(super) reason: Abort,
    pub(super) error: anyhow::Error,
}

/// Detects that a file has changed since it was opened.
struct ChangeDetector {
    file: File,
    path: PathBuf,
    before: Metadata,
}

/// The parts as they are read, and their size together, if that is known.
pub(super) struct Source {
    pub(super) parts: mpsc::Receiver<Part>,
    pub(super) total: Option<u64>,
}

/// Opens a file, `-` for standard input, and reads it in parts of that size.
///
/// # Errors
///
/// If it cannot be opened.
pub(super) fn open(path: &Path, size: usize) -> anyhow::Result<Source> {
    let (reader, total, watch): (Box<dyn Read + Send>, _, _) = if path == Path::new("-") {
        (Box::new(io::stdin()), None, None)
    } else {
        let cannot_read = || format!("cannot read {}", path.display());
        let file = File::open(path).with_context(cannot_read)?;
        let about = file.metadata().with_context(cannot_read)?;
        anyhow::ensure!(
            !about.is_dir(),
            "{} is a folder: give a tar of it, by tar -c and - in place of the file",
            path.display()
        );
        let watch = match about.is_file() {
            true => Some(ChangeDetector {
                file: file.try_clone().with_context(cannot_read)?,
                path: path.to_owned(),
                before: about.clone(),
            }),
            false => None,
        };
        // Files of /proc and the like have no size before they are read.
        (Box::new(file), Some(about.len()).filter(|&size| about.is_file() && size > 0), watch)
    };
    let is_same = move || watch.as_ref().map_or(Ok(()), ChangeDetector::check);
    let (sender, parts) = mpsc::channel(AHEAD);
    std::thread::Builder::new()
        .name("source".to_owned())
        .spawn(move || read(reader, is_same, size, &sender))?;
    Ok(Source { parts, total })
}

impl ChangeDetector {
    fn check(&self) -> Result<(), Fault> {
        let path = self.path.display();
        let now = self.file.metadata().map_err(|error| Fault::unreadable(error, &path.to_string()))?;
        // Programs can set back the time of modification, but not that of the last change (ctime).
        let times = |of: &Metadata| [of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()];
        let reason = match &self.before {
            before if now.len() < before.len() => Abort::Truncated,
            before if now.len() > before.len() || times(&now) != times(before) => Abort::Changed,
            _ => return Ok(()),
        };
        let error = match reason {
            Abort::Truncated => anyhow!(
                "{path} has become shorter while it was read: {} bytes, after {}; try again",
                now.len(),
                self.before.len()
            ),
            _ => anyhow!(
                "{path} has changed while it was read, or got another name; try again when no program changes it"
            ),
        };
        Err(Fault { reason, error })
    }
}

impl Fault {
    fn unreadable(error: io::Error, what: &str) -> Self {
        let error = anyhow::Error::new(error).context(format!("cannot read {what}"));
        Self { reason: Abort::Unreadable, error }
    }
}

/// Reads until the end, or until the receiver of the parts has gone. After each read, the file is
/// checked, so that no part of a changed file is sent.
fn read(
    mut reader: impl Read,
    is_same: impl Fn() -> Result<(), Fault>,
    size: usize,
    parts: &mpsc::Sender<Part>,
) {
    let mut hash = Context::new(&SHA256);
    let mut pool = VecDeque::new();
    let mut total = 0;
    loop {
        let mut buffer = writable(&mut pool, size);
        let part = match buffer.as_mut().map(|place| fill(&mut reader, place)) {
            Some(Ok(0)) | None => Part::End(Summary::new(total, &hash.clone().finish())),
            Some(Ok(length)) => {
                let bytes = &buffer.bytes()[..length];
                hash.update(bytes);
                total += length as u64;
                // Only the last part is shorter, and a frame is all of its buffer.
                Part::Bytes(if length == size { buffer.clone() } else { bytes.to_vec().into() })
            }
            Some(Err(error)) => Part::Failed(Fault::unreadable(error, "what is to be sent")),
        };
        let part = is_same().map_or_else(Part::Failed, |()| part);
        pool.push_back(buffer);
        pool.truncate(POOL);
        let is_last = !matches!(part, Part::Bytes(_));
        if parts.blocking_send(part).is_err() || is_last {
            return;
        }
    }
}

/// Returns memory to read into: that of a part that has been acknowledged, or new.
fn writable(pool: &mut VecDeque<Buffer>, size: usize) -> Buffer {
    // Parts are released in the order in which they were sent.
    let is_free = pool.front_mut().is_some_and(|buffer| buffer.as_mut().is_some());
    let free = if is_free { pool.pop_front() } else { None };
    free.unwrap_or_else(|| Buffer::host(size))
}

/// Reads until `place` is full, or the reader is at its end. Returns the number of bytes.
fn fill(reader: &mut impl Read, place: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = place.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    /// Gives one byte at a time, as a pipe may.
    struct Slowly<'b>(&'b [u8]);

    impl Read for Slowly<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let first = &mut to[..1];
            self.0.read(first)
        }
    }

    #[test]
    fn a_stream_is_read_as_full_parts_and_a_rest() {
        for (bytes, parts, sha256) in
            [(&b""[..], &[][..], EMPTY), (b"abc", &[&b"ab"[..], b"c"], ABC), (b"abc", &[b"ab", b"c"], ABC)]
        {
            let (sender, mut receiver) = mpsc::channel(8);
            read(Slowly(bytes), || Ok(()), 2, &sender);
            for part in parts {
                assert!(matches!(receiver.try_recv().unwrap(), Part::Bytes(got) if got.bytes() == *part));
            }
            let Part::End(summary) = receiver.try_recv().unwrap() else { panic!("the end is missing") };
            assert_eq!(summary, Summary { bytes: bytes.len() as u64, sha256: sha256.to_owned() });
        }
    }

    /// By size, by content, and with its time set back.
    #[test]
    fn a_file_that_changes_is_noticed() {
        use std::fs::{self, OpenOptions};
        use std::io::Write as _;

        type Change = fn(&Path);
        let append = |path: &Path| OpenOptions::new().append(true).open(path).unwrap();
        let overwrite: Change =
            |path| OpenOptions::new().write(true).open(path).unwrap().write_all(b"x").unwrap();
        let overwrite_and_set_back: Change = |path| {
            let before = fs::metadata(path).unwrap().modified().unwrap();
            let mut file = OpenOptions::new().write(true).open(path).unwrap();
            file.write_all(b"x").unwrap();
            file.set_modified(before).unwrap();
        };
        let cases: [(Change, Option<Abort>, &str); 5] = [
            (|_| {}, None, ""),
            (
                |path| OpenOptions::new().write(true).open(path).unwrap().set_len(1).unwrap(),
                Some(Abort::Truncated),
                "has become shorter while it was read: 1 bytes, after 7; try again",
            ),
            (overwrite, Some(Abort::Changed), "has changed while it was read"),
            (overwrite_and_set_back, Some(Abort::Changed), "has changed while it was read"),
            // A log is sent when it is no longer written.
            (|path| fs::write(path, "content, and more").unwrap(), Some(Abort::Changed), "has changed"),
        ];
        for (change, expected, said) in cases {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            fs::write(&path, "content").unwrap();
            let file = append(&path);
            let before = file.metadata().unwrap();
            let watch = ChangeDetector { file, path: path.clone(), before };
            // Clocks of file systems are coarse.
            std::thread::sleep(std::time::Duration::from_millis(20));
            change(&path);
            let fault = watch.check().err();
            assert_eq!(fault.as_ref().map(|fault| fault.reason), expected);
            assert!(fault.is_none_or(|fault| fault.error.to_string().contains(said)), "{said}");
        }
    }

    #[test]
    fn no_part_that_is_read_after_a_change_is_sent() {
        let (sender, mut receiver) = mpsc::channel(8);
        let looks = std::cell::Cell::new(0);
        let is_same = || {
            looks.set(looks.get() + 1);
            match looks.get() {
                1 => Ok(()),
                _ => Err(Fault { reason: Abort::Changed, error: anyhow!("changed") }),
            }
        };
        read(Slowly(b"abc"), is_same, 2, &sender);
        assert!(matches!(receiver.try_recv().unwrap(), Part::Bytes(_)));
        assert!(matches!(receiver.try_recv().unwrap(), Part::Failed(_)));
        assert!(receiver.try_recv().is_err());
    }

    /// The kernel says that it is empty.
    #[tokio::test]
    async fn a_file_without_size_is_read_to_its_end() {
        let mut source = open(Path::new("/proc/self/status"), 1 << 20).unwrap();
        assert_eq!(source.total, None);
        assert!(matches!(source.parts.recv().await.unwrap(), Part::Bytes(bytes) if !bytes.is_empty()));
        assert!(matches!(source.parts.recv().await.unwrap(), Part::End(_)));
    }

    #[test]
    fn memory_is_used_again_when_it_has_been_released() {
        let mut pool = VecDeque::from([Buffer::host(4)]);
        let under_way = pool[0].clone();
        let first = under_way.bytes().as_ptr();
        let other = writable(&mut pool, 4);
        assert_ne!(other.bytes().as_ptr(), first, "the first is still under way");
        drop(under_way);
        assert_eq!(writable(&mut pool, 4).bytes().as_ptr(), first);
        assert!(pool.is_empty());
    }
}
