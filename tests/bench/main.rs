//! Benchmarks of the servers against their peers: the cost of an answer (`dns`), and the time from
//! a pod's change to the answer (`programming`).
//!
//! `make bench-dns` and `make bench-programming` run it on builds as shipped. The result is a JSON
//! document, from which `page` makes the tables in `docs/benchmarks.md`. `--quick` measures less;
//! `dns --only udp,tcp` measures only these groups.

#![forbid(unsafe_code)]

mod dns;
mod programming;
mod side;

use anyhow::{Result, bail};
use multinet_testing::bench::{self, Arguments};
use multinet_testing::measure::Log;
use tokio::runtime::{Builder, Runtime};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let log = Log::begin();
    let results = match arguments.next().as_deref() {
        Some("page") => return bench::page(),
        Some(dns::ECHO) => return dns::echo(),
        Some("dns") => Runtime::new()?.block_on(dns::measure(&Arguments::parse(arguments)?, &log))?,
        // One thread, apart from the watchers: passing work between threads would take CPU time
        // from the servers.
        Some("programming") => {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(programming::measure(&Arguments::parse(arguments)?, &log))?
        }
        other => bail!("unknown benchmark {other:?}: expected dns, programming or page"),
    };
    log.print("done");
    results.write()
}
