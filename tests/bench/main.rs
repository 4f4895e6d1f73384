//! Benchmarks of the servers beside their peers: what an answer costs (`dns`), and the way from a
//! pod to the answer (`programming`).
//!
//! Run by `make bench-dns` and `make bench-programming`, on builds as shipped. The result is a JSON
//! document, of which `page` makes the tables in `docs/benchmarks.md`. With `--quick`, less of
//! everything; with `dns --only udp,tcp`, only these groups.

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
        // One thread, besides those that ask: handing work from one to the other takes time of the
        // cores that the servers run on.
        Some("programming") => {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(programming::measure(&Arguments::parse(arguments)?, &log))?
        }
        other => bail!("{other:?}: there are dns, programming and page"),
    };
    log.print("done");
    results.write()
}
