//! Wildcard addresses on hosts without IPv6.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tracing::info;

/// What to listen on instead, if this error of binding `asked` means that the host has no IPv6: 0.0.0.0 for `[::]`,
/// and nothing for an address that somebody chose.
pub fn ipv4_fallback(asked: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    // No sockets of that family, or none of its addresses.
    let no_ipv6 = matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL));
    if asked.ip() != Ipv6Addr::UNSPECIFIED || !no_ipv6 {
        return None;
    }
    let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, asked.port()));
    info!(%asked, listening = %ipv4, "this host has no IPv6");
    Some(ipv4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wildcard_alone_and_without_ipv6_alone() {
        let instead = |asked: &str, code| {
            let instead = ipv4_fallback(asked.parse().unwrap(), &io::Error::from_raw_os_error(code));
            instead.map(|address| address.to_string())
        };
        for code in [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL] {
            assert_eq!(instead("[::]:53", code).as_deref(), Some("0.0.0.0:53"));
            assert_eq!(instead("[::1]:53", code), None);
            assert_eq!(instead("0.0.0.0:53", code), None);
        }
        assert_eq!(instead("[::]:53", libc::EADDRINUSE), None);
    }
}
