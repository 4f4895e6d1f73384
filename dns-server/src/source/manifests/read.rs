//! Reads a file whole, or not at all if it changes meanwhile.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::scan::Print;

/// The largest file that is read, in octets.
const MAX_FILE: u64 = 64 << 20;

/// Opens a file for reading. Never waits, should there be a pipe by now.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// What is in a file that looked like `print`; nothing if it looks different by now.
pub(super) fn read(print: &Print) -> io::Result<Option<Vec<u8>>> {
    if print.len > MAX_FILE {
        let limit = MAX_FILE >> 20;
        return Err(io::Error::other(format!("is larger than {limit} MiB; split it into several files")));
    }
    let mut file = open(&print.real)?;
    let looks_like_it =
        |file: &File| Ok::<_, io::Error>(Print::of(print.real.clone(), &file.metadata()?) == *print);
    if !looks_like_it(&file)? {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.by_ref().take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    Ok(looks_like_it(&file)?.then_some(bytes))
}

/// How far from now a file was last written to.
pub(super) fn age(print: &Print) -> Duration {
    let (seconds, nanoseconds) = print.modified;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    // Before 1970 is long ago, whatever the fraction.
    let written = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole + fraction(nanoseconds) };
    let now = SystemTime::now();
    now.duration_since(written).unwrap_or_else(|ahead| ahead.duration())
}

fn fraction(nanoseconds: i64) -> Duration {
    Duration::from_nanos(nanoseconds.unsigned_abs())
}
