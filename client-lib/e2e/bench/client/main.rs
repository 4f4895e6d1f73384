//! Compares `multinet bench` with iperf3 and UCX over TCP, on loopback, and measures what the client library costs. Prints its part of
//! `docs/benchmarks.md`.
//!
//! Run by `make bench-client`, on release builds; with `--quick`, fewer of everything, to see that it works.

mod allocations;
mod death;
mod echo;
mod many;
mod page;
mod roles;
mod tools;
mod trip;

use std::io::{self, Write as _};

use anyhow::Result;
use multinet_testing::measure::Log;

use crate::page::Page;

/// Counts, so that allocations per frame can be told.
#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Extent {
    sizes: &'static [u32],
    /// Of each measurement of bandwidth.
    seconds: u64,
    /// Of which the median is taken. Programs take turns in each.
    rounds: usize,
    /// Round trips.
    trips: usize,
    frames: u64,
    peers: usize,
    /// Seconds in which nothing happens.
    rest: u64,
    deaths: usize,
}

const FULL: Extent = Extent {
    sizes: &[4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20],
    seconds: 2,
    rounds: 3,
    trips: 20_000,
    frames: 50_000,
    peers: 1000,
    rest: 10,
    deaths: 100,
};

const QUICK: Extent = Extent {
    sizes: &[4 << 10, 64 << 10, 1 << 20],
    seconds: 1,
    rounds: 1,
    trips: 2000,
    frames: 5000,
    peers: 100,
    rest: 2,
    deaths: 5,
};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // This program is started again for every process that a measurement needs beside it.
    if let Some(role) = roles::Role::parse(&arguments)? {
        return role.play().await;
    }
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let extent = if is_quick { QUICK } else { FULL };
    let log = Log::begin();

    log.say("allocations");
    let allocations = allocations::measure(extent.frames).await?;
    let mut bandwidths = Vec::new();
    for &size in extent.sizes {
        log.say(&format!("bandwidth, {size} bytes"));
        bandwidths.push((size, tools::bandwidths(size, extent.seconds, extent.rounds)?));
    }
    log.say("round trips");
    let round_trips = tools::round_trips(extent.trips, extent.rounds)?;
    log.say(&format!("{} peers", extent.peers));
    let many = many::measure(extent.peers, extent.rest)?;
    log.say(&format!("{} deaths", extent.deaths));
    let deaths = death::measure(extent.deaths).await?;
    log.say("done");

    let page = Page { bandwidths, round_trips, allocations, many, deaths, rounds: extent.rounds };
    io::stdout().write_all(page.to_string().as_bytes())?;
    Ok(())
}
