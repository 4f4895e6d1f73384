//! The client library's own tests of senders and receivers, with RDMA in the place of TCP.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::guest::{self, Said};
use multinet_testing::tools::repository;

use super::LINK;

/// All but those for which strangers come from many addresses of this machine, which takes the loopback interface. Who breaks the rules by hand does so by
/// TCP, and those that must not notice go by RDMA; by RDMA, the rules are broken in `hostile`.
const TESTS: &str = "delivery:: names:: secure:: hostile:: --skip hostile::flood:: --skip one_address";

/// How long they may take, in a guest that computes in software.
const BOUND: Duration = Duration::from_secs(1200);

#[tokio::test]
async fn peers_are_the_same_by_rdma() -> Result<()> {
    let peers = test_binary("peers")?;
    let script =
        format!("{LINK}\nMULTINET_TEST_RDMA=10.9.0.2 '{}' --test-threads=1 {TESTS}", peers.display());
    let Said { status, output } = guest::run(&script, BOUND).await?;
    eprintln!("{output}");
    let has_run = output.contains("test result: ok. ") && !output.contains("ok. 0 passed");
    ensure!(status == 0 && has_run, "exit status {status}");
    Ok(())
}

/// A test binary of the workspace, as it has been built for this run already.
fn test_binary(name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").context("not run by cargo")?;
    let mut command = Command::new(cargo);
    // What cargo tells this test of its own package, it would take for a change of what build scripts depend on, and compile all anew.
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.current_dir(repository()).args(["test", "--workspace", "--no-run", "--message-format=json"]);
    let output = command.args(["--test", name]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<serde_json::Value>();
    for message in messages {
        let message = message?;
        if message["target"]["name"] == name
            && let Some(binary) = message["executable"].as_str()
        {
            return Ok(binary.into());
        }
    }
    anyhow::bail!("cargo names no test binary {name}")
}
