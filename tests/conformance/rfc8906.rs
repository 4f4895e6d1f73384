//! RFC 8906 §8: the questions by which servers that break the DNS are found, in its order and with its
//! expectations. Each test has the section's number.

use anyhow::{Result, ensure};
use multinet_testing::dns::{AD, CD, DO, Edns, Query, RD, Reply, Transport, Z};

use crate::fixtures::{Service, ZONE, name, server};

const SOA: &str = "ANSWER\n@ 5 IN SOA ns.dns hostmaster SERIAL 7200 1800 86400 5";
const NO_DATA: &str = "AUTHORITY\n@ 5 IN SOA ns.dns hostmaster SERIAL 7200 1800 86400 5";

/// The section's standard question, `dig +norec SOA zone`, with changes.
fn soa() -> Query {
    Query::new(ZONE, "SOA").flags(0)
}

/// Asks over both transports and compares the whole reply.
#[track_caller]
fn expect(query: &Query, lines: &[&str]) -> Result<()> {
    for transport in Transport::ALL {
        let reply = transport.ask(server().dns(), query)?;
        assert_eq!(reply.text(ZONE), lines.join("\n"), "{transport:?}");
    }
    Ok(())
}

#[test]
fn s8_1_1_the_server_is_configured_for_the_zone() -> Result<()> {
    expect(&soa(), &["QUERY NOERROR aa", SOA])
}

#[test]
fn s8_1_2_unknown_types() -> Result<()> {
    expect(&Query::new(ZONE, "TYPE1000").flags(0), &["QUERY NOERROR aa", NO_DATA])
}

/// CD may come back or not; RFC 6895 §2 says that it does.
#[test]
fn s8_1_3_1_cd() -> Result<()> {
    expect(&soa().flags(CD), &["QUERY NOERROR aa cd", SOA])
}

#[test]
fn s8_1_3_2_ad() -> Result<()> {
    expect(&soa().flags(AD), &["QUERY NOERROR aa", SOA])
}

#[test]
fn s8_1_3_3_the_reserved_bit() -> Result<()> {
    expect(&soa().flags(Z), &["QUERY NOERROR aa", SOA])
}

#[test]
fn s8_1_3_4_recursion_desired() -> Result<()> {
    expect(&soa().flags(RD), &["QUERY NOERROR aa rd", SOA])
}

/// `dig +opcode=15 +header-only`.
#[test]
fn s8_1_4_unknown_opcodes() -> Result<()> {
    let header = [0x12, 0x34, 15 << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for transport in Transport::ALL {
        let reply = Reply::to(&header, transport.exchange(server().dns(), &header)?)?;
        assert_eq!(reply.text(ZONE), "OPCODE15 NOTIMP\nno question", "{transport:?}");
    }
    Ok(())
}

#[test]
fn s8_1_5_tcp() -> Result<()> {
    assert_eq!(server().ask_tcp(&soa())?.text(ZONE), ["QUERY NOERROR aa", SOA].join("\n"));
    Ok(())
}

#[test]
fn s8_2_1_minimal_edns() -> Result<()> {
    expect(&soa().edns(Edns::new(1232)), &["QUERY NOERROR aa", "EDNS 0 1232", SOA])
}

#[test]
fn s8_2_2_version_negotiation() -> Result<()> {
    let edns = Edns { version: 100, ..Edns::new(1232) };
    expect(&soa().edns(edns), &["QUERY BADVERS", "EDNS 0 1232"])
}

#[test]
fn s8_2_3_unknown_options() -> Result<()> {
    expect(&soa().edns(Edns::new(1232).option(100, b"")), &["QUERY NOERROR aa", "EDNS 0 1232", SOA])?;
    expect(&soa().edns(Edns::new(1232).option(65_001, b"xyz")), &["QUERY NOERROR aa", "EDNS 0 1232", SOA])
}

#[test]
fn s8_2_4_unknown_flags() -> Result<()> {
    for flags in [0x40, 0x7fff] {
        expect(&soa().edns(Edns { flags, ..Edns::new(1232) }), &["QUERY NOERROR aa", "EDNS 0 1232", SOA])?;
    }
    Ok(())
}

#[test]
fn s8_2_5_version_negotiation_with_unknown_flags() -> Result<()> {
    let edns = Edns { version: 100, flags: 0x40, ..Edns::new(1232) };
    expect(&soa().edns(edns), &["QUERY BADVERS", "EDNS 0 1232"])
}

#[test]
fn s8_2_6_version_negotiation_with_unknown_options() -> Result<()> {
    let edns = Edns { version: 100, ..Edns::new(1232) }.option(100, b"");
    expect(&soa().edns(edns), &["QUERY BADVERS", "EDNS 0 1232"])
}

/// A truncated reply keeps its OPT record.
#[test]
fn s8_2_7_truncated_replies() -> Result<()> {
    let manifests = multinet_testing::server::Manifests::new()?;
    let hosts = (1..=60u8).map(|n| ([10, 0, 0, n].into(), format!("host-{n}")));
    manifests.write("many.yaml", &Service::new("many").hosts(hosts).yaml())?;
    let server = multinet_testing::server::Flags::new().start(manifests.path())?;
    for qtype in ["A", "SRV"] {
        let query = Query::new(&name("many"), qtype).flags(0).edns(Edns { flags: DO, ..Edns::new(512) });
        let reply = server.ask(&query)?;
        ensure!(reply.header() == "QUERY NOERROR aa tc", "{qtype}: {}", reply.header());
        ensure!(reply.edns().as_deref() == Some("EDNS 0 1232 do"), "{qtype}: {:?}", reply.edns());
        ensure!(reply.raw.len() <= 512, "{qtype}: {} octets", reply.raw.len());
    }
    Ok(())
}

#[test]
fn s8_2_8_dnssec_ok() -> Result<()> {
    let edns = Edns { flags: DO, ..Edns::new(1232) };
    expect(&soa().edns(edns), &["QUERY NOERROR aa", "EDNS 0 1232 do", SOA])
}

#[test]
fn s8_2_9_version_negotiation_with_dnssec_ok() -> Result<()> {
    let edns = Edns { version: 100, flags: DO, ..Edns::new(1232) };
    expect(&soa().edns(edns), &["QUERY BADVERS", "EDNS 0 1232 do"])
}

/// NSID, client subnet, cookie, expire, padding: those that a server does not do, it passes over. A cookie it
/// does.
#[test]
fn s8_2_10_several_defined_options() -> Result<()> {
    let edns = Edns::new(1232)
        .option(3, b"")
        .option(8, &[0, 1, 24, 0, 192, 0, 2])
        .option(10, &[1, 2, 3, 4, 5, 6, 7, 8])
        .option(9, b"")
        .option(12, &[0; 16]);
    expect(&soa().edns(edns), &["QUERY NOERROR aa", "EDNS 0 1232 option=10", SOA])
}
