//! Comparison of `multinet bench` with iperf3 and UCX over TCP on loopback, and measurements of the
//! client library's overhead.

mod allocations;
mod death;
mod fetches;
mod many;
mod roles;
mod tools;
mod trips;

use anyhow::Result;
use multinet_testing::bench::{Arguments, Results, Table, figure, version};
use multinet_testing::measure::{Log, percentile};

pub(crate) use self::allocations::Counting;
pub(crate) use self::roles::Role;

/// Extent of the measurements.
#[derive(Debug, Clone, Copy)]
struct Extent {
    sizes: &'static [u32],
    /// Duration of each measurement of bandwidth.
    seconds: u64,
    /// Number of rounds, of which the tables show the median. Programs take turns in each.
    rounds: usize,
    /// Number of round trips.
    trips: usize,
    frames: u64,
    peers: usize,
    /// Seconds without traffic, in which the CPU at rest is measured.
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

/// Runs all measurements.
pub(crate) async fn measure(arguments: &Arguments, log: &Log) -> Result<Results> {
    let extent = if arguments.is_quick { QUICK } else { FULL };
    log.print("allocations");
    let allocations = allocations::table(extent.frames).await?;
    let bandwidths = tools::bandwidths(extent.sizes, extent.seconds, extent.rounds, log)?;
    log.print("round trips");
    let round_trips = tools::round_trips(extent.trips, extent.rounds)?;
    let fetched = fetches::bandwidths(extent.sizes, extent.seconds, extent.rounds, log)?;
    log.print("times of fetches");
    let fetch_times = fetches::latencies(extent.trips / 10, extent.rounds)?;
    log.print(&format!("{} peers", extent.peers));
    let many = many::table(extent.peers, extent.rest)?;
    log.print(&format!("{} deaths", extent.deaths));
    let times = death::measure(extent.deaths).await?;
    let mut deaths =
        Table::new("A peer dies", format!("In milliseconds; {} deaths.", times.len()), "p50 | p99");
    deaths.row([50, 99].map(|percent| figure([percentile(&times, percent)], 2)));
    let versions = [("iperf3", version("iperf3", "--version")?), ("UCX", version("ucx_info", "-v")?)];
    Results::new(&versions, vec![bandwidths, round_trips, fetched, fetch_times, allocations, many, deaths])
}
