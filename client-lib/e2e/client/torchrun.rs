//! `multinet torchrun` on a pod with a second NIC, and a torchrun that prints what it is given.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use multinet_testing::multus::ip;
use multinet_testing::sandboxed;
use multinet_testing::server::{Flags, Manifests};
use tempfile::TempDir;

use crate::multinet::{CHANGEABLE, Outcome, SERVICE, multinet, slice};

const HOSTS: [(&str, &str, &str); 3] = [
    ("worker-10", "192.168.111.10", "gpu-1"),
    ("worker-2", "192.168.111.2", "gpu-2"),
    ("worker-0", "192.168.111.20", "gpu-3"),
];

/// Prints its arguments and the variables that choose NICs.
const TORCHRUN: &str = "#!/bin/sh\necho \"$@\"\nenv | grep _IFNAME | sort\nexit 7\n";

#[tokio::test]
async fn a_pod_becomes_torchrun_with_its_rank_and_its_nic() -> Result<()> {
    sandboxed!();
    ip(&["link", "add", "net1", "type", "veth", "peer", "name", "switch"])?;
    ip(&["link", "set", "switch", "up"])?;
    ip(&["address", "add", "192.168.111.2/24", "dev", "net1"])?;
    ip(&["link", "set", "net1", "up"])?;
    let manifests = Manifests::new()?;
    manifests.write("service.yaml", CHANGEABLE)?;
    manifests.write("slice.yaml", &slice(&HOSTS))?;
    let server = Flags::new().start(manifests.path())?;
    let folder = TempDir::new()?;
    let script = folder.path().join("torchrun");
    fs::write(&script, TORCHRUN)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH")?);
    let dns = server.dns().to_string();
    let torchrun = |service: &str, count: &str| {
        let mut command = multinet()?;
        command
            .env("PATH", &path)
            .args(["torchrun", "--server", &dns, service, "--count", count, "--wait", "1s"]);
        Outcome::of(command.args(["--", "--nproc-per-node=8", "train.py", "--count", "5"]))
    };
    let outcome = torchrun(&format!("{SERVICE}:29400"), "3")?;
    let expected = format!(
        "--nnodes=3 --node_rank=1 --rdzv_backend=static --master_addr=worker-0.{SERVICE} --master_port=29400 \
         --nproc-per-node=8 train.py --count 5\nGLOO_SOCKET_IFNAME=net1\nNCCL_SOCKET_IFNAME==net1\nTP_SOCKET_IFNAME=net1\n"
    );
    ensure!(outcome.status == Some(7) && outcome.stdout == expected, "{outcome:?}");

    // Without its NIC, PyTorch would use the default network.
    ip(&["link", "set", "net1", "down"])?;
    let outcome = torchrun(SERVICE, "3")?;
    let said = "192.168.111.2, an address of this pod in the service, cannot be used: net1 is down";
    ensure!(outcome.status == Some(1) && outcome.stderr.contains(said), "{outcome:?}");
    ip(&["link", "set", "net1", "up"])?;

    ip(&["address", "del", "192.168.111.2/24", "dev", "net1"])?;
    ip(&["address", "add", "192.168.111.3/24", "dev", "net1"])?;
    let outcome = torchrun(SERVICE, "3")?;
    let said = "has 3 hosts, worker-0, worker-2, worker-10, and none of them has an address of this pod (192.168.111.3): this \
                node would have no rank";
    ensure!(outcome.status == Some(1) && outcome.stderr.contains(said), "{outcome:?}");
    Ok(())
}
