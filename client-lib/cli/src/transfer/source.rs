//! Reads what is to be sent, in a thread of its own: a terminal or a pipe may have nothing for hours.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::Context as _;
use multinet_client::Buffer;
use ring::digest::{Context, SHA256};
use tokio::sync::mpsc;

use super::Summary;

/// Parts that have been read ahead.
const AHEAD: usize = 4;

/// Parts whose memory is used again, at most: those under way and those read ahead.
const POOL: usize = 64;

/// What has been read.
pub(super) enum Part {
    Bytes(Buffer),
    /// That was all.
    End(Summary),
    Failed(io::Error),
}

/// What is read, and how much that is, if it is known.
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
    let (reader, total): (Box<dyn Read + Send>, _) = if path == Path::new("-") {
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let about = file.metadata().with_context(|| format!("cannot read {}", path.display()))?;
        anyhow::ensure!(!about.is_dir(), "{} is a folder: send a tar of it", path.display());
        (Box::new(file), about.is_file().then_some(about.len()))
    };
    let (sender, parts) = mpsc::channel(AHEAD);
    std::thread::Builder::new().name("source".to_owned()).spawn(move || read(reader, size, &sender))?;
    Ok(Source { parts, total })
}

/// Until the end, or until nobody wants more.
fn read(mut reader: impl Read, size: usize, parts: &mpsc::Sender<Part>) {
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
            Some(Err(error)) => Part::Failed(error),
        };
        pool.push_back(buffer);
        pool.truncate(POOL);
        let is_last = !matches!(part, Part::Bytes(_));
        if parts.blocking_send(part).is_err() || is_last {
            return;
        }
    }
}

/// Memory that nobody else has: that of a part that has been acknowledged, or new.
fn writable(pool: &mut VecDeque<Buffer>, size: usize) -> Buffer {
    // Parts are let go of in the order in which they were sent.
    let is_free = pool.front_mut().is_some_and(|buffer| buffer.as_mut().is_some());
    let free = if is_free { pool.pop_front() } else { None };
    free.unwrap_or_else(|| Buffer::host(size))
}

/// Reads until the place is full or there is no more.
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
    fn reads_full_parts_and_a_rest() {
        for (bytes, parts, sha256) in
            [(&b""[..], &[][..], EMPTY), (b"abc", &[&b"ab"[..], b"c"], ABC), (b"abc", &[b"ab", b"c"], ABC)]
        {
            let (sender, mut receiver) = mpsc::channel(8);
            read(Slowly(bytes), 2, &sender);
            for part in parts {
                assert!(matches!(receiver.try_recv().unwrap(), Part::Bytes(got) if got.bytes() == *part));
            }
            let Part::End(summary) = receiver.try_recv().unwrap() else { panic!("the end is missing") };
            assert_eq!(summary, Summary { bytes: bytes.len() as u64, sha256: sha256.to_owned() });
        }
    }

    #[test]
    fn memory_is_used_again_when_it_has_been_let_go_of() {
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
