//! Memory and CPU of many peers at rest.

use std::time::Duration;

use anyhow::{Context as _, Result};
use multinet_testing::bench::{Table, figure, text};
use multinet_testing::usage::{cpu_seconds, resident_mebibytes};

use super::roles::Role;

/// Time for processes to become idle before they are measured.
const QUIET: Duration = Duration::from_secs(2);

/// Memory and CPU of the sender and of all receivers.
struct Snapshot {
    resident: [f64; 2],
    cpu: [f64; 2],
}

/// Measures a sender with one connection to each of many receivers, and the process with all
/// receivers: growth of the resident set beyond that with one peer, and CPU without traffic.
pub(crate) fn table(peers: usize, rest: u64) -> Result<Table> {
    let one = snapshot(1, peers, rest.min(1))?;
    let all = snapshot(peers, peers, rest)?;
    let further =
        peers.checked_sub(1).filter(|&count| count > 0).context("the measurement needs at least two peers")?
            as f64;
    let columns = "side | KiB per peer | CPU at rest, percent of a core";
    let mut table = Table::new("Many peers", format!("{peers} receivers."), columns);
    for (side, name) in ["sender", "receivers"].into_iter().enumerate() {
        let kibibytes = (all.resident[side] - one.resident[side]) * 1024.0 / further;
        table.row([text(name), figure([kibibytes], 1), figure([all.cpu[side] * 100.0], 2)]);
    }
    Ok(table)
}

fn snapshot(peers: usize, addresses: usize, rest: u64) -> Result<Snapshot> {
    let (receiver, port) = Role::Listeners(addresses).start()?;
    let sender = Role::Sender { port: port.parse()?, peers };
    let (sender, _) = sender.start()?;
    std::thread::sleep(QUIET);
    let pids = [sender.pid(), receiver.pid()];
    let resident = [resident_mebibytes(pids[0])?, resident_mebibytes(pids[1])?];
    let before = [cpu_seconds(pids[0])?, cpu_seconds(pids[1])?];
    std::thread::sleep(Duration::from_secs(rest));
    let after = [cpu_seconds(pids[0])?, cpu_seconds(pids[1])?];
    let cpu = [0, 1].map(|side| (after[side] - before[side]) / rest.max(1) as f64);
    Ok(Snapshot { resident, cpu })
}
