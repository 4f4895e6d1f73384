//! The README's examples: every `$ dig` command in a fenced block prints the shown output.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use multinet_testing::markdown::{Example, examples};
use multinet_testing::process::run;
use multinet_testing::server::{Flags, Server};

/// Root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Runs a `dig` command of the README, with the port of this test's server.
fn dig(command: &str, server: &Server) -> Result<Vec<String>> {
    let port = server.dns().port().to_string();
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    let mut arguments = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word == "-p" {
            ensure!(words.next() == Some("5353"), "{command}: the port is not 5353");
            arguments.extend(["-p", &port]);
        } else {
            ensure!(!word.contains(['\'', '"', '|', '$']), "{command}: it needs a shell");
            arguments.push(word);
        }
    }
    ensure!(arguments.contains(&"-p"), "{command}: no port");
    ensure!(arguments.contains(&"@127.0.0.1"), "{command}: another server");
    let said = run(Command::new("dig").args(&arguments))?;
    Ok(said.lines().map(|line| line.trim_end().to_owned()).collect())
}

/// Returns the lines sorted and with single spaces, because addresses rotate and dig aligns columns
/// by tabs.
fn comparable(lines: &[String]) -> Vec<String> {
    let mut lines: Vec<String> =
        lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn the_dig_commands_of_the_readme_print_the_shown_output() -> Result<()> {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).context("README.md")?;
    let (digs, others): (Vec<Example>, Vec<Example>) =
        examples(&readme).into_iter().partition(|example| example.command.starts_with("dig "));
    let served = others.iter().find_map(|example| {
        example.command.strip_prefix("cargo run --release -p multinet-dns -- --manifests ")
    });
    let served = served.context("README.md has no command that starts the server")?;
    ensure!(!digs.is_empty(), "README.md has no fenced block with a line that begins with `$ dig `");
    let server = Flags::new().start(&Path::new(ROOT).join(served))?;
    for Example { command, output } in digs {
        let printed = dig(&command, &server)?;
        ensure!(!output.is_empty(), "{command}: the README shows no output");
        ensure!(
            comparable(&printed) == comparable(&output),
            "$ {command}\n--- the README shows\n{}\n--- dig prints\n{}",
            output.join("\n"),
            printed.join("\n"),
        );
    }
    Ok(())
}
