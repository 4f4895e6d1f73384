//! The command line: error messages, and the end of the program.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Output;

use anyhow::{Context, Result, ensure};
use multinet_testing::dns::{Query, Tcp};
use multinet_testing::pki::FileAuthority;
use multinet_testing::server::{Flags, Manifests, command, eventually, run_to_end};

use crate::fixtures::{Service, ZONE, folder, name};

/// Checks that the program failed to start: status 2, and one line that contains all `needles`.
fn check_failure(output: &Output, needles: &[&str]) -> Result<()> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2), "{}: {stderr}", output.status);
    ensure!(output.stdout.is_empty(), "printed {:?}", String::from_utf8_lossy(&output.stdout));
    ensure!(stderr.lines().count() == 1 && stderr.ends_with('\n'), "not one line:\n{stderr}");
    for needle in needles {
        ensure!(stderr.contains(needle), "{needle:?} is not in {stderr}");
    }
    Ok(())
}

/// Runs the program with valid manifests, a listener on loopback, and these invalid flags.
fn fail_with(flags: &[&str], needles: &[&str]) -> Result<()> {
    let mut command = command()?;
    command.arg("--manifests").arg(folder());
    if !flags.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    let output = run_to_end(command.args(flags)).with_context(|| format!("{flags:?}"))?;
    check_failure(&output, needles).with_context(|| format!("{flags:?}"))
}

#[test]
fn version_prints_the_name_and_the_number() -> Result<()> {
    let output = run_to_end(command()?.arg("--version"))?;
    ensure!(output.status.success(), "{}", output.status);
    assert_eq!(String::from_utf8(output.stdout)?, format!("multinet-dns {}\n", env!("CARGO_PKG_VERSION")));
    Ok(())
}

/// Conflicting flags and numbers out of range are tested in `dns-server/src/config/tests.rs`.
#[test]
fn bad_flags_are_refused_in_one_line() -> Result<()> {
    for (flags, needles) in [
        (&["--no-such-flag"][..], &["--no-such-flag"][..]),
        (&["--ttl", "-1"], &["-1"]),
        (&["--ttl", "soon"], &["--ttl", "soon"]),
        (&["--ttl"], &["--ttl"]),
        (&["--zone", "a..b"], &["--zone", "a..b"]),
        (&["--zone", ""], &["--zone"]),
        (&["--zone", "."], &["--zone"]),
        (&["--zone", "a b"], &["--zone", "a b"]),
        (&["--zone", &"z".repeat(64)], &["--zone"]),
        (&["--answer-order", "random"], &["--answer-order", "random"]),
        (&["--ns-address", "ns.example.org"], &["--ns-address", "ns.example.org"]),
        (&["--transfer-to", "10.0.0.0/33"], &["--transfer-to", "10.0.0.0/33"]),
        (&["--transfer-to", "key:none"], &["--transfer-to", "key:none", "--tsig-key-file"]),
        (&["--notify", "ns.example.org"], &["--notify", "ns.example.org"]),
        (&["--notify", "127.0.0.1@none"], &["--notify", "127.0.0.1:53@none", "--tsig-key-file"]),
        (&["--tsig-key-file", "missing.key"], &["--tsig-key-file", "missing.key"]),
        (&["--tsig-key-file", "Cargo.toml"], &["--tsig-key-file", "Cargo.toml", "line 1"]),
        (&["--lameduck", "soon"], &["--lameduck", "soon"]),
        (&["--udp-workers", "0"], &["--udp-workers", "0"]),
        (&["--tcp-max-connections", "0"], &["--tcp-max-connections", "0"]),
        (&["--cookie-secret-file", "/no/such/file"], &["--cookie-secret-file /no/such/file", "No such file"]),
        (&["--snapshot", "/"], &["--snapshot /", "not a regular file"]),
        (&["--snapshot", "/dev/null"], &["--snapshot /dev/null", "not a regular file"]),
        (&["--tsig-key-file", "/dev/zero"], &["--tsig-key-file /dev/zero", "not a regular file"]),
        (&["--cookie-secret-file", "/dev/zero"], &["--cookie-secret-file /dev/zero", "not a regular file"]),
        (&["--snapshot", "/no/such/file"], &["--snapshot /no/such/file", "no folder /no/such"]),
        (&["--log-format", "xml"], &["--log-format", "xml"]),
        (&["--admin", "9153"], &["--admin", "9153"]),
        (&["--dnstap", "/run/dnstap.sock"], &["--dnstap", "unix:PATH or tcp:ADDR:PORT"]),
        (&["--listen", "127.0.0"], &["--listen", "127.0.0"]),
        (&["--listen", "udp://127.0.0.1:0"], &["--listen", "udp://127.0.0.1:0"]),
        (&["--listen", "localhost:0"], &["--listen", "localhost:0"]),
        (&["--listen", "127.0.0.1:65536"], &["--listen", "127.0.0.1:65536"]),
        (&["--tls-cert", "cert.pem"], &["--tls-key"]),
        (&["extra"], &["extra"]),
    ] {
        fail_with(flags, needles)?;
    }
    Ok(())
}

/// The message names the variable, so that users know where to look.
#[test]
fn bad_variables_are_refused_in_one_line() -> Result<()> {
    for (variable, value) in
        [("MULTINET_TTL", "soon"), ("MULTINET_ZONE", "a..b"), ("MULTINET_LISTEN", "127.0.0.1:0,nonsense")]
    {
        let mut command = command()?;
        command.arg("--manifests").arg(folder()).env(variable, value);
        let flag = format!("--{}", variable.trim_start_matches("MULTINET_").to_lowercase());
        let output = run_to_end(&mut command)?;
        let bad = value.rsplit(',').next().unwrap_or(value);
        check_failure(&output, &[&flag, bad]).with_context(|| variable.to_owned())?;
    }
    Ok(())
}

/// The query log shows whether the variable turned the flag on.
#[test]
fn variables_of_flags_without_a_value_are_booleans() -> Result<()> {
    for (value, is_on) in
        [("1", true), ("true", true), ("yes", true), ("0", false), ("false", false), ("", false)]
    {
        let server = Flags::new().env("MULTINET_LOG_QUERIES", value).start(&folder())?;
        server.query(ZONE, "SOA")?;
        let log = server.stop()?;
        ensure!(log.contains("qtype=6") == is_on, "{value:?}: {log}");
    }
    Ok(())
}

#[test]
fn unusable_files_are_named_in_the_error() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let missing = folder.path().join("missing.yaml").display().to_string();
    let output = run_to_end(command()?.args(["--manifests", &missing, "--listen", "127.0.0.1:0"]))?;
    check_failure(&output, &[&missing])?;

    let certificate = FileAuthority::new(folder.path())?.server("one.test")?;
    let other = FileAuthority::new(&folder.path().join("other"))?.server("two.test")?;
    let nonsense = folder.path().join("nonsense.pem");
    fs::write(&nonsense, "no certificate")?;
    let text = |path: &Path| path.display().to_string();
    let missing = text(&folder.path().join("missing.pem"));
    for (cert, key, needle) in [
        (missing.clone(), text(&certificate.key), missing.clone()),
        (text(&certificate.cert), missing.clone(), missing.clone()),
        (text(&nonsense), text(&certificate.key), text(&nonsense)),
        (text(&certificate.cert), text(&nonsense), text(&nonsense)),
        (text(folder.path()), text(&certificate.key), text(folder.path())),
        // Both files are valid, but the certificate does not belong to the key.
        (text(&certificate.cert), text(&other.key), text(&other.key)),
    ] {
        let flags = ["--listen", "tls://127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key];
        fail_with(&flags, &[&needle])?;
    }
    Ok(())
}

#[test]
fn a_port_in_use_is_named_in_the_error() -> Result<()> {
    let udp = UdpSocket::bind("127.0.0.1:0")?;
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    for address in [udp.local_addr()?, tcp.local_addr()?] {
        let address = address.to_string();
        fail_with(&["--listen", &address], &[&address])?;
        // The error names only the listener that failed.
        fail_with(&["--listen", "127.0.0.1:0", "--listen", &address], &[&address])?;
    }
    let address = tcp.local_addr()?.to_string();
    fail_with(&["--admin", &address], &[&address])?;
    // This is an address of another machine.
    fail_with(&["--listen", "192.0.2.1:0"], &["192.0.2.1"])
}

#[test]
fn a_ready_server_answers_for_all_manifests() -> Result<()> {
    let manifests = Manifests::new()?;
    let hosts =
        (1..=4000u16).map(|n| (IpAddr::from(Ipv4Addr::from(0x0a00_0000 | u32::from(n))), format!("h-{n}")));
    manifests.write("many.yaml", &Service::new("many").hosts(hosts).yaml())?;
    // Starting waits for `/readyz`.
    let server = Flags::new().start(manifests.path())?;
    let reply = server.ask_tcp(&Query::new(&name("h-4000.many"), "A"))?;
    ensure!(reply.rcode() == "NOERROR", "the server is ready but answers {}", reply.header());
    Ok(())
}

/// After SIGTERM, the server is no longer ready, but answers for the time of `--lameduck`.
#[test]
fn a_server_answers_during_its_lameduck_and_then_ends() -> Result<()> {
    let mut server = Flags::new().words("--lameduck 2s").start(&folder())?;
    assert_eq!(server.get("/livez")?.0, 200);
    server.process().signal("TERM")?;
    eventually("the server not to be ready", || {
        let (status, body) = server.get("/readyz")?;
        ensure!(status == 503, "/readyz answers {status}: {body}");
        Ok(())
    })?;
    assert_eq!(server.get("/livez")?.0, 200);
    assert_eq!(server.query(ZONE, "SOA")?.rcode(), "NOERROR");
    let status = server.exited()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// The log has no error then, whatever the server was doing.
#[test]
fn sigterm_ends_the_server_with_status_0() -> Result<()> {
    for _ in 0..8 {
        let server = Flags::new().start(&folder())?;
        let _idle = Tcp::connect(server.dns())?;
        server.query(ZONE, "SOA")?;
        let log = server.stop()?;
        ensure!(!log.contains("ERROR"), "{log}");
    }
    Ok(())
}

/// Runs the program without manifests, and with only these variables in its environment.
fn fail_without_source(variables: &[(&str, &Path)], needles: &[&str]) -> Result<()> {
    let mut command = command()?;
    command.env_clear().envs(variables.iter().copied()).args(["--listen", "127.0.0.1:0"]);
    check_failure(&run_to_end(&mut command)?, needles)
}

#[test]
fn a_missing_cluster_configuration_is_explained() -> Result<()> {
    let folder = Manifests::new()?;
    let needles = ["no Kubernetes cluster is configured", "KUBECONFIG", "--manifests PATH"];
    fail_without_source(&[("HOME", folder.path())], &needles)
}

#[test]
fn an_unusable_kubeconfig_is_refused() -> Result<()> {
    let folder = Manifests::new()?;
    folder.write("kubeconfig", "clusters: 7\n")?;
    for file in ["kubeconfig", "missing"] {
        fail_without_source(&[("KUBECONFIG", &folder.file(file))], &["cannot use the kubeconfig"])?;
    }
    Ok(())
}

#[test]
fn unusable_snapshots_are_logged_and_ignored() -> Result<()> {
    let manifests = Manifests::new()?;
    for (contents, reason) in [
        ("multinet-dns snapshot 1 serial=1\n{}", "not a snapshot of this version"),
        ("multinet-dns snapshot 4 serial=1 taken=2026-11-21T09:00:00Z\n{}", "cannot use the snapshot"),
        ("rubbish", "not a snapshot of this version"),
    ] {
        let snapshot = manifests.file("dns.snapshot");
        fs::write(&snapshot, contents)?;
        let server = Flags::new().flag("--snapshot", &snapshot).start(folder().as_ref())?;
        eventually("the reason in the log", || {
            ensure!(server.log().contains(reason), "{reason:?} is not in\n{}", server.log());
            Ok(())
        })?;
        ensure!(server.query(ZONE, "SOA")?.rcode() == "NOERROR", "the zone is not served");
    }
    Ok(())
}
