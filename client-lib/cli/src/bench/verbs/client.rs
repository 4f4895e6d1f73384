//! Who measures.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use multinet_client::nic;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::super::figures::{Bandwidth, Latency};
use super::super::report::Report;
use super::super::table::Test;
use super::super::target::Target;
use super::super::{ClientArgs, Extent};
use super::{Answer, Ask, Connected, MOST_DEPTH, Prepared, Setup, VERSION, bandwidth, hear, latency, say};

/// How long the server may take until it is ready: for memory, most of all, and to find out how a GPU's is reached.
const PATIENCE: Duration = Duration::from_secs(60);

/// One size.
enum Measured {
    Bandwidth(Bandwidth),
    Latency(Latency),
}

pub(crate) async fn run(args: ClientArgs) -> anyhow::Result<ExitCode> {
    let setup = Setup::new(args.device.clone(), args.connect.transport)?;
    let target = Target::parse(&args.name, args.port.as_deref())?;
    let server = resolve(&args, &target).await?;
    let test = args.test();
    let (count, depth) = ((1, args.connections.into()), args.depth().min(MOST_DEPTH.into()));
    let mut report = Report::begin(&args, test, &target.display(), (count, "VERBS", depth))?;
    for size in args.sizes() {
        match (one(&args, &setup, server, size).await?, test) {
            (Measured::Bandwidth(figures), Test::Bandwidth(unit)) => report.bandwidth(figures, unit)?,
            (Measured::Latency(figures), _) => report.latency(figures)?,
            (Measured::Bandwidth(_), Test::Latency) => {}
        }
    }
    report.end()?;
    Ok(ExitCode::SUCCESS)
}

/// The first address with an RDMA device of whom the target names, as DNS has them, or the first of all; on one network, if
/// that is asked for.
async fn resolve(args: &ClientArgs, target: &Target) -> anyhow::Result<SocketAddr> {
    let connector = target.connector(&args.connect)?.build()?;
    let found = connector.resolver().resolve(&target.name, &target.port).await?;
    let network = args.connect.network.network.as_deref();
    let all = found.endpoints.iter().flat_map(|endpoint| {
        endpoint.addresses.iter().map(|address| (address, SocketAddr::new(address.ip, endpoint.port)))
    });
    let usable = all.filter(|(address, _)| network.is_none() || address.network.as_deref() == network);
    // The first of equals.
    let best = usable.min_by_key(|(address, _)| address.rdma_devices.is_empty());
    best.map(|(_, server)| server).with_context(|| match network {
        Some(network) => format!("{} has no address on the network {network}", target.name),
        None => format!("{} has no endpoint", target.name),
    })
}

/// Has one size measured, with a connection of its own.
async fn one(args: &ClientArgs, setup: &Setup, server: SocketAddr, size: u32) -> anyhow::Result<Measured> {
    let connecting = connect(args, server);
    let mut stream =
        timeout(PATIENCE, connecting).await.with_context(|| format!("{server} does not answer"))??;
    let ours = stream.local_addr()?.ip();
    let depth = u16::try_from(args.tx_depth).unwrap_or(MOST_DEPTH).min(MOST_DEPTH);
    let (setup, count, is_latency) = (setup.clone(), usize::from(args.connections), args.latency);
    let prepared = spawn_blocking(move || Prepared::new(ours, &setup, size, count, depth)).await??;
    let ask = Ask { multinet_verbs: VERSION, size, is_latency, side: prepared.side.clone() };
    let asking = async {
        say(&mut stream, &ask).await?;
        hear(&mut stream).await
    };
    let answer = timeout(PATIENCE, asking).await.with_context(|| format!("{server} is not ready in time"))?;
    let theirs = match answer.with_context(|| server.to_string())? {
        Answer::Ready(side) => side,
        Answer::Refused(reason) => bail!("{server} refuses: {}", reason.escape_debug()),
    };
    let extent = args.extent();
    let measuring = move || -> anyhow::Result<Measured> {
        let connected = prepared.connect(&theirs, server.ip(), size)?;
        measure(&connected, is_latency, extent, depth)
    };
    // The connection ends after it.
    let measured = spawn_blocking(measuring).await?;
    drop(stream);
    measured
}

fn measure(connected: &Connected, is_latency: bool, extent: Extent, depth: u16) -> anyhow::Result<Measured> {
    Ok(match is_latency {
        true => Measured::Latency(latency::measure(connected, extent)?),
        false => Measured::Bandwidth(bandwidth::measure(connected, extent, depth)?),
    })
}

/// By the second NIC.
async fn connect(args: &ClientArgs, server: SocketAddr) -> anyhow::Result<TcpStream> {
    let mut route = nic::route_to(server.ip())?;
    if !args.connect.network.allow_default_network {
        route = route.on_second_nic()?;
    }
    let socket = if server.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind(SocketAddr::new(route.source, 0))?;
    socket.connect(server).await.with_context(|| format!("{server} (is it multinet bench server --verbs?)"))
}
