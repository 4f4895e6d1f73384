//! The interfaces of this network namespace, as rtnetlink lists them.

use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage};

use super::interfaces::{Address, AddressState, Interface, LinkState};
use super::{lookup, netlink};

/// Returns the interfaces of this network namespace, sorted by name.
///
/// ```
/// use multinet_rails::nic::local_interfaces;
///
/// let interfaces = local_interfaces()?;
/// let default = interfaces.iter().find(|interface| interface.is_default_network);
/// assert!(default.is_none_or(|interface| interface.name != "lo"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The kernel's error, if it does not list links or addresses.
pub fn local_interfaces() -> io::Result<Vec<Interface>> {
    let links = netlink::dump(RouteNetlinkMessage::GetLink(without_statistics()))?;
    let addresses = netlink::dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
    let mut interfaces = parse(&links, &addresses);
    let defaults = match interfaces.iter().find(|interface| interface.is_of_the_pod()) {
        Some(of_the_pod) => vec![of_the_pod.index],
        None => lookup::default_interfaces(),
    };
    for interface in &mut interfaces {
        interface.is_default_network = !interface.is_loopback && defaults.contains(&interface.index);
    }
    interfaces.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(interfaces)
}

/// Returns a request for all links without their counters, which would be most of the answer.
fn without_statistics() -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    message
}

/// Returns the interfaces that links and addresses describe. The messages do not tell which of them
/// are of the default network.
fn parse(links: &[RouteNetlinkMessage], addresses: &[RouteNetlinkMessage]) -> Vec<Interface> {
    let parsed = links.iter().filter_map(|link| match link {
        RouteNetlinkMessage::NewLink(link) => parse_link(link),
        _ => None,
    });
    let (mut interfaces, masters): (Vec<Interface>, Vec<Option<u32>>) = parsed.unzip();
    let vrfs: Vec<(u32, String)> = interfaces
        .iter()
        .filter(|interface| interface.kind.as_deref() == Some("vrf"))
        .map(|interface| (interface.index, interface.name.clone()))
        .collect();
    for (interface, master) in interfaces.iter_mut().zip(masters) {
        let vrf = vrfs.iter().find(|(index, _)| Some(*index) == master);
        interface.vrf = vrf.map(|(_, name)| name.clone());
    }
    for address in addresses {
        if let RouteNetlinkMessage::NewAddress(address) = address
            && let Some(of) = interfaces.iter_mut().find(|interface| interface.index == address.header.index)
        {
            of.addresses.extend(parse_address(address));
        }
    }
    interfaces.iter_mut().for_each(|interface| interface.addresses.sort_unstable());
    interfaces
}

/// Parses a link message into an interface without addresses, and the index of its master.
fn parse_link(link: &LinkMessage) -> Option<(Interface, Option<u32>)> {
    let flags = link.header.flags;
    let mut interface = Interface {
        link: match () {
            () if !flags.contains(LinkFlags::Up) => LinkState::Down,
            () if !flags.contains(LinkFlags::Running) => LinkState::NoCarrier,
            () => LinkState::Up,
        },
        is_loopback: flags.contains(LinkFlags::Loopback),
        is_default_network: false,
        ..Interface::new("", link.header.index)
    };
    let mut master = None;
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => name.clone_into(&mut interface.name),
            LinkAttribute::Mtu(mtu) => interface.mtu = Some(*mtu),
            LinkAttribute::Controller(index) => master = Some(*index),
            LinkAttribute::Address(bytes) if !bytes.is_empty() => {
                let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                interface.mac = Some(bytes.join(":"));
            }
            LinkAttribute::LinkInfo(infos) => {
                interface.kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    (!interface.name.is_empty()).then_some((interface, master))
}

/// Returns the address that others connect to: on a point-to-point link, the one of this end.
fn parse_address(address: &AddressMessage) -> Option<Address> {
    let (mut local, mut other) = (None, None);
    for attribute in &address.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => other = Some(*ip),
            _ => {}
        }
    }
    let is = |flag: AddressHeaderFlags| address.header.flags.contains(flag);
    let state = match () {
        () if is(AddressHeaderFlags::Dadfailed) => AddressState::Duplicate,
        () if is(AddressHeaderFlags::Tentative) && !is(AddressHeaderFlags::Optimistic) => {
            AddressState::Tentative
        }
        () => AddressState::Usable,
    };
    Some(Address { ip: local.or(other)?, prefix: address.header.prefix_len, state })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use netlink_packet_route::link::InfoKind;

    use super::*;

    fn link(index: u32, name: &str, flags: LinkFlags, more: &[LinkAttribute]) -> RouteNetlinkMessage {
        let mut link = LinkMessage::default();
        (link.header.index, link.header.flags) = (index, flags);
        link.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        link.attributes.extend_from_slice(more);
        RouteNetlinkMessage::NewLink(link)
    }

    fn address(
        index: u32,
        flags: AddressHeaderFlags,
        attributes: &[AddressAttribute],
    ) -> RouteNetlinkMessage {
        let mut address = AddressMessage::default();
        (address.header.index, address.header.prefix_len, address.header.flags) = (index, 24, flags);
        address.attributes = attributes.to_vec();
        RouteNetlinkMessage::NewAddress(address)
    }

    fn of_kind(kind: InfoKind) -> LinkAttribute {
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])
    }

    #[test]
    fn interfaces_are_sorted_and_complete() {
        let interfaces = local_interfaces().unwrap();
        assert!(interfaces.is_sorted_by(|a, b| a.name < b.name), "{interfaces:?}");
        let loopback = interfaces.iter().find(|interface| interface.is_loopback).unwrap();
        assert!(loopback.has([127, 0, 0, 1].into()), "{loopback:?}");
        assert!(!loopback.is_default_network && loopback.link == LinkState::Up);
    }

    #[test]
    fn links_have_a_state_a_kind_and_a_vrf() {
        let up = LinkFlags::Up | LinkFlags::Running;
        let mac = LinkAttribute::Address(vec![2, 0, 0, 0, 0, 0xab]);
        let links = [
            link(1, "lo", up | LinkFlags::Loopback, &[]),
            link(2, "net1", up, &[mac, LinkAttribute::Mtu(9000), LinkAttribute::Controller(5)]),
            link(3, "net2", LinkFlags::Up, &[LinkAttribute::Controller(6)]),
            link(4, "net3", LinkFlags::Running, &[of_kind(InfoKind::Dummy)]),
            link(5, "blue", up, &[of_kind(InfoKind::Vrf)]),
            link(6, "br0", up, &[of_kind(InfoKind::Bridge)]),
        ];
        let found = parse(&links, &[]);
        let states: Vec<_> =
            found.iter().map(|its| (its.name.as_str(), its.link, its.kind.as_deref())).collect();
        let expected = [
            ("lo", LinkState::Up, None),
            ("net1", LinkState::Up, None),
            ("net2", LinkState::NoCarrier, None),
            ("net3", LinkState::Down, Some("dummy")),
            ("blue", LinkState::Up, Some("vrf")),
            ("br0", LinkState::Up, Some("bridge")),
        ];
        assert_eq!(states, expected);
        assert!(found[0].is_loopback);
        assert_eq!(found[1].mac.as_deref(), Some("02:00:00:00:00:ab"));
        assert_eq!((found[1].mtu, found[1].vrf.as_deref()), (Some(9000), Some("blue")));
        assert_eq!(found[2].vrf, None, "a bridge is no VRF");
    }

    #[test]
    fn addresses_are_those_of_this_end_and_have_a_state() {
        type Flags = AddressHeaderFlags;
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (one, other) = (ip("10.9.0.1"), ip("10.9.0.2"));
        let both = [AddressAttribute::Address(other), AddressAttribute::Local(one)];
        let v6 = [AddressAttribute::Address(ip("fd09::1"))];
        let cases = [
            (Flags::Permanent, &both[..], Some((one, AddressState::Usable))),
            (Flags::Permanent, &both[..1], Some((other, AddressState::Usable))),
            (Flags::Permanent, &[], None),
            (Flags::Tentative, &v6, Some((ip("fd09::1"), AddressState::Tentative))),
            (Flags::Tentative | Flags::Optimistic, &v6, Some((ip("fd09::1"), AddressState::Usable))),
            (Flags::Tentative | Flags::Dadfailed, &v6, Some((ip("fd09::1"), AddressState::Duplicate))),
        ];
        for (flags, attributes, expected) in cases {
            let found = parse(&[link(1, "net1", LinkFlags::Up, &[])], &[address(1, flags, attributes)]);
            let expected: Vec<_> =
                expected.into_iter().map(|(ip, state)| Address { ip, prefix: 24, state }).collect();
            assert_eq!(found[0].addresses, expected, "{flags:?} {attributes:?}");
        }
    }
}
