//! Who may transfer zones: `--transfer-to`.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

use crate::store::name::Name;

/// What lets somebody have a zone; any one of several is enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedClient {
    /// An address in this network.
    Network(IpNet),
    /// A query signed with the key of this name.
    Key(Name),
}

impl AllowedClient {
    /// Whether it lets `peer` have a zone, who signed with the key of this name.
    pub fn matches(&self, peer: IpAddr, key: Option<&Name>) -> bool {
        match self {
            Self::Network(network) => network.contains(&peer.to_canonical()),
            Self::Key(name) => key == Some(name),
        }
    }
}

impl FromStr for AllowedClient {
    type Err = String;

    /// A network, a single address, or `key:NAME`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("key:") {
            return name.parse().map(Self::Key).map_err(|error| format!("{error}"));
        }
        network(text)
            .map(Self::Network)
            .ok_or_else(|| format!("write a network as {NETWORKS}, a key as key:NAME"))
    }
}

/// How networks are written.
pub const NETWORKS: &str = "10.0.0.0/8 or fd00::/8";

/// How many bits come before an IPv4 address that is written as an IPv6 one.
const MAPPED: u8 = 96;

/// A network as people write it, or a single address. IPv4 is IPv4 however it is written, as peers' addresses are; one
/// that would hold all of it and more is none.
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
    fn networks_and_keys() {
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
