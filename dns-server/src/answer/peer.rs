//! Who asks, and how.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub ip: IpAddr,
    /// Its port, where it is known.
    pub port: Option<u16>,
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self { ip: address.ip(), port: Some(address.port()) }
    }
}

impl From<IpAddr> for Peer {
    fn from(ip: IpAddr) -> Self {
        Self { ip, port: None }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip.fmt(f)
    }
}

/// How a query came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Proto {
    Udp,
    Tcp,
    Tls,
    Https,
    Quic,
}

impl Proto {
    pub(crate) const ALL: [Self; 5] = [Self::Udp, Self::Tcp, Self::Tls, Self::Https, Self::Quic];

    /// The value of the label `proto`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Https => "https",
            Self::Quic => "quic",
        }
    }

    /// Whether nobody on the way can read what is sent.
    pub(crate) fn is_encrypted(self) -> bool {
        matches!(self, Self::Tls | Self::Https | Self::Quic)
    }
}
