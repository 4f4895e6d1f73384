//! The place that transfers are written to, as `--output` says.

use std::fs;
use std::path::Path;

use anyhow::bail;

use super::files::Files;
use super::stream::Stream;

/// Output of all transfers that `multinet recv` receives, as `--output` says.
#[derive(Debug)]
pub(super) enum Destination {
    /// Standard output, a device, a named pipe or a socket.
    Stream(Stream),
    Files(Files),
}

impl Destination {
    /// # Errors
    ///
    /// If nothing can be written there, or something is there that must not be replaced.
    pub(super) fn new(path: &Path, replaces: bool, keeps: bool) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stream(Stream::stdout()));
        }
        match fs::metadata(path) {
            Ok(about) if about.is_dir() => bail!("{} is a folder: name a file in it", path.display()),
            Ok(about) if !about.is_file() => return Ok(Self::Stream(Stream::at(path, &about)?)),
            _ => {}
        }
        let files = Files::new(path, replaces, keeps)?;
        files.check()?;
        Ok(Self::Files(files))
    }

    pub(super) fn files(&self) -> Option<&Files> {
        match self {
            Self::Files(files) => Some(files),
            Self::Stream(_) => None,
        }
    }

    /// Returns whether standard output is the destination, so that nothing else may be written
    /// there.
    pub(super) fn is_stdout(&self) -> bool {
        matches!(self, Self::Stream(stream) if stream.is_stdout())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_written_by_another_name_first() {
        let open = |path| Destination::new(Path::new(path), false, false).unwrap();
        assert!(matches!(open("/dev/zero"), Destination::Stream(stream) if !stream.is_stdout()));
        assert!(open("-").is_stdout());
        let folder = tempfile::tempdir().unwrap();
        assert!(open(folder.path().join("out").to_str().unwrap()).files().is_some());
        let error = Destination::new(folder.path(), false, false).unwrap_err().to_string();
        assert!(error.ends_with("is a folder: name a file in it"), "{error}");
    }
}
