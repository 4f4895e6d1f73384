//! Files of `/sys` and `/proc`, which have one value each.

use std::fs;
use std::path::Path;

/// Returns the text of a file without its last newline. `None` if it cannot be read, or is empty.
pub(crate) fn text(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the names in a folder, sorted; none if the folder cannot be read.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}
