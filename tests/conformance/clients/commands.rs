//! dig, kdig and drill, by every transport and with the options that people use.

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

/// A server with every listener.
struct Secured {
    server: Server,
    /// kdig's and dig's option for the authority of its certificate.
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

/// dig or kdig with these options, that is not content with a second attempt.
fn with(program: &str, server: SocketAddr, options: &str) -> Command {
    let mut command = Command::new(program);
    command.args([&format!("@{}", server.ip()), "-p", &server.port().to_string()]);
    command.args(options.split_whitespace());
    command
}

/// The messages that a command with these options prints, without complaints.
fn asking(program: &str, server: SocketAddr, options: &str) -> impl Fn(&[Question]) -> Result<Vec<Printed>> {
    move |questions| {
        let (messages, text) = Printed::by(with(program, server, options).args(arguments(questions)))?;
        for complaint in ["malformed", "BADCOOKIE", "mismatch", "unexpected", "timed out", "Warning", "(bad)"]
        {
            ensure!(!text.contains(complaint), "{program} {options} complains:\n{text}");
        }
        Ok(messages)
    }
}

#[test]
fn dig_understands_everything() -> Result<()> {
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
        ("dns", "+tries=1 +time=10 +edns=1"), // asks again with version 0, after BADVERS
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
fn digs_short_form() -> Result<()> {
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
fn kdig_understands_everything() -> Result<()> {
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

/// On encrypted transports, padding hides the length of the answer (RFC 7830, RFC 8467), be it a
/// hit, a miss, or a large set.
#[test]
fn kdig_is_answered_with_padding() -> Result<()> {
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
            ensure!(size.is_multiple_of(468) == is_padded, "kdig {options}: {size} octets\n{text}");
        }
    }
    Ok(())
}

/// Several questions on one QUIC connection. When the end of a stream comes in a packet behind that
/// of the answer, Knot 3.2 has not yet seen it as it asks next, asks on the same stream, and gives
/// up (`quic_send_data` in its `quic.c`). So it may try again.
#[test]
fn kdig_keeps_a_quic_connection() -> Result<()> {
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
    attempts.find(|attempt| !attempt.as_ref().is_err_and(faults)).context("50 attempts have failed")?
}

/// The messages that drill prints, which takes one question at a time.
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

/// By itself it prints what a datagram holds; asked to, it goes on over TCP.
#[test]
fn drill_understands_everything() -> Result<()> {
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
