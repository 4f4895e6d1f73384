//! `multinet bench client`: connects, measures size by size, prints.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use multinet_client::PeerSet;
use tokio::time::{Instant, sleep};

use super::memory::Memory;
use super::report::Report;
use super::table::Test;
use super::target::Target;
use super::{ClientArgs, bandwidth, latency};

/// How long the next peer, and the next connection, is waited for.
const COMPANY: Duration = Duration::from_secs(5);

/// How long it is between two looks at whether they are there.
const LOOK: Duration = Duration::from_millis(5);

/// How long the servers have to say goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

pub(super) async fn run(args: ClientArgs) -> anyhow::Result<ExitCode> {
    let memory = Memory::of(args.device.use_cuda)?;
    let target = Target::parse(&args.name, args.port.as_deref())?;
    let mut connector = target
        .connector(&args.connect)?
        .rdma(args.device.rdma(args.connect.transport))
        .connections_per_peer(args.connections);
    if let Some(gpu) = memory.gpu() {
        connector = connector.gpu(Arc::clone(gpu));
    }
    let connector = connector.build()?;
    let peers = connector.connect(&target.name, &target.port).await?;
    everybody_is_there(&peers, args.connections.into()).await;

    let test = args.test();
    let sizes = args.sizes();
    let messages = sizes.iter().map(|&size| memory.message(size as usize));
    let largest = sizes.iter().copied().max().unwrap_or_default();

    let now = peers.statistics();
    let count = if test == Test::Latency { (1, 1) } else { (now.connected, now.connections) };
    let mut report =
        Report::begin(&args, test, &target.display(), (count, &transport(&peers), args.depth()))?;
    match test {
        Test::Bandwidth(unit) => {
            let connections = now.connections as u64;
            let depth = args.tx_depth.saturating_mul(connections);
            for message in messages {
                let figures = bandwidth::measure(&peers, message?, args.extent(), connections, depth).await?;
                report.bandwidth(figures, unit)?;
            }
        }
        Test::Latency => {
            let there_and_back = latency::PingPong::begin(&peers, &args, largest, &memory).await?;
            for message in messages {
                report.latency(there_and_back.measure(message?, args.extent()).await?)?;
            }
            there_and_back.end().await?;
        }
    }
    report.end()?;
    peers.close(GOODBYE).await;
    Ok(ExitCode::SUCCESS)
}

/// Completes when all peers, with all their connections, are there, or the next one has had its time: the first connection is enough for
/// [`multinet_client::Connector::connect`], but not for a comparison. To make one takes the device's and both processors' time,
/// where RDMA has much memory registered for it: that must not go on beside what is measured.
async fn everybody_is_there(peers: &PeerSet, per_peer: usize) {
    let (mut deadline, mut there) = (Instant::now() + COMPANY, 0);
    // What is missing then is not waited for again; the report says how many there are.
    while there < peers.peers().len() * per_peer && Instant::now() < deadline {
        sleep(LOOK).await;
        let now = peers.statistics().connections;
        // One that comes and goes again and again is not waited for for ever.
        if now > there {
            (there, deadline) = (now, Instant::now() + COMPANY);
        }
    }
}

/// How messages travel: to all peers alike, or by both ways.
fn transport(peers: &PeerSet) -> String {
    let kinds = peers.status().into_iter().filter_map(|status| status.transport);
    let names: BTreeSet<_> = kinds.map(|kind| kind.to_string().to_uppercase()).collect();
    Vec::from_iter(names).join(" and ")
}
