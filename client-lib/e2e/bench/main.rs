//! Benchmarks of the client library beside comparable programs: over TCP on loopback (`client`),
//! and over RDMA with soft-RoCE (`rdma`).
//!
//! `make bench-client` and `make bench-rdma` run them on builds as shipped. The result is a JSON
//! document, from which `page` makes the tables in `docs/benchmarks.md`. `--quick` measures less.

mod client;
mod rdma;

use anyhow::{Result, bail};
use multinet_testing::bench::{self, Arguments};
use multinet_testing::measure::Log;

/// Allocator that counts, for the number of allocations per frame.
#[global_allocator]
static ALLOCATOR: client::Counting = client::Counting;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let log = Log::begin();
    let results = match arguments.next().as_deref() {
        Some("page") => return bench::page(),
        Some("client") => client::measure(&Arguments::parse(arguments)?, &log).await?,
        Some("rdma") => match rdma::measure(&Arguments::parse(arguments)?, &log).await? {
            Some(results) => results,
            // The process in the guest has printed its results.
            None => return Ok(()),
        },
        // This program also runs as the processes beside a measurement.
        other => match other.and_then(client::Role::parse) {
            Some(role) => return role.run().await,
            None => bail!("unknown benchmark {other:?}; known are client, rdma and page"),
        },
    };
    log.print("done");
    results.write()
}
