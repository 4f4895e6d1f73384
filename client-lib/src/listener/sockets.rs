//! Chooses the addresses of a listener, and makes the sockets that listen there.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};

use nix::errno::Errno;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};
use tracing::{info, warn};

use crate::error::BindError;
use crate::nic::{self, AddressState, Interface, LocalAddress};

/// Most connections that the kernel holds until the listener accepts them.
const BACKLOG: u32 = 1024;

/// Address of this host to listen at, in a VRF if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    address: IpAddr,
    vrf: Option<String>,
    /// Whether the kernel is still checking that no other host has the address.
    is_tentative: bool,
}

/// Listens at each of these addresses, all with the same port. Without any, listens at those of all
/// second NICs, or else, if that is allowed, at all of this host.
pub(super) fn sockets(
    addresses: &[IpAddr],
    allow_default_network: bool,
    port: u16,
) -> Result<Vec<TcpListener>, BindError> {
    let interfaces = nic::local_interfaces().map_err(BindError::Interfaces)?;
    if !addresses.is_empty() {
        return at_each(&named(addresses, &interfaces)?, port, true);
    }
    let second = nic::second_nics().map_err(BindError::Interfaces)?;
    let idle = nic::idle(&interfaces);
    let sockets = at_each(&usable(second.clone()), port, false)?;
    match sockets.is_empty() {
        false => {
            idle.iter().for_each(|idle| warn!("not listening on a second NIC without a link: {idle}"));
            Ok(sockets)
        }
        true if allow_default_network => Ok(vec![anywhere(port)?]),
        true => Err(nowhere(&second, &idle)),
    }
}

/// Returns the error for a host none of whose second NICs has an address that can be listened on.
fn nowhere(second: &[LocalAddress], idle: &[String]) -> BindError {
    let why = match second {
        _ if !idle.is_empty() => idle.join(", "),
        [] => "every address is on the default network, or link-local".to_owned(),
        [first, ..] if second.iter().all(|local| local.state == AddressState::Duplicate) => {
            return BindError::Duplicate { address: first.ip };
        }
        [first, ..] => format!("{} of {} cannot be bound, see the log", first.ip, first.interface),
    };
    BindError::NoSecondNic { why }
}

/// Returns the places that the program's addresses stand for, each once.
fn named(addresses: &[IpAddr], interfaces: &[Interface]) -> Result<Vec<Place>, BindError> {
    let mut places = Vec::new();
    for &address in addresses {
        if nic::is_link_local_v6(address) {
            return Err(BindError::LinkLocal { address });
        }
        let mut found = nic::vrfs_of(address, interfaces);
        if found.is_empty() {
            // All of 127.0.0.0/8 is local, though the loopback interface lists only one address.
            // The kernel refuses those that are not local.
            found.push((None, AddressState::Usable));
        }
        for (vrf, state) in found {
            if state == AddressState::Duplicate {
                return Err(BindError::Duplicate { address });
            }
            add(&mut places, Place { address, vrf, is_tentative: state == AddressState::Tentative });
        }
    }
    Ok(places)
}

/// Returns the places of second NICs that can be listened at, each once.
fn usable(second: Vec<LocalAddress>) -> Vec<Place> {
    let mut places = Vec::new();
    for LocalAddress { ip: address, interface, state, vrf, .. } in second {
        if state == AddressState::Duplicate {
            warn!(%address, interface, "not listening on an address: another host has this address (duplicate address detection has failed)");
            continue;
        }
        add(&mut places, Place { address, vrf, is_tentative: state == AddressState::Tentative });
    }
    places
}

/// Adds a place. An address of several interfaces is one, usable if it is at one of them.
fn add(places: &mut Vec<Place>, place: Place) {
    match places.iter_mut().find(|it| (it.address, &it.vrf) == (place.address, &place.vrf)) {
        Some(it) => it.is_tentative &= place.is_tentative,
        None => places.push(place),
    }
}

/// Listens at each place. One that has gone is left out, unless the program has named it.
fn at_each(places: &[Place], mut port: u16, is_named: bool) -> Result<Vec<TcpListener>, BindError> {
    let mut sockets = Vec::with_capacity(places.len());
    for place in places {
        let at = SocketAddr::new(place.address, port);
        let error = |source| BindError::Bind { address: at, source };
        let socket = match listen_at(place, at) {
            Err(error) if !is_named && is_passed_over(&error, place) => {
                warn!(address = %at.ip(), vrf = place.vrf, "not listening on an address: {error}");
                continue;
            }
            outcome => outcome.map_err(error)?,
        };
        // The kernel chooses a port for the first; the others get the same.
        port = socket.local_addr().map_err(error)?.port();
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Returns whether an address is left out for this error: it or its VRF has gone, or the VRF may
/// not be used.
fn is_passed_over(error: &io::Error, place: &Place) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || place.vrf.is_some()
            && matches!(Errno::from_raw(error.raw_os_error().unwrap_or(0)), Errno::EPERM | Errno::ENODEV)
}

fn listen_at(place: &Place, at: SocketAddr) -> io::Result<TcpListener> {
    let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if let Some(vrf) = &place.vrf {
        // Accepted connections are in the VRF, too.
        SockRef::from(&socket).bind_device(Some(vrf.as_bytes()))?;
    }
    if place.is_tentative {
        warn!(address = %place.address, "listening on an address, reachable only when the kernel knows that no other host has this address (it is tentative)");
        SockRef::from(&socket).set_freebind_v6(true)?;
    }
    listen(socket, at)
}

/// Listens at all addresses, of IPv6 and IPv4, or of IPv4 alone on a host without IPv6.
fn anywhere(port: u16) -> Result<TcpListener, BindError> {
    let (v6, v4) = ((Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into());
    let both = || {
        let socket = TcpSocket::new_v6()?;
        // Overrides net.ipv6.bindv6only.
        SockRef::from(&socket).set_only_v6(false)?;
        listen(socket, v6)
    };
    let (address, outcome) = match both() {
        Err(error) if has_no_ipv6(&error) => {
            info!(listening = %v4, "this host has no IPv6; listening on IPv4 only");
            (v4, TcpSocket::new_v4().and_then(|socket| listen(socket, v4)))
        }
        outcome => (v6, outcome),
    };
    outcome.map_err(|source| BindError::Bind { address, source })
}

/// Returns whether a wildcard address could not be bound because the host has no sockets or no
/// addresses of its family.
fn has_no_ipv6(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL))
}

fn listen(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    // So that a restarted pod gets its port back at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Stops listening on a socket that tasks still hold, so that its port is free at once.
pub(super) fn end(socket: &TcpListener) {
    // An error would mean that it does not listen.
    let _ = SockRef::from(socket).shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_alone_is_used_only_on_a_host_without_ipv6() {
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
    async fn the_wildcard_address_accepts_ipv4_too() {
        let socket = anywhere(0).unwrap();
        let address = socket.local_addr().unwrap();
        assert!(address.ip().is_unspecified());
        assert!(address.is_ipv4() || !SockRef::from(&socket).only_v6().unwrap());
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
        let (connected, accepted) = tokio::join!(tokio::net::TcpStream::connect(to), socket.accept());
        assert!(connected.is_ok() && accepted.is_ok());
    }

    #[tokio::test]
    async fn several_addresses_get_one_port() {
        let sockets = sockets(&["127.0.0.1", "127.0.0.2"].map(|ip| ip.parse().unwrap()), false, 0).unwrap();
        let ports: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        assert!(ports.len() == 2 && ports[0] == ports[1] && ports[0] != 0, "{ports:?}");
    }

    fn local(ip: &str, state: AddressState, vrf: Option<&str>) -> LocalAddress {
        let mut address = nic::Address::new(ipnet::IpNet::new(ip.parse().unwrap(), 24).unwrap());
        address.state = state;
        let mut interface = Interface::new("net1", 3);
        (interface.addresses, interface.vrf) = (vec![address], vrf.map(str::to_owned));
        multinet_rails::nic::own_addresses(&[interface]).remove(0)
    }

    #[test]
    fn places_are_listened_at_once_unless_another_host_has_the_address() {
        use AddressState::{Duplicate, Tentative, Usable};
        let found = usable(vec![
            local("10.9.0.5", Usable, None),
            local("10.9.0.5", Usable, Some("blue")),
            local("10.9.0.5", Usable, None),
            local("fd09::5", Tentative, None),
            local("fd09::6", Duplicate, None),
            local("fd09::7", Tentative, None),
            local("fd09::7", Usable, None),
        ]);
        let found: Vec<_> = found
            .iter()
            .map(|place| (place.address.to_string(), place.vrf.as_deref(), place.is_tentative))
            .collect();
        let expected = [
            ("10.9.0.5", None, false),
            ("10.9.0.5", Some("blue"), false),
            ("fd09::5", None, true),
            ("fd09::7", None, false),
        ];
        assert_eq!(found, expected.map(|(ip, vrf, is_tentative)| (ip.to_owned(), vrf, is_tentative)));
    }

    #[test]
    fn a_host_without_a_usable_address_is_told_why() {
        use AddressState::{Duplicate, Usable};
        let duplicates = [local("fd09::6", Duplicate, None), local("fd09::7", Duplicate, None)];
        let bound = [local("10.9.0.5", Usable, None), local("fd09::6", Duplicate, None)];
        let idle = ["net1 is down".to_owned()];
        let cases: [(&[LocalAddress], &[String], &str); 4] = [
            (&[], &[], "(every address is on the default network, or link-local)"),
            (&[], &idle, "(net1 is down)"),
            (&duplicates, &[], "cannot listen on fd09::6: another host on its network has this address"),
            (&bound, &[], "(10.9.0.5 of net1 cannot be bound, see the log)"),
        ];
        for (second, idle, expected) in cases {
            let error = nowhere(second, idle).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[tokio::test]
    async fn an_address_that_is_named_twice_is_listened_at_once() {
        let sockets = sockets(&["127.0.0.1", "127.0.0.1"].map(|ip| ip.parse().unwrap()), false, 0).unwrap();
        assert_eq!(sockets.len(), 1);
    }

    #[tokio::test]
    async fn an_address_that_has_gone_is_an_error_only_if_it_was_named() {
        let place = Place { address: "192.0.2.77".parse().unwrap(), vrf: None, is_tentative: false };
        assert!(matches!(at_each(std::slice::from_ref(&place), 0, true), Err(BindError::Bind { .. })));
        assert!(at_each(&[place], 0, false).unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_link_local_address_is_refused_with_what_to_use_instead() {
        let error = sockets(&["fe80::5".parse().unwrap()], true, 0).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot listen on fe80::5: link-local addresses are not supported"),
            "{error}"
        );
        assert!(!error.contains("  "), "{error}");
    }
}
