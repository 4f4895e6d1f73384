//! `--vertex-zone`: the names of vertices have the answers of their services, but for the names.
//!
//! The manifests are the fixtures, in which every service is the vertex of its name in one
//! pipeline. The names are as long as those of the services, so that answers that do not fit are
//! equal, too.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::dns::{Query, Transport};
use multinet_testing::server::{Flags, Manifests, Server};

use crate::fixtures::{ZONE, folder};
use crate::table::{Case, Table};
use crate::tables::TABLES;
use crate::transfer::transfer;

const VERTEX_ZONE: &str = "vertexdomain.local";

const PIPELINE: &str = "cameras";

const SERVICE_NAME: &str = "multinetwork.numaproj.io/service-name";
const PIPELINE_NAME: &str = "numaflow.numaproj.io/pipeline-name";
const VERTEX_NAME: &str = "numaflow.numaproj.io/vertex-name";

/// Labels behind a namespace in the name of a service, in wire format.
const SERVICES: &[u8] = b"\x03svc\x08multinet\x07cluster\x05local\0";

/// The fixtures with the labels of vertices.
fn labelled() -> Result<Manifests> {
    let labelled = Manifests::new()?;
    for entry in folder().read_dir()? {
        let path = entry?.path();
        let label = format!("{SERVICE_NAME}: ");
        let mut text = String::new();
        for line in std::fs::read_to_string(&path)?.lines() {
            text.push_str(line.trim_end_matches('}'));
            if let Some((before, service)) = line.split_once(&label) {
                let service = service.trim_end_matches('}');
                let between = if before.contains('{') { ", ".to_owned() } else { format!("\n{before}") };
                text.push_str(&format!(
                    "{between}{PIPELINE_NAME}: {PIPELINE}{between}{VERTEX_NAME}: {service}"
                ));
            }
            text.push_str(&line[line.trim_end_matches('}').len()..]);
            text.push('\n');
        }
        let name = path.file_name().context("a file has no name")?.to_string_lossy().into_owned();
        labelled.write(&name, &text)?;
    }
    Ok(labelled)
}

fn start(flags: &str) -> Result<(Server, Manifests)> {
    let folder = labelled()?;
    let flags = Flags::new().words("--answer-order fixed --vertex-zone").words(VERTEX_ZONE).words(flags);
    Ok((flags.start(folder.path())?, folder))
}

/// Returns the ends of the wire-format names that stand for a namespace: in the zone of services,
/// and in that of vertices.
fn ends(namespace: &[u8]) -> [Vec<u8>; 2] {
    let label = |text: &[u8]| [&[text.len() as u8], text].concat();
    let (first, second) = VERTEX_ZONE.split_once('.').unwrap_or_default();
    let zone = [label(first.as_bytes()), label(second.as_bytes()), vec![0]].concat();
    let namespace = label(namespace);
    [[&*namespace, SERVICES].concat(), [&*label(PIPELINE.as_bytes()), &namespace, &zone].concat()]
}

/// Returns the namespace of a name of a service or below it, given in wire format.
fn namespace(name: &[u8]) -> Option<&[u8]> {
    let rest = name.strip_suffix(SERVICES)?;
    let mut labels = Vec::new();
    let mut left = rest;
    while let Some((&length, tail)) = left.split_first() {
        let (label, tail) = tail.split_at_checked(length.into())?;
        labels.push(label);
        left = tail;
    }
    labels.pop().filter(|_| !labels.is_empty())
}

/// Returns the message with other ends of the names in it.
fn replaced(message: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len());
    let mut rest = message;
    while !rest.is_empty() {
        if let Some(tail) = rest.strip_prefix(from) {
            out.extend_from_slice(to);
            rest = tail;
        } else {
            out.push(rest[0]);
            rest = &rest[1..];
        }
    }
    out
}

/// Asks the question of a row about the vertex. Returns whether the row is about a service.
fn check(case: &Case, server: &Server) -> Result<bool> {
    let Some(namespace) = namespace(&case.query.name) else { return Ok(false) };
    let [of_service, of_vertex] = ends(namespace);
    for &transport in &case.transports {
        let mut query = case.query.clone();
        query.name = replaced(&query.name, &of_service, &of_vertex);
        let reply = transport.ask(server.dns(), &query)?.raw;
        let expected = transport.ask(server.dns(), &case.query)?.raw;
        // The SOA in a negative answer is that of the other zone, and a cookie has the time.
        let is_negative = expected[8..10] != [0; 2];
        let has_options = case.query.edns.as_ref().is_some_and(|edns| !edns.options.is_empty());
        let equal = if is_negative || has_options {
            reply[2..12] == expected[2..12]
        } else {
            replaced(&reply, &of_vertex, &of_service)[2..] == expected[2..]
        };
        ensure!(equal, "? {} over {transport:?}\n{expected:02x?}\n{reply:02x?}", case.line);
    }
    Ok(true)
}

#[test]
fn every_row_of_the_tables_has_the_same_answer_for_the_vertex() -> Result<()> {
    let mut rows = 0;
    for (file, text) in TABLES {
        let table = Table::parse(text)?;
        // Another zone, and names in mixed case, which the comparison does not know.
        if table.origin != ZONE || *file == "case.txt" || table.flags.contains("--zone") {
            continue;
        }
        let (server, _folder) = start(&table.flags)?;
        for case in &table.cases {
            rows += usize::from(check(case, &server).with_context(|| (*file).to_owned())?);
        }
    }
    println!("{rows} rows");
    ensure!(rows >= 80, "only {rows} rows are about a service");
    Ok(())
}

#[test]
fn a_transfer_of_the_zone_has_the_records_of_all_vertices() -> Result<()> {
    let (server, _folder) = start("--transfer-to 127.0.0.0/8")?;
    let services = transfer(&server, &Query::new(ZONE, "AXFR"))?.records;
    let vertices = transfer(&server, &Query::new(VERTEX_ZONE, "AXFR"))?.records;
    let above = format!(".svc.{ZONE}.");
    let of_services = services.iter().filter(|record| record.contains(&above));
    let mut expected: BTreeSet<String> = of_services
        .map(|record| {
            let mut text = record.clone();
            while let Some((before, after)) = text.split_once(&above) {
                let (name, namespace) = before.rsplit_once('.').unwrap_or_default();
                text = format!("{name}.{PIPELINE}.{namespace}.{VERTEX_ZONE}.{after}");
            }
            text
        })
        .collect();
    ensure!(expected.len() > 50, "only {} records", expected.len());
    expected.insert(format!("{VERTEX_ZONE}. 5 IN NS ns.dns.{ZONE}."));
    ensure!(vertices.iter().cloned().collect::<BTreeSet<_>>() == expected, "{vertices:#?}\n{expected:#?}");
    Ok(())
}

#[test]
fn the_zone_has_an_soa_and_the_first_zones_name_server() -> Result<()> {
    let (server, _folder) = start("--ns-address 192.0.2.53")?;
    for (qtype, section) in [("SOA", "ANSWER"), ("A", "AUTHORITY")] {
        let text = Transport::Udp.ask(server.dns(), &Query::new(VERTEX_ZONE, qtype))?.text("");
        let soa =
            format!("{VERTEX_ZONE}. 5 IN SOA ns.dns.{ZONE}. hostmaster.{ZONE}. SERIAL 7200 1800 86400 5");
        assert_eq!(text, format!("QUERY NOERROR aa rd\n{section}\n{soa}"));
    }
    let ns = server.query(VERTEX_ZONE, "NS")?;
    assert_eq!(ns.answers(), [format!("{VERTEX_ZONE}. 5 IN NS ns.dns.{ZONE}.")]);
    for name in ["nowhere", "ns.dns", "svc", "testns.svc", &format!("none.{PIPELINE}.testns")] {
        let reply = server.query(&format!("{name}.{VERTEX_ZONE}"), "A")?;
        assert_eq!(reply.rcode(), "NXDOMAIN", "{name}");
    }
    // The names above a vertex exist.
    for name in ["testns", &format!("{PIPELINE}.testns")] {
        let reply = server.query(&format!("{name}.{VERTEX_ZONE}"), "A")?;
        ensure!(reply.rcode() == "NOERROR" && reply.answers().is_empty(), "{name}: {}", reply.text(""));
    }
    Ok(())
}

#[test]
fn two_services_with_the_labels_of_one_vertex_are_logged() -> Result<()> {
    let folder = Manifests::new()?;
    for (service, address) in [("b", "10.0.0.1"), ("a", "10.0.0.2")] {
        let manifest = format!(
            "apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkService
metadata: {{name: {service}, namespace: vision}}
spec: {{networks: [{{name: rdma-a}}]}}
---
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkEndpointSlice
metadata:
  name: {service}-1
  namespace: vision
  labels: {{{SERVICE_NAME}: {service}, {PIPELINE_NAME}: frames, {VERTEX_NAME}: infer}}
spec:
  addressType: IPv4
  network: {{name: rdma-a}}
  endpoints: [{{addresses: [{address}]}}]
"
        );
        folder.write(&format!("{service}.yaml"), &manifest)?;
    }
    let server = Flags::new().words("--vertex-zone").words(VERTEX_ZONE).start(folder.path())?;
    assert_eq!(server.query(&format!("infer.frames.vision.{VERTEX_ZONE}"), "A")?.data(), ["10.0.0.2"]);
    let log = server.stop()?;
    ensure!(log.contains("the services b and a have the labels of one vertex: a has its name"), "{log}");
    Ok(())
}
