//! The SOA's serial.
//!
//! Weak point 4 of CoreDNS' kubernetes plugin: its serial is the second of the last change, so that several
//! changes share one, and some changes do not raise it.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use multinet_testing::server::{Flags, Manifests, Server, eventually};

use crate::fixtures::{Service, ZONE, name};

fn serial(server: &Server) -> Result<u32> {
    server.query(ZONE, "SOA")?.serial().context("no SOA")
}

/// RFC 1982 §3.2.
fn is_after(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}

/// Waits until the serial has risen: a reader may see the new records a moment before the new serial.
fn risen(server: &Server, before: u32) -> Result<u32> {
    eventually("the serial to rise", || {
        let now = serial(server)?;
        ensure!(is_after(now, before), "the serial was {before} and is {now}");
        Ok(now)
    })
}

/// Publishes one address and waits until it is the answer.
fn publish(manifests: &Manifests, server: &Server, address: Ipv4Addr) -> Result<()> {
    manifests.replace("one.yaml", &Service::new("one").endpoint(address).yaml())?;
    eventually("the new address", || {
        let found = server.query(&name("one"), "A")?.data();
        ensure!(found == [address.to_string()], "the answer is {found:?}");
        Ok(())
    })
}

#[test]
fn weak_point_4_every_change_raises_the_serial() -> Result<()> {
    let manifests = Manifests::new()?;
    let server = Flags::new().start(manifests.path())?;
    let mut last = serial(&server)?;
    for n in 1..=40 {
        publish(&manifests, &server, Ipv4Addr::new(10, 0, 0, n))?;
        last = risen(&server, last)?;
    }
    Ok(())
}

/// Negative answers and the SOA itself show the same serial, in every zone.
#[test]
fn one_serial_for_all() -> Result<()> {
    let manifests = Manifests::new()?;
    manifests.write("one.yaml", &Service::new("one").endpoint([10, 0, 0, 1]).yaml())?;
    let server = Flags::new().words("--zone multinet.cluster.local --zone b.test").start(manifests.path())?;
    let expected = serial(&server)?;
    for (owner, qtype) in [
        ("b.test", "SOA"),
        ("in-addr.arpa", "SOA"),
        ("nothing.b.test", "A"),
        ("1.0.0.11.in-addr.arpa", "PTR"),
        (&format!("svc.{ZONE}"), "A"),
    ] {
        assert_eq!(server.query(owner, qtype)?.serial(), Some(expected), "{owner}");
    }
    Ok(())
}

/// A change that no address shows: CoreDNS passes over those of a pod's name.
#[test]
fn weak_point_4_a_change_of_details_raises_the_serial() -> Result<()> {
    let manifests = Manifests::new()?;
    let yaml = Service::new("one").endpoint([10, 0, 0, 1]).yaml();
    let with_node = |node: &str| yaml.replace("\"10.0.0.1\"]", &format!("\"10.0.0.1\"], nodeName: {node}"));
    manifests.write("one.yaml", &with_node("gpu-1"))?;
    let server = Flags::new().start(manifests.path())?;
    let before = serial(&server)?;
    manifests.replace("one.yaml", &with_node("gpu-2"))?;
    eventually("the new node", || {
        let found = server.query(&name("10-0-0-1.one"), "TXT")?.data();
        ensure!(found == [r#""addr=10.0.0.1" "net=fast" "node=gpu-2""#], "the answer is {found:?}");
        Ok(())
    })?;
    risen(&server, before)?;
    Ok(())
}

/// The serial does not go back over a restart, however many changes there were.
#[test]
fn weak_point_4_a_restart_does_not_lower_the_serial() -> Result<()> {
    let manifests = Manifests::new()?;
    let mut last = None;
    for run in 0..4u8 {
        let server = Flags::new().start(manifests.path())?;
        let first = serial(&server)?;
        ensure!(last.is_none_or(|last| is_after(first, last)), "{first} after {last:?}");
        for n in 1..=10 {
            publish(&manifests, &server, Ipv4Addr::new(10, 0, run, n))?;
        }
        last = Some(serial(&server)?);
        server.stop()?;
    }
    Ok(())
}
