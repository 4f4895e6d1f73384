//! The resolvers of Go and Java, which programs can point at any server.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use multinet_testing::process::run;
use multinet_testing::server::Flags;

use crate::clients::program::{self, Reasons};
use crate::clients::{asked_over_tcp, infer, start};

/// Builds the program in `go/`.
pub(super) fn go(folder: &Path) -> Result<PathBuf> {
    let program = folder.join("ask");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/clients/go");
    let mut go = Command::new("go");
    // With the same settings as in tests/tools/build.sh, the standard library is built already.
    go.args(["-C", source, "build", "-trimpath", "-buildvcs=false", "-o"]).arg(&program);
    go.env("CGO_ENABLED", "0").env("GOWORK", "off").env("GOTOOLCHAIN", "local");
    run(&mut go)?;
    Ok(program)
}

/// Returns the command for `Ask.java`, with options for a fast start.
pub(super) fn java() -> Command {
    let mut java = Command::new("java");
    java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"]);
    java.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/clients/Ask.java"));
    java
}

/// It gives the same error for a name that does not exist and for one without such records.
#[test]
fn the_resolver_of_go_gets_every_answer() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = go(folder.path())?;
    let (_manifests, server) = start(Flags::new())?;
    let reasons = Reasons {
        no_name: "not found",
        no_address: "not found",
        no_owner: "not found",
        no_record: "not found",
        no_reverse: "not found",
    };
    let mut expected = program::answers();
    expected.extend(program::addresses(&program::dotted(infer(""))));
    expected.extend(reasons.answers());
    let udp = format!("udp:{}", server.dns());
    program::check(Command::new(&program).arg(&udp), &expected)?;
    program::check(Command::new(&program).arg(&udp), &program::all_of_large())?;
    ensure!(asked_over_tcp(&server)? == 1, "{} queries over TCP", asked_over_tcp(&server)?);
    expected.extend(program::all_of_large());
    program::check(Command::new(&program).arg(format!("tcp:{}", server.dns())), &expected)
}

/// This is the resolver of JNDI, which does not use EDNS.
#[test]
fn the_resolver_of_java_gets_every_answer() -> Result<()> {
    let (_manifests, server) = start(Flags::new())?;
    let reasons = Reasons {
        no_name: "name not found",
        no_address: "no records",
        no_owner: "name not found",
        no_record: "no records",
        no_reverse: "name not found",
    };
    let mut expected = program::answers();
    expected.extend(reasons.answers());
    expected.extend(program::all_of_large());
    program::check(java().arg(server.dns().to_string()), &expected)?;
    ensure!(asked_over_tcp(&server)? == 1, "{} queries over TCP", asked_over_tcp(&server)?);
    Ok(())
}
