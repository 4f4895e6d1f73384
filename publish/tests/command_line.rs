//! The command line of the program, and what docs/publish.md says about it.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeSet;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_multinet-publish")).args(args).env_clear().output().unwrap()
}

/// Returns the flags that a text mentions.
fn flags(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.len() > 2 && word.starts_with("--") && word.as_bytes()[2] != b'-').collect()
}

#[test]
fn the_page_names_only_flags_that_exist() {
    let help = run(&["--help"]);
    assert!(help.status.success());
    let help = String::from_utf8(help.stdout).unwrap();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/publish.md")).unwrap();
    // Those of kubectl, helm and etcdctl.
    let others = ["--from-file", "--set"];
    let documented = flags(&page).into_iter().filter(|flag| !others.contains(flag));
    let known = flags(&help);
    let unknown: Vec<&str> = documented.filter(|flag| !known.contains(flag)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn a_mistake_ends_the_program_with_one_line() {
    for (args, message) in [
        (&[][..], "--etcd"),
        (
            &["--etcd", "https://10.0.0.1:2379"],
            "needs the certificates to check etcd's by; give --etcd-ca FILE",
        ),
        (&["--etcd", "http://127.0.0.1:1"], "no Kubernetes cluster is configured"),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        let line = text.lines().last().unwrap();
        assert!(line.starts_with("multinet-publish: ") && line.contains(message), "{args:?}: {text}");
    }
}
