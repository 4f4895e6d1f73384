//! The plugin as C programs load it, and as NCCL itself does.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::multus::ip;
use multinet_testing::process::run;
use multinet_testing::sandboxed;
use multinet_testing::tools::repository;
use multinet_testing::wait::eventually_blocking;

/// Returns the path of the plugin as cargo has built it.
fn built() -> Result<PathBuf> {
    let tests = std::env::current_exe()?;
    Ok(tests.parent().context("no folder")?.join("libnccl_env_multinet.so"))
}

/// Copies the plugin and builds the loader into a folder. Returns their paths.
fn build(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let library = built()?;
    let plugin = folder.join("libnccl-env-multinet.so");
    std::fs::copy(&library, &plugin).with_context(|| library.display().to_string())?;
    let loader = folder.join("loader");
    let source = repository().join("bindings/nccl-env/tests/loader.c");
    run(Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Werror", "-o"])
        .args([&loader, &source])
        .arg("-ldl"))?;
    Ok((plugin, loader))
}

/// Adds a default network and a second NIC to the sandbox.
fn add_nics() -> Result<()> {
    for (name, address) in [("eth0", "10.244.0.9/24"), ("net1", "192.168.111.5/24")] {
        ip(&["link", "add", name, "type", "veth", "peer", "name", &format!("{name}-peer")])?;
        ip(&["address", "add", address, "dev", name])?;
        ip(&["link", "set", name, "up"])?;
        ip(&["link", "set", &format!("{name}-peer"), "up"])?;
        eventually_blocking("a carrier", || {
            let link = run(Command::new("ip").args(["link", "show", "dev", name]))?;
            ensure!(link.contains("state UP"), "{link}");
            Ok(())
        })?;
    }
    Ok(())
}

#[tokio::test]
async fn both_versions_answer_what_is_set_and_then_what_is_known() -> Result<()> {
    sandboxed!();
    let folder = tempfile::tempdir()?;
    let (plugin, loader) = build(folder.path())?;
    let loaded = |set: &[(&str, &str)]| {
        let mut command = Command::new(&loader);
        run(command.arg(&plugin).env_clear().envs(set.iter().copied()))
    };
    let alone = loaded(&[])?;
    let lines: Vec<&str> = alone.lines().filter(|line| !line.starts_with("log ")).collect();
    ensure!(lines == ["v1 is multinet", "v2 is multinet"], "{alone}");
    ensure!(
        alone.contains("log 3 129 multinet: no variable is set; NCCL_SOCKET_IFNAME is left out: "),
        "{alone}"
    );

    add_nics()?;
    let known = loaded(&[])?;
    for version in 1..=2 {
        ensure!(known.contains(&format!("v{version} NCCL_SOCKET_IFNAME==net1\n")), "{known}");
    }
    ensure!(
        known.contains("log 3 129 multinet: sets NCCL_SOCKET_IFNAME==net1; NCCL_IB_HCA is left out: "),
        "{known}"
    );
    ensure!(known.matches("log ").count() == 1, "{known}");

    let set = loaded(&[("NCCL_SOCKET_IFNAME", "eth0"), ("NCCL_ALGO", "Ring"), ("NCCL_IB_HCA", "")])?;
    for version in 1..=2 {
        for line in ["NCCL_SOCKET_IFNAME=eth0", "NCCL_ALGO=Ring", "NCCL_IB_HCA="] {
            ensure!(set.contains(&format!("v{version} {line}\n")), "{set}");
        }
    }
    for wrong in ["moved", "still answers", "fails", "answers to nothing", "init"] {
        ensure!(
            ![&alone, &known, &set].iter().any(|text| text.contains(wrong)),
            "{wrong}: {alone}{known}{set}"
        );
    }
    Ok(())
}

/// Images with NCCL have older C libraries than this machine.
#[test]
fn the_plugin_needs_no_later_glibc_than_the_page_says() -> Result<()> {
    let symbols = run(Command::new("objdump").arg("-T").arg(built()?))?;
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        Some(version.split('.').filter_map(|part| part.parse().ok()).collect::<Vec<u32>>())
    });
    let latest = versions.max().context("no symbol of glibc")?;
    ensure!(latest.as_slice() <= &[2, 34][..], "it needs glibc {latest:?}");
    let page = std::fs::read_to_string(repository().join("docs/frameworks.md"))?;
    ensure!(page.contains("needs glibc 2.34 or later"), "the page says otherwise");
    Ok(())
}

/// Needs no GPU: NCCL chooses its interface before it looks for one.
#[tokio::test]
#[ignore = "downloads NCCL, 351 MB: make soak"]
async fn soak_nccl_reads_its_interface_from_the_plugin() -> Result<()> {
    let nccl = run(&mut Command::new(repository().join("tests/tools/nccl.sh")))?;
    sandboxed!();
    add_nics()?;
    let folder = tempfile::tempdir()?;
    let (plugin, loader) = build(folder.path())?;
    let mut command = Command::new(&loader);
    command.arg(&plugin).arg(nccl.trim_end()).env("NCCL_ENV_PLUGIN", &plugin).env("NCCL_DEBUG", "INFO");
    let said = run(&mut command)?;
    ensure!(said.contains("NCCL_SOCKET_IFNAME set by environment to =net1"), "{said}");
    ensure!(said.contains("multinet: sets NCCL_SOCKET_IFNAME==net1"), "{said}");
    ensure!(said.contains("ncclGetUniqueId 0"), "{said}");
    Ok(())
}
