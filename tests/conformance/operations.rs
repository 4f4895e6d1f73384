//! The commands of docs/operations.md that make files for the server, and the server with these files.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use multinet_tests::markdown::examples;
use multinet_tests::server::Flags;

use crate::fixtures::{ZONE, folder};

#[test]
fn secrets_are_made_as_documented() -> Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let page = fs::read_to_string(page).context("docs/operations.md")?;
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
