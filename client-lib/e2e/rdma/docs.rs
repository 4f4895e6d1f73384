//! The commands in `docs/rdma.md`: each runs in the guest as it is written, and has to print the
//! lines below it.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::guest;
use multinet_testing::markdown::{Example, examples};
use multinet_testing::process::workspace_binary;
use multinet_testing::tools::repository;

use super::{BOUND, LINK};

#[tokio::test]
async fn every_command_of_the_page_prints_the_shown_output() -> Result<()> {
    let examples = examples(&fs::read_to_string(repository().join("docs/rdma.md"))?);
    ensure!(examples.len() == 4, "there are {} commands", examples.len());
    let multinet = workspace_binary("multinet", "MULTINET_BIN")?;
    let programs = multinet.parent().context("a folder of programs")?.display();
    let mut script = format!("{LINK}\nPATH={programs}:$PATH\n");
    for (number, Example { command, .. }) in examples.iter().enumerate() {
        // A server has printed its lines when it listens; its later output is in another file.
        let said = format!("/tmp/said-{number}");
        script.push_str(&match command.contains("server") {
            true => format!("{command} >{said} 2>&1 & wait_for grep -q listening {said}\n"),
            false => format!("{command} >{said} 2>&1 || true\n"),
        });
        script.push_str(&format!("echo '=== {number}'; grep -v ' WARN ' {said}\n"));
    }
    let said = guest::run(&script, BOUND).await?;
    ensure!(said.status == 0, "exit status {}:\n{}", said.status, said.output);
    let parts: Vec<&str> = said.output.split("=== ").skip(1).collect();
    ensure!(parts.len() == examples.len(), "{}", said.output);
    for (Example { command, output }, part) in examples.iter().zip(parts) {
        let printed = part.lines().skip(1).collect::<Vec<_>>();
        let shown = output.iter().map(String::as_str).collect::<Vec<_>>();
        ensure!(
            comparable(&printed) == comparable(&shown),
            "$ {command}\n--- docs/rdma.md says\n{}\n--- it prints\n{}",
            shown.join("\n"),
            printed.join("\n")
        );
    }
    Ok(())
}

/// Returns lines with single spaces, and without rates and GID indexes, which vary.
fn comparable(lines: &[&str]) -> Vec<String> {
    let is_measured = |word: &str| word.contains('.') && word.parse::<f64>().is_ok();
    let line = |line: &&str| {
        let mut words: Vec<&str> =
            line.split_whitespace().map(|word| if is_measured(word) { "#" } else { word }).collect();
        if let Some(row) = words.iter().position(|word| *word == "GID").filter(|_| line.starts_with("ok")) {
            words[row + 1] = "#";
        }
        words.join(" ")
    };
    lines.iter().map(line).collect()
}
