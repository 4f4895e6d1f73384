//! Checks that each message in the table of `docs/client.md` stands in the code.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const HEADING: &str = "## What you see, what it means, what to do";

/// Returns the quotations in the first column of the table.
fn quoted(page: &str) -> Vec<String> {
    let section = page.split_once(HEADING).unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split(" | ").next().unwrap());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

/// Returns the code without comments and tests, with each string in one piece.
fn code(folder: &Path) -> String {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let paths: Vec<PathBuf> =
        paths.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with("tests")).collect();
    let texts = paths.iter().map(|path| {
        if path.is_dir() {
            return code(path);
        }
        let text = fs::read_to_string(path).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        let lines = text.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
        // A backslash continues a string in the next line.
        lines.map(|line| line.strip_suffix('\\').map_or_else(|| format!("{line}\n"), str::to_owned)).collect()
    });
    texts.collect()
}

#[test]
fn messages_in_the_documentation_are_those_of_the_code() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/client.md")).unwrap();
    let folders = ["src", "rails/src", "cli/src", "memory/src", "verbs/src", "../stderr/src"];
    let code: String = folders.map(|folder| code(&Path::new(ROOT).join("client-lib").join(folder))).concat();
    let quoted = quoted(&page);
    assert!(quoted.len() > 20, "{quoted:?}");
    for message in quoted {
        // An ellipsis stands for what differs from case to case.
        let missing = message.split('…').map(str::trim).find(|part| !code.contains(part));
        assert_eq!(missing, None, "`{message}` is no message of the code");
    }
}
