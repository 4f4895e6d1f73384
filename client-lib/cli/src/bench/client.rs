//! `multinet bench client`: connects, measures one size after the other, and prints the results.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use multinet_client::{PeerSet, PeerStatus};
use tokio::time::{Instant, sleep};

use super::memory::Memory;
use super::report::BenchReport;
use super::table::Test;
use super::target::Target;
use super::{ClientArgs, bandwidth, latency};
use crate::output::note;

/// How long the client waits for the connection to a first server.
const WAIT: Duration = Duration::from_secs(30);

/// How long the client waits for the next peer, and for the next connection.
const NEXT_PEER: Duration = Duration::from_secs(5);

/// Interval between checks whether the connections to all servers are there.
const POLL: Duration = Duration::from_millis(5);

/// How long the client waits at its end until the servers have closed their connections.
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
    let connector = connector.wait(WAIT).build()?;
    let peers = target.connect(&connector, WAIT).await?;
    all_connected(&peers, args.connections.into()).await;
    let missing = missing(&peers.status(), &target)?;
    missing.iter().for_each(|who| note(&format!("not measured: {who}")));

    let test = args.test();
    let sizes = args.sizes();
    let messages = sizes.iter().map(|&size| memory.message(size as usize));
    let largest = sizes.iter().copied().max().unwrap_or_default();

    let now = peers.statistics();
    let count = if test == Test::Latency { (1, 1) } else { (now.connected, now.connections) };
    let mut report = BenchReport::begin(
        &args,
        test,
        &target.display(),
        (count, &transport(&peers), args.depth()),
        missing,
    )?;
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

/// Waits until all connections to all peers are there, or the next one does not come in time.
///
/// [`multinet_client::Connector::connect`] completes with the first connection, which is too few
/// for a comparison. Making a connection takes time of the device and of both processors, most of
/// all where much memory is registered for RDMA: that must not go on during the measurement.
async fn all_connected(peers: &PeerSet, per_peer: usize) {
    let (mut deadline, mut there) = (Instant::now() + NEXT_PEER, 0);
    // The report says how many connections there are.
    while there < peers.peers().len() * per_peer && Instant::now() < deadline {
        sleep(POLL).await;
        let now = peers.statistics().connections;
        // A connection that comes and goes must not extend the deadline for ever.
        if now > there {
            (there, deadline) = (now, Instant::now() + NEXT_PEER);
        }
    }
}

/// Returns the peers that are not connected, each with the reason.
///
/// # Errors
///
/// If none is connected: there is nothing to measure.
fn missing(peers: &[PeerStatus], target: &Target) -> anyhow::Result<Vec<String>> {
    let why = |peer: &PeerStatus| {
        let failure = peer.last_error.as_ref().map(ToString::to_string);
        let reason =
            failure.or_else(|| Some(format!("its connection has ended: {}", peer.last_disconnect.as_ref()?)));
        format!("{}: {}", peer.endpoint, reason.as_deref().unwrap_or("still connecting"))
    };
    let missing: Vec<String> = peers.iter().filter(|peer| !peer.is_connected).map(why).collect();
    if missing.len() < peers.len() {
        return Ok(missing);
    }
    match missing.first() {
        Some(first) => bail!("of {} no peer stays connected: {first}", target.display()),
        None => bail!("{} has no endpoint any more", target.display()),
    }
}

/// Returns the name of the transport, or of both if the peers differ.
pub(super) fn transport(peers: &PeerSet) -> String {
    let kinds = peers.status().into_iter().filter_map(|status| status.transport);
    let names: BTreeSet<_> = kinds.map(|kind| kind.to_string().to_uppercase()).collect();
    Vec::from_iter(names).join(" and ")
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use multinet_client::{Connector, Endpoint, Listener};

    use super::*;
    use crate::common::address_resolver;

    /// Returns what [`missing`] reports of peers at these addresses, when each has been tried.
    async fn missing_of(addresses: &[SocketAddr]) -> anyhow::Result<Vec<String>> {
        let endpoints = addresses.iter().map(|&address| Endpoint::at(address)).collect();
        let connector = Connector::builder().resolver(address_resolver()?).build()?;
        let peers = connector.follow("infer", futures::stream::iter([endpoints]));
        let is_tried = |peer: &PeerStatus| peer.is_connected || peer.last_error.is_some();
        while peers.status().len() < addresses.len() || !peers.status().iter().all(is_tried) {
            sleep(POLL).await;
        }
        missing(&peers.status(), &Target::parse("infer", None)?)
    }

    #[tokio::test]
    async fn a_peer_that_is_missing_is_named_with_the_reason() {
        let listener = Listener::builder().address(Ipv4Addr::LOCALHOST.into()).port(0).bind().await.unwrap();
        let there = listener.local_addresses()[0];
        let gone = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), there.port()));
        assert_eq!(missing_of(&[there]).await.unwrap(), [""; 0]);
        let missing = missing_of(&[there, gone]).await.unwrap();
        let start = format!("127-0-0-2:{}: {gone} from ", gone.port());
        assert!(missing.len() == 1 && missing[0].starts_with(&start), "{missing:?}");
        assert!(missing[0].contains("nothing listens"), "{missing:?}");

        let error = missing_of(&[gone]).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("of infer:18515 no peer stays connected: {start}")), "{error}");
        let error = missing_of(&[]).await.unwrap_err().to_string();
        assert_eq!(error, "infer:18515 has no endpoint any more");
    }
}
