//! Fallback of wildcard addresses on hosts without IPv6.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tracing::info;

/// Returns the address to bind instead of `asked`, if `error` means that the host has no IPv6:
/// 0.0.0.0 for `[::]`. `None` for any other address, because the user chose it on purpose.
pub fn ipv4_fallback(asked: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    // The host has no sockets of the family IPv6, or no addresses of it.
    let no_ipv6 = matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL));
    if asked.ip() != Ipv6Addr::UNSPECIFIED || !no_ipv6 {
        return None;
    }
    let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, asked.port()));
    info!(%asked, listening = %ipv4, "this host has no IPv6; listening on IPv4 only");
    Some(ipv4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_ipv6_wildcard_falls_back_and_only_without_ipv6() {
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
