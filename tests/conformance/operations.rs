//! The commands of docs/operations.md that make files for the server, and the server with these files; and its alerts.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use multinet_tests::markdown::{blocks, examples, metrics};
use multinet_tests::server::Flags;
use multinet_tests::tools::repository;
use serde_json::Value;

use crate::fixtures::{ZONE, folder};

fn page(name: &str) -> Result<String> {
    let path = format!("docs/{name}.md");
    fs::read_to_string(repository().join(&path)).context(path)
}

#[test]
fn secrets_are_made_as_documented() -> Result<()> {
    let page = page("operations")?;
    let made = tempfile::tempdir()?;
    let commands: Vec<String> = examples(&page).into_iter().map(|example| example.command).collect();
    let makes = |command: &&String| command.contains("openssl rand");
    for command in commands.iter().filter(makes) {
        let status = Command::new("sh").args(["-ec", command]).current_dir(made.path()).status()?;
        ensure!(status.success(), "{command}: {status}");
    }
    let (keys, cookies) = (made.path().join("keys"), made.path().join("cookies"));
    let server = Flags::new()
        .flag("--tsig-key-file", &keys)
        .flag("--cookie-secret-file", &cookies)
        .words("--transfer-to key:secondary")
        .start(&folder())?;
    for flags in ["--tsig-key-file keys --transfer-to key:secondary", "--cookie-secret-file cookies"] {
        ensure!(commands.iter().any(|command| command.contains(flags)), "no command has {flags}");
    }
    let port = server.dns().port().to_string();
    let output = Command::new("dig")
        .args(["@127.0.0.1", "-p", &port, "-k"])
        .arg(&keys)
        .args([ZONE, "AXFR"])
        .output()
        .context("cannot start dig")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && text.contains("dns-version") && text.contains("TSIG"), "{text}");
    Ok(())
}

/// The tables that name the metrics are compared with the programs by other tests.
#[test]
fn alerts_ask_for_metrics_that_there_are() -> Result<()> {
    let operations = page("operations")?;
    let known = metrics(&operations).into_iter().chain(metrics(&page("controller")?));
    let known: BTreeSet<String> = known.map(|(name, _)| name).collect();
    let block = blocks(&operations).into_iter().find(|block| block.starts_with("groups:"));
    let groups: Value = serde_saphyr::from_str(&block.context("no rules for Prometheus")?)?;
    let rules = groups["groups"][0]["rules"].as_array().context("no rules")?;
    ensure!(rules.len() >= 5, "but {} rules", rules.len());
    for rule in rules {
        for field in ["/alert", "/for", "/annotations/summary"] {
            ensure!(rule.pointer(field).is_some_and(Value::is_string), "no {field}: {rule}");
        }
        let expression = rule["expr"].as_str().context("no expression")?;
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<&str> = words.filter(|word| word.starts_with("multinet_")).collect();
        ensure!(!names.is_empty(), "{expression} asks for nothing");
        for name in names {
            let metric = name.trim_end_matches("_total").trim_end_matches("_bucket");
            ensure!(known.contains(metric), "{expression}: there is no metric {name}");
        }
    }
    Ok(())
}
