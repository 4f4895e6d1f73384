//! What the network does with packets to a peer: a connection, and the size that passes.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use multinet_client::nic::{Route, route_to};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::facts::Mtu;

/// So long a connection may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// So long a peer may take to say that nobody listens.
const ECHO: Duration = Duration::from_millis(500);
/// How often each is tried: hosts limit how often they say so.
const TRIES: u16 = 2;
/// Where nobody listens, as traceroute has it.
const CLOSED_PORT: u16 = 33434;
/// The greatest packet to be tried: jumbo frames have at most so much, and the loopback interface needs no trial.
pub(super) const MOST: u32 = 9216;

/// How long a connection takes, which is a round trip. It is made as the library makes its own.
pub(super) async fn connect(route: &Route, peer: SocketAddr) -> io::Result<Duration> {
    let socket = route.tcp_socket()?;
    let start = Instant::now();
    match timeout(PATIENCE, socket.connect(peer)).await {
        Ok(stream) => stream.map(|_| start.elapsed()),
        Err(_) => Err(ErrorKind::TimedOut.into()),
    }
}

/// Whether a connection can be made at all, by whatever way.
pub(super) async fn tcp(server: SocketAddr) -> io::Result<()> {
    match timeout(PATIENCE, TcpStream::connect(server)).await {
        Ok(connected) => connected.map(drop),
        Err(_) => Err(io::Error::new(ErrorKind::TimedOut, "nothing comes back")),
    }
}

/// Whether a packet as large as the route allows gets to a peer in one piece.
///
/// A datagram to a port where nobody listens is answered by an ICMP message, of which the socket hears as a refusal. Linux
/// forbids routers to fragment datagrams (`IP_PMTUDISC_WANT`, its default), so that a large one that is answered got there whole.
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

/// Whether a packet of this size, headers included, is answered.
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

/// The MTU of the way to a peer, as the kernel knows it now.
fn known_mtu(route: &Route) -> Option<u32> {
    let now = route_to(route.peer).ok()?;
    now.mtu.filter(|_| now.source == route.source)
}
