//! Signed messages (RFC 8945) that dig, kdig and nsupdate sign and verify.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::dns::{Edns, Query, Reply, Transport};
use multinet_testing::secondary::{TsigKey, Zone};
use multinet_testing::server::{Flags, Manifests, Server};
use tempfile::TempDir;

use crate::fixtures::{Service, ZONE, folder, name};

const KEY: TsigKey = TsigKey { name: "one.test", secret: "c2VjcmV0IG9mIGF0IGxlYXN0IHNpeHRlZW4gb2N0ZXRz" };

/// Key without permission to transfer zones.
const OTHER: TsigKey = TsigKey { name: "two.test", secret: "YW5vdGhlciBzZWNyZXQgb2YgdGhhdCBsZW5ndGggLi4u" };

/// Returns flags with both keys, and the folder with the key file.
fn flags() -> Result<(Flags, TempDir)> {
    let keys = tempfile::tempdir()?;
    let file = keys.path().join("keys");
    fs::write(&file, [KEY.statement(), OTHER.statement()].concat())?;
    Ok((Flags::new().flag("--tsig-key-file", file).words("--transfer-to key:one.test"), keys))
}

fn run(program: &str, server: &Server, arguments: &str) -> Result<String> {
    let port = server.dns().port().to_string();
    let output = Command::new(program)
        .args(["@127.0.0.1", "-p", &port])
        .args(arguments.split_whitespace())
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    Ok([output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat())
}

/// This holds for replies of every kind, and other implementations accept the signatures.
#[test]
fn replies_to_signed_queries_are_signed() -> Result<()> {
    let (flags, _keys) = flags()?;
    let server = flags.start(&folder())?;
    let key = KEY.option();
    for transport in ["+notcp", "+tcp"] {
        for (question, status) in [
            (format!("{ZONE} SOA"), "NOERROR"),
            (format!("hdls1.testns.svc.{ZONE} A +bufsize=1232"), "NOERROR"),
            (format!("hdls1.testns.svc.{ZONE} A +noedns"), "NOERROR"),
            (format!("nothing.{ZONE} A"), "NXDOMAIN"),
            ("example.org A".to_owned(), "REFUSED"),
            (format!("{ZONE} SOA +edns=1 +noednsnegotiation"), "BADVERS"),
        ] {
            let text = run("dig", &server, &format!("{transport} +ignore -y {key} {question}"))?;
            ensure!(text.contains(&format!("status: {status}")), "{question}: {text}");
            ensure!(text.contains("TSIG PSEUDOSECTION"), "{question}: {text}");
            ensure!(!text.contains("verify"), "{question}: {text}");
        }
        let option = transport.trim_start_matches('+');
        let text = run("kdig", &server, &format!("+{option} -y {key} {ZONE} SOA"))?;
        ensure!(text.contains("NOERROR") && !text.contains("ERROR: "), "{text}");
        ensure!(!text.to_lowercase().contains("failed"), "{text}");
    }
    Ok(())
}

#[test]
fn one_key_file_works_for_the_server_and_for_dig() -> Result<()> {
    let keys = Manifests::new()?;
    keys.write("key", &KEY.statement())?;
    let file = keys.file("key");
    let server = Flags::new().flag("--tsig-key-file", &file).start(&folder())?;
    let text = run("dig", &server, &format!("-k {} {ZONE} SOA", file.display()))?;
    ensure!(text.contains("status: NOERROR") && text.contains("TSIG PSEUDOSECTION"), "{text}");
    ensure!(!text.contains("verify"), "{text}");
    Ok(())
}

#[test]
fn a_bad_signature_gets_the_matching_error() -> Result<()> {
    let (flags, _keys) = flags()?;
    let server = flags.start(&folder())?;
    let wrong = TsigKey { secret: OTHER.secret, ..KEY }.option();
    let unknown = TsigKey { name: "three.test", ..KEY }.option();
    let algorithm = KEY.option().replace("sha256", "sha512");
    let old = KEY.option().replace("hmac-sha256", "hmac-md5");
    for (key, code) in [(wrong, "BADSIG"), (unknown, "BADKEY"), (algorithm, "BADKEY"), (old, "BADKEY")] {
        let before = server.metric("multinet_dns_tsig_errors_total").unwrap_or(0.0);
        let text = run("dig", &server, &format!("-y {key} {ZONE} SOA"))?;
        ensure!(text.contains("status: NOTAUTH") && text.contains(code), "{key}: {text}");
        ensure!(server.metric("multinet_dns_tsig_errors_total")? > before, "{code} is not counted");
        let text = run("dig", &server, &format!("-y {key} {ZONE} AXFR"))?;
        ensure!(text.contains("Transfer failed") || text.contains(code), "{key}: {text}");
        ensure!(!text.contains("dns-version"), "{key}: {text}");
    }
    Ok(())
}

/// dig verifies the signature of every message of a transfer.
#[test]
fn a_key_permits_transfers() -> Result<()> {
    let manifests = Manifests::new()?;
    let hosts = (1..=2000u16)
        .map(|n| (std::net::Ipv4Addr::from(0x0a00_0000 | u32::from(n)).into(), format!("h-{n}")));
    manifests.write("large.yaml", &Service::new("large").hosts(hosts).yaml())?;
    let (flags, _keys) = flags()?;
    let server = flags.start(manifests.path())?;
    let port = server.dns().port();
    let zone = Zone::fetch(port, ZONE, Some(KEY))?;
    ensure!(zone.records.len() > 2 * 5 * 2000, "{} records", zone.records.len());
    for key in [None, Some(OTHER)] {
        ensure!(Zone::fetch(port, ZONE, key).is_err(), "a transfer for {key:?}");
    }
    assert_eq!(server.metric("multinet_dns_transfers_total{kind=\"refused\"}")?, 2.0);
    let text = run("kdig", &server, &format!("-y {} {ZONE} AXFR", KEY.option()))?;
    ensure!(
        text.contains(&name("large")) && !text.to_lowercase().contains("tsig error"),
        "kdig fails:\n{text}"
    );
    ensure!(
        text.lines().filter(|line| line.contains("\tIN\tSOA\t")).count() == 2,
        "kdig stops early:\n{text}"
    );
    Ok(())
}

/// Such a reply has no records.
#[test]
fn an_answer_without_room_for_its_signature_is_truncated() -> Result<()> {
    let manifests = Manifests::new()?;
    let many = (1..=30u8).fold(Service::new("many"), |service, n| service.endpoint([10, 0, 0, n]));
    manifests.write("many.yaml", &many.yaml())?;
    let (flags, _keys) = flags()?;
    let server = flags.start(manifests.path())?;
    let key = KEY.option();
    let text = run("dig", &server, &format!("-y {key} +notcp +ignore +noedns {} A", name("many")))?;
    ensure!(text.contains(" tc") && text.contains("ANSWER: 0") && !text.contains("verify"), "{text}");
    let text = run("dig", &server, &format!("-y {key} +noedns {} A", name("many")))?;
    ensure!(text.contains("ANSWER: 30") && !text.contains("verify"), "{text}");
    Ok(())
}

/// Returns the number of A records that dig shows.
fn addresses(text: &str) -> usize {
    text.lines().filter(|line| line.split_whitespace().nth(3) == Some("A")).count()
}

/// An answer has as many records as fit beside the signature: over TCP thousands of an RRset that
/// is too large for any message, over UDP all SRV records with as many addresses as fit.
#[test]
fn answers_leave_room_for_the_signature() -> Result<()> {
    let manifests = Manifests::new()?;
    let address = |n: u16| std::net::Ipv4Addr::from(0x0a00_0000 | u32::from(n)).into();
    let huge = (1..=4500u16).map(|n| (address(n), format!("h-{n}")));
    manifests.write("huge.yaml", &Service::new("huge").hosts(huge).yaml())?;
    // Seven targets of eight addresses each.
    let few = (0..56u16).map(|n| (address(n), format!("a-host-with-a-name-of-some-length-{}", n % 7)));
    manifests.write("few.yaml", &Service::new("few").hosts(few).yaml())?;
    let (flags, _keys) = flags()?;
    let server = flags.start(manifests.path())?;
    let key = KEY.option();

    let text = run("dig", &server, &format!("-y {key} +tcp {} A", name("huge")))?;
    let answers = addresses(&text);
    ensure!((4050..4096).contains(&answers), "{answers} records over TCP");
    ensure!(text.contains("hmac-sha256") && !text.contains("verify"), "the signature is invalid");

    let question = format!("-y {key} +notcp +ignore +bufsize=1232 {} SRV", name("_http._tcp.few"));
    let text = run("dig", &server, &question)?;
    let additionals = addresses(&text);
    ensure!(text.contains("ANSWER: 7,") && !text.contains(" tc"), "{text}");
    ensure!(
        (1..56).contains(&additionals) && additionals.is_multiple_of(8),
        "{additionals} additional records"
    );
    ensure!(text.contains("hmac-sha256") && !text.contains("verify"), "{text}");
    Ok(())
}

/// Returns a query for a name of this many bytes, signed with a key of that name, which the server
/// does not have.
fn signed_by_a_stranger(octets: usize, algorithm: &[u8], edns: Option<Edns>) -> Vec<u8> {
    let mut rest = octets - 1;
    let mut query = Query::new(".", "A");
    query.edns = edns;
    query.name.clear();
    while rest > 0 {
        // No label may be empty.
        let length = rest.min(if rest == 65 { 32 } else { 64 }) - 1;
        query.name.push(length as u8); // at most 63
        query.name.extend(std::iter::repeat_n(b'x', length));
        rest -= 1 + length;
    }
    query.name.push(0);
    let mut packet = query.to_wire();
    packet[11] += 1;
    // The key's name is a pointer to the question. There is no MAC.
    packet.extend([0xc0, 12, 0, 250, 0, 255, 0, 0, 0, 0, 0, algorithm.len() as u8 + 16]);
    packet.extend(algorithm);
    packet.extend([0, 0, 0x6b, 3, 0x22, 0xe5, 1, 0x2c, 0, 0, packet[0], packet[1], 0, 0, 0, 0]);
    packet
}

/// This holds for replies to unknown keys, even if keys and questions have long names.
#[test]
fn refusals_fit_into_datagrams() -> Result<()> {
    let (flags, _keys) = flags()?;
    let server = flags.start(&folder())?;
    let sha256 = b"\x0bhmac-sha256\0".as_slice();
    let long = [[63; 64].as_slice(), &[63; 64], &[40; 41], &[0]].concat();
    for (octets, algorithm, edns, header, is_told) in [
        (100, sha256, None, "QUERY NOTAUTH rd", true),
        (226, sha256, Some(Edns::new(512)), "QUERY NOERROR tc rd", true), // without the OPT record it fits
        (255, sha256, None, "QUERY NOERROR tc rd", false),
        (255, &long, None, "QUERY NOERROR tc rd", false),
        (255, &long, Some(Edns::new(1232)), "QUERY NOTAUTH rd", true),
        (255, &[0xc0, 12], Some(Edns::new(1232)), "QUERY FORMERR rd", false),
    ] {
        let limit = edns.as_ref().map_or(512, |edns| usize::from(edns.size));
        let packet = signed_by_a_stranger(octets, algorithm, edns);
        let reply = Reply::to(&packet, Transport::Udp.exchange(server.dns(), &packet)?)?;
        let case = format!("a name of {octets} bytes, an algorithm of {}", algorithm.len());
        ensure!(reply.raw.len() <= limit, "{case}: {} bytes", reply.raw.len());

        ensure!(reply.header() == header, "{case}: {}", reply.header());
        // A TSIG record, of class ANY.
        let has_record = reply.raw.windows(4).any(|octets| octets == [0, 250, 0, 255]);
        ensure!(has_record == is_told, "{case}: {:02x?}", reply.raw);
    }
    Ok(())
}

/// The client can only trust a signed refusal (RFC 8945 §5).
#[test]
fn refused_updates_are_signed() -> Result<()> {
    let (flags, keys) = flags()?;
    let server = flags.start(&folder())?;
    let script = keys.path().join("update");
    let port = server.dns().port();
    fs::write(
        &script,
        format!("server 127.0.0.1 {port}\nzone {ZONE}\nupdate add x.{ZONE} 5 A 10.0.0.1\nsend\n"),
    )?;
    let output = Command::new("nsupdate").args(["-d", "-y", &KEY.option()]).arg(&script).output()?;
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    // nsupdate prints the TSIG records of its own message and of the reply.
    ensure!(text.contains("status: NOTIMP") && text.matches("hmac-sha256").count() > 1, "{text}");
    ensure!(!text.contains("TSIG error") && !text.contains("expected a TSIG"), "{text}");
    Ok(())
}
