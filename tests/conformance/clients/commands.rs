//! dig, kdig and drill over every transport, with common options.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::pki::FileAuthority;
use multinet_testing::server::{Flags, Manifests, Server};
use tempfile::TempDir;

use crate::clients::printed::{
    Printed, Question, arguments, check, check_additionals, check_case, check_large, check_truncated,
};
use crate::clients::{V4, V6, infer, set, start};
use crate::fixtures::name;

/// Server with a listener for every transport.
struct Secured {
    server: Server,
    /// Option of kdig and dig that names the authority of its certificate.
    ca: String,
    _manifests: Manifests,
    _folder: TempDir,
}

impl Secured {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let authority = FileAuthority::new(folder.path())?;
        let certificate = authority.server("dns.test")?;
        let flags = ["tls", "https", "quic"]
            .iter()
            .fold(Flags::new(), |flags, scheme| flags.listen(&format!("{scheme}://127.0.0.1:0")))
            .flag("--tls-cert", &certificate.cert)
            .flag("--tls-key", &certificate.key);
        let (manifests, server) = start(flags)?;
        let ca = format!("+tls-ca={}", authority.ca().display());
        Ok(Self { server, ca, _manifests: manifests, _folder: folder })
    }
}

/// Returns a command of dig or kdig with these options.
fn with(program: &str, server: SocketAddr, options: &str) -> Command {
    let mut command = Command::new(program);
    command.args([&format!("@{}", server.ip()), "-p", &server.port().to_string()]);
    command.args(options.split_whitespace());
    command
}

/// Returns a client that sends queries by a command with these options. It fails if the command
/// prints a warning.
fn asking(program: &str, server: SocketAddr, options: &str) -> impl Fn(&[Question]) -> Result<Vec<Printed>> {
    move |questions| {
        let (messages, text) = Printed::by(with(program, server, options).args(arguments(questions)))?;
        for complaint in ["malformed", "BADCOOKIE", "mismatch", "unexpected", "timed out", "Warning", "(bad)"]
        {
            ensure!(!text.contains(complaint), "{program} {options} prints a warning:\n{text}");
        }
        Ok(messages)
    }
}

#[test]
fn dig_accepts_the_replies_over_every_transport() -> Result<()> {
    let secured = Secured::start()?;
    let (server, ca) = (&secured.server, &secured.ca);
    let hostname = "+tls-hostname=dns.test";
    for (scheme, options) in [
        ("dns", "+tries=1 +time=10"), // with a cookie (RFC 7873)
        ("dns", "+tries=1 +time=10 +nocookie +norecurse +adflag +cdflag +zflag"),
        ("dns", "+tries=1 +time=10 +noedns"),
        ("dns", "+tries=1 +time=10 +bufsize=512"),
        ("dns", "+tries=1 +time=10 +bufsize=65535 +dnssec"),
        ("dns", "+tries=1 +time=10 +ednsopt=65001:c0ffee +ednsflags=0x1234"),
        ("dns", "+tries=1 +time=10 +nsid +expire +keepalive +subnet=10.0.0.0/8"),
        ("dns", "+tries=1 +time=10 +edns=1"), // after BADVERS, dig queries again with version 0
        ("dns", "+tries=1 +time=10 +tcp"),
        ("dns", "+tries=1 +time=10 +tcp +keepopen +keepalive +padding=128"),
        ("tls", &format!("+tries=1 +time=10 +tls {} {hostname}", ca)),
        ("https", &format!("+tries=1 +time=10 +https {} {hostname}", ca)),
        ("https", &format!("+tries=1 +time=10 +https-get {} {hostname}", ca)),
    ] {
        let ask = asking("dig", server.address(scheme)?, options);
        let all = check(&ask).and_then(|()| check_large(&ask)).and_then(|()| check_additionals(&ask));
        all.with_context(|| format!("dig {options}"))?;
    }
    check_case(&asking("dig", server.dns(), ""))?;
    check_truncated(&asking("dig", server.dns(), "+ignore"), 60)?;
    check_truncated(&asking("dig", server.dns(), "+ignore +noedns"), 20)?;
    Ok(())
}

#[test]
fn the_short_form_of_dig_shows_the_data() -> Result<()> {
    let (_manifests, server) = start(Flags::new())?;
    let short = |words: &[&str]| -> Result<String> {
        let output = with("dig", server.dns(), "+short +tries=1 +time=10").args(words).output()?;
        Ok(String::from_utf8(output.stdout)?)
    };
    ensure!(set(short(&[&infer("")])?.lines()) == set(V4));
    ensure!(short(&["-x", "10.20.0.2"])? == format!("{}.\n", infer("infer-1.")));
    ensure!(short(&["-x", "fd20::1"])? == format!("{}.\n", infer("infer-0.")));
    ensure!(short(&[&infer("missing.")])?.is_empty());
    Ok(())
}

#[test]
fn kdig_accepts_the_replies_over_every_transport() -> Result<()> {
    let secured = Secured::start()?;
    let (server, ca) = (&secured.server, &secured.ca);
    for (scheme, options) in [
        ("dns", "+retry=0 +time=10"),
        ("dns", "+retry=0 +time=10 +noedns"),
        ("dns", "+retry=0 +time=10 +cookie +bufsize=4096 +nsid"),
        ("dns", "+retry=0 +time=10 +tcp"),
        ("dns", "+retry=0 +time=10 +tcp +keepopen +cookie"),
        ("dns", "+retry=0 +time=10 +tcp +fastopen"),
        ("tls", &format!("+retry=0 +time=10 {ca} +tls-hostname=dns.test")),
        ("tls", &format!("+retry=0 +time=10 {ca} +tls-hostname=dns.test +keepopen +padding +bufsize=512")),
        ("https", &format!("+retry=0 +time=10 +https {ca} +tls-hostname=dns.test")),
        ("https", &format!("+retry=0 +time=10 +https +https-get {ca} +tls-hostname=dns.test +keepopen")),
        ("quic", "+retry=0 +time=10 +quic"),
    ] {
        let ask = asking("kdig", server.address(scheme)?, options);
        let all = check(&ask).and_then(|()| check_large(&ask)).and_then(|()| check_additionals(&ask));
        all.with_context(|| format!("kdig {options}"))?;
    }
    check_truncated(&asking("kdig", server.dns(), "+ignore +edns"), 60)
}

/// On encrypted transports, padding hides the length of every kind of answer (RFC 7830, RFC 8467).
#[test]
fn kdig_gets_padding_on_encrypted_transports() -> Result<()> {
    let secured = Secured::start()?;
    let questions = [(infer(""), "A"), (infer("missing."), "AAAA"), (name("large"), "A")];
    for (scheme, options, is_padded) in [
        ("tls", format!("+tls +padding {} +tls-hostname=dns.test", secured.ca), true),
        ("tls", format!("+tls +nopadding {} +tls-hostname=dns.test", secured.ca), false),
        ("https", format!("+https +padding {} +tls-hostname=dns.test", secured.ca), true),
        ("quic", "+quic +padding".to_owned(), true),
        ("dns", "+tcp +padding=128".to_owned(), false),
        ("dns", "+ignore +padding=128".to_owned(), false),
    ] {
        for question in &questions {
            let mut kdig = with("kdig", secured.server.address(scheme)?, &options);
            let (_, text) = Printed::by(kdig.args(["+retry=0", "+time=10", &question.0, question.1]))?;
            let size = text.split_once(";; Received ").and_then(|(_, rest)| rest.split(' ').next());
            let size: usize = size.context("no size")?.parse()?;
            ensure!(size.is_multiple_of(468) == is_padded, "kdig {options}: {size} bytes\n{text}");
        }
    }
    Ok(())
}

/// kdig may try several times. If the end of a stream arrives in a later packet than the answer,
/// Knot 3.2 sends its next query on the same stream, and gives up (`quic_send_data` in its
/// `quic.c`).
#[test]
fn kdig_queries_twice_on_one_quic_connection() -> Result<()> {
    let secured = Secured::start()?;
    let server = secured.server.address("quic")?;
    let ask = asking("kdig", server, "+retry=0 +time=10 +quic +keepopen");
    let mut attempts = (0..50).map(|_| {
        let replies = ask(&[(infer(""), "A"), (infer(""), "AAAA")])?;
        ensure!(replies[0].answers(&infer(""), "A")? == set(V4), "{replies:?}");
        ensure!(replies[1].answers(&infer(""), "AAAA")? == set(V6), "{replies:?}");
        Ok(())
    });
    let faults = |error: &anyhow::Error| error.to_string().contains("QUIC, failed to send");
    attempts.find(|attempt| !attempt.as_ref().is_err_and(faults)).context("50 attempts failed")?
}

/// Returns a client that sends queries by drill, one per command.
fn drill(server: SocketAddr, options: &str) -> impl Fn(&[Question]) -> Result<Vec<Printed>> {
    move |questions| {
        let mut all = Vec::new();
        for (name, rtype) in questions {
            let mut command = Command::new("drill");
            command.args(["-p", &server.port().to_string()]).args(options.split_whitespace());
            command.args([&format!("@{}", server.ip()), name, *rtype]);
            let (messages, text) = Printed::by(&mut command)?;
            ensure!(messages.len() == 1 && !text.contains("Error"), "drill {options}:\n{text}");
            all.extend(messages);
        }
        Ok(all)
    }
}

/// By default, drill prints the truncated reply; with `-a` or `-t`, it uses TCP.
#[test]
fn drill_accepts_the_replies_with_every_option() -> Result<()> {
    let (_manifests, server) = start(Flags::new())?;
    for options in ["", "-a", "-t", "-b 1232", "-D"] {
        let ask = drill(server.dns(), options);
        let all = check(&ask).and_then(|()| check_additionals(&ask));
        all.with_context(|| format!("drill {options}"))?;
    }
    check_case(&drill(server.dns(), ""))?;
    check_large(&drill(server.dns(), "-a"))?;
    check_large(&drill(server.dns(), "-t"))?;
    check_truncated(&drill(server.dns(), ""), 20)?;
    check_truncated(&drill(server.dns(), "-b 1232"), 60)
}
