//! Replays the stored corpus of a fuzz target as an ordinary test.

use std::fs;
use std::path::Path;

/// Mutants of each seed.
const MUTANTS: u64 = 100;

/// Bytes that parsers treat in a special way: lengths, pointers, signs, quotes.
const SPECIAL: [u8; 12] = [0, 1, 0x0c, 0x3f, 0x40, 0x7f, 0x80, 0xc0, 0xff, b'"', b'{', b'\n'];

/// Runs `check` on every file in `folder`, and on mutants of each, which are the same in every run.
pub(crate) fn replay(folder: &Path, check: impl Fn(&[u8])) {
    let files = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut seeds: Vec<_> = files.map(|file| file.expect("a folder is read").path()).collect();
    seeds.sort_unstable();
    assert!(!seeds.is_empty(), "{} is empty", folder.display());
    for seed in seeds {
        let bytes = fs::read(seed).expect("a seed is read");
        check(&bytes);
        for number in 0..MUTANTS {
            check(&mutant(bytes.clone(), number));
        }
    }
}

/// Returns `bytes` after a few changes that depend on `number` alone.
fn mutant(mut bytes: Vec<u8>, number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(0..=bytes.len());
        match random.u8(0..6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, SPECIAL[random.usize(0..SPECIAL.len())]),
            2 => bytes.extend_from_within(at..),
            _ if at == bytes.len() => bytes.push(random.u8(..)),
            3 => bytes[at] ^= 1 << random.u8(0..8),
            4 => bytes[at] = SPECIAL[random.usize(0..SPECIAL.len())],
            _ => drop(bytes.remove(at)),
        }
    }
    bytes
}
