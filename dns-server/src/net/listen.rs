//! Addresses to listen on: the URLs of `--listen`, and binding their sockets.

mod bind;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use strum::{Display, EnumString};

pub use bind::{BindError, BoundDns, bind_dns, bind_tcp, bind_udp};

/// Syntax of `--listen`, for error messages.
const FORM: &str = "write [dns://]ADDR:PORT, tls://ADDR:PORT, https://ADDR:PORT or quic://ADDR:PORT, \
                    as in dns://10.0.0.1:53 or tls://[::]:853";

/// Protocol of a listener, given by the scheme of `--listen`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum ListenProto {
    /// DNS over UDP and TCP.
    Dns,
    /// DNS over TLS (RFC 7858).
    Tls,
    /// DNS over HTTPS (RFC 8484).
    Https,
    /// DNS over QUIC (RFC 9250).
    Quic,
}

impl ListenProto {
    fn default_port(self) -> u16 {
        match self {
            Self::Dns => 53,
            Self::Tls | Self::Quic => 853,
            Self::Https => 443,
        }
    }

    fn uses_udp(self) -> bool {
        matches!(self, Self::Dns | Self::Quic)
    }

    fn uses_tcp(self) -> bool {
        !matches!(self, Self::Quic)
    }
}

/// An address to listen on, as `--listen` states it: a URL such as `tls://[::]:853`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Listen {
    /// Protocol that the listener speaks.
    pub proto: ListenProto,
    /// IP address and port. Port 0 lets the kernel choose a free one.
    pub addr: SocketAddr,
}

impl Listen {
    /// Tells whether both cannot be bound: they share a transport, a port, and an address or
    /// wildcard. `[::]` covers IPv4 too.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.proto, other.proto);
        let share_transport = ours.uses_udp() && theirs.uses_udp() || ours.uses_tcp() && theirs.uses_tcp();
        let share_port = self.addr.port() == other.addr.port() && self.addr.port() != 0;
        share_transport
            && share_port
            && (self.addr == other.addr
                || is_covered(self.addr.ip(), other.addr.ip())
                || is_covered(other.addr.ip(), self.addr.ip()))
    }
}

/// Tells whether a socket that is bound to `wildcard` receives packets that are sent to `address`.
fn is_covered(address: IpAddr, wildcard: IpAddr) -> bool {
    match wildcard {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => true,
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => address.to_canonical().is_ipv4(),
        _ => false,
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.proto, self.addr)
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (proto, address) = match text.split_once("://") {
            None => (ListenProto::Dns, text),
            Some((scheme, address)) => {
                (scheme.parse().map_err(|_| format!("unknown scheme {scheme:?}; {FORM}"))?, address)
            }
        };
        let with_default_port = || format!("{address}:{}", proto.default_port()).parse();
        let addr = address.parse().or_else(|_| with_default_port()).map_err(|_| {
            format!("{address:?} is not a numeric address with a port, IPv6 in brackets; {FORM}")
        })?;
        Ok(Self { proto, addr })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Listen {
        text.parse().unwrap()
    }

    #[test]
    fn urls_are_read_and_written() {
        for (text, written) in [
            ("127.0.0.1:5353", "dns://127.0.0.1:5353"),
            ("dns://10.0.0.1", "dns://10.0.0.1:53"),
            ("10.0.0.1", "dns://10.0.0.1:53"),
            ("[::]", "dns://[::]:53"),
            ("tls://[::1]", "tls://[::1]:853"),
            ("tls://[fe80::1%2]:8853", "tls://[fe80::1%2]:8853"),
            ("https://0.0.0.0", "https://0.0.0.0:443"),
            ("quic://[::]", "quic://[::]:853"),
            ("dns://127.0.0.1:0", "dns://127.0.0.1:0"),
        ] {
            assert_eq!(listen(text).to_string(), written, "{text}");
            assert_eq!(listen(written), listen(text), "{text}");
        }
    }

    #[test]
    fn an_error_names_the_bad_part_and_shows_the_form() {
        for (text, bad) in [
            ("udp://127.0.0.1:53", "udp"),
            ("://127.0.0.1", ""),
            ("", ""),
            ("localhost:53", "localhost:53"),
            ("dns://:53", ":53"),
            ("::1", "::1"),
            ("::1:53", "::1:53"),
            ("dns://10.0.0.1:", "10.0.0.1:"),
            ("dns://10.0.0.1:65536", "10.0.0.1:65536"),
            ("tls://10.0.0.1:853/", "10.0.0.1:853/"),
            ("[::1", "[::1"),
            ("53", "53"),
        ] {
            let error = text.parse::<Listen>().unwrap_err();
            assert!(error.contains(&format!("{bad:?}")), "{text}: {error}");
            assert!(error.contains("write [dns://]ADDR:PORT") && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn listeners_overlap_on_a_common_transport_port_and_address() {
        for (one, other, overlap) in [
            ("dns://10.0.0.1", "dns://10.0.0.1:53", true),
            ("dns://10.0.0.1", "dns://10.0.0.2", false),
            ("dns://10.0.0.1", "dns://0.0.0.0", true),
            ("dns://10.0.0.1", "dns://[::]", true),
            ("dns://0.0.0.0", "dns://[::]", true),
            ("dns://[::1]", "dns://[::]", true),
            ("dns://[::1]", "dns://0.0.0.0", false),
            ("dns://[::ffff:10.0.0.1]", "dns://0.0.0.0", true),
            ("dns://[fe80::1%2]", "dns://[fe80::1%3]", false),
            ("dns://[::]:0", "dns://[::]:0", false),
            ("tls://10.0.0.1", "quic://10.0.0.1", false),
            ("tls://10.0.0.1:443", "https://10.0.0.1", true),
            ("dns://10.0.0.1:853", "tls://10.0.0.1", true),
            ("dns://10.0.0.1:853", "quic://10.0.0.1", true),
        ] {
            assert_eq!(listen(one).overlaps(&listen(other)), overlap, "{one} {other}");
            assert_eq!(listen(other).overlaps(&listen(one)), overlap, "{other} {one}");
        }
    }
}
