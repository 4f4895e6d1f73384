//! The error that tells most of several failed attempts to connect.

use crate::endpoint::Endpoint;
use crate::error::DialError;
use crate::handshake::RefusalCode;
use crate::outbound::DownReason;

/// Failed attempts at a peer's addresses.
#[derive(Default)]
pub(super) struct Failures {
    furthest: Option<DialError>,
    has_passing: bool,
    is_refusal: bool,
}

impl Failures {
    pub(super) fn add(&mut self, error: DialError) {
        // An address without a route has none for RDMA, either.
        self.has_passing |= !matches!(error, DialError::Rdma { is_lasting: true, .. } | DialError::Route(_));
        self.is_refusal |= error.is_receivers_refusal();
        // Of equally far attempts, the one whose failure may pass counts more.
        let rank = |error: &DialError| (error.progress(), !error.is_lasting());
        if self.furthest.as_ref().is_none_or(|before| rank(before) < rank(&error)) {
            self.furthest = Some(error);
        }
    }

    /// Returns the error of the attempt that got furthest, and whether the receiver has refused.
    pub(super) fn into_error(
        mut self,
        endpoint: &Endpoint,
        network: Option<&str>,
    ) -> (DialError, DownReason) {
        if let Some(DialError::Rdma { is_lasting, .. }) = &mut self.furthest {
            *is_lasting = !self.has_passing;
        }
        let network = network.unwrap_or_default();
        let error = self
            .furthest
            .unwrap_or_else(|| DialError::Network { has: aliases(endpoint), network: network.to_owned() });
        (error, if self.is_refusal { DownReason::Refused } else { DownReason::Broken })
    }
}

impl DialError {
    /// Returns whether the receiver that knows the session has refused. It has then ended the
    /// previous connection. Other listeners know neither of the two.
    fn is_receivers_refusal(&self) -> bool {
        let after_that = [RefusalCode::Epoch, RefusalCode::Full, RefusalCode::Transport];
        matches!(self, Self::Refused { code, .. } if after_that.contains(code))
    }

    /// Returns how far the attempt got. One that got further tells more about the peer, and less
    /// about one of its addresses.
    fn progress(&self) -> u8 {
        match self {
            Self::Route(_) | Self::Network { .. } => 0,
            Self::Connect { .. } | Self::Timeout { .. } => 1,
            Self::Rdma { .. } => 2,
            Self::Tls { .. }
            | Self::Handshake { .. }
            | Self::Closed { .. }
            | Self::Refused { .. }
            | Self::WrongPeer { .. } => 3,
        }
    }
}

fn aliases(endpoint: &Endpoint) -> String {
    let aliases: Vec<&str> =
        endpoint.addresses.iter().filter_map(|address| address.network.as_deref()).collect();
    if aliases.is_empty() {
        // Only endpoints that were found by SRV records have TXT records.
        return "none is known; ask for a port that the service has".to_owned();
    }
    aliases.join(", ")
}
