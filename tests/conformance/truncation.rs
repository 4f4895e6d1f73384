//! Answers that do not fit into a message. `dns-server/tests/model/paths.rs` asserts for any query
//! that as many whole address records are sent as fit, and no records of other types.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, ensure};
use multinet_testing::dns::{Edns, Query, Reply};
use multinet_testing::server::{Flags, Manifests, Server};

use crate::fixtures::{Service, name};

/// Length of an A record with a compressed owner, in bytes.
const A_RECORD: usize = 16;

/// Length of an OPT record without options, in bytes.
const OPT: usize = 11;

/// Starts a server with the services `many`, which has 150 addresses, and `few`, which has seven
/// hosts with four addresses each.
fn start(flags: Flags) -> Result<(Manifests, Server)> {
    let v4 = |block: u8, n: u8| IpAddr::from(Ipv4Addr::new(10, block, 0, n));
    let manifests = Manifests::new()?;
    let hosts = |count: u8| (1..=count).map(|n| format!("a-host-with-a-name-of-some-length-{n}"));
    let many = Service::new("many").hosts((1..=150).map(|n| v4(0, n)).zip(hosts(150)));
    manifests.write("many.yaml", &many.yaml())?;
    let few = hosts(7).enumerate().flat_map(|(host, name)| {
        (0..4).map(move |n| (v4(2, 4 * host as u8 + n), name.clone())) // seven hosts
    });
    manifests.write("few.yaml", &Service::new("few").hosts(few).yaml())?;
    let server = flags.start(manifests.path())?;
    Ok((manifests, server))
}

fn ask(server: &Server, qtype: &str, owner: &str, edns: Option<u16>) -> Result<Reply> {
    let mut query = Query::new(owner, qtype);
    query.edns = edns.map(Edns::new);
    server.ask(&query)
}

#[test]
fn the_addresses_in_truncated_answers_stay_with_a_fixed_order() -> Result<()> {
    let (_manifests, server) = start(Flags::new().words("--answer-order fixed"))?;
    let first = ask(&server, "A", &name("many"), None)?.answers();
    let count = (512 - 12 - Query::new(&name("many"), "A").question().len()) / A_RECORD;
    let expected: Vec<String> = (1..=count).map(|n| format!("{}. 5 IN A 10.0.0.{n}", name("many"))).collect();
    assert_eq!(first, expected);
    for _ in 0..20 {
        assert_eq!(ask(&server, "A", &name("many"), None)?.answers(), first);
    }
    Ok(())
}

/// Additional records that do not fit are left out one RRset at a time, without the flag TC
/// (RFC 2181 §9).
#[test]
fn additionals_are_dropped_as_whole_sets_and_without_tc() -> Result<()> {
    let (_manifests, server) = start(Flags::new())?;
    let owner = name("_http._tcp.few");
    let whole = server.ask_tcp(&Query::new(&owner, "SRV"))?;
    ensure!(whole.additionals().len() == 28, "{} additionals over TCP", whole.additionals().len());
    let set_sizes = by_owner(&whole);

    let base = whole.raw.len() - 28 * A_RECORD + OPT;
    ensure!((512..1232).contains(&base), "the fixture's answer takes {base} bytes");
    let mut dropped = BTreeSet::new();
    for size in base..=1232 {
        let reply = ask(&server, "SRV", &owner, Some(size as u16))?;
        ensure!(reply.header() == "QUERY NOERROR aa rd", "size {size}: {}", reply.header());
        ensure!(reply.edns().is_some(), "size {size}: no OPT");
        ensure!(reply.raw.len() <= size, "size {size}: {} bytes", reply.raw.len());
        ensure!(reply.data() == whole.data(), "size {size}: another answer");
        for (host, count) in by_owner(&reply) {
            ensure!(set_sizes.get(&host) == Some(&count), "size {size}: {count} additionals for {host}");
        }
        // As many sets as fit are sent.
        let sets = reply.additionals().len() / 4;
        ensure!(sets == ((size - base) / (4 * A_RECORD)).min(7), "size {size}: {sets} sets of additionals");
        dropped.insert(7 - sets);
    }
    ensure!(dropped.len() > 1, "every size gives the same reply");

    // With one byte less than the answer takes, the reply is truncated.
    let reply = ask(&server, "SRV", &owner, Some(base as u16 - 1))?;
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

/// The addresses of the name server are additional records like others.
#[test]
fn glue_of_the_name_server_may_be_left_out() -> Result<()> {
    let addresses: String = (1..=40).map(|n| format!(" --ns-address 192.0.2.{n}")).collect();
    let (_manifests, server) = start(Flags::new().words(&addresses))?;
    let reply = ask(&server, "NS", crate::fixtures::ZONE, None)?;
    ensure!(reply.header() == "QUERY NOERROR aa rd" && reply.answers().len() == 1, "{}", reply.text(""));
    ensure!(reply.additionals().is_empty(), "only a part of the glue: {}", reply.text(""));
    let reply = ask(&server, "NS", crate::fixtures::ZONE, Some(1232))?;
    ensure!(reply.additionals().len() == 40, "{} additionals", reply.additionals().len());
    let reply = ask(&server, "A", &format!("ns.dns.{}", crate::fixtures::ZONE), None)?;
    ensure!(reply.has_flag("tc") && reply.answers().len() > 20, "{}", reply.text(""));
    Ok(())
}

/// A message has at most 64 KiB. An answer with more has different records each time. Compression
/// reaches only names within the first 16 KiB.
#[test]
fn answers_larger_than_any_message_are_subsets() -> Result<()> {
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
    ensure!(reply.raw.len() > 0x4000, "the answer takes only {} bytes", reply.raw.len());
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
