//! Comparison of `multinet bench` over RDMA with perftest and UCX, on soft-RoCE.
//!
//! The program boots a guest, in which it runs again and measures. The guest's last line of output
//! has the results.

mod programs;
mod rounds;

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::bench::{Arguments, Results, version};
use multinet_testing::guest::{self, LINK, Said, is_inside};
use multinet_testing::measure::Log;
use multinet_testing::process::workspace_binary;

/// Time limit of the guest.
const BOUND: Duration = Duration::from_secs(3000);

/// Beginning of the output line with the results.
const RESULT: &str = "bench-rdma: ";
/// Beginning of an output line about another program that failed.
const FAILURE: &str = "bench-rdma failed: ";

/// Extent of the measurements.
#[derive(Debug, Clone, Copy)]
struct Extent {
    sizes: &'static [u32],
    /// Numbers of queue pairs.
    pairs: &'static [u16],
    latencies: &'static [u32],
    /// Number of rounds. Programs take turns in each.
    rounds: usize,
    /// Largest number of bytes to write with messages of one size.
    bytes: u64,
    /// Largest number of messages of one size. It is above the number up to which the programs
    /// search for their peak bandwidth, which costs CPU.
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

/// Measures in a guest. Returns the results; `None` in the guest itself, which prints them.
pub(crate) async fn measure(arguments: &Arguments, log: &Log) -> Result<Option<Results>> {
    if is_inside() {
        let tables = rounds::measure(if arguments.is_quick { QUICK } else { FULL })?;
        writeln!(io::stdout(), "{RESULT}{}", serde_json::to_string(&tables)?)?;
        return Ok(None);
    }
    log.print("measuring in a guest, which prints nothing before it is done");
    let this = std::env::current_exe()?;
    let multinet = workspace_binary("multinet", "MULTINET_BIN")?;
    let script = format!(
        "{LINK}
        export MULTINET_TEST_GUEST=1 MULTINET_BIN='{}'
        export SERVER_ROW=$(gid_row {}) CLIENT_ROW=$(gid_row {})
        '{}' rdma {}",
        multinet.display(),
        programs::SERVER,
        programs::CLIENT,
        this.display(),
        if arguments.is_quick { "--quick" } else { "" },
    );
    let Said { status, output } = guest::run(&script, BOUND).await?;
    ensure!(status == 0, "exit status {status}:\n{output}");
    output.lines().filter_map(|line| line.strip_prefix(FAILURE)).for_each(|failure| log.print(failure));
    let tables = output.lines().rev().find_map(|line| line.strip_prefix(RESULT));
    let tables = serde_json::from_str(tables.with_context(|| format!("no result in\n{output}"))?)?;
    let versions = [("perftest", version("ib_write_bw", "--version")?), ("UCX", version("ucx_info", "-v")?)];
    Results::new(&versions, tables).map(Some)
}
