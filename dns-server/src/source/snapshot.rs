//! The snapshot file: what is known, so that the next process has something to say before it has synced.
//!
//! ```text
//! multinet-dns snapshot 1 serial=<u32> taken=<RFC 3339> length=<octets> crc32=<8 hex digits>\n
//! {"services": [[namespace, name, service], …], "slices": [[namespace, name, slice], …]}
//! ```
//!
//! The header is one line of text, so that a person can look at it, and an old or damaged file is known before
//! its body is read.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use multinet_runtime::ObjectKey;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::index::{Service, Slice};
use crate::state::Objects;

/// What a file begins with; the number is the version of the format.
const MAGIC: &str = "multinet-dns snapshot 1 ";

/// A larger file is none of ours: a million endpoints take less.
const MAX_SIZE: u64 = 2 << 30;

/// How far the clock of whoever wrote the file may be ahead.
const SKEW: SignedDuration = SignedDuration::from_secs(60);

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It begins otherwise.
    #[error("not a snapshot of this version")]
    Foreign,
    /// It is cut off or altered.
    #[error("damaged: {0}")]
    Damaged(&'static str),
    /// The checksum is right and the body is not.
    #[error("damaged: {0}")]
    Body(#[from] serde_json::Error),
    /// It is older than allowed, or from the future.
    #[error("taken at {taken}, which is {}", if *is_future { "in the future" } else { "too long ago" })]
    Age {
        /// When it was taken.
        taken: Timestamp,
        /// Which of the two.
        is_future: bool,
    },
}

#[derive(Serialize, Deserialize)]
struct Body<S, T> {
    services: Vec<(String, String, S)>,
    slices: Vec<(String, String, T)>,
}

/// The contents of a snapshot file.
///
/// # Errors
///
/// None that our own types can cause; serde's interface has room for some.
pub fn encode(taken: Timestamp, objects: &Objects) -> Result<Vec<u8>, serde_json::Error> {
    let Objects { serial, services, slices } = objects;
    let body = serde_json::to_vec(&Body { services: rows(services), slices: rows(slices) })?;
    let header = format!("serial={serial} taken={taken} length={}", body.len());
    let crc = checksum(header.as_bytes(), &body);
    Ok([format!("{MAGIC}{header} crc32={crc:08x}\n").into_bytes(), body].concat())
}

/// Of the header, as far as it goes before the checksum itself, and the body.
fn checksum(header: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(body);
    hasher.finalize()
}

fn rows<T>(objects: &[(ObjectKey, T)]) -> Vec<(String, String, &T)> {
    objects.iter().map(|(key, object)| (key.namespace.clone(), key.name.clone(), object)).collect()
}

/// Reads the contents of a file, if they are whole and not older than `max_age`.
///
/// # Errors
///
/// [`SnapshotError`] says what is wrong with them.
pub fn decode(bytes: &[u8], now: Timestamp, max_age: Duration) -> Result<Objects, SnapshotError> {
    let rest = bytes.strip_prefix(MAGIC.as_bytes()).ok_or(SnapshotError::Foreign)?;
    let end = rest.iter().position(|&octet| octet == b'\n').ok_or(SnapshotError::Damaged("no header"))?;
    let (line, body) = (&rest[..end], &rest[end + 1..]);
    let header = Header::parse(line).ok_or(SnapshotError::Damaged("unreadable header"))?;
    let age = now.duration_since(header.taken);
    let is_future = age < -SKEW;
    if is_future || age.unsigned_abs() > max_age && age.is_positive() {
        return Err(SnapshotError::Age { taken: header.taken, is_future });
    }
    if body.len() != header.length {
        return Err(SnapshotError::Damaged("wrong length"));
    }
    let checked = line.len().saturating_sub(" crc32=01234567".len());
    if checksum(&line[..checked], body) != header.crc {
        return Err(SnapshotError::Damaged("wrong checksum"));
    }
    let body: Body<Service, Slice> = serde_json::from_slice(body)?;
    let key = |namespace, name| ObjectKey { namespace, name };
    Ok(Objects {
        serial: header.serial,
        services: body.services.into_iter().map(|(ns, name, object)| (key(ns, name), object)).collect(),
        slices: body.slices.into_iter().map(|(ns, name, object)| (key(ns, name), object)).collect(),
    })
}

struct Header {
    serial: u32,
    taken: Timestamp,
    length: usize,
    crc: u32,
}

impl Header {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(line).ok()?.split(' ');
        let mut value = |key: &str| words.next()?.strip_prefix(key);
        Some(Self {
            serial: value("serial=")?.parse().ok()?,
            taken: value("taken=")?.parse().ok()?,
            length: value("length=")?.parse().ok()?,
            crc: u32::from_str_radix(value("crc32=")?, 16).ok()?,
        })
    }
}

/// The contents of `file`; nothing where there is none.
///
/// # Errors
///
/// If the file is there and cannot be read, or is too large to be a snapshot.
pub fn read(file: &Path) -> io::Result<Option<Vec<u8>>> {
    let opened = match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    opened.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too large to be a snapshot"));
    }
    Ok(Some(bytes))
}

/// Replaces `file` by `bytes`: whoever looks, also after a crash, sees the old contents or the new ones.
///
/// # Errors
///
/// If the folder cannot be written to.
pub fn write_atomically(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Readable by its owner only, as tempfile makes it.
    let mut fresh = NamedTempFile::new_in(folder)?;
    fresh.write_all(bytes)?;
    fresh.as_file().sync_all()?;
    fresh.persist(file).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> Timestamp {
        "2026-11-21T09:00:00Z".parse().unwrap()
    }

    fn snapshot() -> Objects {
        let key = ObjectKey { namespace: "vision".into(), name: "infer".into() };
        let slice = Slice { service: "infer".into(), network: "rail0".into(), ..Slice::default() };
        Objects {
            serial: 7,
            services: vec![(key.clone(), Service { ttl: Some(30) })],
            slices: vec![(key, slice)],
        }
    }

    fn encoded(snapshot: &Objects) -> Vec<u8> {
        encode(now(), snapshot).unwrap()
    }

    fn error(bytes: &[u8], at: Timestamp) -> String {
        decode(bytes, at, HOUR).unwrap_err().to_string()
    }

    #[test]
    fn what_was_written_is_read() {
        let snapshot = snapshot();
        assert_eq!(decode(&encoded(&snapshot), now(), HOUR).unwrap(), snapshot);
    }

    #[test]
    fn age_counts_from_when_it_was_taken() {
        let bytes = encoded(&snapshot());
        let after = |seconds| now() + SignedDuration::from_secs(seconds);
        assert!(decode(&bytes, after(3600), HOUR).is_ok());
        assert!(error(&bytes, after(3601)).contains("too long ago"));
        assert!(decode(&bytes, after(-60), HOUR).is_ok());
        assert!(error(&bytes, after(-61)).contains("in the future"));
    }

    #[test]
    fn other_files_are_refused() {
        assert_eq!(error(b"", now()), "not a snapshot of this version");
        assert_eq!(error(b"multinet-dns snapshot 2 serial=1", now()), "not a snapshot of this version");
        assert_eq!(error(b"multinet-dns snapshot 1 serial=x\n", now()), "damaged: unreadable header");
        assert_eq!(error(b"multinet-dns snapshot 1 serial=1", now()), "damaged: no header");
    }

    #[test]
    fn every_damaged_octet_and_every_cut_is_noticed() {
        let snapshot = snapshot();
        let bytes = encoded(&snapshot);
        for position in 0..bytes.len() {
            assert!(decode(&bytes[..position], now(), HOUR).is_err(), "cut at {position}");
            let mut damaged = bytes.clone();
            damaged[position] ^= 0x10;
            assert!(decode(&damaged, now(), HOUR).is_err(), "damaged at {position}");
        }
    }

    #[test]
    fn files_are_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("dns.snapshot");
        assert!(read(&file).unwrap().is_none());
        write_atomically(&file, b"one").unwrap();
        write_atomically(&file, b"two").unwrap();
        assert_eq!(read(&file).unwrap().unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write_atomically(&folder.path().join("none/file"), b"x").is_err());
    }
}
