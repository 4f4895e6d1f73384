//! The client of a query, and the transport that it uses.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use strum::{IntoStaticStr, VariantArray};

/// Address of the client that sent a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// IP address that the query came from.
    pub ip: IpAddr,
    /// Source port of the query. `None` if the caller does not know it.
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

/// Transport protocol that a query came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Proto {
    Udp,
    Tcp,
    Tls,
    Https,
    Quic,
}

impl Proto {
    /// Returns the transport's name, as in the metrics' label `proto`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the number of the transport in dnstap (`SocketProtocol`).
    pub(crate) fn dnstap_number(self) -> i32 {
        match self {
            Self::Udp => 1,
            Self::Tcp => 2,
            Self::Tls => 3,
            Self::Https => 4,
            Self::Quic => 7,
        }
    }

    /// Tells whether the transport is encrypted.
    pub(crate) fn is_encrypted(self) -> bool {
        matches!(self, Self::Tls | Self::Https | Self::Quic)
    }
}
