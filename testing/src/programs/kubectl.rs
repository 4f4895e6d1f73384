//! `kubectl` as users type it, with all permissions.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cluster::Cluster;
use crate::process::run;
use crate::tools::{repository, tool};

/// Runs a shell command with `kubectl` for this cluster, in the repository's root. Returns its
/// output.
pub fn shell(cluster: &Cluster, line: &str) -> Result<String> {
    let kubectl = tool("kubectl")?;
    let mut path = OsString::from(kubectl.parent().context("kubectl is in no folder")?);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", line]).current_dir(repository()).env("PATH", path);
    // Below HOME, kubectl keeps caches and reads preferences. They must not be the developer's.
    shell.env("KUBECONFIG", cluster.admin_kubeconfig()).env("HOME", cluster.folder());
    run(&mut shell)
}
