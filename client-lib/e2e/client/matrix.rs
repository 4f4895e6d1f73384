//! `multinet matrix` over pods with two rails, one of which is slow at one pod.
//!
//! The sandbox is the switch: a bridge for each rail. All links have a limit that any machine
//! reaches, so that the figures are those of the links.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::multus::ip;
use multinet_testing::pki::{Certificate, FileAuthority};
use multinet_testing::process::{Process, run};
use multinet_testing::sandboxed;
use multinet_testing::server::{Flags, Manifests, Server};
use multinet_testing::wait::eventually;
use serde_json::Value;
use tempfile::TempDir;

use crate::multinet::{Outcome, multinet};

const SERVICE: &str = "train.vision.svc.multinet.cluster.local";

/// Pods of the service, and one that is none.
const PODS: [&str; 4] = ["worker-0", "worker-1", "worker-2", "worker-10"];
const STRANGER: &str = "stranger";

const PATIENCE: Duration = Duration::from_secs(20);

const MANIFEST: &str = "\
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkService
metadata: {name: train, namespace: vision}
spec:
  networks: [{name: rdma-a, alias: rail0}, {name: rdma-b, alias: rail1}]
  ports: [{name: rdma, port: 18515}]
  ttlSeconds: 1
";

/// Returns the slice of a rail.
fn slice(rail: usize, pods: &[&str]) -> String {
    let mut text = format!(
        "\
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkEndpointSlice
metadata:
  name: train-{rail}
  namespace: vision
  labels: {{multinetwork.numaproj.io/service-name: train, multinetwork.numaproj.io/managed-by: test}}
spec:
  addressType: IPv4
  network: {{kind: NetworkAttachmentDefinition, name: rdma-{rail}, namespace: vision, alias: rail{rail}}}
  ports: [{{name: rdma, port: 18515, protocol: TCP}}]
  endpoints:
"
    );
    for (number, pod) in pods.iter().enumerate() {
        text.push_str(&format!("  - addresses: [{}]\n    hostname: {pod}\n", address(rail, number)));
    }
    text
}

fn address(rail: usize, pod: usize) -> String {
    format!("192.168.{}.{}", 110 + rail, 10 + pod)
}

/// Pods, a server that names them, and their bench servers.
struct Pods {
    manifests: Manifests,
    dns: SocketAddr,
    _server: Server,
    folder: TempDir,
    servers: Vec<Process>,
}

impl Pods {
    fn set_up() -> Result<Self> {
        for rail in 0..2 {
            let bridge = format!("rail{rail}");
            ip(&["link", "add", &bridge, "type", "bridge"])?;
            ip(&["address", "add", &format!("192.168.{}.1/24", 110 + rail), "dev", &bridge])?;
            ip(&["link", "set", &bridge, "up"])?;
        }
        for (number, pod) in PODS.iter().chain([&STRANGER]).enumerate() {
            ip(&["netns", "add", pod])?;
            ip(&["-n", pod, "link", "set", "lo", "up"])?;
            for rail in 0..2 {
                let (end, nic) = (format!("p{number}r{rail}"), format!("net{}", rail + 1));
                ip(&["link", "add", &end, "type", "veth", "peer", "name", &nic, "netns", pod])?;
                ip(&["link", "set", &end, "master", &format!("rail{rail}"), "up"])?;
                ip(&["-n", pod, "address", "add", &format!("{}/24", address(rail, number)), "dev", &nic])?;
                ip(&["-n", pod, "link", "set", &nic, "up"])?;
                let rate = if (*pod, rail) == ("worker-2", 1) { "40mbit" } else { "200mbit" };
                run(in_pod(pod, "tc")
                    .args(["qdisc", "add", "dev", &nic, "root", "tbf", "rate", rate])
                    .args(["burst", "64kb", "latency", "50ms"]))?;
            }
        }
        let manifests = Manifests::new()?;
        manifests.write("service.yaml", MANIFEST)?;
        for rail in 0..2 {
            manifests.write(&format!("rail{rail}.yaml"), &slice(rail, &PODS))?;
        }
        let dns: SocketAddr = "192.168.110.1:53".parse()?;
        let server = Flags::new().listen_instead(&format!("dns://{dns}")).start(manifests.path())?;
        Ok(Self { manifests, dns, _server: server, folder: TempDir::new()?, servers: Vec::new() })
    }

    async fn start_servers(&mut self, flags: &[&str]) -> Result<()> {
        for pod in PODS {
            let dns = self.dns.to_string();
            let mut command = in_pod(pod, multinet()?.get_program());
            command.args(["bench", "server", "--server", &dns]).args(flags);
            let log = self.folder.path().join(format!("{pod}-{}", self.servers.len()));
            let mut process = Process::spawn(&mut command, &log)?;
            process.logged("listening on", PATIENCE).await?;
            self.servers.push(process);
        }
        Ok(())
    }

    /// Runs `multinet matrix` in a pod.
    fn matrix(&self, pod: &str, service: &str, arguments: &[&str]) -> Result<Outcome> {
        let dns = self.dns.to_string();
        let mut command = in_pod(pod, multinet()?.get_program());
        command.args(["matrix", "--server", &dns, service, "-D", "1", "-s", "8192"]).args(arguments);
        Outcome::of(&mut command)
    }
}

fn in_pod(pod: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", pod]).arg(program);
    command
}

#[tokio::test]
async fn a_matrix_names_the_slow_rail_of_a_pod_and_outlives_a_dead_one() -> Result<()> {
    sandboxed!();
    let mut pods = Pods::set_up()?;
    pods.start_servers(&["--matrix", SERVICE]).await?;
    pods.servers[3].kill()?;
    let html = pods.matrix("worker-0", SERVICE, &["-o", "html", "--expect", "0.1"])?;
    ensure!(html.status == Some(1), "{html:?}");
    for line in [
        "<li>all that worker-2 sends on rail1: ",
        "<li>worker-10 to and from all others on rail1: not measured: its server is not connected: ",
    ] {
        ensure!(html.stdout.contains(line), "{line}: {html:?}");
    }
    ensure!(!html.stdout.contains("sends on rail0: ") && !html.stdout.contains("receives on "), "{html:?}");
    for line in [
        "round 3 of 3, 16 of 24 measured",
        "12 of 24 measurements failed",
        "2 of 12 figures are below the 0.1 Gb/s of --expect",
    ] {
        ensure!(html.stderr.contains(line), "{line}: {html:?}");
    }
    rendered(&html.stdout)?;
    let unknown = pods.matrix("worker-0", SERVICE, &["--network", "rail7"])?;
    ensure!(
        unknown.status == Some(1) && unknown.stderr.contains("on network rail7, only on rail0, rail1"),
        "{unknown:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_server_measures_for_members_of_its_service_only() -> Result<()> {
    sandboxed!();
    let mut pods = Pods::set_up()?;
    pods.start_servers(&["--matrix", SERVICE]).await?;
    let stranger = pods.matrix(STRANGER, SERVICE, &["--network", "rail0", "-o", "json"])?;
    let document: Value = serde_json::from_str(&stranger.stdout)?;
    let pairs = document["rails"][0]["pairs"].as_array().context("no pairs")?;
    let refusal = format!("{} is no address of {SERVICE}, which --matrix names", address(0, PODS.len()));
    let is_refused = |pair: &Value| pair["error"].as_str().is_some_and(|error| error.contains(&refusal));
    ensure!(stranger.status == Some(1) && pairs.len() == 12 && pairs.iter().all(is_refused), "{stranger:?}");

    // Two matrices at once would make each other's figures wrong.
    let dns = pods.dns.to_string();
    let mut first = in_pod("worker-1", multinet()?.get_program());
    first.args(["matrix", "--server", &dns, SERVICE, "-D", "2", "-s", "8192", "--network", "rail0"]);
    let mut first = Process::spawn(&mut first, &pods.folder.path().join("first"))?;
    first.logged("round 1 of 3", PATIENCE).await?;
    let second = pods.matrix("worker-0", SERVICE, &["--network", "rail0"])?;
    let refusal = "its server refuses: another matrix is being measured, from 192.168.11";
    ensure!(second.status == Some(1) && second.stdout.contains(refusal), "{second:?}");
    let status = first.exited(PATIENCE).await?;
    ensure!(status.success(), "{}", first.log());

    // Pods without an address on a rail count as failures there, unless only those on it are meant.
    pods.manifests.replace("rail1.yaml", &slice(1, &PODS[..2]))?;
    eventually("a service with two pods on rail1", PATIENCE, async || {
        let on_rail = pods.matrix("worker-0", &format!("rail1._net.{SERVICE}"), &[])?;
        ensure!(on_rail.status == Some(0) && !on_rail.stdout.contains("worker-2"), "{on_rail:?}");
        Ok(())
    })
    .await?;
    let all = pods.matrix("worker-0", SERVICE, &["--network", "rail1"])?;
    ensure!(all.status == Some(1) && all.stderr.contains("10 of 12 measurements failed"), "{all:?}");
    for line in [
        "worker-2 to and from all others on rail1: not measured: worker-2 has no address there",
        "worker-10 to and from all others on rail1: not measured: worker-10 has no address there",
    ] {
        ensure!(all.stdout.contains(line), "{line}: {all:?}");
    }

    // A member that leaves is a stranger as soon as DNS says so.
    for rail in 0..2 {
        pods.manifests.replace(&format!("rail{rail}.yaml"), &slice(rail, &PODS[..3]))?;
    }
    let refusal = format!("{} is no address of {SERVICE}", address(0, 3));
    eventually("the pod that has left to be refused", PATIENCE, async || {
        let mut send = in_pod(PODS[3], multinet()?.get_program());
        let outcome = Outcome::of(send.args(["send", &address(0, 0), "--wait", "1"]))?;
        ensure!(outcome.stderr.contains(&refusal), "{outcome:?}");
        Ok(())
    })
    .await?;

    // With TLS, a server expects the service's certificate of its targets, and the asker's of the
    // asker.
    let authority = FileAuthority::new(pods.folder.path())?;
    let Certificate { cert, key } = authority.server(SERVICE)?;
    let files = [("--tls-cert", cert), ("--tls-key", key), ("--tls-ca", authority.ca())];
    let tls: Vec<String> =
        files.iter().flat_map(|(flag, file)| [(*flag).to_owned(), file.display().to_string()]).collect();
    let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
    pods.start_servers(&[&["--port", "18516", "--matrix", SERVICE], &tls[..]].concat()).await?;
    let secured =
        pods.matrix("worker-0", &format!("{SERVICE}:18516"), &[&["--network", "rail0"], &tls[..]].concat())?;
    ensure!(secured.status == Some(0) && secured.stdout.contains(" by TCP, "), "{secured:?}");
    let Certificate { cert, key } = authority.server("other.vision.svc.multinet.cluster.local")?;
    let (cert, key, ca) =
        (cert.display().to_string(), key.display().to_string(), authority.ca().display().to_string());
    let other = ["--tls-cert", &cert, "--tls-key", &key, "--tls-ca", &ca];
    let other = pods.matrix(
        "worker-0",
        &format!("{SERVICE}:18516"),
        &[&["--network", "rail0"], &other[..]].concat(),
    )?;
    ensure!(other.status == Some(1) && other.stdout.contains(" bytes, none measured; "), "{other:?}");
    Ok(())
}

/// Checks that a browser shows the page: a cell for each pair, and the outlier.
/// `MULTINET_TEST_SCREENSHOT` keeps the picture; `docs/matrix.png` is one with fewer colours.
fn rendered(page: &str) -> Result<()> {
    let folder = TempDir::new()?;
    let file = folder.path().join("matrix.html");
    fs::write(&file, page)?;
    let shot = folder.path().join("matrix.png");
    let dom = chromium(&folder, &["--dump-dom"], &file)?;
    ensure!(dom.matches("<td").count() == 32 && dom.contains("▼"), "{dom}");
    chromium(&folder, &[&format!("--screenshot={}", shot.display()), "--window-size=760,980"], &file)?;
    ensure!(fs::read(&shot)?.starts_with(b"\x89PNG"), "no picture");
    if let Some(copy) = std::env::var_os("MULTINET_TEST_SCREENSHOT") {
        fs::copy(&shot, copy)?;
    }
    Ok(())
}

fn chromium(folder: &TempDir, flags: &[&str], page: &Path) -> Result<String> {
    let profile = format!("--user-data-dir={}", folder.path().join("profile").display());
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", &profile]).args(flags);
    run(command.arg(format!("file://{}", page.display())))
}
