//! Tests that the library's messages name command-line flags.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;

use super::with_flag_names;
use crate::app::Cli;

#[test]
fn settings_of_the_library_become_flags() {
    let cases = [
        ("or allow it with allow_default_network", "or allow it with --allow-default-network"),
        ("or expect another by Tls::expect", "or expect another by --tls-name"),
        ("nothing to translate", "nothing to translate"),
    ];
    for (message, expected) in cases {
        assert_eq!(with_flag_names(message), expected);
    }
}

/// Long flags of all subcommands, as the library would call its setting: `allow_default_network`.
fn settings(command: &clap::Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(|argument| argument.get_long());
    let own = own.filter(|flag| flag.contains('-')).map(|flag| flag.replace('-', "_"));
    own.chain(command.get_subcommands().flat_map(settings)).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths
        .filter(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tests")))
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .collect()
}

/// The string literals of a source, without its tests and comments.
fn literals(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    code.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn no_message_of_the_library_names_a_setting_that_is_a_flag_here() {
    let settings = settings(&Cli::command());
    assert!(settings.iter().any(|setting| setting == "allow_default_network"));
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    for path in sources(&library) {
        for literal in literals(&fs::read_to_string(&path).unwrap()).iter().filter(|text| text.contains(' '))
        {
            let said = with_flag_names(literal);
            let mut words = said.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
            let named = words.find(|word| settings.iter().any(|setting| setting == word));
            let is_placeholder = named.is_some_and(|name| said.contains(&format!("{{{name}")));
            assert!(named.is_none() || is_placeholder, "{}: {said}", path.display());
            assert!(!said.contains("Tls::") && !said.contains("builder()"), "{}: {said}", path.display());
        }
    }
}
