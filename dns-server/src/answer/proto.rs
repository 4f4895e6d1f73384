//! The transport that a query came by.

use strum::{IntoStaticStr, VariantArray};

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
