//! The secondaries to notify: `--notify`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::store::name::Name;

/// Port of a secondary if none is given: that of DNS.
const PORT: u16 = 53;

/// A secondary that is notified of changes (`--notify`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Secondary {
    /// Address and port that notifications are sent to.
    pub address: SocketAddr,
    /// Name of the TSIG key that signs notifications; `None` if they are not signed.
    pub key: Option<Name>,
}

impl Secondary {
    /// Returns the source address of notifications to it. `listening` are the addresses on which
    /// this server serves plain DNS. If exactly one of them can reach the secondary, that is the
    /// address by which the secondary knows its primary. Otherwise the kernel chooses.
    pub(crate) fn source_address(&self, listening: &[SocketAddr]) -> SocketAddr {
        let is_ipv4 = self.address.is_ipv4();
        let mut own = listening
            .iter()
            .map(|&address| canonical(address))
            .filter(|own| own.is_ipv4() == is_ipv4 || own.ip() == Ipv6Addr::UNSPECIFIED);
        let any: IpAddr = if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let only = own.next().filter(|&first| own.all(|other| is_same_host(other, first)));
        let mut source = only
            .filter(|&only| !only.ip().is_unspecified() && can_reach(only, self.address))
            .unwrap_or_else(|| SocketAddr::new(any, 0));
        source.set_port(0);
        source
    }
}

/// Converts an IPv4-mapped address to IPv4. An IPv6 address keeps its scope, which names the
/// interface of a link-local address.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Tells whether packets from `own` can reach `other`: loopback and link-local addresses lead no
/// further than their host or link.
fn can_reach(own: SocketAddr, other: SocketAddr) -> bool {
    let is_of_link = |ip| match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let is_on_link = is_of_link(other.ip()) && interface(own) == interface(other);
    (!own.ip().is_loopback() || other.ip().is_loopback()) && (!is_of_link(own.ip()) || is_on_link)
}

fn is_same_host(one: SocketAddr, other: SocketAddr) -> bool {
    one.ip() == other.ip() && interface(one) == interface(other)
}

/// Returns the index of the interface of a link-local address, or 0 for another address.
fn interface(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    }
}

impl FromStr for Secondary {
    type Err = String;

    /// Parses `ADDR[:PORT][@KEY]`. The address must be in brackets if it is IPv6 and has a port.
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
            return Err("port 0 is not a valid port; leave the port out for 53".to_owned());
        }
        Ok(Self { address: canonical(address), key })
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
    fn a_secondary_is_an_address_with_optional_port_and_key() {
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

    #[test]
    fn the_source_address_is_the_only_one_of_the_secondarys_family() {
        let (any4, any6) = ("0.0.0.0:0", "[::]:0");
        for (secondary, listening, expected) in [
            ("10.0.0.7", &["10.0.0.1:53"][..], "10.0.0.1:0"),
            ("10.0.0.7", &["10.0.0.1:53", "10.0.0.1:5353", "[fd00::1]:53"], "10.0.0.1:0"),
            ("10.0.0.7", &["[::ffff:10.0.0.1]:53"], "10.0.0.1:0"),
            ("fd00::7", &["0.0.0.0:53", "[fd00::1]:53"], "[fd00::1]:0"),
            ("[fe80::7%2]:53", &["[fe80::1%2]:53"], "[fe80::1%2]:0"),
            ("127.0.0.1", &["127.0.0.2:53"], "127.0.0.2:0"),
            ("127.0.0.1", &["10.0.0.1:53"], "10.0.0.1:0"),
            // No address, several addresses, a wildcard address.
            ("10.0.0.7", &[], any4),
            ("10.0.0.7", &["[fd00::1]:53"], any4),
            ("fd00::7", &["10.0.0.1:53"], any6),
            ("10.0.0.7", &["10.0.0.1:53", "10.0.0.2:53"], any4),
            ("10.0.0.7", &["0.0.0.0:53"], any4),
            ("10.0.0.7", &["[::]:53"], any4),
            ("fd00::7", &["[::]:53"], any6),
            ("10.0.0.7", &["10.0.0.1:5353", "[::]:53"], any4),
            // An address from which packets do not reach the secondary.
            ("10.0.0.7", &["127.0.0.1:53"], any4),
            ("10.0.0.7", &["169.254.20.10:53"], any4),
            ("fd00::7", &["[fe80::1%2]:53"], any6),
            ("[fe80::7%3]:53", &["[fe80::1%2]:53"], any6),
            ("[fe80::7%3]:53", &["[fe80::1%2]:53", "[fe80::1%3]:53"], any6),
        ] {
            let addresses: Vec<SocketAddr> =
                listening.iter().map(|address| address.parse().unwrap()).collect();
            let source = secondary.parse::<Secondary>().unwrap().source_address(&addresses);
            assert_eq!(source.to_string(), expected, "{secondary} {listening:?}");
        }
    }
}
