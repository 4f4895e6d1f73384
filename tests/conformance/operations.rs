//! The commands and alerts of docs/operations.md: files with keys and secrets, dnstap, and alerts.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use multinet_testing::markdown::{blocks, examples, metrics};
use multinet_testing::process::Process;
use multinet_testing::server::{Flags, eventually};
use multinet_testing::tools::repository;
use serde_json::Value;

use crate::fixtures::{ZONE, folder};

fn page(name: &str) -> Result<String> {
    let path = format!("docs/{name}.md");
    fs::read_to_string(repository().join(&path)).context(path)
}

#[test]
fn the_documented_commands_create_usable_secrets() -> Result<()> {
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

#[test]
fn the_documented_commands_capture_dnstap() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let made = scratch.path();
    let here = made.join("dnstap.sock").display().to_string();
    let commands = examples(&page("operations")?).into_iter().map(|example| example.command);
    let commands: Vec<String> = commands
        .filter(|command| command.contains("dnstap"))
        .map(|command| command.replace("/run/dnstap.sock", &here))
        .collect();
    let [capture, serve, read] = &commands[..] else { bail!("the page shows {commands:?}") };
    let sh = |command: &str| {
        let mut sh = Command::new("sh");
        sh.args(["-ec", command]).current_dir(made);
        sh
    };
    let capture = capture.strip_suffix(" &").context("the command does not run in the background")?;
    let mut capture = Process::spawn(&mut sh(&format!("exec {capture}")), &made.join("log"))?;
    let flags = serve.strip_prefix("multinet-dns ").and_then(|serve| serve.strip_suffix(" …"));
    let server = Flags::new().words(flags.context("no flags of multinet-dns")?).start(&folder())?;
    server.query(ZONE, "SOA")?;
    eventually("query and reply to be written", || {
        let written = server.metric("multinet_dns_dnstap_messages_total")?;
        ensure!(written == 2.0, "{written} written");
        Ok(())
    })?;
    server.stop()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(capture.terminate(Duration::from_secs(20)))?;
    let output = sh(read).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && text.contains(ZONE), "$ {read}\n{text}");
    Ok(())
}

/// Other tests compare the documented metrics with those that the programs serve.
#[test]
fn the_documented_alerts_use_existing_metrics() -> Result<()> {
    let operations = page("operations")?;
    let known = metrics(&operations).into_iter().chain(metrics(&page("controller")?));
    let known: BTreeSet<String> = known.map(|(name, _)| name).collect();
    let block = blocks(&operations).into_iter().find(|block| block.starts_with("groups:"));
    let groups: Value = serde_saphyr::from_str(&block.context("no rules for Prometheus")?)?;
    let rules = groups["groups"][0]["rules"].as_array().context("no rules")?;
    ensure!(rules.len() >= 5, "only {} rules", rules.len());
    for rule in rules {
        for field in ["/alert", "/for", "/annotations/summary"] {
            ensure!(rule.pointer(field).is_some_and(Value::is_string), "no {field}: {rule}");
        }
        let expression = rule["expr"].as_str().context("no expression")?;
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<&str> = words.filter(|word| word.starts_with("multinet_")).collect();
        ensure!(!names.is_empty(), "{expression} names no metric");
        for name in names {
            let metric = name.trim_end_matches("_total").trim_end_matches("_bucket");
            ensure!(known.contains(metric), "{expression}: the metric {name} is not documented");
        }
    }
    Ok(())
}
