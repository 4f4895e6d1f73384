//! Who may transfer zones: `--transfer-to`.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use crate::name::Name;

/// What lets somebody have a zone; any one of several is enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// An address in this network.
    Network(IpNet),
    /// A query signed with the key of this name.
    Key(Name),
}

impl Allowed {
    /// Whether it lets `peer` have a zone, who signed with the key of this name.
    pub fn lets(&self, peer: IpAddr, key: Option<&Name>) -> bool {
        match self {
            Self::Network(network) => network.contains(&peer.to_canonical()),
            Self::Key(name) => key == Some(name),
        }
    }
}

impl FromStr for Allowed {
    type Err = String;

    /// A network, a single address, or `key:NAME`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("key:") {
            return name.parse().map(Self::Key).map_err(|error| format!("{error}"));
        }
        network(text)
            .map(Self::Network)
            .ok_or_else(|| "write a network as 10.0.0.0/8 or fd00::/8, a key as key:NAME".to_owned())
    }
}

/// A network as people write it, or a single address.
pub fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
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
            ("fd00::1", "fd00::1", false, true),
            ("fd00::1", "fd00::2", false, false),
            ("key:K.", "192.0.2.1", true, true),
            ("key:k", "192.0.2.1", false, false),
            ("key:other", "192.0.2.1", true, false),
        ] {
            let parsed: Allowed = allowed.parse().unwrap();
            let lets = parsed.lets(peer.parse().unwrap(), signed.then_some(&key));
            assert_eq!(lets, expected, "{allowed} {peer} {signed}");
        }
        for bad in ["", "10.0.0.0/33", "key:", "key:a b", "k"] {
            assert!(bad.parse::<Allowed>().is_err(), "{bad:?}");
        }
    }
}
