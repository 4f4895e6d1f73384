//! TCP: several queries under way on one connection (RFC 7766), in whatever pieces they arrive.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use multinet_testing::dns::{Query, Reply, Tcp};
use multinet_testing::server::Flags;

use crate::fixtures::{ZONE, folder, server};

/// Queries of many kinds, those of the slow path among them.
fn queries(count: usize) -> Vec<Query> {
    let names =
        ["hdls1.testns.svc", "nothing.testns.svc", "hdlsprtls.testns.svc", "testns.svc", "dns-version"];
    (0..count)
        .map(|number| {
            let name = format!("{}.{ZONE}", names[number % names.len()]);
            let query = Query::new(&name, ["A", "AAAA", "SRV", "TXT"][number % 4]);
            match number % 11 {
                0 => query.opcode(4),
                5 => query.class(3),
                _ => query,
            }
        })
        .collect()
}

/// Reads a reply to each of the queries, in any order, and compares it with the one over UDP.
fn check_replies(stream: &mut Tcp, queries: &[Query]) -> Result<()> {
    let mut waiting: HashMap<u16, &Query> = queries.iter().map(|query| (query.id, query)).collect();
    ensure!(waiting.len() == queries.len(), "two queries with one identity");
    while !waiting.is_empty() {
        let raw = stream.receive().with_context(|| format!("{} replies are missing", waiting.len()))?;
        let id = u16::from_be_bytes([raw[0], raw[1]]);
        let query = waiting.remove(&id).with_context(|| format!("a reply to no query: {id:#x}"))?;
        let reply = Reply::to(&query.to_wire(), raw)?;
        let expected = server().ask(query)?;
        // Over UDP an answer may lack its additional records.
        ensure!(reply.header() == expected.header(), "{query}: {} {}", reply.header(), expected.header());
        ensure!(reply.data() == expected.data(), "{query}: {:?} {:?}", reply.data(), expected.data());
    }
    Ok(())
}

#[test]
fn pipelined_queries_are_all_answered() -> Result<()> {
    let queries = queries(300);
    let packets: Vec<Vec<u8>> = queries.iter().map(Query::to_wire).collect();
    let mut stream = Tcp::connect(server().dns())?;
    stream.send_all(packets.iter().map(Vec::as_slice))?;
    check_replies(&mut stream, &queries)
}

/// A client that has said all may close its direction, and still gets its replies.
#[test]
fn a_half_closed_connection_gets_its_replies() -> Result<()> {
    let queries = queries(50);
    let packets: Vec<Vec<u8>> = queries.iter().map(Query::to_wire).collect();
    let mut stream = Tcp::connect(server().dns())?;
    stream.send_all(packets.iter().map(Vec::as_slice))?;
    stream.close_sending()?;
    check_replies(&mut stream, &queries)?;
    ensure!(stream.receive_or_end()?.is_none(), "a reply too many");
    Ok(())
}

/// TCP has no message boundaries: length and message may come octet by octet, and the next one with them.
#[test]
fn messages_may_come_in_pieces() -> Result<()> {
    let queries = queries(4);
    let mut stream = Tcp::connect(server().dns())?;
    let mut octets = Vec::new();
    for query in &queries {
        let packet = query.to_wire();
        octets.extend_from_slice(&(packet.len() as u16).to_be_bytes()); // queries are short
        octets.extend(packet);
    }
    for octet in octets {
        stream.send_raw(&[octet])?;
    }
    check_replies(&mut stream, &queries)
}

/// A client that stops in the middle of a message holds up nobody else.
#[test]
fn a_connection_that_stands_still_disturbs_no_other() -> Result<()> {
    let mut still: Vec<Tcp> = (0..20).map(|_| Tcp::connect(server().dns())).collect::<Result<_>>()?;
    still.iter_mut().try_for_each(|stream| stream.send_raw(&[0, 40, 1, 2, 3]))?;
    let queries = queries(10);
    let packets: Vec<Vec<u8>> = queries.iter().map(Query::to_wire).collect();
    let mut stream = Tcp::connect(server().dns())?;
    stream.send_all(packets.iter().map(Vec::as_slice))?;
    check_replies(&mut stream, &queries)
}

/// What is no message ends its connection or is passed over; the server goes on.
#[test]
fn nonsense_over_tcp_harms_nobody() -> Result<()> {
    for nonsense in [&[0, 0][..], &[0, 1, 0], &[0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0xff; 70_000]] {
        let mut stream = Tcp::connect(server().dns())?;
        // The server may have closed before all of it is sent.
        let _ = stream.send_raw(nonsense);
        let _ = stream.close_sending();
        while stream.receive_or_end()?.is_some() {}
        ensure!(
            server().query(ZONE, "SOA")?.rcode() == "NOERROR",
            "no answer after {} octets",
            nonsense.len()
        );
    }
    Ok(())
}

/// Beyond `--tcp-max-connections` the connection that has been idle longest goes for a new one.
#[test]
fn connections_are_limited() -> Result<()> {
    let server = Flags::new().words("--tcp-max-connections 3").start(&folder())?;
    let query = Query::new(ZONE, "SOA");
    let ask = |stream: &mut Tcp| {
        stream.send(&query.to_wire())?;
        stream.receive()
    };
    let mut held = Vec::new();
    for number in 0..6 {
        let mut stream = Tcp::connect(server.dns())?;
        ask(&mut stream).with_context(|| format!("newcomer {number} is not served"))?;
        std::thread::sleep(Duration::from_millis(5));
        held.push(stream);
    }
    for stream in &mut held[3..] {
        ask(stream).context("one that was used lately was closed")?;
    }
    for stream in &mut held[..3] {
        ensure!(ask(stream).is_err(), "a connection beyond the limit is served");
    }
    ensure!(server.query(ZONE, "SOA")?.rcode() == "NOERROR", "UDP suffers");
    ensure!(server.metric("multinet_dns_connections_evicted_total")? == 3.0, "not counted");
    Ok(())
}

/// CoreDNS' forward plugin keeps connections for ten seconds and has to find them open.
#[test]
fn an_idle_connection_stays_open() -> Result<()> {
    let mut stream = Tcp::connect(server().dns())?;
    std::thread::sleep(Duration::from_secs(11));
    let query = Query::new(ZONE, "SOA");
    stream.send(&query.to_wire())?;
    Reply::to(&query.to_wire(), stream.receive()?)?;
    Ok(())
}
