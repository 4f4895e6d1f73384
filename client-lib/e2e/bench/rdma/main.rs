//! Compares `multinet bench` by RDMA with perftest and UCX, over soft-RoCE, and prints its part of `docs/benchmarks.md`.
//!
//! Run by `make bench-rdma`, on release builds; with `--quick`, less of everything, to see that it works. It boots a guest in which it runs
//! once more and measures; what comes of it is said in one line after each round, of which the last this turns into the tables.

#![forbid(unsafe_code)]

mod figures;
mod page;
mod programs;
mod rounds;

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::guest::{Guest, LINK, Said, is_inside};
use multinet_testing::measure::Log;
use multinet_testing::process::workspace_binary;

use crate::figures::Figures;
use crate::page::Page;

/// How long the guest may take.
const BOUND: Duration = Duration::from_secs(3000);

/// The line with the result begins with it.
const RESULT: &str = "bench-rdma: ";

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Extent {
    sizes: &'static [u32],
    /// Queue pairs.
    pairs: &'static [u16],
    latencies: &'static [u32],
    /// Programs take turns in each.
    rounds: usize,
    /// So many bytes of each size are written, at most.
    bytes: u64,
    /// So many messages of each size, at most: more than those for which programs look for the peak of their bandwidth, which costs CPU.
    messages: u64,
    trips: u64,
}

const FULL: Extent = Extent {
    sizes: &[2, 256, 4 << 10, 64 << 10, 1 << 20, 8 << 20],
    pairs: &[1, 4],
    latencies: &[2, 64, 4 << 10],
    rounds: 3,
    bytes: 64 << 20,
    messages: 20_004,
    trips: 300,
};

const QUICK: Extent = Extent {
    sizes: &[64, 4 << 10, 64 << 10, 1 << 20],
    pairs: &[1, 4],
    latencies: &[64],
    rounds: 1,
    bytes: 32 << 20,
    messages: 20_004,
    trips: 200,
};

#[tokio::main]
async fn main() -> Result<()> {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let extent = if is_quick { QUICK } else { FULL };
    if is_inside() {
        return rounds::measure(extent, |figures| {
            Ok(writeln!(io::stdout(), "{RESULT}{}", serde_json::to_string(figures)?)?)
        });
    }
    let log = Log::begin();
    log.say("measuring in a guest, which says nothing before it is done");
    let figures = in_guest(is_quick).await?;
    for failure in &figures.failures {
        log.say(failure);
    }
    log.say("done");
    io::stdout().write_all(Page { rounds: extent.rounds, figures }.to_string().as_bytes())?;
    Ok(())
}

async fn in_guest(is_quick: bool) -> Result<Figures> {
    let this = std::env::current_exe()?;
    let multinet = workspace_binary("multinet", "MULTINET_BIN")?;
    let arguments = if is_quick { "--quick" } else { "" };
    let script = format!(
        "{LINK}
        export MULTINET_TEST_GUEST=1 MULTINET_BIN='{}'
        export SERVER_ROW=$(gid_row {}) CLIENT_ROW=$(gid_row {})
        '{}' {arguments}",
        multinet.display(),
        programs::SERVER,
        programs::CLIENT,
        this.display(),
    );
    let Said { status, output } = Guest::run(&script, BOUND).await?;
    ensure!(status == 0, "exit status {status}:\n{output}");
    let result = output.lines().rev().find_map(|line| line.strip_prefix(RESULT));
    Ok(serde_json::from_str(result.with_context(|| format!("no result in\n{output}"))?)?)
}
