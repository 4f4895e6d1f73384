//! Reading of small files that hold certificates, keys or tokens.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::FileProblem;

/// Size limit of a file, in bytes. A bundle of all authorities that browsers trust has a quarter.
const MAX_SIZE: u64 = 1 << 20;

/// Reads a whole file of at most 1 MiB. Refuses pipes, which might block, and devices, which might
/// never end.
///
/// # Errors
///
/// [`FileProblem::Unreadable`], [`FileProblem::Special`] or [`FileProblem::TooLarge`].
pub fn read(file: &Path) -> Result<Vec<u8>, FileProblem> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file);
    let opened = opened.map_err(FileProblem::Unreadable)?;
    if !opened.metadata().map_err(FileProblem::Unreadable)?.is_file() {
        return Err(FileProblem::Special);
    }
    let mut bytes = Vec::new();
    let read = opened.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(FileProblem::Unreadable)?;
    if read as u64 > MAX_SIZE { Err(FileProblem::TooLarge(MAX_SIZE)) } else { Ok(bytes) }
}

/// Reads a text file of at most 1 MiB.
///
/// # Errors
///
/// The errors of [`read`]; also [`FileProblem::Unreadable`] if the file is not UTF-8.
pub fn read_text(file: &Path) -> Result<String, FileProblem> {
    String::from_utf8(read(file)?).map_err(|_| {
        FileProblem::Unreadable(io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8"))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_pipe_a_device_and_a_large_file_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("most"), vec![0; MAX_SIZE as usize]).unwrap();
        assert_eq!(read(&file("most")).unwrap().len() as u64, MAX_SIZE);
        fs::write(file("more"), vec![0; MAX_SIZE as usize + 1]).unwrap();
        assert!(Command::new("mkfifo").arg(file("pipe")).status().unwrap().success());
        for (file, says) in [
            (file("more"), "is larger than 1 MiB"),
            (file("pipe"), "is not a regular file"),
            (folder.path().to_owned(), "is not a regular file"),
            ("/dev/zero".into(), "is not a regular file"),
            (file("none"), "No such file"),
        ] {
            let problem = read(&file).unwrap_err().to_string();
            assert!(problem.contains(says), "{}: {problem}", file.display());
        }
        assert!(read_text(&file("most")).is_ok());
        fs::write(file("latin"), [0xe4]).unwrap();
        assert!(read_text(&file("latin")).unwrap_err().to_string().contains("UTF-8"));
    }
}
