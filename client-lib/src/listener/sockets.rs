//! Which addresses a listener has, and the sockets that listen there.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};

use nix::errno::Errno;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};
use tracing::info;

use crate::error::BindError;
use crate::nic;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// One at each of these addresses, else at those of all second NICs, else at all of this host's if that is allowed; all with
/// the same port.
pub(super) fn sockets(
    addresses: &[IpAddr],
    allow_default_network: bool,
    port: u16,
) -> Result<Vec<TcpListener>, BindError> {
    if !addresses.is_empty() {
        return at_each(addresses, port);
    }
    let second = nic::second_nics().map_err(BindError::Interfaces)?;
    let second: Vec<IpAddr> = second.into_iter().map(|local| local.ip).collect();
    match second.is_empty() {
        false => at_each(&second, port),
        true if allow_default_network => Ok(vec![anywhere(port)?]),
        true => Err(BindError::NoSecondNic),
    }
}

fn at_each(addresses: &[IpAddr], mut port: u16) -> Result<Vec<TcpListener>, BindError> {
    let mut sockets = Vec::with_capacity(addresses.len());
    for &address in addresses {
        if nic::is_link_local_v6(address) {
            return Err(BindError::LinkLocal { address });
        }
        let at = SocketAddr::new(address, port);
        let error = |source| BindError::Bind { address: at, source };
        let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let socket = socket.and_then(|socket| listen(socket, at)).map_err(error)?;
        // The kernel chooses once, for all addresses.
        port = socket.local_addr().map_err(error)?.port();
        sockets.push(socket);
    }
    Ok(sockets)
}

/// At all addresses: those of IPv6 with those of IPv4, or those of IPv4 alone on a host without IPv6.
fn anywhere(port: u16) -> Result<TcpListener, BindError> {
    let (v6, v4) = ((Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into());
    let both = || {
        let socket = TcpSocket::new_v6()?;
        // Whatever net.ipv6.bindv6only says.
        SockRef::from(&socket).set_only_v6(false)?;
        listen(socket, v6)
    };
    let (address, outcome) = match both() {
        Err(error) if has_no_ipv6(&error) => {
            info!(listening = %v4, "this host has no IPv6");
            (v4, TcpSocket::new_v4().and_then(|socket| listen(socket, v4)))
        }
        outcome => (v6, outcome),
    };
    outcome.map_err(|source| BindError::Bind { address, source })
}

/// Whether a wildcard address could not be bound because there are no sockets of that family, or none of its addresses.
fn has_no_ipv6(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL))
}

fn listen(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    // A restarted pod gets its port back at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Does not listen any more, whoever still has the socket.
pub(super) fn end(socket: &TcpListener) {
    // One that is to be closed has no other way to fail.
    let _ = SockRef::from(socket).shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_without_ipv6_has_ipv4_alone() {
        let cases = [
            (Errno::EAFNOSUPPORT, true),
            (Errno::EADDRNOTAVAIL, true),
            (Errno::EADDRINUSE, false),
            (Errno::EACCES, false),
        ];
        for (code, expected) in cases {
            assert_eq!(has_no_ipv6(&code.into()), expected, "{code}");
        }
    }

    #[tokio::test]
    async fn all_addresses_are_those_of_ipv4_too() {
        let socket = anywhere(0).unwrap();
        let address = socket.local_addr().unwrap();
        assert!(address.ip().is_unspecified());
        assert!(address.is_ipv4() || !SockRef::from(&socket).only_v6().unwrap());
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
        let (connected, accepted) = tokio::join!(tokio::net::TcpStream::connect(to), socket.accept());
        assert!(connected.is_ok() && accepted.is_ok());
    }

    #[tokio::test]
    async fn several_addresses_have_one_port() {
        let sockets = sockets(&["127.0.0.1", "127.0.0.2"].map(|ip| ip.parse().unwrap()), false, 0).unwrap();
        let ports: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        assert!(ports.len() == 2 && ports[0] == ports[1] && ports[0] != 0, "{ports:?}");
    }

    #[tokio::test]
    async fn link_local_addresses_are_refused_with_what_to_use_instead() {
        let error = sockets(&["fe80::5".parse().unwrap()], true, 0).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot listen on fe80::5: link-local addresses are not supported"),
            "{error}"
        );
        assert!(!error.contains("  "), "{error}");
    }
}
