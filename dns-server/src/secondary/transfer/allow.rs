//! The clients that may transfer zones: `--transfer-to`.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

use crate::store::name::Name;

/// Clients that may transfer zones. If there are several of these, one that matches is enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedClient {
    /// Clients with an IP address in this network.
    Network(IpNet),
    /// Clients that sign their queries with the TSIG key of this name.
    Key(Name),
}

impl AllowedClient {
    /// Tells whether a client with this address matches. `key` is the name of the key that its
    /// query is signed with.
    pub fn matches(&self, peer: IpAddr, key: Option<&Name>) -> bool {
        match self {
            Self::Network(network) => network.contains(&peer.to_canonical()),
            Self::Key(name) => key == Some(name),
        }
    }
}

impl FromStr for AllowedClient {
    type Err = String;

    /// Parses a network or a single address of clients, or `key:NAME`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("key:") {
            return name.parse().map(Self::Key);
        }
        network(text)
            .map(Self::Network)
            .ok_or_else(|| format!("write a network as {NETWORKS}, a key as key:NAME"))
    }
}

/// Examples of networks, for error messages.
pub const NETWORKS: &str = "10.0.0.0/8 or fd00::/8";

/// Length of the prefix `::ffff:0:0`, below which IPv4 addresses are mapped to IPv6.
const MAPPED: u8 = 96;

/// Parses a network or a single address. A network of IPv4-mapped addresses becomes an IPv4
/// network, since clients' addresses are converted, too. Returns `None` for an IPv6 network that
/// contains all mapped addresses and others.
pub fn network(text: &str) -> Option<IpNet> {
    let network: IpNet = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
    match network.addr().to_canonical() {
        IpAddr::V4(address) if matches!(network, IpNet::V6(_)) => {
            let length = network.prefix_len().checked_sub(MAPPED)?;
            Ipv4Net::new(address, length).ok().map(IpNet::V4)
        }
        _ => Some(network),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_matches_by_its_network_or_key() {
        let key: Name = "k".parse().unwrap();
        for (allowed, peer, signed, expected) in [
            ("10.0.0.0/8", "10.1.2.3", false, true),
            ("10.0.0.0/8", "::ffff:10.1.2.3", false, true),
            ("10.0.0.0/8", "11.1.2.3", true, false),
            ("::ffff:10.0.0.0/104", "10.1.2.3", false, true),
            ("::ffff:10.0.0.0/104", "11.1.2.3", false, false),
            ("::ffff:0.0.0.0/96", "::ffff:11.1.2.3", false, true),
            ("::ffff:10.1.2.3", "10.1.2.3", false, true),
            ("::/0", "fd00::1", false, true),
            ("::/0", "10.1.2.3", false, false),
            ("fd00::1", "fd00::1", false, true),
            ("fd00::1", "fd00::2", false, false),
            ("key:K.", "192.0.2.1", true, true),
            ("key:k", "192.0.2.1", false, false),
            ("key:other", "192.0.2.1", true, false),
        ] {
            let parsed: AllowedClient = allowed.parse().unwrap();
            let is_match = parsed.matches(peer.parse().unwrap(), signed.then_some(&key));
            assert_eq!(is_match, expected, "{allowed} {peer} {signed}");
        }
        for bad in ["", "10.0.0.0/33", "::ffff:10.0.0.0/8", "::ffff:0.0.0.0/95", "key:", "key:a b", "k"] {
            assert!(bad.parse::<AllowedClient>().is_err(), "{bad:?}");
        }
    }
}
