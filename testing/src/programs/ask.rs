//! Asynchronous queries, with the types of [`crate::dns`].

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::dns::{Query, Reply, Transport};

/// Time limit for a reply. CoreDNS itself gives its upstreams five seconds.
const BOUND: Duration = Duration::from_secs(20);

/// Sends a query. Returns its reply, checked to belong to the query.
pub async fn ask(server: SocketAddr, transport: Transport, query: &Query) -> Result<Reply> {
    let packet = query.to_wire();
    let exchange = async {
        match transport {
            Transport::Udp => over_udp(server, &packet).await,
            Transport::Tcp => over_tcp(server, &packet).await,
        }
    };
    let raw = timeout(BOUND, exchange)
        .await
        .with_context(|| format!("{server} did not answer over {transport:?} in {BOUND:?}: {query}"))?
        .with_context(|| format!("{server} over {transport:?}: {query}"))?;
    Reply::to(&packet, raw).with_context(|| format!("{server} over {transport:?}: {query}"))
}

/// Sends a query for a name and a type over UDP.
pub async fn ask_udp(server: SocketAddr, name: &str, rtype: &str) -> Result<Reply> {
    ask(server, Transport::Udp, &Query::new(name, rtype)).await
}

async fn over_udp(server: SocketAddr, packet: &[u8]) -> Result<Vec<u8>> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(server).await?;
    socket.send(packet).await?;
    let mut buffer = vec![0; 1 << 16];
    let length = socket.recv(&mut buffer).await?;
    buffer.truncate(length);
    Ok(buffer)
}

async fn over_tcp(server: SocketAddr, packet: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(&[&u16::try_from(packet.len())?.to_be_bytes(), packet].concat()).await?;
    let length = stream.read_u16().await?;
    ensure!(length > 0, "the message is empty");
    let mut buffer = vec![0; usize::from(length)];
    stream.read_exact(&mut buffer).await?;
    Ok(buffer)
}
