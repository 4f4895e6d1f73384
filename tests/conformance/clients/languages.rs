//! The resolvers of Go and Java, which can be told whom to ask.

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
    // As tests/tools/build.sh has built the standard library already.
    go.args(["-C", source, "build", "-trimpath", "-buildvcs=false", "-o"]).arg(&program);
    go.env("CGO_ENABLED", "0").env("GOWORK", "off").env("GOTOOLCHAIN", "local");
    run(&mut go)?;
    Ok(program)
}

/// The program in `Ask.java`, with what lets it start soon.
pub(super) fn java() -> Command {
    let mut java = Command::new("java");
    java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"]);
    java.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/clients/Ask.java"));
    java
}

/// It does not tell a name that does not exist from one without such records.
#[test]
fn gos_resolver() -> Result<()> {
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
    ensure!(asked_over_tcp(&server)? == 1, "{} questions over TCP", asked_over_tcp(&server)?);
    expected.extend(program::all_of_large());
    program::check(Command::new(&program).arg(format!("tcp:{}", server.dns())), &expected)
}

/// JNDI's, which knows no EDNS.
#[test]
fn javas_resolver() -> Result<()> {
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
    ensure!(asked_over_tcp(&server)? == 1, "{} questions over TCP", asked_over_tcp(&server)?);
    Ok(())
}
