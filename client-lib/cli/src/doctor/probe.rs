//! Probes of a peer: a connection, whether it offers payloads, and the size of packets that pass.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use multinet_client::nic::{Route, route_to};
use multinet_client::{Connector, Endpoint, FetchError, Transport};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::facts::Mtu;
use crate::common::address_resolver;

/// Time that a TCP connection to a peer or a DNS server may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time that a peer has to say whether it offers payloads.
const QUESTION: Duration = Duration::from_millis(500);
/// Reference to a payload that no peer has.
const NOWHERE: &str = "nowhere/multinet-doctor";
/// Time that a peer may take to answer a datagram by an ICMP message.
const ECHO: Duration = Duration::from_millis(500);
/// Number of datagrams of each size: hosts limit the rate of their ICMP messages.
const TRIES: u16 = 2;
/// First UDP port that datagrams are sent to: no program listens there, as traceroute has it.
const CLOSED_PORT: u16 = 33434;
/// Size of the largest packet that is tried: that of jumbo frames. The loopback interface, whose
/// MTU is larger, needs no trial.
pub(super) const MOST: u32 = 9216;

/// Connects as the library does, and returns how long it took, which is a round trip.
pub(super) async fn connect(route: &Route, peer: SocketAddr) -> io::Result<Duration> {
    let socket = route.tcp_socket()?;
    let start = Instant::now();
    match timeout(PATIENCE, socket.connect(peer)).await {
        Ok(stream) => stream.map(|_| start.elapsed()),
        Err(_) => Err(ErrorKind::TimedOut.into()),
    }
}

/// Returns whether a peer offers payloads to fetch: whether it answers that it lacks this one.
pub(super) async fn offers_payloads(service: &str, peer: Endpoint, allows_default_network: bool) -> bool {
    let asking = async {
        let connector = Connector::builder()
            .resolver(address_resolver()?)
            .transport(Transport::Tcp)
            .allow_default_network(allows_default_network)
            .fetch_wait(QUESTION)
            .build()?;
        let answer = connector.fetch_from(service, vec![peer], &NOWHERE.parse()?).await;
        connector.close().await;
        anyhow::Ok(matches!(answer, Err(FetchError::NotFound { .. })))
    };
    asking.await.unwrap_or(false)
}

/// Tries a TCP connection to a DNS server, by any route.
pub(super) async fn tcp(server: SocketAddr) -> io::Result<()> {
    match timeout(PATIENCE, TcpStream::connect(server)).await {
        Ok(connected) => connected.map(drop),
        Err(_) => Err(io::Error::new(ErrorKind::TimedOut, "nothing comes back")),
    }
}

/// Tries whether a packet as large as the route allows gets to a peer in one piece.
///
/// A host answers a datagram to a closed port by an ICMP message, which the socket reports as
/// refused. Linux forbids routers to fragment datagrams (`IP_PMTUDISC_WANT`, its default), so that
/// a large one that is answered has arrived in one piece.
pub(super) async fn size(route: &Route) -> Option<Mtu> {
    let mtu = route.mtu?.min(MOST);
    match echo(route, mtu).await {
        Ok(true) => Some(Mtu::Passes(mtu)),
        Ok(false) => match known_mtu(route) {
            // A router has told the kernel just now.
            Some(smaller) if smaller < mtu => Some(Mtu::Smaller(smaller)),
            _ if echo(route, 128).await.ok()? => Some(Mtu::Lost(mtu)),
            _ => Some(Mtu::Silent(mtu)),
        },
        Err(_) => None,
    }
}

/// Returns whether the peer answers a packet of this size, headers included, by an ICMP message.
async fn echo(route: &Route, size: u32) -> io::Result<bool> {
    let headers = if route.peer.is_ipv4() { 28 } else { 48 };
    let packet = vec![0; (size as usize).saturating_sub(headers)];
    for attempt in 0..TRIES {
        let socket = route.udp_socket()?;
        socket.connect((route.peer, CLOSED_PORT + attempt)).await?;
        match socket.send(&packet).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(true),
            Err(error) => return Err(error),
        }
        match timeout(ECHO, socket.recv(&mut [0])).await {
            Ok(Ok(_)) => return Ok(true),
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return Ok(true),
            Ok(Err(_)) | Err(_) => {}
        }
    }
    Ok(false)
}

/// Returns the MTU of the route to the peer, as the kernel knows it now.
fn known_mtu(route: &Route) -> Option<u32> {
    let now = route_to(route.peer).ok()?;
    now.mtu.filter(|_| now.source == route.source)
}
