//! Manifests: which files are read, how changes are followed, what a mistake does.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use multinet_testing::server::{Flags, Manifests, Server, eventually};
use serde_json::Value;

use crate::fixtures::{Service, name};

/// A service with one endpoint, whose address ends in `n`.
fn service(service: &str, n: u8) -> String {
    Service::new(service).endpoint([10, 0, 0, n]).yaml()
}

/// Waits until a service has exactly these addresses; none means that it does not exist.
fn until(server: &Server, service: &str, addresses: &[u8]) -> Result<()> {
    let expected: Vec<String> = addresses.iter().map(|n| format!("10.0.0.{n}")).collect();
    eventually(&format!("{service} to have {addresses:?}"), || {
        let reply = server.query(&name(service), "A")?;
        ensure!(reply.data() == expected, "the answer is {:?}", reply.data());
        ensure!(addresses.is_empty() == (reply.rcode() == "NXDOMAIN"), "{}", reply.rcode());
        Ok(())
    })
}

/// Checks at once that a service has exactly these addresses.
fn now(server: &Server, service: &str, addresses: &[u8]) -> Result<()> {
    let expected: Vec<String> = addresses.iter().map(|n| format!("10.0.0.{n}")).collect();
    let found = server.query(&name(service), "A")?.data();
    ensure!(found == expected, "{service} has {found:?} instead of {expected:?}");
    Ok(())
}

/// Each document of a YAML text as JSON.
fn json_documents(yaml: &str) -> Result<Vec<String>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml)?;
    Ok(documents.iter().map(ToString::to_string).collect())
}

fn bad_manifests(server: &Server) -> Result<f64> {
    server.metric("multinet_dns_manifest_errors_total")
}

#[test]
fn folders_are_walked() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("top.yaml", &service("top", 1))?;
    manifests.write("a/b/c/deep.yml", &service("deep", 2))?;
    let [json_service, json_slice] = &json_documents(&service("json", 3))?[..] else {
        panic!("two documents")
    };
    manifests.write("a/service.json", json_service)?;
    manifests.write("a/slice.json", json_slice)?;
    // What is no manifest by its name is not looked at.
    manifests.write("README.md", "kind: [")?;
    manifests.write(".top.yaml.swp", "\u{0}\u{1}")?;
    manifests.write("top.yaml~", "kind: [")?;
    let server = Flags::new().start(manifests.path())?;
    for (service, n) in [("top", 1), ("deep", 2), ("json", 3)] {
        now(&server, service, &[n])?;
    }
    assert_eq!(bad_manifests(&server)?, 0.0, "\n{}", server.log());
    Ok(())
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

/// The folder may be the one that `kubectl apply` gets.
#[test]
fn other_kinds_are_passed_over() -> Result<()> {
    let manifests = Manifests::new()?;
    let others = "\
apiVersion: v1
kind: Service
metadata: {name: one, namespace: test}
spec: {clusterIP: None}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: one, namespace: test, labels: {kubernetes.io/service-name: one}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.99]}]
---
# A kind of this name in another group is somebody else's.
apiVersion: example.org/v1
kind: MultiNetworkService
metadata: {name: other, namespace: test}
spec: 7
---
---
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [one.yaml]
---
";
    manifests.write("one.yaml", &format!("{others}{}---\n", service("one", 1)))?;
    manifests.write("values.yaml", "just: values\nof: [a, chart]\n")?;
    manifests.write("empty.yaml", "")?;
    manifests.write("comment.yaml", "# nothing yet\n")?;
    let server = Flags::new().start(manifests.path())?;
    now(&server, "one", &[1])?;
    now(&server, "other", &[])?;
    assert_eq!(bad_manifests(&server)?, 0.0, "\n{}", server.log());
    Ok(())
}

/// 200 ms are promised. A busy machine may delay any one of them, so the least counts.
#[test]
fn changes_are_served_soon() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("one.yaml", &service("one", 1))?;
    let server = Flags::new().start(manifests.path())?;
    let mut times = Vec::new();
    for n in 2..=20 {
        let yaml = service("one", n);
        let begin = Instant::now();
        manifests.write("one.yaml", &yaml)?;
        until(&server, "one", &[n])?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    let median = times[times.len() / 2];
    println!("write to answer: median {median:?}, least {:?}, most {:?}", times[0], times[times.len() - 1]);
    ensure!(times[0] < Duration::from_millis(200), "a write takes {:?} to be served", times[0]);
    Ok(())
}

#[test]
fn every_way_to_change_a_file_is_followed() -> Result<()> {
    let manifests = Manifests::new()?;
    let server = Flags::new().start(manifests.path())?;
    // New, rewritten, replaced by rename as editors do, renamed, deleted.
    manifests.write("one.yaml", &service("one", 1))?;
    until(&server, "one", &[1])?;
    manifests.write("one.yaml", &service("one", 2))?;
    until(&server, "one", &[2])?;
    manifests.replace("one.yaml", &service("one", 3))?;
    until(&server, "one", &[3])?;
    fs::rename(manifests.file("one.yaml"), manifests.file("renamed.yaml"))?;
    manifests.write("renamed.yaml", &service("one", 4))?;
    until(&server, "one", &[4])?;
    // Out of sight, and back.
    fs::rename(manifests.file("renamed.yaml"), manifests.file("renamed.yaml.off"))?;
    until(&server, "one", &[])?;
    fs::rename(manifests.file("renamed.yaml.off"), manifests.file("renamed.yaml"))?;
    until(&server, "one", &[4])?;
    manifests.remove("renamed.yaml")?;
    until(&server, "one", &[])?;
    // A folder that comes later, and goes as a whole.
    manifests.write("later/on/two.yaml", &service("two", 5))?;
    until(&server, "two", &[5])?;
    manifests.write("later/on/two.yaml", &service("two", 6))?;
    until(&server, "two", &[6])?;
    fs::remove_dir_all(manifests.file("later"))?;
    until(&server, "two", &[])
}

/// A file that is given by its name goes on being followed when another takes its place.
#[test]
fn a_single_file_is_followed_through_replacement() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("one.yaml", &service("one", 1))?;
    let server = Flags::new().start(&manifests.file("one.yaml"))?;
    now(&server, "one", &[1])?;
    for n in 2..6 {
        manifests.replace("one.yaml", &service("one", n))?;
        until(&server, "one", &[n])?;
    }
    manifests.write("one.yaml", &service("one", 6))?;
    until(&server, "one", &[6])?;
    manifests.remove("one.yaml")?;
    until(&server, "one", &[])?;
    manifests.write("one.yaml", &service("one", 7))?;
    until(&server, "one", &[7])
}

/// A file's objects go with their documents.
#[test]
fn documents_come_and_go() -> Result<()> {
    let manifests = Manifests::new()?;
    let text = |services: &[(&str, u8)]| {
        services.iter().map(|(name, n)| service(name, *n)).collect::<Vec<_>>().join("---\n")
    };
    manifests.write("all.yaml", &text(&[("one", 1), ("two", 2)]))?;
    let server = Flags::new().start(manifests.path())?;
    now(&server, "one", &[1])?;
    now(&server, "two", &[2])?;
    manifests.replace("all.yaml", &text(&[("two", 2), ("three", 3)]))?;
    until(&server, "one", &[])?;
    until(&server, "three", &[3])?;
    now(&server, "two", &[2])?;
    // The file stays, its objects go.
    manifests.replace("all.yaml", "# empty\n")?;
    until(&server, "two", &[])?;
    until(&server, "three", &[])
}

/// A mounted ConfigMap: the files are links through `..data`, which is a link that is replaced as a whole.
#[test]
fn a_config_maps_links_are_followed() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("..2026_11_21_1/one.yaml", &service("one", 1))?;
    manifests.write("..2026_11_21_1/two.yaml", &service("two", 1))?;
    symlink("..2026_11_21_1", manifests.file("..data"))?;
    symlink("..data/one.yaml", manifests.file("one.yaml"))?;
    symlink("..data/two.yaml", manifests.file("two.yaml"))?;
    let server = Flags::new().start(manifests.path())?;
    now(&server, "one", &[1])?;
    now(&server, "two", &[1])?;
    for round in 2..6 {
        let folder = format!("..2026_11_21_{round}");
        manifests.write(&format!("{folder}/one.yaml"), &service("one", round))?;
        manifests.write(&format!("{folder}/two.yaml"), &service("two", round))?;
        symlink(&folder, manifests.file("..data_tmp"))?;
        fs::rename(manifests.file("..data_tmp"), manifests.file("..data"))?;
        fs::remove_dir_all(manifests.file(&format!("..2026_11_21_{}", round - 1)))?;
        until(&server, "one", &[round])?;
        until(&server, "two", &[round])?;
    }
    assert_eq!(bad_manifests(&server)?, 0.0, "\n{}", server.log());
    Ok(())
}

/// After a burst of writes the last one counts.
#[test]
fn a_burst_of_changes_ends_in_the_last() -> Result<()> {
    let manifests = Manifests::new()?;
    let server = Flags::new().start(manifests.path())?;
    for n in 1..=200 {
        manifests.write("one.yaml", &service("one", n))?;
    }
    until(&server, "one", &[200])
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

/// A mistake in one object: its last good version stays, and its neighbours follow their own changes.
#[test]
fn a_bad_object_keeps_its_last_good_version() -> Result<()> {
    for (good, bad, field) in [
        ("port: 80", "port: 80000", "port"),
        ("port: 80", "port: zero", "port"),
        ("10.0.0.1\"", "10.0.0.256\"", "addresses"),
        ("10.0.0.1\"", "fd00::1\"", "addresses"),
        ("addressType: IPv4", "addressType: IPX", "addressType"),
        ("protocol: TCP", "protocol: ICMP", "protocol"),
        ("  addressType: IPv4\n", "", "addressType"),
    ] {
        let case = format!("{good:?} -> {bad:?}");
        let manifests = Manifests::new()?;
        manifests.write("one.yaml", &format!("{}---\n{}", service("one", 1), service("two", 2)))?;
        manifests.write("three.yaml", &service("three", 3))?;
        let server = Flags::new().start(manifests.path())?;

        // The slice is the last document with this text; the service is left as it is.
        let one = service("one", 1);
        let (head, tail) = one.rsplit_once(good).unwrap_or_else(|| panic!("{good} is not in the manifest"));
        manifests.replace("one.yaml", &format!("{head}{bad}{tail}---\n{}", service("two", 22)))?;
        until(&server, "two", &[22])?;
        now(&server, "one", &[1])?;
        now(&server, "three", &[3])?;
        ensure!(bad_manifests(&server)? >= 1.0, "{case}: not counted");
        let line = complaint(&server, &manifests.file("one.yaml"))?;
        ensure!(line.contains("test/one-0-ipv4"), "{case}: the object is not named in {line}");
        ensure!(line.contains(field), "{case}: the field is not named in {line}");

        // Others go on changing; the mistake is mended.
        manifests.replace("three.yaml", &service("three", 33))?;
        until(&server, "three", &[33])?;
        manifests.replace("one.yaml", &service("one", 4))?;
        until(&server, "one", &[4])?;
        until(&server, "two", &[])?;
    }
    Ok(())
}

/// A file that is no YAML at all keeps everything that it had.
#[test]
fn a_broken_file_keeps_its_last_good_version() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("one.yaml", &format!("{}---\n{}", service("one", 1), service("two", 2)))?;
    manifests.write("three.yaml", &service("three", 3))?;
    let server = Flags::new().start(manifests.path())?;
    for (round, broken) in
        [&b"kind: [unclosed\n"[..], b"\xff\xfe\x00 no text", b"{\"kind\": \n"].into_iter().enumerate()
    {
        let before = bad_manifests(&server)?;
        fs::write(manifests.file("one.yaml"), broken)?;
        eventually("the mistake to be counted", || {
            ensure!(bad_manifests(&server)? > before, "it is not");
            Ok(())
        })?;
        complaint(&server, &manifests.file("one.yaml"))?;
        let n = 30 + round as u8;
        manifests.replace("three.yaml", &service("three", n))?;
        until(&server, "three", &[n])?;
        now(&server, "one", &[1])?;
        now(&server, "two", &[2])?;
    }
    manifests.replace("one.yaml", &service("one", 4))?;
    until(&server, "one", &[4])?;
    until(&server, "two", &[])
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

/// Objects that no manifest names leave nothing behind: neither names above nor reverse names.
#[test]
fn withdrawn_names_leave_nothing() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("one.yaml", &service("one", 1))?;
    let server = Flags::new().start(manifests.path())?;
    let owners = [
        "test.svc.multinet.cluster.local".to_owned(),
        name("one"),
        name("_tcp.one"),
        name("_http._tcp.one"),
        name("_net.one"),
        name("10-0-0-1.one"),
        name("10-0-0-1.fast._net.one"),
        "1.0.0.10.in-addr.arpa".to_owned(),
        "10.in-addr.arpa".to_owned(),
    ];
    for owner in &owners {
        let rcode = server.query(owner, "TXT")?.rcode();
        ensure!(rcode == "NOERROR", "{owner}: {rcode}");
    }
    manifests.remove("one.yaml")?;
    until(&server, "one", &[])?;
    for owner in &owners {
        eventually("the names to go", || {
            let rcode = server.query(owner, "TXT")?.rcode();
            ensure!(rcode == "NXDOMAIN", "{owner}: {rcode}");
            Ok(())
        })?;
    }
    Ok(())
}
