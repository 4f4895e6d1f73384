//! Benchmarks of the client library beside its peers: over TCP on loopback (`client`), and by RDMA over soft-RoCE (`rdma`).
//!
//! Run by `make bench-client` and `make bench-rdma`, on builds as shipped. The result is a JSON document, of which `page` makes the
//! tables in `docs/benchmarks.md`. With `--quick`, less of everything.

mod client;
mod rdma;

use anyhow::{Result, bail};
use multinet_testing::bench::{self, Arguments};
use multinet_testing::measure::Log;

/// Counts, so that allocations per frame can be told.
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
            // In the guest, which has said them.
            None => return Ok(()),
        },
        // This program is started again for every process that a measurement needs beside it.
        other => match other.and_then(client::Role::parse) {
            Some(role) => return role.play().await,
            None => bail!("{other:?}: there are client, rdma and page"),
        },
    };
    log.print("done");
    results.write()
}
