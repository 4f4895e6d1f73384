//! Resolvers that read `/etc/resolv.conf`, as in a pod: those of glibc, musl, Go and Java. They run
//! in a network of their own, where the server has port 53.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::process::run;
use multinet_testing::sandboxed;
use multinet_testing::server::{Flags, Manifests, Server};
use tempfile::TempDir;

use crate::clients::program::{self, Answers, Reasons};
use crate::clients::{asked_over_tcp, infer, languages, large, set, start};
use crate::fixtures::name;

/// Pod whose only DNS server is ours. The server therefore also has to answer NXDOMAIN in the zones
/// of the search path, and in the zone that a short name seems to be in.
struct Pod {
    folder: TempDir,
    _manifests: Manifests,
    server: Server,
}

impl Pod {
    fn start() -> Result<Self> {
        let zones = "--zone multinet.cluster.local --zone cluster.local --zone multinet";
        // These are the listeners in a cluster, except for their addresses.
        let (manifests, server) = start(Flags::new().listen_instead("dns://[::]:53").words(zones))?;
        fs::write("/etc/nsswitch.conf", "hosts: files dns\n")?;
        Ok(Self { folder: tempfile::tempdir()?, _manifests: manifests, server })
    }

    /// Writes `/etc/resolv.conf` with this server and these options.
    fn resolv_conf(&self, server: &str, options: &str) -> Result<()> {
        let search = "vision.svc.cluster.local svc.cluster.local cluster.local";
        let path = Path::new("/etc/resolv.conf");
        // The file may be a dangling link here.
        fs::remove_file(path).or_else(|error| if path.is_symlink() { Err(error) } else { Ok(()) })?;
        fs::write(path, format!("search {search}\nnameserver {server}\noptions {options}\n"))?;
        Ok(())
    }

    /// Builds the program that resolves names, with the C library of this compiler.
    fn compile(&self, compiler: &[&str]) -> Result<PathBuf> {
        let program = self.folder.path().join("stub");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/clients/stub.c");
        let mut command = Command::new(compiler[0]);
        command
            .args(&compiler[1..])
            .args(["-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .args([source, "-lresolv"]);
        run(&mut command)?;
        Ok(program)
    }
}

/// Returns the answers for names that the search path completes.
fn short_names() -> Answers {
    let mut answers = program::addresses("infer.vision.svc.multinet");
    answers.extend(program::addresses("INFER.vision.SVC.multinet"));
    answers.push((("ipv4", "infer-0.infer.vision.svc.multinet".to_owned()), set(["10.20.0.1"])));
    answers.push((("ipv6", "infer-1.infer.vision.svc.multinet".to_owned()), set(["fd20::2"])));
    answers
}

#[tokio::test]
async fn glibc_resolves_names_of_the_search_path() -> Result<()> {
    sandboxed!();
    let pod = Pod::start()?;
    let program = pod.compile(&["cc"])?;
    let reasons = Reasons {
        no_name: "EAI_NONAME",
        no_address: "EAI_NODATA",
        no_owner: "HOST_NOT_FOUND",
        no_record: "NO_DATA",
        no_reverse: "EAI_NONAME",
    };
    for (server, options) in [
        ("127.0.0.1", "ndots:5"),
        ("127.0.0.1", "ndots:5 edns0"),
        ("::1", "ndots:5 edns0 trust-ad"),
        ("127.0.0.1", "ndots:5 single-request"),
        ("127.0.0.1", "ndots:5 single-request-reopen"),
        ("127.0.0.1", "ndots:5 use-vc"),
    ] {
        let all = || -> Result<()> {
            pod.resolv_conf(server, options)?;
            let mut stub = Command::new(&program);
            let mut expected = short_names();
            expected.push((("canonical", "infer.vision.svc.multinet".to_owned()), set([infer("")])));
            expected
                .push((("addresses", "infer-9.infer.vision.svc.multinet".to_owned()), set(["EAI_NONAME"])));
            expected.extend(program::answers());
            expected.extend(reasons.answers());
            program::check(&mut stub, &expected)?;
            let before = asked_over_tcp(&pod.server)?;
            program::check(&mut Command::new(&program), &program::all_of_large())?;
            ensure!(asked_over_tcp(&pod.server)? > before, "400 addresses without a query over TCP");
            Ok(())
        };
        all().with_context(|| format!("{server}, {options}"))?;
    }
    Ok(())
}

/// musl does not use TCP before 1.2.4, and later versions return at most 48 addresses. It gets
/// different addresses of a large service each time, so that clients reach all endpoints.
#[tokio::test]
async fn musl_resolves_names_of_the_search_path() -> Result<()> {
    sandboxed!();
    let pod = Pod::start()?;
    let program = pod.compile(&["musl-gcc", "-static"])?;
    let with_no_address = |no_address| Reasons {
        no_name: "EAI_NONAME",
        no_address,
        no_owner: "HOST_NOT_FOUND",
        no_record: "NO_DATA",
        no_reverse: "EAI_NONAME",
    };
    let large_name = program::dotted(name("large"));
    for server in ["127.0.0.1", "::1"] {
        pod.resolv_conf(server, "ndots:5")?;
        // Later versions report that the name has an address of the other family.
        let question = ("ipv6", large_name.clone());
        let said =
            program::ask(&mut Command::new(&program), [&question])?.remove(&question).unwrap_or_default();
        let is_later = said.contains("EAI_NODATA");
        let mut expected = short_names();
        expected.push((("canonical", "infer.vision.svc.multinet".to_owned()), set([infer("")])));
        expected.push((("addresses", "infer-9.infer.vision.svc.multinet".to_owned()), set(["EAI_NONAME"])));
        expected.extend(program::answers());
        expected.extend(with_no_address(if is_later { "EAI_NODATA" } else { "EAI_NONAME" }).answers());
        program::check(&mut Command::new(&program), &expected)?;

        let question = ("ipv4", large_name.clone());
        let mut seen = BTreeSet::new();
        let mut most = 0;
        for _ in 0..40 {
            let said =
                program::ask(&mut Command::new(&program), [&question])?.remove(&question).unwrap_or_default();
            ensure!(said.len() >= 20 && said.is_subset(&large()), "{said:?}");
            most = most.max(said.len());
            seen.extend(said);
        }
        ensure!(
            seen.len() > 2 * most,
            "40 answers of {most} addresses have only {} different addresses",
            seen.len()
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_resolver_of_go_follows_resolv_conf() -> Result<()> {
    sandboxed!();
    let pod = Pod::start()?;
    let program = languages::go(pod.folder.path())?;
    for (server, options) in [("127.0.0.1", "ndots:5"), ("::1", "ndots:5 edns0 use-vc")] {
        pod.resolv_conf(server, options)?;
        let mut expected = short_names();
        let text = ("txt", "infer-0.infer.vision.svc.multinet".to_owned());
        let of_kind = |kind| program::answers().into_iter().find(|((other, _), _)| *other == kind);
        expected.extend(of_kind("txt").map(|(_, answers)| (text, answers)));
        expected.push((("addresses", "infer-9.infer.vision.svc.multinet".to_owned()), set(["not found"])));
        expected.extend(program::names());
        expected.push((("ipv4", "large.test.svc.multinet".to_owned()), large()));
        program::check(Command::new(&program).arg("-"), &expected)?;
    }
    Ok(())
}

/// `InetAddress` calls glibc.
#[tokio::test]
async fn the_addresses_of_java_follow_resolv_conf() -> Result<()> {
    sandboxed!();
    let pod = Pod::start()?;
    pod.resolv_conf("127.0.0.1", "ndots:5")?;
    let mut expected = program::addresses("infer.vision.svc.multinet");
    expected.extend(program::addresses(&program::dotted(infer(""))));
    expected.push((("addresses", "infer-9.infer.vision.svc.multinet".to_owned()), set(["unknown host"])));
    expected.push((("addresses", "large.test.svc.multinet".to_owned()), large()));
    expected.extend(program::names());
    // Java returns an address without a name as its own name.
    let nameless: IpAddr = [10, 20, 0, 9].into();
    expected.push((("name", nameless.to_string()), set([nameless])));
    program::check(languages::java().arg("-"), &expected)
}
