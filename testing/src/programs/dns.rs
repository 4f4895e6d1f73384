//! DNS client for tests. Queries are bytes that a test may alter; replies are bytes and
//! presentation text, which the golden tables use.
//!
//! // [`hickory_proto`] parses the replies, so that a parser of another project judges the server.
//! Queries are built by hand, because half of the tests need queries that no library would send.

mod presentation;
mod query;
mod reply;
pub mod secure;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};

pub use presentation::{name_to_wire, type_number};
pub use query::{AD, CD, DO, Edns, Query, RD, Z};
pub use reply::Reply;

/// Time limit for a reply, after which the server counts as silent.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The transports that every server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// UDP, one datagram each way.
    Udp,
    /// TCP, one connection per query.
    Tcp,
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 2] = [Self::Udp, Self::Tcp];

    /// Sends a query. Returns its reply, checked to belong to the query.
    pub fn ask(self, server: SocketAddr, query: &Query) -> Result<Reply> {
        let packet = query.to_wire();
        let raw = self.exchange(server, &packet)?;
        Reply::to(&packet, raw).with_context(|| format!("{self:?}: {query}"))
    }

    /// Sends any bytes. Returns the bytes of the answer.
    pub fn exchange(self, server: SocketAddr, packet: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Udp => udp_socket(server)?.exchange(packet),
            Self::Tcp => {
                let mut connection = Tcp::connect(server)?;
                connection.send(packet)?;
                connection.receive()
            }
        }
    }
}

/// UDP socket that is connected to one server.
#[derive(Debug)]
pub struct Udp(UdpSocket);

/// Creates a UDP socket that is connected to a server.
pub fn udp_socket(server: SocketAddr) -> Result<Udp> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(Udp(socket))
}

impl Udp {
    /// Returns the local port.
    pub fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// Sends one datagram.
    pub fn send(&self, packet: &[u8]) -> Result<()> {
        self.0.send(packet)?;
        Ok(())
    }

    /// Waits for one datagram.
    pub fn receive(&self) -> Result<Vec<u8>> {
        let mut buffer = vec![0; 65_535];
        let length = self.0.recv(&mut buffer).context("no reply over UDP")?;
        buffer.truncate(length);
        Ok(buffer)
    }

    /// Sends a datagram, and waits for the next one.
    pub fn exchange(&self, packet: &[u8]) -> Result<Vec<u8>> {
        self.send(packet)?;
        self.receive()
    }

    /// Returns whether the server ignores `packet`. It sends `probe` next, whose reply has to come
    /// first. Both come from one address, so that one socket of the server receives them in this
    /// order.
    pub fn is_ignored(&self, packet: &[u8], probe: &Query) -> Result<bool> {
        self.send(packet)?;
        self.send(&probe.to_wire())?;
        let first = self.receive()?;
        Ok(first.get(..2) == Some(probe.id.to_be_bytes().as_slice()))
    }
}

/// Stream of length-prefixed messages (RFC 1035 §4.2.2).
#[derive(Debug)]
pub struct Tcp<S = TcpStream>(S);

impl Tcp {
    /// Connects to a server.
    pub fn connect(server: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE).context("no TCP connection")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Returns the local port.
    pub fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr()?.port())
    }
}

impl<S: Read + Write> Tcp<S> {
    /// Creates a stream of messages over any byte stream.
    pub fn over(stream: S) -> Self {
        Self(stream)
    }

    /// Sends one message.
    pub fn send(&mut self, packet: &[u8]) -> Result<()> {
        self.send_all([packet])
    }

    /// Sends several messages in one write, as a pipelining client does (RFC 7766 §6.2.1.1).
    pub fn send_all<'p>(&mut self, packets: impl IntoIterator<Item = &'p [u8]>) -> Result<()> {
        let mut octets = Vec::new();
        for packet in packets {
            octets.extend(framed(packet)?);
        }
        self.0.write_all(&octets)?;
        self.0.flush()?;
        Ok(())
    }

    /// Waits for one message.
    pub fn receive(&mut self) -> Result<Vec<u8>> {
        let mut length = [0; 2];
        self.0.read_exact(&mut length).context("no reply over the stream")?;
        let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
        self.0.read_exact(&mut message).context("the reply is cut off")?;
        Ok(message)
    }
}

/// Prefixes a message with its length.
fn framed(packet: &[u8]) -> Result<Vec<u8>> {
    let length = u16::try_from(packet.len()).context("a message of more than 64 KiB")?;
    Ok([&length.to_be_bytes(), packet].concat())
}
