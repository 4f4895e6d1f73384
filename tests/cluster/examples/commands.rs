//! Command lines of `multinet` in the examples, and on the page about frameworks.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use multinet_testing::process::workspace_binary;
use multinet_testing::tools::repository;
use serde_json::Value;

use super::parts::pods;
use super::{EXAMPLES, example};

/// Subcommands whose command lines are found in a text.
const SUBCOMMANDS: [&str; 6] = ["bench", "env", "exec", "hostfile", "matrix", "torchrun"];

/// Returns the arguments of each call of the program in a text, up to `--` or the end of the
/// command line.
fn calls(text: &str) -> Vec<Vec<&str>> {
    let after = text.split("multinet ").skip(1);
    let line =
        |rest: &'_ str| rest.find(['\n', '`', '|', '>', '<', ')', ';', '…', '&']).unwrap_or(rest.len());
    let words = after.map(|rest| {
        let words =
            rest[..line(rest)].split_whitespace().map(|word| word.trim_matches(['"', '\'', ',', '.']));
        words.take_while(|word| *word != "--").collect::<Vec<_>>()
    });
    words.filter(|words| words.first().is_some_and(|word| SUBCOMMANDS.contains(word))).collect()
}

/// Returns the command of a container in one line, as a shell would have it.
fn command_line(container: &Value) -> String {
    let words = ["command", "args"].map(|field| container[field].as_array().cloned().unwrap_or_default());
    words.concat().iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
}

/// With `--help` at its end, a command line is parsed up to there, and not carried out.
fn is_accepted(call: &[&str]) -> Result<()> {
    let binary = workspace_binary("multinet", "MULTINET_BIN")?;
    let output = Command::new(binary).args(call).arg("--help").output()?;
    ensure!(
        output.status.success(),
        "multinet {}: {}",
        call.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[test]
fn the_program_accepts_the_command_lines_of_examples_and_page() -> Result<()> {
    let mut texts = vec![fs::read_to_string(repository().join("docs/frameworks.md"))?];
    let mut copies = 0;
    for expected in &EXAMPLES {
        for (template, _) in example(expected.folder)?.iter().flat_map(pods) {
            let lists = ["initContainers", "containers"];
            let all = lists.iter().filter_map(|list| template["spec"][list].as_array()).flatten();
            for container in all {
                texts.push(command_line(container));
                let image = container["image"].as_str().unwrap_or_default();
                if let Some((_, tag)) = image.split_once("multinet-static:") {
                    ensure!(tag == env!("CARGO_PKG_VERSION"), "{}: {image}", expected.folder);
                    copies += 1;
                }
            }
        }
    }
    ensure!(copies == 7, "{copies} containers copy the small program");
    let all: Vec<_> = texts.iter().flat_map(|text| calls(text)).collect();
    ensure!(all.len() >= 12, "only {all:?}");
    all.iter().try_for_each(|call| is_accepted(call))
}

#[test]
fn command_lines_are_found_in_a_text() {
    let text = "`multinet exec --for mpi -- app` and multinet is\n$(/opt/multinet env --value ip)\n$ `multinet env`, then";
    assert_eq!(calls(text), [vec!["exec", "--for", "mpi"], vec!["env", "--value", "ip"], vec!["env"]]);
}
