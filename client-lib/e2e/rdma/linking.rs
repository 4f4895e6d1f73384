//! Programs that can use RDMA start on machines without it: they link none of its libraries.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use multinet_testing::process::{run, workspace_binary, workspace_example};

#[test]
fn no_library_of_rdma_is_needed_to_start() -> Result<()> {
    let binaries = [
        workspace_binary("multinet", "MULTINET_BIN")?,
        workspace_binary("multinet-dns", "MULTINET_DNS_BIN")?,
        workspace_binary("multinet-controller", "MULTINET_CONTROLLER_BIN")?,
        workspace_example("frames_source")?,
        workspace_example("frames_sink")?,
        // The binary of this test calls verbs.
        std::env::current_exe()?,
    ];
    for binary in binaries {
        let needed = needed(&binary)?;
        ensure!(needed.contains("libc.so.6"), "{} needs\n{needed}", binary.display());
        for library in ["ibverbs", "rdmacm", "cuda"] {
            ensure!(!needed.contains(library), "{} needs\n{needed}", binary.display());
        }
    }
    Ok(())
}

/// Returns the libraries that the loader needs to start a program.
fn needed(binary: &Path) -> Result<String> {
    let text = run(Command::new("readelf").arg("-d").arg(binary))?;
    Ok(text.lines().filter(|line| line.contains("(NEEDED)")).collect::<Vec<_>>().join("\n"))
}
