//! Manifests as the server has them: the paths that it is given, changes that are served, mistakes
//! in its log. Which files are read, and how each way to change one is followed, is tested in
//! `dns-server/src/source/manifests`.

use std::path::Path;

use anyhow::{Result, ensure};
use multinet_testing::server::{Flags, Manifests, Server, eventually};

use crate::fixtures::{Service, name};

/// A service with one endpoint, whose address ends in `n`.
fn service(service: &str, n: u8) -> String {
    Service::new(service).endpoint([10, 0, 0, n]).yaml()
}

/// Checks at once that a service has exactly these addresses.
fn now(server: &Server, service: &str, addresses: &[u8]) -> Result<()> {
    let expected: Vec<String> = addresses.iter().map(|n| format!("10.0.0.{n}")).collect();
    let found = server.query(&name(service), "A")?.data();
    ensure!(found == expected, "{service} has {found:?} instead of {expected:?}");
    Ok(())
}

fn bad_manifests(server: &Server) -> Result<f64> {
    server.metric("multinet_dns_manifest_errors_total")
}

/// A path may be a file, of any name; there may be several.
#[test]
fn files_and_several_paths() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("one.yaml", &service("one", 1))?;
    manifests.write("two.yaml", &service("two", 2))?;
    manifests.write("three", &service("three", 3))?;
    manifests.write("other/four.yaml", &service("four", 4))?;
    let flags = Flags::new()
        .flag("--manifests", manifests.file("other"))
        .flag("--manifests", manifests.file("three"));
    let server = flags.start(&manifests.file("one.yaml"))?;
    for (service, addresses) in [("one", &[1][..]), ("two", &[]), ("three", &[3]), ("four", &[4])] {
        now(&server, service, addresses)?;
    }
    Ok(())
}

/// The line of the log that tells of a mistake.
fn complaint(server: &Server, file: &Path) -> Result<String> {
    let file = file.display().to_string();
    eventually("a line about the mistake", || {
        let log = server.log();
        let line = log.lines().rev().find(|line| line.contains(&file) && !line.contains(" INFO "));
        line.map(ToOwned::to_owned).ok_or_else(|| anyhow::anyhow!("the log is\n{log}"))
    })
}

/// At the start a mistake is no reason not to serve the rest.
#[test]
fn mistakes_at_the_start_are_reported_and_passed_over() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("good.yaml", &service("good", 1))?;
    manifests.write("broken.yaml", "kind: [unclosed\n")?;
    manifests.write("bad.yaml", &service("bad", 2).replace("port: 80", "port: 0"))?;
    let server = Flags::new().start(manifests.path())?;
    now(&server, "good", &[1])?;
    ensure!(bad_manifests(&server)? >= 2.0, "{} counted", bad_manifests(&server)?);
    complaint(&server, &manifests.file("broken.yaml"))?;
    let line = complaint(&server, &manifests.file("bad.yaml"))?;
    ensure!(line.contains("test/bad") && line.contains("port"), "{line}");
    Ok(())
}
