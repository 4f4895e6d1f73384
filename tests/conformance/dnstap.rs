//! dnstap: `fstrm_capture` receives every query and reply byte for byte, and `dnstap-ldns` can read
//! them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use multinet_testing::dns::{Edns, Query, Tcp, udp_socket};
use multinet_testing::process::{Process, free_port, run};
use multinet_testing::server::{Flags, eventually};

use crate::fixtures::{ZONE, folder};

/// Numbers of dnstap.proto.
const UDP: u64 = 1;
const TCP: u64 = 2;
const AUTH_QUERY: u64 = 1;
const AUTH_RESPONSE: u64 = 2;

/// Running `fstrm_capture`.
struct Collector {
    process: Process,
    file: PathBuf,
}

impl Collector {
    /// Starts a collector that listens on a socket (`-u PATH`, or `-a ADDRESS -p PORT`) and writes
    /// to a file in `folder`.
    fn start(folder: &Path, socket: &[&str]) -> Result<Self> {
        let file = folder.join("capture");
        let mut command = Command::new("fstrm_capture");
        command.args(["-t", "protobuf:dnstap.Dnstap", "-w"]).arg(&file).args(socket);
        Ok(Self { process: Process::spawn(&mut command, &folder.join("fstrm.log"))?, file })
    }

    /// Stops the collector. Returns the path of the captured file.
    fn stop(mut self) -> Result<PathBuf> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.process.terminate(Duration::from_secs(20)))?;
        Ok(self.file)
    }
}

/// Captured message.
#[derive(Debug, Default, PartialEq, Eq)]
struct Message {
    kind: u64,
    protocol: u64,
    address: Vec<u8>,
    port: u64,
    query: Option<Vec<u8>>,
    response: Option<Vec<u8>>,
}

/// Returns the messages of a Frame Streams file.
fn messages(mut file: &[u8]) -> Result<Vec<Message>> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = file.split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        if length > 0 {
            let (frame, rest) = rest.split_at_checked(length).context("a frame is cut off")?;
            messages.push(message(frame)?);
            file = rest;
        } else {
            let (length, rest) = rest.split_first_chunk().context("a control frame is cut off")?;
            file = rest.get(u32::from_be_bytes(*length) as usize..).context("a control frame is cut off")?;
        }
    }
    Ok(messages)
}

fn message(frame: &[u8]) -> Result<Message> {
    let outer = fields(frame)?;
    let octets = |number: u64| outer.iter().find(|field| field.0 == number).map(|field| field.2);
    ensure!(octets(2).is_some_and(|version| version.starts_with(b"multinet-dns ")), "no version");
    ensure!(octets(1).is_some_and(|identity| !identity.is_empty()), "no identity");
    let mut message = Message::default();
    let mut times = Vec::new();
    for (number, value, octets) in fields(octets(14).context("no message")?)? {
        match number {
            1 => message.kind = value,
            3 => message.protocol = value,
            4 => message.address = octets.to_vec(),
            6 => message.port = value,
            8 | 12 => times.push(value),
            10 => message.query = Some(octets.to_vec()),
            14 => message.response = Some(octets.to_vec()),
            _ => {}
        }
    }
    let now = SystemTime::UNIX_EPOCH.elapsed()?.as_secs();
    let are_recent = times.iter().all(|&time| now.saturating_sub(time) < 600 && time <= now);
    ensure!(times.len() as u64 == message.kind && are_recent, "the times are {times:?}");
    Ok(message)
}

/// Returns the fields of a protobuf message: field number, integer value, and bytes for fields of
/// other types.
fn fields(mut octets: &[u8]) -> Result<Vec<(u64, u64, &[u8])>> {
    let mut fields = Vec::new();
    while !octets.is_empty() {
        let key = varint(&mut octets)?;
        let (value, length) = match key & 7 {
            0 => (varint(&mut octets)?, 0),
            2 => (0, varint(&mut octets)?),
            5 => (0, 4),
            other => bail!("wire type {other}"),
        };
        let (data, rest) = octets.split_at_checked(length as usize).context("a field is cut off")?;
        fields.push((key >> 3, value, data));
        octets = rest;
    }
    Ok(fields)
}

fn varint(octets: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let (octet, rest) = octets.split_first().context("a number is cut off")?;
        *octets = rest;
        value |= u64::from(octet & 0x7f) << shift;
        if octet & 0x80 == 0 {
            break;
        }
    }
    Ok(value)
}

/// Adds the expected messages of an exchange with 127.0.0.1.
fn note(expected: &mut Vec<Message>, protocol: u64, port: u16, query: &[u8], reply: Option<Vec<u8>>) {
    let of = |kind| Message {
        kind,
        protocol,
        address: vec![127, 0, 0, 1],
        port: port.into(),
        query: None,
        response: None,
    };
    expected.push(Message { query: Some(query.to_vec()), ..of(AUTH_QUERY) });
    if reply.is_some() {
        expected.push(Message { response: reply, ..of(AUTH_RESPONSE) });
    }
}

#[test]
fn every_query_and_reply_is_captured() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let socket = scratch.path().join("dnstap.sock").display().to_string();
    let collector = Collector::start(scratch.path(), &["-u", &socket])?;
    let server = Flags::new().flag("--dnstap", format!("unix:{socket}")).start(folder().as_ref())?;

    let mut expected = Vec::new();
    let questions = [
        Query::new(&format!("hdls1.testns.svc.{ZONE}"), "A").edns(Edns::new(1232)),
        Query::new(&format!("no.{ZONE}"), "AAAA").mixed_case(),
        Query::new(ZONE, "NS").opcode(5),
        // A reply, which the server does not answer.
        Query::new(ZONE, "SOA").flags(0x8000),
    ];
    let probe = Query::new(ZONE, "SOA").to_wire();
    let udp = udp_socket(server.dns())?;
    let mut tcp = Tcp::connect(server.dns())?;
    for question in &questions {
        let packet = question.to_wire();
        let is_answered = packet[2] & 0x80 == 0;
        udp.send(&packet)?;
        note(&mut expected, UDP, udp.port()?, &packet, if is_answered { Some(udp.receive()?) } else { None });
        tcp.send(&packet)?;
        note(&mut expected, TCP, tcp.port()?, &packet, if is_answered { Some(tcp.receive()?) } else { None });
    }
    // Once this query is answered, all earlier ones are, too.
    note(&mut expected, UDP, udp.port()?, &probe, Some(udp.exchange(&probe)?));
    tcp.send(&probe)?;
    note(&mut expected, TCP, tcp.port()?, &probe, Some(tcp.receive()?));

    eventually("all messages to be written", || {
        let written = server.metric("multinet_dns_dnstap_messages_total")?;
        ensure!(written as usize == expected.len(), "{written} of {} written", expected.len());
        Ok(())
    })?;
    ensure!(server.metric("multinet_dns_dnstap_dropped_total")? == 0.0, "messages were dropped");
    drop(tcp);
    let stopping = Instant::now();
    let log = server.stop()?;
    // A busy collector may not confirm the end of the stream within the second that the server
    // waits. A shorter wait would be the server's fault.
    let is_late = stopping.elapsed() >= Duration::from_secs(1);
    ensure!(is_late || !log.contains("did not confirm"), "{log}");
    let file = collector.stop()?;
    let captured = messages(&fs::read(&file)?)?;
    ensure!(captured.len() == expected.len(), "{} messages", captured.len());
    for message in &expected {
        ensure!(captured.contains(message), "{message:?} is not among {captured:?}");
    }

    let text = run(Command::new("dnstap-ldns").arg("-y").arg("-r").arg(&file))?;
    for (line, times) in [
        ("type: AUTH_QUERY", 10),
        ("type: AUTH_RESPONSE", 8),
        ("socket_protocol: TCP", 9),
        (r#"query_address: "127.0.0.1""#, 18),
    ] {
        let seen = text.matches(line).count();
        ensure!(seen == times, "{line:?} appears {seen} times, not {times}:\n{text}");
    }
    Ok(())
}

#[test]
fn a_collector_may_connect_late_and_disconnect() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let port = free_port()?.to_string();
    let server = Flags::new().words(&format!("--dnstap tcp:127.0.0.1:{port}")).start(folder().as_ref())?;
    let answers = || {
        ensure!(server.query(ZONE, "SOA")?.rcode() == "NOERROR", "no answer");
        Ok(())
    };
    answers()?;
    for _ in 0..2 {
        let collector = Collector::start(scratch.path(), &["-a", "127.0.0.1", "-p", &port])?;
        let before = server.metric("multinet_dns_dnstap_messages_total")?;
        eventually("messages to be written", || {
            answers()?;
            let written = server.metric("multinet_dns_dnstap_messages_total")?;
            ensure!(written > before, "no message is written");
            Ok(())
        })?;
        collector.stop()?;
        answers()?;
    }
    let begun = Instant::now();
    let log = server.stop()?;
    ensure!(begun.elapsed() < Duration::from_secs(9), "the shutdown waited for the collector:\n{log}");
    let complaints = log.matches("retrying").count();
    ensure!((1..=3).contains(&complaints), "{complaints} warnings:\n{log}");
    Ok(())
}
