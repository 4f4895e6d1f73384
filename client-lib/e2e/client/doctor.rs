//! `multinet doctor` with a real multinet-dns, and with a peer in another network namespace through
//! several faults of their network.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::multus::ip;
use multinet_testing::process::Process;
use multinet_testing::sandboxed;
use multinet_testing::server::{Flags, Manifests, Server, command};
use serde_json::Value;

use crate::multinet::{CHANGEABLE, Outcome, SERVICE, multinet, own_sys, quickstart, slice};

fn doctor(server: &Server, arguments: &[&str]) -> Result<Outcome> {
    Outcome::of(multinet()?.args(["doctor", "--server", &server.dns().to_string()]).args(arguments))
}

/// Returns the findings that are not `ok`, as `level about message`.
fn bad(outcome: &Outcome) -> Result<Vec<String>> {
    let report: Value = serde_json::from_str(&outcome.stdout).with_context(|| format!("{outcome:?}"))?;
    let findings = report["findings"].as_array().context("no findings")?;
    let line = |finding: &Value| {
        let word = |field: &str| finding[field].as_str().unwrap_or_default().to_owned();
        format!("{} {} {}", word("level"), word("about"), word("message"))
    };
    let lines: Vec<String> = findings.iter().map(line).collect();
    let worst = report["worst"].as_str().context("no worst")?;
    ensure!(outcome.status == Some(i32::from(worst == "problem")), "{outcome:?}");
    Ok(lines.into_iter().filter(|line| !line.starts_with("ok ")).collect())
}

#[test]
fn doctor_prints_a_readable_report() -> Result<()> {
    let server = quickstart()?;
    let Outcome { status, stdout, stderr } = doctor(&server, &["--resolv-conf", "/dev/null", SERVICE])?;
    ensure!(stderr.is_empty(), "{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    let has =
        |start: &str, middle: &str| lines.iter().any(|line| line.starts_with(start) && line.contains(middle));
    ensure!(has("ok       dns       search path: none; ndots: 1", ""), "{stdout}");
    ensure!(has("ok       dns       127.0.0.1:", "knows the zone multinet.cluster.local"), "{stdout}");
    ensure!(has(&format!("ok       service   {SERVICE} has 2 endpoints"), ""), "{stdout}");
    ensure!(has("ok       endpoint  detect-infer-0:18515", "192.168.111.5 (rail0 mlx5_2)"), "{stdout}");
    // No host has the quickstart's addresses, whatever this machine's routes are.
    ensure!(has("problem  peer      detect-infer-0 at 192.168.111.5:18515 on rail0: ", ""), "{stdout}");
    ensure!(status == Some(1) && lines.last().is_some_and(|last| last.contains("problems, ")), "{stdout}");
    let fixless = lines.windows(2).find(|pair| {
        (pair[0].starts_with("problem") || pair[0].starts_with("warning"))
            && !pair[1].trim_start().starts_with("fix: ")
    });
    ensure!(fixless.is_none(), "{fixless:?}");
    Ok(())
}

#[test]
fn missing_names_are_problems_in_the_report() -> Result<()> {
    let server = quickstart()?;
    let none = "none.vision.svc.multinet.cluster.local";
    let cases: [(&[&str], &str); 3] = [
        (&[none], "problem service none.vision.svc.multinet.cluster.local: no such service"),
        (
            &[SERVICE, "metrics"],
            "problem service infer.vision.svc.multinet.cluster.local exists, but has no port metrics",
        ),
        (
            &[SERVICE, "--network", "rail7"],
            "problem service infer.vision.svc.multinet.cluster.local has no address on network rail7",
        ),
    ];
    for (arguments, start) in cases {
        let outcome = doctor(&server, &[&["--output", "json"], arguments].concat())?;
        let problems: Vec<String> =
            bad(&outcome)?.into_iter().filter(|line| line.starts_with("problem")).collect();
        ensure!(problems.len() == 1 && problems[0].starts_with(start), "{arguments:?}: {problems:#?}");
    }
    // The server has another zone than the name.
    let outcome = doctor(&server, &["--output", "json", "a.b.svc.example.org"])?;
    ensure!(bad(&outcome)?.iter().any(|line| line.starts_with("problem dns ")), "{outcome:?}");
    Ok(())
}

#[test]
fn silent_servers_are_named_in_the_report() -> Result<()> {
    let server = quickstart()?;
    let silent = format!("127.0.0.1:{}", multinet_testing::process::free_port()?);
    let after = doctor(&server, &["--server", &silent, "--output", "json"])?;
    let found = bad(&after)?;
    ensure!(
        found.iter().any(|line| line.starts_with("warning dns ") && line.contains(&silent)),
        "{found:#?}"
    );
    ensure!(after.status == Some(0), "{found:#?}");
    let alone = Outcome::of(multinet()?.args(["doctor", "--server", &silent, "--output", "json"]))?;
    let found = bad(&alone)?;
    ensure!(
        found.iter().any(|line| line.starts_with("problem dns ") && line.contains(&silent)),
        "{found:#?}"
    );
    Ok(())
}

/// Two pods with a second NIC: the sandbox itself, and the network namespace `peer`.
struct Pair {
    server: Server,
    listener: Process,
    _manifests: Manifests,
}

impl Pair {
    async fn make() -> Result<Self> {
        own_sys()?;
        ip(&["netns", "add", "peer"])?;
        ip(&["link", "add", "net1", "mtu", "9000", "type", "veth", "peer", "name", "net1", "netns", "peer"])?;
        ip(&["-n", "peer", "link", "set", "net1", "mtu", "9000"])?;
        ip(&["address", "add", "192.168.111.4/24", "dev", "net1"])?;
        ip(&["-n", "peer", "address", "add", "192.168.111.5/24", "dev", "net1"])?;
        ip(&["link", "set", "net1", "up"])?;
        ip(&["-n", "peer", "link", "set", "net1", "up"])?;
        let manifests = Manifests::new()?;
        manifests.write("service.yaml", CHANGEABLE)?;
        manifests.write("slice.yaml", &slice(&[("a", "192.168.111.5", "gpu-1")]))?;
        let server = Flags::new().start(manifests.path())?;
        // Any program that listens on the port is enough.
        let mut listener = Command::new("ip");
        listener.args(["netns", "exec", "peer"]).arg(command()?.get_program());
        listener.args(["--listen", "192.168.111.5:18515", "--manifests"]).arg(manifests.path());
        let mut listener = Process::spawn(&mut listener, &manifests.file("listener.log"))?;
        listener.logged("listening on dns://", Duration::from_secs(20)).await?;
        Ok(Self { server, listener, _manifests: manifests })
    }

    /// Returns the findings, without those about what this machine may lack, unlike a real pod.
    fn found(&self) -> Result<Vec<String>> {
        let outcome =
            doctor(&self.server, &["--resolv-conf", "/dev/null", "--output", "json", SERVICE, "rdma"])?;
        let found = bad(&outcome)?;
        Ok(found
            .into_iter()
            .filter(|line| {
                !line.contains(" rdma ")
                    && !line.contains(" memory ")
                    && !line.contains(" has no RDMA device")
                    && !line.contains(" its zone is not known")
            })
            .collect())
    }
}

#[tokio::test]
async fn each_fault_of_the_network_is_diagnosed() -> Result<()> {
    sandboxed!();
    ensure!(Path::new("/run/netns").exists(), "not in the sandbox");
    let mut pair = Pair::make().await?;
    let found = pair.found()?;
    ensure!(found.is_empty(), "{found:#?}");
    let alone = doctor(&pair.server, &["--output", "json", "192.168.111.5:18515"])?;
    ensure!(alone.status == Some(0) && alone.stdout.contains("connected in"), "{alone:?}");
    let peer = "peer a at 192.168.111.5:18515 on rail0: ";
    let alone = |found: &[String], level: &str, what: &str| {
        ensure!(
            found.len() == 1 && found[0].starts_with(&format!("{level} {peer}")) && found[0].contains(what),
            "{what}: {found:#?}"
        );
        Ok(())
    };

    ip(&["-n", "peer", "link", "set", "net1", "mtu", "1500"])?;
    alone(
        &pair.found()?,
        "problem",
        "small packets pass, but those of 9000 bytes, the MTU of net1, are lost",
    )?;
    ip(&["-n", "peer", "link", "set", "net1", "mtu", "9000"])?;

    pair.listener.kill()?;
    alone(&pair.found()?, "problem", "nothing listens on this port (from 192.168.111.4 on net1, MTU 9000)")?;

    ip(&["-n", "peer", "address", "del", "192.168.111.5/24", "dev", "net1"])?;
    let found = pair.found()?;
    alone(&found, "problem", "192.168.111.4 on net1")?;
    // The kernel may consider the neighbour reachable for a while.
    let is_gone = found[0].contains("no host on net1 has this address");
    ensure!(is_gone || found[0].contains("nothing comes back"), "{found:#?}");

    ip(&["address", "del", "192.168.111.4/24", "dev", "net1"])?;
    let found = pair.found()?;
    ensure!(
        found.iter().any(|line| line.starts_with("warning network this pod has no second NIC")),
        "{found:#?}"
    );
    ensure!(found.iter().any(|line| line.contains("no route (")), "{found:#?}");

    // The default network is not used unless it is allowed or the service names it.
    ip(&["address", "add", "192.168.111.4/24", "dev", "net1"])?;
    ip(&["route", "add", "default", "via", "192.168.111.1"])?;
    let way = "the way is by net1 (192.168.111.4), the default network";
    let found = pair.found()?;
    ensure!(found.contains(&format!("note {peer}{way}, which the service names")), "{found:#?}");
    let unnamed = doctor(&pair.server, &["--output", "json", "192.168.111.5:18515"])?;
    let found = bad(&unnamed)?;
    ensure!(found.iter().any(|line| line.starts_with("problem peer") && line.ends_with(way)), "{found:#?}");
    Ok(())
}
