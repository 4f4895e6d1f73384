//! Zone transfers (RFC 5936, RFC 1995), compared with the answers from the same zone.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use multinet_testing::dns::{Query, Reply, Tcp};
use multinet_testing::server::{Flags, Server};

use crate::fixtures::{ZONE, folder};
use crate::table::{Case, Table};

/// Returns flags that allow transfers to loopback.
fn allowed() -> Flags {
    Flags::new().words("--answer-order fixed --transfer-to 127.0.0.0/8")
}

/// Transferred zone.
pub(crate) struct Zone {
    /// All records but the two SOA records, as text.
    pub(crate) records: Vec<String>,
    serial: u32,
    messages: usize,
}

/// Transfers a zone, and checks the form of the messages.
pub(crate) fn transfer(server: &Server, query: &Query) -> Result<Zone> {
    let packet = query.to_wire();
    let mut stream = Tcp::connect(server.dns())?;
    stream.send(&packet)?;
    let mut zone = Zone { records: Vec::new(), serial: 0, messages: 0 };
    let mut soas = Vec::new();
    while soas.len() < 2 {
        let reply = Reply::to(&packet, stream.receive()?)?;
        zone.messages += 1;
        ensure!(reply.header().starts_with("QUERY NOERROR aa"), "{}", reply.header());
        ensure!(zone.messages > 1 || reply.has_question(), "the first message has no question");
        ensure!(
            reply.message.authorities.is_empty() && reply.message.additionals.is_empty(),
            "a message has other sections"
        );
        ensure!(!reply.message.answers.is_empty(), "a message has no answers");
        let serial = reply.serial();
        for line in reply.answers() {
            ensure!(soas.len() < 2, "a record follows the second SOA: {line}");
            if line.contains(" IN SOA ") {
                soas.push(line);
                zone.serial = serial.context("an SOA without serial")?;
            } else {
                ensure!(!soas.is_empty(), "the transfer begins with {line}");
                zone.records.push(line);
            }
        }
    }
    ensure!(soas[0] == soas[1], "the two SOA records differ: {soas:?}");

    let query = Query::new(ZONE, "SOA");
    stream.send(&query.to_wire())?;
    let reply = Reply::to(&query.to_wire(), stream.receive()?)?;
    ensure!(reply.serial() == Some(zone.serial), "the zone has changed during the transfer");
    Ok(zone)
}

/// Fails unless each of the zone's RRsets equals the answer to a query for it.
fn check_answers(server: &Server, zone: &Zone) -> Result<()> {
    let mut sets: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for record in &zone.records {
        let mut words = record.splitn(5, ' ');
        let (Some(owner), _, _, Some(rtype)) = (words.next(), words.next(), words.next(), words.next())
        else {
            bail!("no record: {record}");
        };
        ensure!(sets.entry((owner, rtype)).or_default().insert(record), "twice: {record}");
    }
    for ((owner, rtype), expected) in &sets {
        let reply = server.ask_tcp(&Query::new(owner, rtype))?;
        let answers = reply.answers();
        let found: BTreeSet<&str> = answers.iter().map(String::as_str).collect();
        ensure!(found == *expected, "{owner} {rtype}: transferred {expected:?}, answered {found:?}");
    }
    Ok(())
}

/// They are counted like other queries; the log names the client.
#[test]
fn transfers_are_counted_and_logged() -> Result<()> {
    let server = allowed().words("--log-queries").start(&folder())?;
    transfer(&server, &Query::new(ZONE, "AXFR"))?;
    for (metric, value) in [
        (r#"multinet_dns_requests_total{proto="tcp",family="1",type="other"}"#, 1.0),
        // One is the reply to the SOA query after the transfer.
        (r#"multinet_dns_responses_total{proto="tcp",rcode="NOERROR"}"#, 2.0),
        (r#"multinet_dns_request_size_bytes_count{proto="tcp"}"#, 2.0),
        (r#"multinet_dns_response_size_bytes_count{proto="tcp"}"#, 1.0),
    ] {
        let counted = server.metric(metric)?;
        ensure!(counted == value, "{metric} is {counted}, not {value}");
    }
    let log = server.stop()?;
    let has = |words: &[&str]| log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    ensure!(has(&["zone transfer", "kind=\"axfr\"", "peer=127.0.0.1"]), "{log}");
    ensure!(has(&["qtype=252", "peer=127.0.0.1", "rcode=\"NOERROR\""]), "{log}");
    Ok(())
}

/// Each transferred RRset is queried, and every answer in the golden tables is looked up in the
/// transfer.
#[test]
fn a_transfer_equals_the_answers_of_the_zone() -> Result<()> {
    let server = allowed().start(&folder())?;
    let mut transferred = BTreeSet::new();
    for (apex, at_least) in [(ZONE, 300), ("in-addr.arpa", 40), ("ip6.arpa", 5)] {
        let zone = transfer(&server, &Query::new(apex, "AXFR"))?;
        ensure!(zone.records.len() >= at_least, "{apex}: only {} records", zone.records.len());
        let within = |record: &&String| {
            record.split(' ').next().is_some_and(|owner| owner.ends_with(&format!("{apex}.")))
        };
        ensure!(zone.records.iter().all(|record| within(&record)), "records outside {apex}");
        check_answers(&server, &zone)?;
        transferred.extend(zone.records);
    }
    let mut compared = 0;
    for (table, text) in crate::tables::TABLES {
        let table = Table::parse(text).with_context(|| (*table).to_owned())?;
        // Answers to ANY, and those at names of topology zones, are made for the query and are not
        // in the zone.
        let is_made = |line: &str| line.contains(" ANY") || line.contains("._zone");
        let has_data = |case: &&Case| table.flags.is_empty() && !is_made(&case.line);
        for case in table.cases.iter().filter(has_data) {
            let reply = server.ask_tcp(&case.query)?;
            let is_data = |line: &String| !line.contains(" IN SOA ");
            for record in reply.answers().into_iter().chain(reply.additionals()).filter(is_data) {
                let record = lower_owner(&record);
                ensure!(transferred.contains(&record), "{}: not transferred: {record}", case.line);
                compared += 1;
            }
        }
    }
    ensure!(compared > 200, "only {compared} records compared");
    Ok(())
}

/// Returns a record with its owner in lowercase, because replies keep the question's case.
fn lower_owner(record: &str) -> String {
    match record.split_once(' ') {
        Some((owner, rest)) => format!("{} {rest}", owner.to_lowercase()),
        None => record.to_owned(),
    }
}

/// Returns the IXFR query of a client that has the zone at serial `known`. `query` must have no
/// EDNS.
pub(crate) fn ixfr(query: &Query, known: u32) -> Vec<u8> {
    let mut packet = query.to_wire();
    packet[9] = 1; // one record in the authority section: the SOA that the client has
    packet.extend_from_slice(&[0xc0, 12, 0, 6, 0, 1, 0, 0, 0, 0, 0, 22, 0, 0]);
    packet.extend(known.to_be_bytes());
    packet.extend([0; 16]);
    packet
}

/// AXFR is not defined over UDP (RFC 5936 §4.2), and only the apex of a zone can be transferred
/// (§2.2.1).
#[test]
fn transfers_over_udp_or_below_an_apex_are_refused() -> Result<()> {
    let server = allowed().start(&folder())?;
    let reply = server.query(ZONE, "AXFR")?;
    ensure!(reply.rcode() != "NOERROR" && reply.answers().is_empty(), "AXFR over UDP: {}", reply.text(ZONE));
    for owner in [format!("svc.{ZONE}"), format!("nothing.{ZONE}"), "10.in-addr.arpa".to_owned()] {
        let reply = server.ask_tcp(&Query::new(&owner, "AXFR"))?;
        ensure!(reply.rcode() == "NOTAUTH" && reply.answers().is_empty(), "{owner}: {}", reply.text(ZONE));
    }
    let reply = server.ask_tcp(&Query::new("example.org", "AXFR"))?;
    ensure!(["NOTAUTH", "REFUSED"].contains(&reply.rcode().as_str()), "{}", reply.text(ZONE));
    let reply = server.ask_tcp(&Query::new(ZONE, "AXFR").class(3))?;
    ensure!(reply.rcode() != "NOERROR" && reply.answers().is_empty(), "class CH: {}", reply.text(ZONE));
    Ok(())
}

#[test]
fn a_transfer_keeps_the_case_of_its_question() -> Result<()> {
    let server = allowed().start(&folder())?;
    let plain = transfer(&server, &Query::new(ZONE, "AXFR"))?;
    let mixed = transfer(&server, &Query::new(ZONE, "AXFR").mixed_case().flags(0))?;
    let lower = |records: &[String]| records.iter().map(|record| record.to_lowercase()).collect::<Vec<_>>();
    assert_eq!(lower(&plain.records), lower(&mixed.records));
    Ok(())
}
