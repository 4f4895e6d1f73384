//! Two pods with `eth0` and `net1`, a launcher with `eth0` only, and the DNS server beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::multus::ip;
use multinet_testing::process::{Process, run, workspace_binary};
use multinet_testing::server::{Flags, Server};
use multinet_testing::tools::{frameworks, repository};
use multinet_testing::wait::eventually;
use serde_json::Value;
use tempfile::TempDir;

/// The service that both pods are in.
pub(crate) const SERVICE: &str = "train.vision.svc.multinet";

/// Time limit for a program to end. PyTorch takes seconds to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Commands that create the networks. The bridge `eth0` is the launcher's default network, too, and
/// the bridge `rail` has no address here.
const NETWORKS: &str = "
    link set lo up
    link add eth0 type bridge
    link add rail type bridge
    address add 10.244.0.10/24 dev eth0
    link set eth0 up
    link set rail up
    route add default via 10.244.0.1
";

/// Commands that create the pod POD with the number NUMBER.
const POD: &str = "
    netns add POD
    -n POD link set lo up
    link add POD.eth0 type veth peer name eth0 netns POD
    link add POD.net1 type veth peer name net1 netns POD
    link set POD.eth0 master eth0 up
    link set POD.net1 master rail up
    -n POD address add 10.244.0.NUMBER/24 dev eth0
    -n POD address add 192.168.111.NUMBER/24 dev net1
    -n POD link set eth0 up
    -n POD link set net1 up
    -n POD route add default via 10.244.0.1
";

const MANIFESTS: &str = "
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkService
metadata: {name: train, namespace: vision}
spec:
  networks: [{name: rail-a, alias: rail0}]
  ports: [{name: rendezvous, port: 29500}]
---
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkEndpointSlice
metadata:
  name: train-0
  namespace: vision
  labels: {multinetwork.numaproj.io/service-name: train, multinetwork.numaproj.io/managed-by: test}
spec:
  addressType: IPv4
  network: {kind: NetworkAttachmentDefinition, name: rail-a, namespace: vision, alias: rail0}
  ports: [{name: rendezvous, port: 29500, protocol: TCP}]
  endpoints:
  - {addresses: [192.168.111.11], hostname: worker-0, nodeName: gpu-1, device: {interface: net1}}
  - {addresses: [192.168.111.12], hostname: worker-1, nodeName: gpu-2, device: {interface: net1}}
";

/// Host of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Host {
    Worker0,
    Worker1,
    /// The sandbox itself, which is not on the second network.
    Launcher,
}

impl Host {
    pub(crate) const WORKERS: [Self; 2] = [Self::Worker0, Self::Worker1];

    fn name(self) -> &'static str {
        match self {
            Self::Worker0 => "worker-0",
            Self::Worker1 => "worker-1",
            Self::Launcher => "launcher",
        }
    }
}

/// Bytes that the workers have sent and received.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traffic {
    pub(crate) eth0: u64,
    pub(crate) net1: u64,
}

impl Traffic {
    /// Fails unless at least 99.9 % of the bytes, and a payload at all, are on the second NIC.
    pub(crate) fn is_on_net1(self) -> Result<()> {
        eprintln!("{self:?}");
        ensure!(self.net1 > 50_000_000 && self.eth0 * 1000 <= self.eth0 + self.net1, "{self:?}");
        Ok(())
    }
}

/// The pods, the DNS server, and the programs that run in them.
pub(crate) struct Stage {
    folder: TempDir,
    /// Folder of the downloaded programs.
    pub(crate) downloads: PathBuf,
    path: String,
    _dns: Server,
}

impl Stage {
    pub(crate) fn start() -> Result<Self> {
        // As in a pod, it shows the interfaces of the network namespace.
        run(Command::new("mount").args(["-t", "sysfs", "sysfs", "/sys"]))?;
        let lines = |lines: &str| {
            lines
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .try_for_each(|line| ip(&line.split(' ').collect::<Vec<_>>()))
        };
        lines(NETWORKS)?;
        // The rest of a pod's search path is for names that a cluster's DNS knows.
        let resolv_conf = "search cluster.local\nnameserver 10.244.0.10\noptions ndots:5\n";
        let hosts = "127.0.0.1 localhost\n";
        for (host, number) in [(Host::Worker0, "11"), (Host::Worker1, "12")] {
            let pod = host.name();
            lines(&POD.replace("POD", pod).replace("NUMBER", number))?;
            // `ip netns exec` mounts the files of this folder over /etc.
            let etc = Path::new("/etc/netns").join(pod);
            fs::create_dir_all(&etc)?;
            fs::write(etc.join("resolv.conf"), resolv_conf)?;
            fs::write(etc.join("hosts"), format!("{hosts}10.244.0.{number} {pod}\n"))?;
        }
        // The files may be links to others.
        for (name, text) in [("resolv.conf", resolv_conf), ("hosts", hosts)] {
            let file = Path::new("/etc").join(name);
            let _ = fs::remove_file(&file);
            fs::write(file, text)?;
        }
        let folder = TempDir::new()?;
        let manifests = folder.path().join("manifests");
        fs::create_dir(&manifests)?;
        fs::write(manifests.join("train.yaml"), MANIFESTS)?;
        let dns = Flags::new().listen_instead("dns://10.244.0.10:53").start(&manifests)?;

        let downloads = frameworks()?;
        let multinet = workspace_binary("multinet", "MULTINET_BIN")?;
        let programs = folder.path().join("bin");
        fs::create_dir(&programs)?;
        std::os::unix::fs::symlink(multinet, programs.join("multinet"))?;
        let path = std::env::var("PATH")?;
        let path = format!("{}:{}:{path}", programs.display(), downloads.join("bin").display());
        Ok(Self { folder, downloads, path, _dns: dns })
    }

    /// Returns the path of a program of this test.
    pub(crate) fn program(&self, name: &str) -> String {
        repository().join("tests/frameworks/programs").join(name).display().to_string()
    }

    /// Returns the path of a file to write to.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a command that runs a program on a host.
    pub(crate) fn command(&self, host: Host, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        match host {
            Host::Launcher => command = Command::new("unshare"),
            pod => _ = command.args(["netns", "exec", pod.name(), "unshare"]),
        }
        // MPI finds its peers on one host by their host name.
        command.args(["--uts", "sh", "-c", r#"hostname "$0" && exec "$@""#, host.name()]).args(words);
        command.env("PATH", &self.path).env("UCX_TLS", "tcp,self");
        command.current_dir(self.folder.path());
        command
    }

    /// Runs a program on a host to its end. Returns its output.
    pub(crate) fn run(&self, host: Host, words: &[&str]) -> Result<String> {
        run(&mut self.command(host, words))
    }

    /// Starts a program on a host.
    pub(crate) fn spawn(&self, host: Host, words: &[&str]) -> Result<Process> {
        let log = self.folder.path().join(format!("{}.log", host.name()));
        Process::spawn(&mut self.command(host, words), &log)
    }

    /// Runs the same command line on both workers. Returns what they print.
    pub(crate) async fn both(&self, words: &[&str]) -> Result<String> {
        let mut running: Vec<Process> =
            Host::WORKERS.map(|host| self.spawn(host, words)).into_iter().collect::<Result<_>>()?;
        let mut printed = String::new();
        for process in &mut running {
            let status = process.exited(PATIENCE).await?;
            let log = process.log();
            ensure!(status.success(), "{words:?}: {status}\n{log}");
            printed.push_str(&log);
        }
        Ok(printed)
    }

    /// Waits until a program on a host listens on this port.
    pub(crate) async fn listens(&self, host: Host, port: u16) -> Result<()> {
        eventually("the program to listen", PATIENCE, async || {
            let sockets = self.run(host, &["ss", "-Hltn", &format!("sport = :{port}")])?;
            ensure!(!sockets.is_empty(), "nothing listens on port {port}");
            Ok(())
        })
        .await
    }

    /// Writes a program that stands in for ssh: it runs the command in the namespace that has the
    /// host's address. Returns its path.
    pub(crate) fn ssh(&self) -> Result<String> {
        let script = r#"#!/bin/sh
            while [ "${1#-}" != "$1" ]; do shift; done
            host=$1
            shift
            case $(getent ahostsv4 "$host" | cut -d ' ' -f 1 | head -n 1) in
              *.11) pod=worker-0 ;;
              *.12) pod=worker-1 ;;
              *) echo "ssh: no host $host" >&2; exit 255 ;;
            esac
            exec ip netns exec $pod unshare --uts sh -c "hostname $pod; $*"
        "#;
        let path = self.file("ssh");
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path.display().to_string())
    }

    /// Returns the traffic until now.
    pub(crate) fn traffic(&self) -> Result<Traffic> {
        let mut traffic = Traffic::default();
        for host in Host::WORKERS {
            let links = run(Command::new("ip").args(["-n", host.name(), "-json", "-stats", "link"]))?;
            let links: Vec<Value> = serde_json::from_str(&links)?;
            for link in &links {
                let bytes = |direction: &str| link["stats64"][direction]["bytes"].as_u64();
                let bytes = bytes("tx").zip(bytes("rx")).map(|(sent, received)| sent + received);
                match link["ifname"].as_str() {
                    Some("eth0") => traffic.eth0 += bytes.context("no counter of eth0")?,
                    Some("net1") => traffic.net1 += bytes.context("no counter of net1")?,
                    _ => {}
                }
            }
        }
        Ok(traffic)
    }

    /// Returns the traffic since then.
    pub(crate) fn since(&self, before: Traffic) -> Result<Traffic> {
        let now = self.traffic()?;
        Ok(Traffic { eth0: now.eth0 - before.eth0, net1: now.net1 - before.net1 })
    }
}
