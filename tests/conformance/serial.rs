//! The SOA's serial.
//!
//! Weak point 4 of CoreDNS' kubernetes plugin: its serial is the second of the last change, so that
//! several changes share one, and some changes do not raise it.

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

/// Publishes one address and waits until it is the answer.
fn publish(manifests: &Manifests, server: &Server, address: Ipv4Addr) -> Result<()> {
    manifests.replace("one.yaml", &Service::new("one").endpoint(address).yaml())?;
    eventually("the new address", || {
        let found = server.query(&name("one"), "A")?.data();
        ensure!(found == [address.to_string()], "the answer is {found:?}");
        Ok(())
    })
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
