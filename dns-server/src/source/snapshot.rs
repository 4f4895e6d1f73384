//! The snapshot file: all objects, so that the next process can answer before it has synced.
//!
//! ```text
//! multinet-dns snapshot 4 serial=<u32> taken=<RFC 3339>\n
//! length row  length row  …  0                  bytes as u32, little-endian; rows by postcard
//! crc32                                         of all before it, little-endian
//! ```
//!
//! The header is one line of text, readable for people, so that a file of another version is
//! recognized before its body is read. Rows are written and read one at a time, so that even the
//! file of a million endpoints is never in memory as a whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use multinet_runtime::ObjectKey;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::limits::snapshot::{MAX_ROW, SKEW_SECONDS};
use crate::store::index::Service;
use crate::store::slice::Slice;
use crate::store::state::Objects;

/// Beginning of a snapshot file. The number is the version of the format.
const MAGIC: &str = "multinet-dns snapshot 4 ";

/// Largest length of a snapshot's header line in bytes.
const MAX_HEADER: u64 = 128;

/// A row to be written into a snapshot: namespace, name and object.
#[derive(Serialize)]
enum RowRef<'a> {
    Service(&'a str, &'a str, &'a Service),
    Slice(&'a str, &'a str, &'a Slice),
}

/// A row that was read from a snapshot: namespace, name and object.
#[derive(Deserialize)]
enum Row {
    Service(String, String, Service),
    Slice(String, String, Slice),
}

/// Encodes objects as the contents of a file.
///
/// # Errors
///
/// If `out` fails.
pub fn encode(out: impl Write, taken: Timestamp, objects: &Objects) -> io::Result<()> {
    let Objects { serial, services, slices } = objects;
    let mut out = Checksummed::new(out);
    out.write_all(format!("{MAGIC}serial={serial} taken={taken}\n").as_bytes())?;
    let mut row = Vec::new();
    let services = services.iter().map(|(key, object)| RowRef::Service(&key.namespace, &key.name, object));
    let slices = slices.iter().map(|(key, object)| RowRef::Slice(&key.namespace, &key.name, object));
    for object in services.chain(slices) {
        row.clear();
        row = postcard::to_extend(&object, row).map_err(io::Error::other)?;
        let length = u32::try_from(row.len()).map_err(io::Error::other)?;
        out.write_all(&length.to_le_bytes())?;
        out.write_all(&row)?;
    }
    out.write_all(&0u32.to_le_bytes())?;
    let crc = out.sum.clone().finalize();
    out.inner.write_all(&crc.to_le_bytes())
}

/// Decodes the contents of a file, if they are complete and not older than `max_age`.
///
/// # Errors
///
/// If they are not. The message states the reason.
pub fn decode(mut input: impl BufRead, now: Timestamp, max_age: Duration) -> Result<Objects> {
    let line = header_line(&mut input)?;
    let header = Header::parse(&line).context("damaged: unreadable header")?;
    let age = now.duration_since(header.taken);
    let is_future = age < -SignedDuration::from_secs(SKEW_SECONDS);
    if is_future || age.unsigned_abs() > max_age && age.is_positive() {
        let when = if is_future { "in the future" } else { "too long ago" };
        bail!("taken at {}, which is {when}", header.taken);
    }
    let mut input = Checksummed::new(input);
    input.sum.update(&line);
    let mut objects = Objects { serial: header.serial, ..Objects::default() };
    let mut row = Vec::new();
    loop {
        let length = u32::from_le_bytes(input.read_array()?);
        match length {
            0 => break,
            1..=MAX_ROW => {}
            _ => bail!("damaged: a row is too long"),
        }
        row.clear();
        // The length may be damaged, so memory grows only with the data that are there.
        let read = Read::take(&mut input, length.into()).read_to_end(&mut row)?;
        ensure!(read == length as usize, TRUNCATED);
        match postcard::from_bytes(&row).map_err(|error| anyhow!("damaged: {error}"))? {
            Row::Service(namespace, name, service) => {
                objects.services.push((ObjectKey { namespace, name }, service));
            }
            Row::Slice(namespace, name, slice) => {
                objects.slices.push((ObjectKey { namespace, name }, Arc::new(slice)));
            }
        }
    }
    let crc = input.sum.clone().finalize();
    ensure!(u32::from_le_bytes(input.read_array()?) == crc, "damaged: wrong checksum");
    ensure!(input.read(&mut [0])? == 0, "damaged: data after the checksum");
    Ok(objects)
}

const TRUNCATED: &str = "damaged: cut off";

/// Returns the header line of a snapshot, including its end.
fn header_line(input: impl BufRead) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    input.take(MAX_HEADER).read_until(b'\n', &mut line)?;
    ensure!(line.starts_with(MAGIC.as_bytes()), "not a snapshot of this version");
    ensure!(line.ends_with(b"\n"), "damaged: no header");
    Ok(line)
}

struct Header {
    serial: u32,
    taken: Timestamp,
}

impl Header {
    fn parse(line: &[u8]) -> Option<Self> {
        let line = line.strip_prefix(MAGIC.as_bytes())?.strip_suffix(b"\n")?;
        let mut words = str::from_utf8(line).ok()?.split(' ');
        let mut value = |key: &str| words.next()?.strip_prefix(key);
        let header = Self { serial: value("serial=")?.parse().ok()?, taken: value("taken=")?.parse().ok()? };
        words.next().is_none().then_some(header)
    }
}

/// A reader or writer that computes the CRC-32 of all data that pass.
struct Checksummed<T> {
    inner: T,
    sum: crc32fast::Hasher,
}

impl<T> Checksummed<T> {
    fn new(inner: T) -> Self {
        Self { inner, sum: crc32fast::Hasher::new() }
    }
}

impl<T: Read> Checksummed<T> {
    fn read_array(&mut self) -> Result<[u8; 4]> {
        let mut bytes = [0; 4];
        match self.read_exact(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => bail!(TRUNCATED),
            Err(error) => Err(error.into()),
        }
    }
}

impl<T: Read> Read for Checksummed<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.sum.update(&buffer[..read]);
        Ok(read)
    }
}

impl<T: Write> Write for Checksummed<T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.sum.update(&buffer[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Reads a snapshot file; `None` if it does not exist.
///
/// # Errors
///
/// If the file exists and cannot be read or used.
pub fn read(file: &Path, now: Timestamp, max_age: Duration) -> Result<Option<Objects>> {
    if !exists(file)? {
        return Ok(None);
    }
    // If a pipe has taken the file's place meanwhile, opening must not block.
    let opened =
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(file)?;
    decode(BufReader::with_capacity(BUFFER, opened), now, max_age).map(Some)
}

/// Tells whether a file exists that may be replaced.
///
/// # Errors
///
/// If something other than a regular file is there. Renaming over it would replace a device by a
/// file.
pub fn exists(file: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(file) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => Err(io::Error::other("is not a regular file; name one, or a file that does not exist yet")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Size in bytes of the buffers for reading and writing a snapshot.
const BUFFER: usize = 256 << 10;

/// Replaces the contents of `file` atomically: readers see the old or the new contents, even after
/// a crash. Files that killed writers left behind are removed first, to make room.
///
/// # Errors
///
/// If the folder cannot be written to.
pub fn write(file: &Path, taken: Timestamp, objects: &Objects) -> io::Result<()> {
    remove_leftovers(file);
    let mut temporary = create_temporary(file)?;
    let mut out = BufWriter::with_capacity(BUFFER, temporary.as_file_mut());
    encode(&mut out, taken, objects)?;
    out.flush()?;
    drop(out);
    temporary.as_file().sync_all()?;
    exists(file)?;
    temporary.persist(file).map_err(|error| error.error)?;
    File::open(folder_of(file))?.sync_all()
}

/// Creates an empty file beside `file` that will be renamed to it. Its name is `.NAME.XXXXXX.new`,
/// and only its owner may read it. It stays locked while its writer lives, which may also be
/// another server with the same file.
fn create_temporary(file: &Path) -> io::Result<NamedTempFile> {
    let made = tempfile::Builder::new()
        .prefix(&prefix(file))
        .rand_bytes(RANDOM_LETTERS)
        .suffix(SUFFIX)
        .tempfile_in(folder_of(file))?;
    // Where the file system has no locks, leftovers cannot be recognized, and none is removed.
    let _ = made.as_file().try_lock();
    Ok(made)
}

/// Number of random letters in the name of a file being written, so that two writers do not
/// collide. tempfile never reuses an existing name, not even that of a link.
const RANDOM_LETTERS: usize = 6;

/// End of the name of a file being written.
const SUFFIX: &str = ".new";

/// Returns the beginning of the names under which a new version of `file` is written.
fn prefix(file: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(file.file_name().unwrap_or_default());
    prefix.push(".");
    prefix
}

/// Removes files of [`create_temporary`] whose writers have ended. A file that cannot be removed is
/// tried again by the next write.
fn remove_leftovers(file: &Path) {
    let prefix = prefix(file);
    let is_one = |name: &[u8]| {
        let random = name.strip_prefix(prefix.as_encoded_bytes());
        let random = random.and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
        random.is_some_and(|random| {
            random.len() == RANDOM_LETTERS && random.iter().all(u8::is_ascii_alphanumeric)
        })
    };
    let Ok(entries) = fs::read_dir(folder_of(file)) else { return };
    for entry in entries.flatten().filter(|entry| is_one(entry.file_name().as_encoded_bytes())) {
        if is_abandoned(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Tells whether this is a file that its writer has abandoned: no process has it locked.
fn is_abandoned(path: &Path) -> bool {
    // The flags avoid following a link and blocking on a pipe. Locking a file on NFS requires write
    // access.
    let opened = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    opened.is_ok_and(|file| file.try_lock().is_ok())
}

/// Returns the folder that a file is in; `.` for a bare name.
pub fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::store::endpoints::Endpoint;
    use crate::store::index::Created;
    use crate::store::slice::VertexName;

    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> Timestamp {
        "2026-11-21T09:00:00Z".parse().unwrap()
    }

    fn snapshot() -> Objects {
        let key = ObjectKey { namespace: "vision".into(), name: "infer".into() };
        let endpoint =
            Endpoint { address: "192.0.2.1".parse().unwrap(), host: "a", named: true, txt: b"\x03k=v" };
        let slice = Slice {
            service: "infer".into(),
            network: "rail0".into(),
            endpoints: [endpoint].into_iter().collect(),
            vertex: Some(VertexName { vertex: "infer".into(), pipeline: "frames".into() }),
            ..Slice::default()
        };
        Objects {
            serial: 7,
            services: vec![(key.clone(), Service { ttl: Some(30), created: Created::at(1_700_000_000) })],
            slices: vec![(key, Arc::new(slice))],
        }
    }

    fn encoded(snapshot: &Objects) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&mut bytes, now(), snapshot).unwrap();
        bytes
    }

    fn error(bytes: &[u8], at: Timestamp) -> String {
        decode(bytes, at, HOUR).unwrap_err().to_string()
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written() {
        let snapshot = snapshot();
        assert_eq!(decode(encoded(&snapshot).as_slice(), now(), HOUR).unwrap(), snapshot);
    }

    #[test]
    fn the_age_of_a_snapshot_counts_from_when_it_was_taken() {
        let bytes = encoded(&snapshot());
        let after = |seconds| now() + SignedDuration::from_secs(seconds);
        assert!(decode(bytes.as_slice(), after(3600), HOUR).is_ok());
        assert!(error(&bytes, after(3601)).contains("too long ago"));
        assert!(decode(bytes.as_slice(), after(-60), HOUR).is_ok());
        assert!(error(&bytes, after(-61)).contains("in the future"));
    }

    #[test]
    fn other_files_are_refused() {
        assert_eq!(error(b"", now()), "not a snapshot of this version");
        assert_eq!(error(b"multinet-dns snapshot 3 serial=1", now()), "not a snapshot of this version");
        assert_eq!(error(b"multinet-dns snapshot 4 serial=x\n", now()), "damaged: unreadable header");
        assert_eq!(error(b"multinet-dns snapshot 4 serial=1", now()), "damaged: no header");
    }

    #[test]
    fn a_damaged_byte_or_a_cut_anywhere_is_noticed() {
        let snapshot = snapshot();
        let bytes = encoded(&snapshot);
        for position in 0..bytes.len() {
            assert!(decode(&bytes[..position], now(), HOUR).is_err(), "cut at {position}");
            let mut damaged = bytes.clone();
            damaged[position] ^= 0x10;
            assert!(decode(damaged.as_slice(), now(), HOUR).is_err(), "damaged at {position}");
        }
    }

    #[test]
    fn files_of_killed_writers_are_removed_by_the_next_write() {
        let folder = tempfile::tempdir().unwrap();
        let names = || -> BTreeSet<OsString> {
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        let (file, other) = (folder.path().join("dns.snapshot"), folder.path().join("dns.snapshot.b"));
        let mut expected = BTreeSet::from(["dns.snapshot".into()]);
        // Files that must stay: one being written, one of another snapshot, and others with similar
        // names or that are links.
        let busy = create_temporary(&file).unwrap();
        let (_, left_of_other) = create_temporary(&other).unwrap().keep().unwrap();
        let by_hand = [".dns.snapshot.Abc123", ".dns.snapshot.Abc1234.new", "dns.snapshot.Abc123.new"];
        by_hand.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        let link = folder.path().join(".dns.snapshot.Abc123.new");
        symlink(folder.path().join(by_hand[0]), &link).unwrap();
        expected.extend(names());
        for _ in 0..2 {
            let (locked, left) = create_temporary(&file).unwrap().keep().unwrap();
            assert!(left.exists());
            drop(locked); // as the kernel does when its process ends
            write(&file, now(), &snapshot()).unwrap();
            assert_eq!(names(), expected);
        }
        // The writer is not disturbed by the cleanup.
        busy.persist(&file).unwrap();
        write(&other, now(), &snapshot()).unwrap();
        assert!(!left_of_other.exists());
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("dns.snapshot");
        let is = |serial| Objects { serial, ..snapshot() };
        assert!(read(&file, now(), HOUR).unwrap().is_none());
        write(&file, now(), &is(1)).unwrap();
        write(&file, now(), &is(2)).unwrap();
        assert_eq!(read(&file, now(), HOUR).unwrap(), Some(is(2)));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&folder.path().join("none/file"), now(), &is(1)).is_err());
    }

    #[test]
    fn a_path_that_is_no_regular_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        fs::create_dir(place("folder")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(place("pipe")).status().unwrap().success());
        symlink("/dev/null", place("link")).unwrap();
        symlink(place("none"), place("dangling")).unwrap();
        for file in ["folder", "pipe", "link", "dangling"].map(place) {
            let before = fs::symlink_metadata(&file).unwrap().file_type();
            for result in
                [read(&file, now(), HOUR).map(drop), write(&file, now(), &snapshot()).map_err(Into::into)]
            {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("not a regular file"), "{}: {error}", file.display());
            }
            assert_eq!(fs::symlink_metadata(&file).unwrap().file_type(), before, "{}", file.display());
        }
        assert!(!place("none").exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    }
}
