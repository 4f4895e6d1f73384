//! What people type: `kubectl`, as a user that may do everything.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;
use crate::tools::{repository, tool};

/// Runs a line of shell with `kubectl` for this cluster, in the repository's root. Returns what it prints.
pub fn shell(cluster: &Cluster, line: &str) -> Result<String> {
    let kubectl = tool("kubectl")?;
    let mut path = OsString::from(kubectl.parent().context("a program in no folder")?);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let output = Command::new("sh")
        .args(["-e", "-c", line])
        .current_dir(repository())
        .env("PATH", path)
        .env("KUBECONFIG", cluster.admin_kubeconfig())
        // Where it keeps caches, and looks for the preferences of whoever runs the test.
        .env("HOME", cluster.folder())
        .output()
        .context("cannot start sh")?;
    ensure!(
        output.status.success(),
        "$ {line}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    Ok(String::from_utf8(output.stdout)?)
}
