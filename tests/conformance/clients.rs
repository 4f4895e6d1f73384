//! Common DNS clients with the real server: whether they accept its answers, and what they do when
//! an answer does not fit into a datagram.
//!
//! Some clients print whole messages ([`printed`]: dig, kdig, drill, and dig behind forwarders).
//! Others are libraries that programs call ([`program`]: C libraries, Go, Java); they have a
//! [table](program::answers) of their own.

mod commands;
mod forwarders;
mod languages;
mod libc;
mod printed;
mod program;

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use multinet_testing::server::{Flags, Manifests, Server};

use crate::fixtures::{Service, ZONE};

/// Number of addresses of the service `large`: too many for a datagram, but few enough for 16 KiB
/// over TCP.
const LARGE: u16 = 400;

/// IPv4 addresses of the service `infer`.
const V4: [&str; 3] = ["10.20.0.1", "10.20.0.2", "10.20.0.3"];

/// IPv6 addresses of the service `infer`.
const V6: [&str; 2] = ["fd20::1", "fd20::2"];

/// Hosts of the service `infer`.
const HOSTS: [&str; 3] = ["10-20-0-3", "infer-0", "infer-1"];

/// Addresses and the hosts in their PTR records.
const REVERSE: [(&str, &str); 3] =
    [("10.20.0.1", "infer-0"), ("10.20.0.3", "10-20-0-3"), ("fd20::2", "infer-1")];

/// TXT records of the host `infer-0`.
const TEXTS: [&str; 2] = [
    "\"addr=10.20.0.1\" \"net=rail0\" \"if=net1\" \"rdma=mlx5_2\" \"pci=0000:18:00.2\" \"numa=0\" \"node=gpu-1\" \
     \"zone=zone-a\" \"pod=vision/infer-0-x2v5k\" \"uid=8ab4cd1c-3d2e-4fd0-9d26-ad4a52b6a07a\"",
    "\"addr=fd20::1\" \"net=rail0\"",
];

/// Returns the manifests of the services that every client queries: `infer`, and `large` with many
/// addresses.
fn manifests() -> Result<Manifests> {
    let manifests = Manifests::new()?;
    manifests.write("vision.yaml", include_str!("clients/vision.yaml"))?;
    let hosts = (0..LARGE).map(|n| (large_address(n), format!("host-{n}")));
    manifests.write("large.yaml", &Service::new("large").hosts(hosts).yaml())?;
    Ok(manifests)
}

/// Starts a server with these manifests.
fn start(flags: Flags) -> Result<(Manifests, Server)> {
    let manifests = manifests()?;
    let server = flags.start(manifests.path())?;
    Ok((manifests, server))
}

/// Returns the number of queries that a server has received over any transport, or over the one
/// that the label `proto` selects.
fn asked(server: &Server, proto: &str) -> Result<u64> {
    let (_, metrics) = server.get("/metrics")?;
    let prefix = format!("multinet_dns_requests_total{{{proto}");
    // The metric has no sample before the first query.
    let lines = metrics.lines().filter(|line| line.starts_with(&prefix));
    lines.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<u64>()?)).sum()
}

/// Returns the number of queries over TCP.
fn asked_over_tcp(server: &Server) -> Result<u64> {
    asked(server, "proto=\"tcp\"")
}

fn large_address(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    [10, 21, high, low].into()
}

/// Returns the addresses of the service `large`.
fn large() -> BTreeSet<String> {
    (0..LARGE).map(|number| large_address(number).to_string()).collect()
}

/// Returns the name of the service `infer`, or one below it, without the last dot.
fn infer(below: &str) -> String {
    format!("{below}infer.vision.svc.{ZONE}")
}

fn set<T: ToString>(answers: impl IntoIterator<Item = T>) -> BTreeSet<String> {
    answers.into_iter().map(|answer| answer.to_string()).collect()
}
