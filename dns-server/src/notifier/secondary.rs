//! Who is told of changes: `--notify`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::name::Name;

/// The port of DNS.
const PORT: u16 = 53;

/// A secondary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secondary {
    /// Where it listens.
    pub address: SocketAddr,
    /// The name of the key that notifications to it are signed with.
    pub key: Option<Name>,
}

impl FromStr for Secondary {
    type Err = String;

    /// `ADDR[:PORT][@KEY]`; an IPv6 address with a port stands in brackets.
    fn from_str(text: &str) -> Result<Self, String> {
        let (address, key) = match text.split_once('@') {
            Some((address, key)) => {
                (address, Some(key.parse().map_err(|error| format!("key {key:?}: {error}"))?))
            }
            None => (text, None),
        };
        let bare = || {
            let address =
                address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
            address.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT))
        };
        let address: SocketAddr = address.parse().or_else(|_| bare()).map_err(|_| {
            "write a secondary as 10.0.0.1, 10.0.0.1:5353 or [fd00::1]:5353, with @KEY to sign".to_owned()
        })?;
        if address.port() == 0 {
            return Err("nobody listens on port 0; leave the port out for 53".to_owned());
        }
        let address = match address.ip().to_canonical() {
            ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
            // Of a link-local address the interface is a part.
            IpAddr::V6(_) => address,
        };
        Ok(Self { address, key })
    }
}

impl fmt::Display for Secondary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        self.key.as_ref().map_or(Ok(()), |key| write!(f, "@{key}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_ports_and_keys() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1:53"),
            ("10.0.0.1:5353", "10.0.0.1:5353"),
            ("fd00::1", "[fd00::1]:53"),
            ("[fd00::1]", "[fd00::1]:53"),
            ("[fd00::1]:5353@Key.test", "[fd00::1]:5353@key.test."),
            ("10.0.0.1@k", "10.0.0.1:53@k."),
            ("[::ffff:10.0.0.1]:5353", "10.0.0.1:5353"),
            ("[fe80::1%2]:53", "[fe80::1%2]:53"),
        ] {
            assert_eq!(text.parse::<Secondary>().unwrap().to_string(), expected);
        }
        for bad in [
            "",
            "ns.example.org",
            "10.0.0.1:",
            "10.0.0.1:65536",
            "10.0.0.1:0",
            "[fd00::1]:0",
            "10.0.0.1@",
            "@k",
            "10.0.0.1@a b",
        ] {
            assert!(bad.parse::<Secondary>().is_err(), "{bad:?}");
        }
    }
}
