//! Output and end of `multinet resolve` with a real multinet-dns.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, ensure};
use multinet_testing::multus::ip;
use multinet_testing::sandboxed;
use multinet_testing::server::{Flags, Manifests, Server, eventually};
use serde_json::{Value, json};

use crate::multinet::{CHANGEABLE, Outcome, ROOT, SERVICE, multinet, quickstart, slice};

fn resolve(server: &Server, arguments: &[&str]) -> Result<Outcome> {
    Outcome::of(multinet()?.arg("resolve").arg("--server").arg(server.dns().to_string()).args(arguments))
}

/// Starts a server with one endpoint, which tests can change.
fn changeable() -> Result<(Manifests, Server)> {
    let manifests = Manifests::new()?;
    manifests.write("service.yaml", CHANGEABLE)?;
    manifests.write("slice.yaml", &slice(&[("a", "192.168.111.5", "gpu-1")]))?;
    let server = Flags::new().start(manifests.path())?;
    Ok((manifests, server))
}

/// Running `multinet resolve --watch`, whose lines are read one by one.
struct Watch {
    child: Child,
    lines: Option<BufReader<ChildStdout>>,
}

impl Watch {
    fn start(server: &Server, arguments: &[&str]) -> Result<Self> {
        Self::start_by(Command::new("env"), server, arguments)
    }

    /// Starts the program through the command `by`, which is `env` or runs `env`.
    fn start_by(mut by: Command, server: &Server, arguments: &[&str]) -> Result<Self> {
        // A shell without job control makes background processes ignore Ctrl-C, including these
        // tests and their children.
        by.arg("--default-signal=INT").arg(multinet()?.get_program());
        by.args(["resolve", "--watch", "--server", &server.dns().to_string(), SERVICE]).args(arguments);
        let mut child = by.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { child, lines: Some(lines) })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.lines.as_mut().context("closed")?.read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "it has ended");
        Ok(line.trim_end().to_owned())
    }

    fn json(&mut self) -> Result<Value> {
        Ok(serde_json::from_str(&self.line()?)?)
    }

    /// Waits for its end. Returns its exit status and its standard error.
    fn end(&mut self) -> Result<(ExitStatus, String)> {
        let status = eventually("multinet to end", || self.child.try_wait()?.context("it still runs"))?;
        let mut said = String::new();
        self.child.stderr.take().context("no standard error")?.read_to_string(&mut said)?;
        Ok((status, said))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_host_is_resolved_by_a_port_name() -> Result<()> {
    let server = quickstart()?;
    for (host, port) in
        [("detect-infer-0", &["rdma"][..]), ("detect-infer-1.rail0._net", &["rdma"]), ("detect-infer-1", &[])]
    {
        let outcome = resolve(&server, &[&[&*format!("{host}.{SERVICE}")], port].concat())?;
        let label = host.split('.').next().unwrap_or(host);
        let rows: Vec<&str> = outcome.stdout.lines().skip(1).collect();
        let are_its = rows.iter().all(|row| row.starts_with(label) && row.contains(" 18515 "));
        ensure!(outcome.status == Some(0) && rows.len() == 2 && are_its, "{host}: {outcome:?}");
    }
    Ok(())
}

#[test]
fn resolve_prints_a_table() -> Result<()> {
    let server = quickstart()?;
    let expected = "\
HOST            ADDRESS        NETWORK  PORT   RDMA    NUMA  PCI           NODE   ZONE  POD
detect-infer-0  192.168.111.5  rail0    18515  mlx5_2  0     0000:18:00.2  gpu-1  a     vision/detect-infer-0-x2v5k
detect-infer-0  fd00:111::5    rail0    18515  mlx5_2  0     0000:18:00.2  gpu-1  a     vision/detect-infer-0-x2v5k
detect-infer-1  192.168.111.6  rail0    18515  mlx5_2  0     0000:18:00.2  gpu-2  a     vision/detect-infer-1-q8mzt
detect-infer-1  fd00:111::6    rail0    18515  mlx5_2  0     0000:18:00.2  gpu-2  a     vision/detect-infer-1-q8mzt
";
    // All named ports, one port, and one network give the same result, since the service has one of
    // each.
    let network_name = format!("rail0._net.{SERVICE}");
    let alike: [&[&str]; 6] = [
        &[SERVICE],
        &[SERVICE, "rdma"],
        &[SERVICE, "18515"],
        &["--network", "rail0", SERVICE, "RDMA"],
        &["--network", "rail0", SERVICE, "18515"],
        &[&network_name, "rdma"],
    ];
    for arguments in alike {
        let Outcome { status, stdout, stderr } = resolve(&server, arguments)?;
        ensure!(status == Some(0) && stderr.is_empty(), "{arguments:?}: {status:?} {stderr}");
        ensure!(stdout == expected, "{arguments:?}:\n{stdout}");
    }
    // The number of no named port gives only addresses.
    let outcome = resolve(&server, &[SERVICE, "99"])?;
    ensure!(outcome.stdout.lines().count() == 5, "{}", outcome.stdout);
    ensure!(
        outcome.stdout.contains("\n192-168-111-5  192.168.111.5  -        99    -"),
        "{}",
        outcome.stdout
    );
    Ok(())
}

#[test]
fn resolve_completes_a_short_name_by_the_search_path() -> Result<()> {
    let server = quickstart()?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), "search vision.svc.cluster.local cluster.local\noptions ndots:5\n")?;
    let file = file.path().to_str().context("a path in UTF-8")?;
    let outcome = resolve(&server, &["--resolv-conf", file, "infer.vision.svc.multinet", "rdma"])?;
    ensure!(outcome.status == Some(0), "{outcome:?}");
    Ok(())
}

#[test]
fn resolve_prints_json() -> Result<()> {
    let server = quickstart()?;
    let outcome = resolve(&server, &[SERVICE, "rdma", "--output", "json"])?;
    let found: Value = serde_json::from_str(&outcome.stdout)?;
    ensure!(found["name"] == SERVICE && found["ttlSeconds"] == 5, "{found}");
    let address = |ip: &str| {
        json!({"ip": ip, "network": "rail0", "interface": "net1", "mac": "0a:58:c0:a8:6f:05",
               "rdmaDevices": ["mlx5_2"], "pci": "0000:18:00.2", "numa": 0})
    };
    let first = json!({
        "host": "detect-infer-0", "target": format!("detect-infer-0.{SERVICE}"), "port": 18515,
        "node": "gpu-1", "zone": "a",
        "pod": {"namespace": "vision", "name": "detect-infer-0-x2v5k", "uid": "1c6f0f6e-6f0b-4c5e-9b53-3c0d7a5e1f10"},
        "addresses": [address("192.168.111.5"), address("fd00:111::5")],
    });
    ensure!(found["endpoints"][0] == first, "{found:#}\nis not\n{first:#}");
    ensure!(found["endpoints"].as_array().is_some_and(|all| all.len() == 2), "{found:#}");
    Ok(())
}

#[test]
fn missing_names_are_reported_in_one_line() -> Result<()> {
    let server = quickstart()?;
    let none = "none.vision.svc.multinet.cluster.local";
    let host = format!("detect-infer-0.{SERVICE}");
    let network = format!("rail7._net.{SERVICE}");
    let cases: [(&[&str], i32, &str); 10] = [
        (&[none], 1, "no such service, or none of its endpoints is ready"),
        (&[none], 1, "`kubectl get mnsvc -n vision` lists the services with"),
        (&["infer.vision.svc.multinet"], 1, "give the name in full"),
        (&[&network], 1, "has no endpoint on the network rail7, only on rail0"),
        (&["infer.vision.svc.example.org"], 1, "refuses to answer"),
        (&[SERVICE, "metrics"], 1, "has no port metrics, only 18515"),
        (&[&host, "metrics"], 1, "has no port metrics, only 18515"),
        (&["--network", "rail7", SERVICE], 1, "has no address on network rail7, only on rail0"),
        (&["--network", "rail0", SERVICE, "99"], 1, "does not say which networks"),
        (&[SERVICE, "0"], 2, "\"0\" is not a port"),
    ];
    for (arguments, expected, needle) in cases {
        let Outcome { status, stdout, stderr } = resolve(&server, arguments)?;
        ensure!(status == Some(expected), "{arguments:?}: {status:?} {stderr}");
        ensure!(
            stdout.is_empty() && stderr.lines().count() == 1 && stderr.contains(needle),
            "{arguments:?}: {stderr}"
        );
        // Nothing is printed for programs, either.
        let Outcome { stdout, .. } = resolve(&server, &[arguments, &["--output", "json"]].concat())?;
        ensure!(stdout.is_empty(), "{arguments:?}: {stdout}");
    }
    Ok(())
}

#[test]
fn an_unreachable_server_is_named() -> Result<()> {
    let free = multinet_testing::process::free_port()?;
    let server = format!("127.0.0.1:{free}");
    let outcome = Outcome::of(multinet()?.args(["resolve", "--server", &server, SERVICE]))?;
    ensure!(outcome.status == Some(1) && outcome.stderr.contains(&server), "{outcome:?}");
    ensure!(outcome.stderr.lines().count() == 1, "{outcome:?}");
    Ok(())
}

#[test]
fn watch_prints_changes_as_they_happen() -> Result<()> {
    let (manifests, server) = changeable()?;
    let mut table = Watch::start(&server, &["rdma"])?;
    let mut lines = Watch::start(&server, &["rdma", "--output", "json"])?;
    ensure!(table.line()?.starts_with("  HOST  ADDRESS "), "no header");
    ensure!(table.line()?.starts_with("+ a     192.168.111.5 "), "not the first endpoint");
    let added = lines.json()?;
    ensure!(added["change"] == "added" && added["endpoint"]["host"] == "a", "{added}");

    manifests
        .replace("slice.yaml", &slice(&[("a", "192.168.111.5", "gpu-2"), ("b", "192.168.111.6", "gpu-1")]))?;
    let (changed, added) = (lines.json()?, lines.json()?);
    ensure!(changed["change"] == "changed" && changed["endpoint"]["node"] == "gpu-2", "{changed}");
    ensure!(added["change"] == "added" && added["endpoint"]["host"] == "b", "{added}");
    ensure!(table.line()?.starts_with("~ a     192.168.111.5 "), "not the changed endpoint");
    ensure!(table.line()?.starts_with("+ b     192.168.111.6 "), "not the new endpoint");

    manifests.replace("slice.yaml", &slice(&[("b", "192.168.111.6", "gpu-1")]))?;
    let removed = lines.json()?;
    ensure!(removed["change"] == "removed" && removed["endpoint"]["host"] == "a", "{removed}");
    ensure!(table.line()?.starts_with("- a     192.168.111.5 "), "not the removed endpoint");

    // Without a server, the last endpoints stay valid. The program reports that and goes on.
    server.stop()?;
    let held = lines.json()?;
    ensure!(held["change"] == "held" && held["error"].is_string(), "{held}");
    ensure!(table.child.try_wait()?.is_none(), "it has ended");
    Ok(())
}

#[test]
fn watch_waits_for_a_service_that_is_created_later() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("service.yaml", CHANGEABLE)?;
    let server = Flags::new().start(manifests.path())?;
    let mut watch = Watch::start(&server, &["rdma", "--output", "json"])?;
    let lost = watch.json()?;
    ensure!(
        lost["change"] == "lost" && lost["error"].as_str().is_some_and(|why| why.contains("no such service")),
        "{lost}"
    );
    manifests.replace("slice.yaml", &slice(&[("a", "192.168.111.5", "gpu-1")]))?;
    let added = watch.json()?;
    ensure!(added["change"] == "added" && added["endpoint"]["host"] == "a", "{added}");
    Ok(())
}

#[test]
fn watch_reports_an_empty_set_once_and_goes_on() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("service.yaml", CHANGEABLE)?;
    let server = Flags::new().start(manifests.path())?;
    let mut watch = Watch::start(&server, &["rdma"])?;
    ensure!(watch.line()?.starts_with("  HOST  ADDRESS  NETWORK"), "no header without rows");
    manifests.replace("slice.yaml", &slice(&[("a", "192.168.111.5", "gpu-1")]))?;
    ensure!(watch.line()?.starts_with("  HOST  ADDRESS        NETWORK"), "no header above rows");
    ensure!(watch.line()?.starts_with("+ a     192.168.111.5 "), "not the endpoint");
    watch.lines = None;
    let (_, said) = watch.end()?;
    ensure!(said.lines().count() == 1 && said.contains("no such service, or none of its"), "{said}");
    Ok(())
}

/// A router may advertise its link-local address as the DNS server.
#[tokio::test]
async fn a_nameserver_at_a_link_local_address_is_queried() -> Result<()> {
    sandboxed!();
    ip(&["link", "add", "net1", "type", "bridge"])?;
    ip(&["link", "set", "net1", "up"])?;
    ip(&["address", "add", "fe80::53/64", "dev", "net1", "nodad"])?;
    let folder = Path::new(ROOT).join("deploy/examples/quickstart");
    let _server = Flags::new().listen_instead("dns://[::]:53").start(&folder)?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), "nameserver fe80::53%net1\nsearch cluster.local\noptions ndots:5\n")?;
    let file = file.path().to_str().context("a path in UTF-8")?;
    for server in [&["--resolv-conf", file][..], &["--server", "fe80::53%net1"]] {
        let arguments = [&["resolve", SERVICE, "rdma"], server].concat();
        let outcome = Outcome::of(multinet()?.args(arguments))?;
        ensure!(outcome.status == Some(0) && outcome.stdout.contains("192.168.111.5"), "{outcome:?}");
    }
    Ok(())
}

#[test]
fn watch_ends_quietly_when_its_reader_goes_away() -> Result<()> {
    let (_manifests, server) = changeable()?;
    // No further change makes the program write, so that it has to notice the closed pipe by
    // itself.
    let mut watch = Watch::start(&server, &["rdma"])?;
    watch.line()?;
    watch.lines = None;
    let (status, said) = watch.end()?;
    ensure!(status.code() == Some(0) && said.is_empty(), "{status}: {said}");
    Ok(())
}

#[test]
fn ctrl_c_ends_watch_quietly() -> Result<()> {
    let (_manifests, server) = changeable()?;
    let mut watch = Watch::start(&server, &["rdma"])?;
    watch.line()?;
    let kill = Command::new("kill").args(["-s", "INT", &watch.child.id().to_string()]).status()?;
    ensure!(kill.success(), "{kill}");
    let (status, said) = watch.end()?;
    // A shell expects the end by the signal, which it reports as status 130.
    ensure!(status.signal() == Some(2) && said.is_empty(), "{status}: {said}");
    Ok(())
}

/// The kernel does not end the first process of a container by a signal without a handler.
#[tokio::test]
async fn sigterm_ends_watch_as_the_first_process_of_a_container() -> Result<()> {
    sandboxed!();
    let (_manifests, server) = changeable()?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "env"]);
    let mut watch = Watch::start_by(unshare, &server, &["rdma"])?;
    watch.line()?;
    let id = watch.child.id();
    let first = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
    let kill = Command::new("kill").args(["-s", "TERM", first.trim()]).status()?;
    ensure!(kill.success(), "{kill}");
    let (status, said) = watch.end()?;
    ensure!(status.code() == Some(143) && said.is_empty(), "{status}: {said}");
    Ok(())
}
