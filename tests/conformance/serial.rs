//! The serial in SOA records.
//!
//! CoreDNS' kubernetes plugin uses the second of the last change as its serial, so that several
//! changes share one, and some do not raise it. These tests are about doing better.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use multinet_testing::server::{Flags, Manifests, Server, eventually};

use crate::fixtures::{Service, ZONE, name};

fn serial(server: &Server) -> Result<u32> {
    server.query(ZONE, "SOA")?.serial().context("no SOA")
}

/// Returns whether serial `a` is greater than `b` (RFC 1982 §3.2).
fn is_after(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}

/// Publishes an address, and waits until DNS answers it.
fn publish(manifests: &Manifests, server: &Server, address: Ipv4Addr) -> Result<()> {
    manifests.replace("one.yaml", &Service::new("one").endpoint(address).yaml())?;
    eventually("the new address to be answered", || {
        let found = server.query(&name("one"), "A")?.data();
        ensure!(found == [address.to_string()], "the answer is {found:?}");
        Ok(())
    })
}

/// These are negative answers and SOA records, in every zone.
#[test]
fn all_zones_and_answers_have_one_serial() -> Result<()> {
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

/// This holds for any number of changes before the restart.
#[test]
fn a_restart_does_not_lower_the_serial() -> Result<()> {
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
