//! Binding sockets to a port that no other process uses.
//!
//! UDP workers share their port by SO_REUSEPORT. The kernel then lets every process of the same
//! user join: a second server started by mistake would silently take half of the queries. So the
//! first socket of a group is bound without the option, which fails if another process uses the
//! port. It gets the option afterwards, for the sockets of the other workers. TCP ports are never
//! shared.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use multinet_runtime::ipv4_fallback;
use socket2::{Domain, Protocol, Socket, Type};
use tracing::debug;

use crate::limits::tcp::{BACKLOG, FAST_OPEN};
use crate::limits::udp::UDP_BUFFER;
use crate::net::socket::set_option;

/// Attempts to find a port that is free for both TCP and UDP.
const PORT_ATTEMPTS: u32 = 16;

/// Sockets of a `dns://` listener: UDP and TCP on one port.
#[derive(Debug)]
pub struct BoundDns {
    /// Bound address: with the chosen port, and 0.0.0.0 instead of `[::]` on a host without IPv6.
    pub addr: SocketAddr,
    /// UDP sockets: a blocking one for each worker thread.
    pub udp: Vec<UdpSocket>,
    /// Listening TCP socket; nonblocking, as tokio requires.
    pub tcp: TcpListener,
}

/// Binds TCP, and UDP for `workers` threads (at least one), to the same port.
///
/// # Errors
///
/// If the address cannot be bound, or another process uses the port.
pub fn bind_dns(addr: SocketAddr, workers: usize) -> Result<BoundDns, BindError> {
    or_ipv4(addr, |addr| {
        let mut attempt = 1;
        loop {
            let tcp = tcp_listener(addr)?;
            let bound = tcp.local_addr().map_err(BindError::at(addr, "TCP"))?;
            match udp_group(bound, workers) {
                // Another process uses this port for UDP. The next attempt gets another port.
                Err(error) if error.is_in_use() && addr.port() == 0 && attempt < PORT_ATTEMPTS => {
                    attempt += 1;
                }
                udp => {
                    return Ok(BoundDns { addr: bound, udp: udp?, tcp });
                }
            }
        }
    })
}

/// Binds a TCP port for `tls://` or `https://`; the listener is nonblocking.
///
/// # Errors
///
/// If the address cannot be bound.
pub fn bind_tcp(addr: SocketAddr) -> Result<TcpListener, BindError> {
    or_ipv4(addr, tcp_listener)
}

/// Binds a UDP port for `quic://`; the socket is nonblocking.
///
/// # Errors
///
/// If the address cannot be bound.
pub fn bind_udp(addr: SocketAddr) -> Result<UdpSocket, BindError> {
    let nonblocking = |addr| {
        let socket = udp_socket(addr, false)?;
        socket.set_nonblocking(true).map_err(BindError::at(addr, "UDP"))?;
        Ok(socket.into())
    };
    or_ipv4(addr, nonblocking)
}

/// Calls `bind` with `addr`, or with 0.0.0.0 instead of `[::]` on a host without IPv6.
fn or_ipv4<T>(addr: SocketAddr, bind: impl Fn(SocketAddr) -> Result<T, BindError>) -> Result<T, BindError> {
    match bind(addr) {
        Err(error) => match ipv4_fallback(addr, &error.error) {
            Some(ipv4) => bind(ipv4),
            None => Err(error),
        },
        bound => bound,
    }
}

fn tcp_listener(addr: SocketAddr) -> Result<TcpListener, BindError> {
    let listen = || {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        // Allows binding while connections of an earlier run are still closing. A live listener
        // still keeps its port.
        socket.set_reuse_address(true)?;
        serve_ipv4_too(&socket, addr)?;
        socket.set_nonblocking(true)?;
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        // TCP Fast Open (RFC 7413) works if the kernel supports it and `net.ipv4.tcp_fastopen`
        // allows it for servers.
        if let Err(error) = set_option(&socket, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, FAST_OPEN) {
            debug!(%error, "cannot enable TCP Fast Open on a listener");
        }
        Ok(socket.into())
    };
    listen().map_err(BindError::at(addr, "TCP"))
}

fn udp_group(addr: SocketAddr, workers: usize) -> Result<Vec<UdpSocket>, BindError> {
    let first = udp_socket(addr, false)?;
    first.set_reuse_port(true).map_err(BindError::at(addr, "UDP"))?;
    let mut group = vec![first.into()];
    for _ in 1..workers {
        group.push(udp_socket(addr, true)?.into());
    }
    Ok(group)
}

fn udp_socket(addr: SocketAddr, is_shared: bool) -> Result<Socket, BindError> {
    let bind = || {
        let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_port(is_shared)?;
        serve_ipv4_too(&socket, addr)?;
        // The kernel may grant less. Then bursts are lost sooner, which is no reason to fail.
        let _ = socket.set_recv_buffer_size(UDP_BUFFER);
        let _ = socket.set_send_buffer_size(UDP_BUFFER);
        socket.bind(&addr.into())?;
        Ok(socket)
    };
    bind().map_err(BindError::at(addr, "UDP"))
}

/// Makes a socket for `[::]` accept IPv4 clients too, whatever the host's default is.
fn serve_ipv4_too(socket: &Socket, addr: SocketAddr) -> io::Result<()> {
    if addr.is_ipv6() { socket.set_only_v6(false) } else { Ok(()) }
}

/// Error of binding a listener's address: address, transport and the system's reason.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} ({transport}): {}", reason(*addr, error))]
pub struct BindError {
    addr: SocketAddr,
    transport: &'static str,
    error: io::Error,
}

impl BindError {
    fn at(addr: SocketAddr, transport: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self { addr, transport, error }
    }

    /// Tells whether binding failed because another process uses the port.
    pub fn is_in_use(&self) -> bool {
        self.error.kind() == io::ErrorKind::AddrInUse
    }
}

/// Returns the reason why `addr` cannot be bound, and the remedy, in one line.
fn reason(addr: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let port = addr.port();
            format!(
                "the port is in use; stop the process that has it (`ss -lntup 'sport = :{port}'` shows it), \
                 or choose another address with --listen"
            )
        }
        io::ErrorKind::PermissionDenied if addr.port() < 1024 => "no permission; ports below 1024 need root \
             or CAP_NET_BIND_SERVICE; add that capability, or choose a higher port with --listen"
            .to_owned(),
        io::ErrorKind::AddrNotAvailable => {
            "this host has no such address; choose one of its own with --listen, or a wildcard".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn a_bind_error_says_what_to_do() {
        let text = |addr: &str, code| {
            let error = io::Error::from_raw_os_error(code);
            BindError { addr: addr.parse().unwrap(), transport: "UDP", error }.to_string()
        };
        let in_use = text("127.0.0.1:53", libc::EADDRINUSE);
        assert!(in_use.starts_with("cannot listen on 127.0.0.1:53 (UDP): the port is in use;"), "{in_use}");
        assert!(text("[::]:53", libc::EACCES).contains("CAP_NET_BIND_SERVICE"));
        assert!(!text("[::]:5353", libc::EACCES).contains("1024"));
        assert!(text("10.9.8.7:53", libc::EADDRNOTAVAIL).contains("no such address"));
    }

    #[test]
    fn all_sockets_of_a_listener_have_one_port() {
        for addr in ["127.0.0.1:0", "[::]:0"] {
            let bound = bind_dns(addr.parse().unwrap(), 3).unwrap();
            assert_ne!(bound.addr.port(), 0);
            assert_eq!(bound.tcp.local_addr().unwrap(), bound.addr);
            assert_eq!(bound.udp.len(), 3);
            for socket in &bound.udp {
                assert_eq!(socket.local_addr().unwrap(), bound.addr);
            }
        }
    }

    #[test]
    fn a_port_is_not_shared_with_a_second_server() {
        let first = bind_dns("127.0.0.1:0".parse().unwrap(), 2).unwrap();
        let error = bind_dns(first.addr, 2).unwrap_err();
        assert!(error.is_in_use(), "{error}");
        assert!(error.to_string().contains(&first.addr.to_string()), "{error}");
        assert!(bind_udp(first.addr).unwrap_err().is_in_use());
        assert!(bind_tcp(first.addr).unwrap_err().is_in_use());
        let wildcard = SocketAddr::from((Ipv6Addr::UNSPECIFIED, first.addr.port()));
        assert!(bind_dns(wildcard, 1).unwrap_err().is_in_use());
    }

    #[test]
    fn a_udp_port_is_not_shared_with_a_process_that_allows_sharing() {
        let other = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        other.set_reuse_port(true).unwrap();
        other.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let addr = other.local_addr().unwrap().as_socket().unwrap();
        let error = udp_group(addr, 2).unwrap_err();
        assert!(error.is_in_use() && error.to_string().contains("(UDP)"), "{error}");
    }

    #[test]
    fn every_socket_of_a_group_gets_datagrams() {
        let bound = bind_dns("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        // The kernel chooses the socket by a hash of the addresses. With a hundred senders, each of
        // the three sockets gets some.
        let senders: Vec<UdpSocket> = (0..100).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        for sender in &senders {
            sender.send_to(b"x", bound.addr).unwrap();
        }
        for socket in &bound.udp {
            socket.set_nonblocking(true).unwrap();
            assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 1);
        }
    }

    /// The kernel hashes both addresses and ports, so datagrams from one port are not spread.
    #[test]
    fn datagrams_of_one_sender_reach_one_socket() {
        let bound = bind_dns("127.0.0.1:0".parse().unwrap(), 4).unwrap();
        let senders: Vec<UdpSocket> = (0..20).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        for _ in 0..25 {
            for sender in &senders {
                sender.send_to(b"x", bound.addr).unwrap();
            }
        }
        let mut sockets_of: HashMap<SocketAddr, BTreeSet<usize>> = HashMap::new();
        for (number, socket) in bound.udp.iter().enumerate() {
            socket.set_nonblocking(true).unwrap();
            while let Ok((_, sender)) = socket.recv_from(&mut [0; 8]) {
                sockets_of.entry(sender).or_default().insert(number);
            }
        }
        assert_eq!(sockets_of.len(), senders.len());
        assert!(sockets_of.values().all(|sockets| sockets.len() == 1), "{sockets_of:?}");
    }

    #[test]
    fn a_wildcard_takes_ipv4_too() {
        let bound = bind_dns("[::]:0".parse().unwrap(), 1).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"x", ("127.0.0.1", bound.addr.port())).unwrap();
        assert_eq!(bound.udp[0].recv(&mut [0; 8]).unwrap(), 1);
    }

    #[test]
    fn a_wildcard_without_ipv6_is_that_of_ipv4() {
        for code in [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL] {
            let bind = |addr: SocketAddr| match addr {
                SocketAddr::V4(_) => Ok(addr),
                SocketAddr::V6(_) => Err(BindError::at(addr, "UDP")(io::Error::from_raw_os_error(code))),
            };
            assert_eq!(or_ipv4("[::]:53".parse().unwrap(), bind).unwrap(), "0.0.0.0:53".parse().unwrap());
            assert!(or_ipv4("[::1]:53".parse().unwrap(), bind).is_err());
        }
    }
}
