//! `multinet env` and `multinet exec` in a pod with a second NIC, which is a sandbox, and with a
//! service in a real multinet-dns.

use std::process::Command;
use std::thread::JoinHandle;

use anyhow::{Result, ensure};
use multinet_testing::multus::ip;
use multinet_testing::process;
use multinet_testing::sandboxed;
use multinet_testing::server::{Flags, Manifests};
use multinet_testing::wait::eventually_blocking;

use crate::multinet::{CHANGEABLE, Outcome, SERVICE, multinet, own_sys, slice};

const PRINT: &str = "env | grep -E '^(NCCL|UCX|GLOO)_' | sort";

/// Adds a NIC with an address, whose link is up.
fn add_nic(name: &str, address: &str) -> Result<()> {
    ip(&["link", "add", name, "type", "veth", "peer", "name", &format!("{name}-peer")])?;
    ip(&["link", "set", &format!("{name}-peer"), "up"])?;
    ip(&["link", "set", name, "up"])?;
    eventually_blocking("a carrier", || {
        let link = process::run(Command::new("ip").args(["link", "show", "dev", name]))?;
        ensure!(link.contains("state UP"), "{link}");
        Ok(())
    })?;
    ip(&["address", "add", address, "dev", name])
}

fn run(arguments: &[&str]) -> Result<Outcome> {
    let mut command = multinet()?;
    for name in ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "LOCAL_RANK"] {
        command.env_remove(name);
    }
    Outcome::of(command.args(arguments))
}

/// Starts `multinet exec --wait` with these flags, which prints the variables once it has all.
fn waiting(flags: &str) -> Result<JoinHandle<Result<Outcome>>> {
    let mut command = multinet()?;
    command.args(["exec", "--wait", "60s"]).args(flags.split(' ')).args(["--", "sh", "-c", PRINT]);
    Ok(std::thread::spawn(move || Outcome::of(&mut command)))
}

#[tokio::test]
async fn exec_sets_what_is_unset_and_waits_for_what_is_missing() -> Result<()> {
    sandboxed!();
    own_sys()?;
    add_nic("eth0", "10.244.0.9/24")?;

    // The NIC comes while it is waited for.
    let running = waiting("--for nccl,gloo")?;
    add_nic("net1", "192.168.111.5/24")?;
    let outcome = running.join().map_err(|_| anyhow::anyhow!("it has panicked"))??;
    ensure!(outcome.stdout == "GLOO_SOCKET_IFNAME=net1\nNCCL_SOCKET_IFNAME==net1\n", "{outcome:?}");
    let line = "multinet: sets NCCL_SOCKET_IFNAME='=net1' GLOO_SOCKET_IFNAME=net1; NCCL_IB_HCA is left out: ";
    // Before it may be a line that says what is waited for.
    ensure!(outcome.stderr.lines().last().is_some_and(|last| last.starts_with(line)), "{outcome:?}");

    // Variables that are set stay.
    let mut command = multinet()?;
    command
        .args(["exec", "--", "sh", "-c", PRINT])
        .env("NCCL_SOCKET_IFNAME", "eth0")
        .env("UCX_NET_DEVICES", "");
    let outcome = Outcome::of(&mut command)?;
    ensure!(
        outcome.stdout == "GLOO_SOCKET_IFNAME=net1\nNCCL_SOCKET_IFNAME=eth0\nUCX_NET_DEVICES=\n",
        "{outcome:?}"
    );

    // A shell reads back what env prints.
    let program = multinet()?.get_program().to_owned();
    for quote in ["\"", ""] {
        let script = format!("eval {quote}$({} env --for gloo,ucx){quote}; {PRINT}", program.display());
        let outcome = Outcome::of(Command::new("sh").args(["-c", &script]))?;
        ensure!(outcome.stdout == "GLOO_SOCKET_IFNAME=net1\nUCX_NET_DEVICES=net1\n", "{outcome:?}");
    }
    for (fact, expected) in [("ip", "192.168.111.5\n"), ("interface", "net1\n")] {
        let outcome = run(&["env", "--value", fact])?;
        ensure!(outcome.stdout == expected && outcome.stderr.is_empty(), "{outcome:?}");
    }
    let outcome = run(&["env", "--value", "rdma"])?;
    ensure!(outcome.status == Some(1) && outcome.stderr.starts_with("multinet: net1: "), "{outcome:?}");

    // The file of the downward API is empty until the pod's networks have been attached.
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("network-status");
    let path = file.display().to_string();
    std::fs::write(&file, "")?;
    let outcome = run(&["env", "--network", "rdma-a", "--network-status", &path])?;
    ensure!(outcome.status == Some(1) && outcome.stderr.contains("--network rdma-a: "), "{outcome:?}");
    let running = waiting(&format!("--for gloo --network rdma-a --network-status {path}"))?;
    let status = r#"[{"name": "vision/rdma-a", "interface": "net1", "ips": ["192.168.111.5"]}]"#;
    std::fs::write(&file, status)?;
    let outcome = running.join().map_err(|_| anyhow::anyhow!("it has panicked"))??;
    ensure!(outcome.stdout == "GLOO_SOCKET_IFNAME=net1\n", "{outcome:?}");

    // Two NICs in one subnet.
    add_nic("net2", "192.168.111.6/24")?;
    let outcome = run(&["env", "--for", "gloo"])?;
    let warning = "multinet: net1 and net2 are in one subnet, 192.168.111.0/24: the kernel sends its TCP traffic by one of them";
    ensure!(outcome.stderr.starts_with(warning) && outcome.status == Some(0), "{outcome:?}");
    ensure!(outcome.stdout.contains("GLOO_SOCKET_IFNAME=net1,net2\n"), "{outcome:?}");

    // One of them is down, and then comes up.
    ip(&["address", "flush", "dev", "net2"])?;
    ip(&["address", "add", "192.168.112.6/24", "dev", "net2"])?;
    ip(&["link", "set", "net2", "down"])?;
    let outcome = run(&["env", "--for", "gloo"])?;
    ensure!(outcome.stderr == "multinet: net2 is down\n" && outcome.status == Some(0), "{outcome:?}");
    let outcome = run(&["exec", "--strict", "--for", "gloo", "--", "true"])?;
    ensure!(outcome.status == Some(1) && outcome.stderr.contains("--strict: net2 is down"), "{outcome:?}");
    let running = waiting("--for gloo")?;
    ip(&["link", "set", "net2", "up"])?;
    let outcome = running.join().map_err(|_| anyhow::anyhow!("it has panicked"))??;
    ensure!(outcome.stdout == "GLOO_SOCKET_IFNAME=net1,net2\n", "{outcome:?}");
    Ok(())
}

#[tokio::test]
async fn a_service_tells_aliases_and_the_own_name() -> Result<()> {
    sandboxed!();
    own_sys()?;
    add_nic("eth0", "10.244.0.9/24")?;
    add_nic("net1", "192.168.111.5/24")?;
    let manifests = Manifests::new()?;
    manifests.write("service.yaml", CHANGEABLE)?;
    manifests.write("slice.yaml", &slice(&[("infer-0", "192.168.111.4", "node-1")]))?;
    let server = Flags::new().start(manifests.path())?;
    let dns = server.dns().to_string();
    let with_service =
        |arguments: &[&str]| run(&[arguments, &["--service", SERVICE, "--server", &dns]].concat());

    // The service does not have this pod.
    let missing =
        "has 1 endpoints, and none with an address of this pod (192.168.111.5): aliases of networks";
    let outcome = with_service(&["env", "--for", "mooncake"])?;
    ensure!(outcome.status == Some(0) && outcome.stderr.contains(missing), "{outcome:?}");
    ensure!(outcome.stdout.contains("export MOONCAKE_LOCAL_HOSTNAME=192.168.111.5\n"), "{outcome:?}");
    for strict in [&["env", "--for", "gloo", "--strict"][..], &["env", "--value", "ip", "--strict"]] {
        let outcome = with_service(strict)?;
        ensure!(outcome.status == Some(1) && outcome.stderr.contains(missing), "{outcome:?}");
    }

    // It gets this pod while exec waits.
    let running = waiting(&format!("--for gloo --network rail0 --service {SERVICE} --server {dns}"))?;
    manifests.write(
        "slice.yaml",
        &slice(&[("infer-0", "192.168.111.4", "node-1"), ("infer-1", "192.168.111.5", "node-2")]),
    )?;
    let outcome = running.join().map_err(|_| anyhow::anyhow!("it has panicked"))??;
    ensure!(outcome.stdout == "GLOO_SOCKET_IFNAME=net1\n", "{outcome:?}");

    let outcome = with_service(&["env", "--for", "mooncake,mpi"])?;
    ensure!(outcome.stderr.is_empty(), "{outcome:?}");
    ensure!(outcome.stdout.contains("\n# rail0: net1 192.168.111.5/24, "), "{outcome:?}");
    let own_name = format!("export MOONCAKE_LOCAL_HOSTNAME=infer-1.{SERVICE}\n");
    ensure!(outcome.stdout.contains(&own_name), "{outcome:?}");
    ensure!(outcome.stdout.contains("export OMPI_MCA_btl_tcp_if_include=192.168.111.0/24\n"), "{outcome:?}");
    let outcome = with_service(&["env", "--network", "rail7"])?;
    ensure!(
        outcome.status == Some(1)
            && outcome.stderr
                == "multinet: --network rail7: this pod has no rail on it, only on rail0 (net1)\n",
        "{outcome:?}"
    );
    Ok(())
}
