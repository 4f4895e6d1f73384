//! Dependencies that a program gets with the client library.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::tools::repository;

/// With default features, only the cryptography of TLS is compiled by a C compiler, and no crate
/// binds a C library.
#[test]
fn the_default_library_compiles_no_c_except_for_tls() -> Result<()> {
    let all = tree(&[])?;
    let bindings: Vec<&String> = all.iter().filter(|name| name.ends_with("-sys")).collect();
    ensure!(bindings.is_empty(), "bindings to C libraries: {bindings:?}");
    let compilers = tree(&["--invert", "cc", "--depth", "1"])?;
    ensure!(compilers == ["cc", "ring"], "the crates that compile C are {compilers:?}");
    Ok(())
}

/// Returns the names of the crates that `cargo tree` prints.
fn tree(arguments: &[&str]) -> Result<Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "--target",
            "x86_64-unknown-linux-gnu",
            "--package",
            "multinet-client",
        ])
        .args(["--edges", "normal,build", "--prefix", "none", "--format", "{p}"])
        .args(arguments)
        .current_dir(repository())
        .output()
        .context("cannot start cargo")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo tree: {errors}");
    let lines = String::from_utf8(output.stdout)?;
    Ok(lines.lines().filter_map(|line| line.split(' ').next()).map(ToOwned::to_owned).collect())
}
