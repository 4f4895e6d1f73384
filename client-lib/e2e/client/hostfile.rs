//! `multinet hostfile` with a real multinet-dns.

use std::process::Stdio;

use anyhow::{Result, ensure};
use multinet_testing::server::{Flags, Manifests, Server};
use serde_json::Value;

use crate::multinet::{CHANGEABLE, Outcome, SERVICE, multinet, slice};

const HOSTS: [(&str, &str, &str); 3] = [
    ("worker-10", "192.168.111.10", "gpu-1"),
    ("worker-2", "192.168.111.2", "gpu-2"),
    ("worker-0", "192.168.111.20", "gpu-3"),
];

fn start(hosts: &[(&str, &str, &str)]) -> Result<(Manifests, Server)> {
    let manifests = Manifests::new()?;
    manifests.write("service.yaml", CHANGEABLE)?;
    manifests.write("slice.yaml", &slice(hosts))?;
    let server = Flags::new().start(manifests.path())?;
    Ok((manifests, server))
}

fn hostfile(server: &Server, arguments: &[&str]) -> Result<Outcome> {
    let server = server.dns().to_string();
    Outcome::of(multinet()?.args(["hostfile", "--server", &server, SERVICE]).args(arguments))
}

#[test]
fn hosts_are_printed_by_their_numbers_on_every_pod() -> Result<()> {
    let (_manifests, server) = start(&HOSTS)?;
    let names = ["worker-0", "worker-2", "worker-10"];
    let lines = |line: fn(&str) -> String| names.map(line).concat();
    let cases: [(&[&str], String); 4] = [
        (&["--slots", "2"], lines(|name| format!("{name}.{SERVICE} slots=2\n"))),
        (&["--network", "rail0"], lines(|name| format!("{name}.rail0._net.{SERVICE} slots=8\n"))),
        (&["--format", "mpich", "--count", "3"], lines(|name| format!("{name}.{SERVICE}:8\n"))),
        (
            &["--address", "ip"],
            "192.168.111.20 slots=8\n192.168.111.2 slots=8\n192.168.111.10 slots=8\n".to_owned(),
        ),
    ];
    for (arguments, expected) in cases {
        let outcome = hostfile(&server, arguments)?;
        ensure!(outcome.status == Some(0) && outcome.stdout == expected, "{arguments:?}: {outcome:?}");
    }
    let hosts: Value = serde_json::from_str(&hostfile(&server, &["--format", "json"])?.stdout)?;
    ensure!(hosts[1]["host"] == "worker-2" && hosts[1]["node"] == "gpu-2", "{hosts}");

    // While a Job replaces a pod, the old one and the new one have one host name.
    let replaced = [HOSTS[0], HOSTS[1], HOSTS[2], ("worker-2", "192.168.111.3", "gpu-4")];
    let (_replacing, server) = start(&replaced)?;
    let outcome = hostfile(&server, &[])?;
    let expected = lines(|name| format!("{name}.{SERVICE} slots=8\n"));
    ensure!(outcome.status == Some(0) && outcome.stdout == expected, "{outcome:?}");
    let outcome = hostfile(&server, &["--count", "4", "--wait", "0"])?;
    ensure!(outcome.stderr.contains("has 3 hosts, worker-0, worker-2, worker-10, and not 4"), "{outcome:?}");
    let outcome = hostfile(&server, &["--count", "4", "--address", "ip"])?;
    ensure!(outcome.status == Some(0) && outcome.stdout.lines().count() == 4, "{outcome:?}");
    Ok(())
}

#[test]
fn fewer_hosts_than_wanted_are_named_at_the_end_of_the_wait() -> Result<()> {
    let (_manifests, server) = start(&HOSTS[..2])?;
    let none = "none.vision.svc.multinet.cluster.local";
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--count", "3", "--wait", "1s"], 1, "has 2 hosts, worker-2, worker-10, and not 3: "),
        (&["--network", "rail7"], 1, "has no endpoint on the network rail7, only on rail0"),
        (
            &["--format", "torchrun", "--count", "2", "--wait", "1s"],
            1,
            "has 2 hosts, worker-2, worker-10, and none of them has an address of this pod (",
        ),
        (
            &["--format", "torchrun", "--count", "3", "--wait", "1s"],
            1,
            "has 2 hosts, worker-2, worker-10, and not 3",
        ),
        (&["--count", "3", "--wait", "0"], 1, "has 2 hosts, worker-2, worker-10, and not 3"),
    ];
    for (arguments, status, expected) in cases {
        let outcome = hostfile(&server, arguments)?;
        let said = outcome.stderr.lines().last().unwrap_or_default();
        ensure!(outcome.status == Some(status) && outcome.stdout.is_empty(), "{arguments:?}: {outcome:?}");
        ensure!(said.starts_with("multinet: ") && said.contains(expected), "{arguments:?}: {said}");
    }
    let server = server.dns().to_string();
    let absent = Outcome::of(
        multinet()?.args(["hostfile", "--server", &server, none, "--count", "1", "--wait", "1"]),
    )?;
    let said = "none.vision.svc.multinet.cluster.local has 0 hosts and not 1: ";
    ensure!(absent.status == Some(1) && absent.stderr.contains(said), "{absent:?}");
    ensure!(absent.stderr.contains("no such service, or none of its endpoints is ready"), "{absent:?}");
    Ok(())
}

#[test]
fn hosts_that_come_later_are_waited_for() -> Result<()> {
    let (manifests, server) = start(&[])?;
    let address = server.dns().to_string();
    let mut command = multinet()?;
    command.args(["hostfile", "--server", &address, SERVICE, "--count", "3", "--wait", "60s"]);
    let waiting = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    manifests.replace("slice.yaml", &slice(&HOSTS))?;
    let output = waiting.wait_with_output()?;
    let printed = String::from_utf8(output.stdout)?;
    ensure!(output.status.success() && printed.lines().count() == 3, "{printed}");
    Ok(())
}
