//! Paths of manifests on the command line, and mistakes in the log. Which files are read, and how
//! changes are followed, is tested in `dns-server/src/source/manifests`.

use std::path::Path;

use anyhow::{Result, ensure};
use multinet_testing::server::{Flags, Manifests, Server, eventually};

use crate::fixtures::{Service, name};

/// Returns the manifest of a service with one endpoint, whose address ends in `n`.
fn service(service: &str, n: u8) -> String {
    Service::new(service).endpoint([10, 0, 0, n]).yaml()
}

/// Fails unless a service has exactly these addresses.
fn check(server: &Server, service: &str, addresses: &[u8]) -> Result<()> {
    let expected: Vec<String> = addresses.iter().map(|n| format!("10.0.0.{n}")).collect();
    let found = server.query(&name(service), "A")?.data();
    ensure!(found == expected, "{service} has {found:?} instead of {expected:?}");
    Ok(())
}

/// A path may also be a file, with any name.
#[test]
fn several_paths_and_single_files_are_served() -> Result<()> {
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
        check(&server, service, addresses)?;
    }
    Ok(())
}

/// Waits for the log line about a mistake in a file. Returns it.
fn logged_mistake(server: &Server, file: &Path) -> Result<String> {
    let file = file.display().to_string();
    eventually("a log line about the mistake", || {
        let log = server.log();
        let line = log.lines().rev().find(|line| line.contains(&file) && !line.contains(" INFO "));
        line.map(ToOwned::to_owned).ok_or_else(|| anyhow::anyhow!("the log is\n{log}"))
    })
}

#[test]
fn mistakes_at_the_start_are_logged_and_the_rest_is_served() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("good.yaml", &service("good", 1))?;
    manifests.write("broken.yaml", "kind: [unclosed\n")?;
    manifests.write("bad.yaml", &service("bad", 2).replace("port: 80", "port: 0"))?;
    let server = Flags::new().start(manifests.path())?;
    check(&server, "good", &[1])?;
    let mistakes = server.metric("multinet_dns_manifest_errors_total")?;
    ensure!(mistakes >= 2.0, "the metric counts {mistakes} mistakes");
    logged_mistake(&server, &manifests.file("broken.yaml"))?;
    let line = logged_mistake(&server, &manifests.file("bad.yaml"))?;
    ensure!(line.contains("test/bad") && line.contains("port"), "{line}");
    Ok(())
}
