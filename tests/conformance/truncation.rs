//! Answers that do not fit: how much of them is sent, and what is said about it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, ensure};
use multinet_testing::dns::{DO, Edns, Query, Reply};
use multinet_testing::server::{Flags, Manifests, Server};

use crate::fixtures::{Service, name};

/// Octets of an A record whose owner is compressed.
const A_RECORD: usize = 16;

/// Octets of an AAAA record whose owner is compressed.
const AAAA_RECORD: usize = 28;

/// Octets of an OPT record without options.
const OPT: usize = 11;

/// The manifests of this module: `many` with 150 addresses of each family, on a host each; `one-host` with
/// 100 addresses on one host; `few` with seven hosts; 60 services at 10.3.0.1.
fn start(flags: Flags) -> Result<(Manifests, Server)> {
    let v4 = |block: u8, n: u8| IpAddr::from(Ipv4Addr::new(10, block, 0, n));
    let v6 = |n: u8| IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()));
    let manifests = Manifests::new()?;
    let hosts = |count: u8| (1..=count).map(|n| format!("a-host-with-a-name-of-some-length-{n}"));
    let many = Service::new("many").hosts((1..=150).map(|n| v4(0, n)).zip(hosts(150)));
    let many = many.hosts((1..=150).map(v6).zip(hosts(150)));
    manifests.write("many.yaml", &many.yaml())?;
    let one_host = (1..=100).map(|n| (v4(1, n), "h".to_owned()));
    manifests.write("one-host.yaml", &Service::new("one-host").hosts(one_host).yaml())?;
    let few = hosts(7).enumerate().flat_map(|(host, name)| {
        (0..4).map(move |n| (v4(2, 4 * host as u8 + n), name.clone())) // seven hosts
    });
    manifests.write("few.yaml", &Service::new("few").hosts(few).yaml())?;
    let publishers: Vec<String> =
        (0..60).map(|n| Service::new(&format!("publisher-{n}")).endpoint([10, 3, 0, 1]).yaml()).collect();
    manifests.write("publishers.yaml", &publishers.join("---\n"))?;
    let server = flags.start(manifests.path())?;
    Ok((manifests, server))
}

fn ask(server: &Server, qtype: &str, owner: &str, edns: Option<u16>) -> Result<(Query, Reply)> {
    let mut query = Query::new(owner, qtype);
    query.edns = edns.map(Edns::new);
    let reply = server.ask(&query)?;
    Ok((query, reply))
}

/// Without EDNS 512 octets, with it the client's size but at most 1232; as many whole records as that
/// takes, and TC.
#[test]
fn as_many_whole_addresses_as_fit() -> Result<()> {
    let (_manifests, server) = start(Flags::new())?;
    for (qtype, octets) in [("A", A_RECORD), ("AAAA", AAAA_RECORD)] {
        let whole: BTreeSet<String> =
            server.ask_tcp(&Query::new(&name("many"), qtype))?.answers().into_iter().collect();
        ensure!(whole.len() == 150, "{} records over TCP", whole.len());
        for (edns, limit) in [
            (None, 512),
            (Some(0), 512),
            (Some(511), 512),
            (Some(512), 512),
            (Some(513), 513),
            (Some(700), 700),
            (Some(1231), 1231),
            (Some(1232), 1232),
            (Some(1233), 1232),
            (Some(4096), 1232),
            (Some(65_535), 1232),
        ] {
            let case = format!("{qtype}, EDNS size {edns:?}");
            let (query, reply) = ask(&server, qtype, &name("many"), edns)?;
            let fixed = 12 + query.question().len() + edns.map_or(0, |_| OPT);
            let records: BTreeSet<String> = reply.answers().into_iter().collect();
            ensure!(reply.header() == "QUERY NOERROR aa tc rd", "{case}: {}", reply.header());
            ensure!(reply.edns().is_some() == edns.is_some(), "{case}: OPT is {:?}", reply.edns());
            ensure!(reply.raw.len() <= limit, "{case}: {} octets", reply.raw.len());
            ensure!(records.len() == (limit - fixed) / octets, "{case}: {} records", records.len());
            ensure!(records.len() == reply.message.answers.len(), "{case}: a record stands there twice");
            ensure!(records.is_subset(&whole), "{case}: records that the whole answer does not have");
            ensure!(reply.message.authorities.is_empty() && reply.message.additionals.is_empty(), "{case}");
        }
    }
    Ok(())
}

/// Resolvers that never ask over TCP reach every endpoint in the long run.
#[test]
fn the_choice_of_addresses_rotates() -> Result<()> {
    let (_manifests, server) = start(Flags::new())?;
    let mut seen = BTreeSet::new();
    for _ in 0..200 {
        seen.extend(ask(&server, "A", &name("many"), None)?.1.data());
    }
    ensure!(seen.len() == 150, "in 200 answers only {} addresses of 150", seen.len());
    Ok(())
}

#[test]
fn the_choice_of_addresses_stays_with_a_fixed_order() -> Result<()> {
    let (_manifests, server) = start(Flags::new().words("--answer-order fixed"))?;
    let first = ask(&server, "A", &name("many"), None)?.1.answers();
    let count = (512 - 12 - Query::new(&name("many"), "A").question().len()) / A_RECORD;
    let expected: Vec<String> = (1..=count).map(|n| format!("{}. 5 IN A 10.0.0.{n}", name("many"))).collect();
    assert_eq!(first, expected);
    for _ in 0..20 {
        assert_eq!(ask(&server, "A", &name("many"), None)?.1.answers(), first);
    }
    Ok(())
}

/// A set of SRV, TXT or PTR records that is cut short would be taken for the whole: none are sent.
#[test]
fn other_records_are_sent_all_or_none() -> Result<()> {
    let (_manifests, server) = start(Flags::new())?;
    for (qtype, owner, count) in [
        ("SRV", name("many"), 150),
        ("SRV", name("_http._tcp.many"), 150),
        ("SRV", name("_http._tcp.fast._net.many"), 150),
        ("TXT", name("h.one-host"), 100),
        ("PTR", "1.0.3.10.in-addr.arpa".to_owned(), 60),
    ] {
        for edns in [None, Some(512), Some(4096)] {
            let case = format!("{owner} {qtype}, EDNS size {edns:?}");
            let (_, reply) = ask(&server, qtype, &owner, edns)?;
            let expected = match edns {
                None => "QUERY NOERROR aa tc rd",
                Some(_) => "QUERY NOERROR aa tc rd\nEDNS 0 1232",
            };
            ensure!(reply.text("") == expected, "{case}: {}", reply.text(""));
        }
        let reply = server.ask_tcp(&Query::new(&owner, qtype))?;
        ensure!(!reply.has_flag("tc"), "{owner} {qtype}: TC over TCP");
        ensure!(reply.data().len() == count, "{owner} {qtype}: {} records over TCP", reply.data().len());
    }
    Ok(())
}

/// Additional records that do not fit are left out, an RRset at a time (RFC 2181 §9), and that is no
/// truncation.
#[test]
fn additionals_are_dropped_as_whole_sets_and_without_tc() -> Result<()> {
    let (_manifests, server) = start(Flags::new())?;
    let owner = name("_http._tcp.few");
    let whole = server.ask_tcp(&Query::new(&owner, "SRV"))?;
    ensure!(whole.additionals().len() == 28, "{} additionals over TCP", whole.additionals().len());
    let set_sizes = by_owner(&whole);

    let base = whole.raw.len() - 28 * A_RECORD + OPT;
    ensure!((512..1232).contains(&base), "the fixture's answer takes {base} octets");
    let mut dropped = BTreeSet::new();
    for size in base..=1232 {
        let (_, reply) = ask(&server, "SRV", &owner, Some(size as u16))?;
        ensure!(reply.header() == "QUERY NOERROR aa rd", "size {size}: {}", reply.header());
        ensure!(reply.edns().is_some(), "size {size}: no OPT");
        ensure!(reply.raw.len() <= size, "size {size}: {} octets", reply.raw.len());
        ensure!(reply.data() == whole.data(), "size {size}: another answer");
        for (host, count) in by_owner(&reply) {
            ensure!(set_sizes.get(&host) == Some(&count), "size {size}: {count} additionals for {host}");
        }
        // What is left out would not have fitted.
        let sets = reply.additionals().len() / 4;
        ensure!(sets == ((size - base) / (4 * A_RECORD)).min(7), "size {size}: {sets} sets of additionals");
        dropped.insert(7 - sets);
    }
    ensure!(dropped.len() > 1, "the sizes make no difference");

    // One octet less than the answer itself takes: truncated.
    let (_, reply) = ask(&server, "SRV", &owner, Some(base as u16 - 1))?;
    assert_eq!(reply.text(""), "QUERY NOERROR aa tc rd\nEDNS 0 1232");
    Ok(())
}

fn by_owner(reply: &Reply) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for record in &reply.message.additionals {
        *counts.entry(format!("{} {}", record.name, record.record_type())).or_default() += 1;
    }
    counts
}

/// The name server's addresses with the NS record are additionals like others.
#[test]
fn glue_of_the_name_server_may_be_left_out() -> Result<()> {
    let addresses: String = (1..=40).map(|n| format!(" --ns-address 192.0.2.{n}")).collect();
    let (_manifests, server) = start(Flags::new().words(&addresses))?;
    let (_, reply) = ask(&server, "NS", crate::fixtures::ZONE, None)?;
    ensure!(reply.header() == "QUERY NOERROR aa rd" && reply.answers().len() == 1, "{}", reply.text(""));
    ensure!(reply.additionals().is_empty(), "a part of the glue: {}", reply.text(""));
    let (_, reply) = ask(&server, "NS", crate::fixtures::ZONE, Some(1232))?;
    ensure!(reply.additionals().len() == 40, "{} additionals", reply.additionals().len());
    let (_, reply) = ask(&server, "A", &format!("ns.dns.{}", crate::fixtures::ZONE), None)?;
    ensure!(reply.has_flag("tc") && reply.answers().len() > 20, "{}", reply.text(""));
    Ok(())
}

/// DNSSEC OK takes no room.
#[test]
fn dnssec_ok_changes_no_size() -> Result<()> {
    let (_manifests, server) = start(Flags::new().words("--answer-order fixed"))?;
    let query = Query::new(&name("many"), "A").edns(Edns { flags: DO, ..Edns::new(1232) });
    let reply = server.ask(&query)?;
    assert_eq!(reply.answers(), ask(&server, "A", &name("many"), Some(1232))?.1.answers());
    assert_eq!(reply.edns().context("no OPT")?, "EDNS 0 1232 do");
    Ok(())
}

/// More than 64 KiB fit into no message: a part of the records, others each time. Names in messages of more
/// than 16 KiB lie beyond what compression reaches.
#[test]
fn answers_beyond_any_message() -> Result<()> {
    let manifests = Manifests::new()?;
    let address = |n: u16| IpAddr::from(Ipv4Addr::from(0x0a00_0000 | u32::from(n)));
    let hosts = |count| (1..=count).map(move |n| (address(n), format!("host-{n}")));
    manifests.write("huge.yaml", &Service::new("huge").hosts(hosts(4500)).yaml())?;
    manifests.write("large.yaml", &Service::new("large").hosts(hosts(500)).yaml())?;
    let server = Flags::new().start(manifests.path())?;

    let query = Query::new(&name("huge"), "A");
    let reply = server.ask_tcp(&query)?;
    assert_eq!(reply.header(), "QUERY NOERROR aa rd");
    assert_eq!(reply.answers().len(), (65_535 - 12 - query.question().len()) / A_RECORD);
    let mut seen = BTreeSet::new();
    for _ in 0..100 {
        let reply = server.ask_tcp(&Query::new(&name("huge"), "SRV"))?;
        assert_eq!(reply.header(), "QUERY NOERROR aa rd");
        let targets: BTreeSet<String> = reply.data().into_iter().collect();
        ensure!(targets.len() == reply.answers().len() && targets.len() > 600, "{}", targets.len());
        ensure!(reply.raw.len() > 65_000 && reply.additionals().is_empty(), "{}", reply.raw.len());
        seen.extend(targets);
    }
    assert_eq!(seen.len(), 4500);
    ensure!(server.get("/metrics")?.1.contains("multinet_dns_subset_responses_total 101"), "not counted");

    let reply = server.ask_tcp(&Query::new(&name("_http._tcp.large"), "SRV"))?;
    assert_eq!(reply.header(), "QUERY NOERROR aa rd");
    assert_eq!(reply.answers().len(), 500);
    ensure!(reply.raw.len() > 0x4000, "the answer takes {} octets", reply.raw.len());
    let mut additionals = reply.additionals();
    additionals.sort_unstable();
    let mut expected: Vec<String> = hosts(500)
        .map(|(address, host)| format!("{}. 5 IN A {address}", name(&format!("{host}.large"))))
        .collect();
    expected.sort_unstable();
    assert_eq!(additionals, expected);
    // 500 endpoints share a weight of 100.
    ensure!(reply.data().iter().all(|data| data.starts_with("0 1 80 ")), "{:?}", reply.data().first());
    Ok(())
}
