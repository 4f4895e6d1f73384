//! Malformed queries, and the rule that the question comes back unchanged. Other malformed parts of
//! packets are tested in `dns-server/src/answer/slow`.

use anyhow::{Context, Result, ensure};
use multinet_testing::dns::{DO, Edns, Query, Reply, Transport, udp_socket};
use multinet_testing::server::{Flags, Manifests};
use multinet_testing::tools::repository;

use crate::fixtures::{Service, ZONE, folder, name, server};

/// Returns a query for an existing name, in mixed case.
fn query() -> Query {
    Query::new(&format!("hdlsprtls.testns.svc.{ZONE}"), "A").mixed_case()
}

/// Sends a packet over both transports. Fails if a reply differs from `expected`.
fn expect(packet: &[u8], expected: &str) -> Result<()> {
    for transport in Transport::ALL {
        let reply = Reply::to(packet, transport.exchange(server().dns(), packet)?)
            .with_context(|| format!("{transport:?}: {packet:02x?}"))?;
        let text = reply.text(ZONE);
        ensure!(text == expected, "{transport:?}: {packet:02x?}\nexpected {expected}\ngot      {text}");
    }
    Ok(())
}

/// Sets one of the header's counts: 0 questions, 1 answers, 2 authorities, 3 additionals.
fn with_count(mut packet: Vec<u8>, section: usize, count: u16) -> Vec<u8> {
    packet[4 + 2 * section..6 + 2 * section].copy_from_slice(&count.to_be_bytes());
    packet
}

#[test]
fn no_question_is_a_format_error() -> Result<()> {
    expect(&[0xab, 0xcd, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], "QUERY FORMERR rd\nno question")?;
    // A query with an OPT record gets a reply with one (RFC 6891 §6.1.1).
    let opt = [0xab, 0xcd, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
    expect(&opt, "QUERY FORMERR rd\nEDNS 0 1232\nno question")
}

/// A query has exactly one question (RFC 9619). The reply repeats the first one.
#[test]
fn two_questions_are_a_format_error() -> Result<()> {
    let mut packet = query().to_wire();
    packet.extend(query().question());
    expect(&with_count(packet, 0, 2), "QUERY FORMERR rd")?;
    expect(&with_count(query().to_wire(), 0, 2), "QUERY FORMERR rd")?;
    expect(&with_count(query().to_wire(), 0, 65_535), "QUERY FORMERR rd")
}

#[test]
fn a_question_that_cannot_be_read_is_a_format_error() -> Result<()> {
    let whole = query().to_wire();
    for length in [13, 20, whole.len() - 5, whole.len() - 4, whole.len() - 1] {
        expect(&whole[..length], "QUERY FORMERR rd\nno question")?;
    }
    let header = &whole[..12];
    let type_a = [0, 1, 0, 1];
    for name in [
        // A pointer to itself, one past the end, an unused label type, a name of 256 bytes.
        vec![0xc0, 12],
        vec![0xc0, 200],
        vec![1, b'a', 0xc0, 14],
        vec![0x41, 1, 0],
        vec![0x80, 1, 0],
        [[3, b'a', b'b', b'c'].repeat(64), vec![0]].concat(),
    ] {
        expect(&[header, &name, &type_a].concat(), "QUERY FORMERR rd\nno question")?;
    }
    Ok(())
}

#[test]
fn a_name_of_255_bytes_can_be_queried_and_one_of_256_cannot() -> Result<()> {
    let labels = |last: usize| {
        let name = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(last));
        Query::new(&name, "A").to_wire()
    };
    expect(&labels(61), "QUERY REFUSED rd")?;
    expect(&labels(62), "QUERY FORMERR rd\nno question")
}

/// The OPT record in the reply tells the client that the server knows EDNS but found a mistake
/// (RFC 6891 §7).
#[test]
fn a_bad_opt_record_gets_a_format_error_with_an_opt_record() -> Result<()> {
    let opt = |rdata: &[u8]| {
        let header = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, rdata.len() as u8];
        with_count([query().to_wire(), header.to_vec(), rdata.to_vec()].concat(), 3, 1)
    };
    for rdata in [
        // Half an option header, an option longer than the record, one byte after an option.
        vec![0],
        vec![0, 10, 0],
        vec![0, 10, 0, 9, 1, 2, 3],
        vec![0, 100, 0, 0, 7],
    ] {
        expect(&opt(&rdata), "QUERY FORMERR rd\nEDNS 0 1232")?;
    }
    Ok(())
}

#[test]
fn opt_as_a_question_is_a_format_error() -> Result<()> {
    expect(&Query::new(ZONE, "TYPE41").to_wire(), "QUERY FORMERR rd")
}

/// These are STATUS, NOTIFY, UPDATE and all unassigned opcodes.
#[test]
fn every_other_opcode_is_not_implemented() -> Result<()> {
    // `dig +opcode=15 +header-only` (RFC 8906 §8.1.4).
    expect(&[0x12, 0x34, 15 << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0], "OPCODE15 NOTIMP\nno question")?;
    for opcode in 1..16 {
        let asked = query().opcode(opcode);
        expect(&asked.to_wire(), &format!("OPCODE{opcode} NOTIMP"))?;
        // A query with an OPT record gets a reply with one (RFC 6891 §6.1.1).
        let asked = asked.edns(Edns { flags: DO, ..Edns::new(1232) });
        expect(&asked.to_wire(), &format!("OPCODE{opcode} NOTIMP\nEDNS 0 1232 do"))?;
    }
    Ok(())
}

#[test]
fn replies_and_fragments_are_not_answered() -> Result<()> {
    let socket = udp_socket(server().dns())?;
    let probe = Query::new(ZONE, "SOA");
    let mut reply = query().to_wire();
    reply[2] |= 0x80;
    let mut refused = reply.clone();
    refused[3] = 5;
    for packet in [&reply[..], &refused, &query().to_wire()[..11], &[0], &[]] {
        ensure!(socket.is_ignored(packet, &probe)?, "{packet:02x?} got a reply");
    }
    Ok(())
}

/// Resolvers that mix upper and lower case ("0x20") compare the name in every kind of reply.
#[test]
fn the_question_comes_back_byte_for_byte() -> Result<()> {
    let manifests = Manifests::new()?;
    let hosts = (1..=60u8).map(|n| ([10, 0, 0, n].into(), format!("host-{n}")));
    manifests.write("many.yaml", &Service::new("many").hosts(hosts).yaml())?;
    let server = Flags::new().start(manifests.path())?;
    let edns = |version| Edns { version, ..Edns::new(1232) };
    let host = name("host-1.many");
    for (query, header) in [
        (Query::new(&host, "A"), "QUERY NOERROR aa rd"),
        (Query::new(&host, "TXT"), "QUERY NOERROR aa rd"),
        (Query::new(&host, "MX"), "QUERY NOERROR aa rd"),
        (Query::new(&name("many"), "A"), "QUERY NOERROR aa tc rd"),
        (Query::new(&name("many"), "SRV"), "QUERY NOERROR aa tc rd"),
        (Query::new(&name("nobody"), "A"), "QUERY NXDOMAIN aa rd"),
        (Query::new("www.example.org", "A"), "QUERY REFUSED rd"),
        (Query::new(&host, "A").class(3), "QUERY REFUSED rd"),
        (Query::new(ZONE, "AXFR"), "QUERY REFUSED rd"),
        (Query::new(&host, "A").opcode(4), "OPCODE4 NOTIMP"),
        (Query::new(&host, "A").edns(edns(7)), "QUERY BADVERS rd"),
        (Query::new(&host, "A").edns(edns(7).option(10, b"no cookie")), "QUERY BADVERS rd"),
        (Query::new(&host, "A").edns(edns(0).option(10, b"12345678")), "QUERY NOERROR aa rd"),
        (Query::new(&host, "TYPE41"), "QUERY FORMERR rd"),
    ] {
        let query = query.mixed_case();
        let reply = server.ask(&query)?;
        ensure!(reply.header() == header, "{query}: {}", reply.header());
        ensure!(reply.raw[12..].starts_with(&query.question()), "{query}: the question has changed");
    }
    Ok(())
}

/// The comparison with docs/operations.md leaves out the time stamp.
#[test]
fn a_line_of_the_query_log_is_as_documented() -> Result<()> {
    let page = std::fs::read_to_string(repository().join("docs/operations.md"))?;
    for (format, begin) in
        [("plain", "INFO dns: query"), ("json", "\"level\":\"INFO\",\"message\":\"query\"")]
    {
        let line = |text: &str| {
            let line = text.lines().find_map(|line| Some(line[line.find(begin)?..].to_owned()));
            line.with_context(|| format!("no {begin} in {text}"))
        };
        let shown =
            line(&page)?.replace("10.244.1.7", "127.0.0.1").replace("infer.vision.svc", "hdls1.testns.svc");
        let server = Flags::new().words("--log-queries").flag("--log-format", format).start(&folder())?;
        let size = server.query(&format!("hdls1.testns.svc.{ZONE}"), "A")?.raw.len();
        let logged = multinet_testing::server::eventually("the log line", || line(&server.log()))?;
        ensure!(logged == shown.replace("128", &size.to_string()), "{logged}\ninstead of\n{shown}");
    }
    Ok(())
}

/// A name may contain any bytes, also control sequences of a terminal.
#[test]
fn names_in_the_log_are_escaped() -> Result<()> {
    let wicked = format!("a\\027[31m\\010b\\127\\255\\128.testns.svc.{ZONE}");
    for format in ["plain", "json"] {
        let server = Flags::new().words("--log-queries").flag("--log-format", format).start(&folder())?;
        server.query(&wicked, "A")?;
        server.ask(&Query::new(&wicked, "A").edns(Edns { version: 1, ..Edns::new(1232) }))?;
        server.ask_tcp(&Query::new(&wicked, "TXT"))?;
        // A log line is written before the reply or soon after it.
        let log = multinet_testing::server::eventually("three log lines about the name", || {
            let log = server.log();
            ensure!(log.lines().filter(|line| line.contains("testns.svc")).count() >= 3, "the log is {log}");
            Ok(log)
        })?;
        let control = log.chars().find(|c| c.is_control() && *c != '\n');
        ensure!(control.is_none(), "{format}: {control:?} in {log:?}");
        ensure!(log.is_ascii(), "{format}: {log:?}");
        let unquoted = log.replace("\\\\", "\\"); // JSON doubles backslashes
        ensure!(unquoted.contains("\\027[31m\\010b\\127"), "{format}: not escaped as \\DDD in {log}");
    }
    Ok(())
}
