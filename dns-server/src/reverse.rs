//! Reverse names: which address one stands for (RFC 1035 §3.5, RFC 3596 §2.5), and who publishes it.
//!
//! Addresses are kept sorted, so that a name above some of them is one look at a range: it exists if an
//! address lies in it, and nothing has to be kept for each of the up to 31 names above an IPv6 address.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError};

use crate::name::Labels;
use crate::sync::RwLock;

/// A service, by its two labels `<service>.<namespace>` in wire format.
pub type ServiceKey = Arc<[u8]>;

/// What a reverse name stands for.
#[derive(Debug, PartialEq, Eq)]
pub enum Reverse {
    /// One address.
    Address(IpAddr),
    /// All addresses that it is above of.
    Above(RangeInclusive<IpAddr>),
}

impl Reverse {
    /// What a name below `in-addr.arpa` or `ip6.arpa` stands for, those two included. None for any other, and for
    /// one that no address has.
    pub fn of(name: Labels<'_>) -> Option<Self> {
        let count = name.count().checked_sub(2)?;
        if name.label(count + 1) != b"\x04arpa" {
            return None;
        }
        let labels = (0..count).rev().map(|position| name.label(position));
        match name.label(count) {
            b"\x07in-addr" if count <= 4 => {
                let mut octets = [0; 4];
                for (octet, label) in octets.iter_mut().zip(labels) {
                    *octet = decimal(label)?;
                }
                let first = u32::from_be_bytes(octets);
                let last = first | u32::MAX.checked_shr(8 * count as u32).unwrap_or(0);
                Some(Self::between(Ipv4Addr::from(first).into(), Ipv4Addr::from(last).into()))
            }
            b"\x03ip6" if count <= 32 => {
                let mut first = 0;
                for (position, label) in labels.enumerate() {
                    first |= nibble(label)? << (124 - 4 * position);
                }
                let last = first | u128::MAX.checked_shr(4 * count as u32).unwrap_or(0);
                Some(Self::between(Ipv6Addr::from(first).into(), Ipv6Addr::from(last).into()))
            }
            _ => None,
        }
    }

    fn between(first: IpAddr, last: IpAddr) -> Self {
        if first == last { Self::Address(first) } else { Self::Above(first..=last) }
    }

    /// Whether an address' own name is this one or below it.
    pub fn holds(&self, address: &IpAddr) -> bool {
        match self {
            Self::Address(own) => own == address,
            Self::Above(range) => range.contains(address),
        }
    }
}

/// An octet as RFC 1035 §3.5 has it: no leading zeros, which would be another name.
fn decimal(label: &[u8]) -> Option<u8> {
    let digits = &label[1..];
    if digits.len() > 1 && digits[0] == b'0' || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(digits).ok()?.parse().ok()
}

fn nibble(label: &[u8]) -> Option<u128> {
    match label {
        &[1, digit] => char::from(digit).to_digit(16).map(u128::from),
        _ => None,
    }
}

/// Who publishes each address.
#[derive(Debug, Default)]
pub struct Publishers(RwLock<BTreeMap<IpAddr, Services>>);

/// The services that publish an address: one, but for mistakes and migrations.
#[derive(Debug)]
enum Services {
    One(ServiceKey),
    /// Two or more, ascending.
    More(Vec<ServiceKey>),
}

impl Services {
    fn insert(&mut self, service: &ServiceKey) {
        match self {
            Self::One(known) if known == service => {}
            Self::One(known) => {
                let mut both = vec![Arc::clone(known), Arc::clone(service)];
                both.sort_unstable();
                *self = Self::More(both);
            }
            Self::More(services) => {
                if let Err(place) = services.binary_search(service) {
                    services.insert(place, Arc::clone(service));
                }
            }
        }
    }

    /// Says whether anybody is left.
    fn remove(&mut self, service: &ServiceKey) -> bool {
        match self {
            Self::One(known) => known != service,
            Self::More(services) => {
                if let Ok(place) = services.binary_search(service) {
                    services.remove(place);
                }
                if let [only] = services.as_slice() {
                    *self = Self::One(Arc::clone(only));
                }
                true
            }
        }
    }

    fn as_slice(&self) -> &[ServiceKey] {
        match self {
            Self::One(service) => std::slice::from_ref(service),
            Self::More(services) => services,
        }
    }
}

impl Publishers {
    /// Runs `read` on the services that publish an address.
    pub fn with<R>(&self, address: IpAddr, read: impl FnOnce(&[ServiceKey]) -> R) -> R {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        read(map.get(&address).map_or(&[], Services::as_slice))
    }

    /// Whether any address in the range is published.
    pub fn any(&self, range: RangeInclusive<IpAddr>) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).range(range).next().is_some()
    }

    /// Adds a service's addresses.
    pub fn insert(&self, addresses: impl Iterator<Item = IpAddr>, service: &ServiceKey) {
        for address in addresses {
            match self.0.write().unwrap_or_else(PoisonError::into_inner).entry(address) {
                Entry::Vacant(entry) => {
                    entry.insert(Services::One(Arc::clone(service)));
                }
                Entry::Occupied(mut entry) => entry.get_mut().insert(service),
            }
        }
    }

    /// Takes a service's addresses away.
    pub fn remove(&self, addresses: impl Iterator<Item = IpAddr>, service: &ServiceKey) {
        for address in addresses {
            if let Entry::Occupied(mut entry) =
                self.0.write().unwrap_or_else(PoisonError::into_inner).entry(address)
                && !entry.get_mut().remove(service)
            {
                entry.remove();
            }
        }
    }

    /// Every address with each service that publishes it, ascending.
    #[cfg(test)]
    pub(crate) fn pairs(&self) -> Vec<(IpAddr, ServiceKey)> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let services = |(address, services): (&IpAddr, &Services)| {
            let address = *address;
            services.as_slice().iter().map(move |service| (address, Arc::clone(service))).collect::<Vec<_>>()
        };
        map.iter().flat_map(services).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Name, label_starts, reverse_name};

    fn reverse(name: &str) -> Option<Reverse> {
        let name: Name = name.parse().unwrap();
        Reverse::of(Labels::new(name.as_wire(), &label_starts(name.as_wire())))
    }

    #[test]
    fn an_addresss_own_name_stands_for_it() {
        for text in ["192.0.2.10", "0.0.0.0", "255.255.255.255", "2001:db8::1", "::", "ffff::"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(reverse(&reverse_name(address).to_string()), Some(Reverse::Address(address)));
        }
    }

    #[test]
    fn names_above_hold_what_is_below() {
        let cases = [
            ("in-addr.arpa", "10.0.0.1", true),
            ("10.in-addr.arpa", "10.255.0.1", true),
            ("10.in-addr.arpa", "11.0.0.0", false),
            ("0.0.10.in-addr.arpa", "10.0.0.255", true),
            ("0.0.10.in-addr.arpa", "10.0.1.0", false),
            ("in-addr.arpa", "fd00::1", false),
            ("ip6.arpa", "fd00::1", true),
            ("ip6.arpa", "10.0.0.1", false),
            ("d.f.ip6.arpa", "fd00::1", true),
            ("d.f.ip6.arpa", "fe00::1", false),
        ];
        for (name, address, holds) in cases {
            let reverse = reverse(name).unwrap();
            assert_eq!(reverse.holds(&address.parse().unwrap()), holds, "{name} {address}");
        }
    }

    #[test]
    fn names_that_no_address_has_stand_for_nothing() {
        for name in [
            "1.1.0.0.10.in-addr.arpa",
            "256.0.0.10.in-addr.arpa",
            "01.0.0.10.in-addr.arpa",
            "x.in-addr.arpa",
            "10.ip6.arpa",
            "g.ip6.arpa",
            "arpa",
            "in-addr.example",
            "foo.arpa",
        ] {
            assert_eq!(reverse(name), None, "{name}");
        }
        let too_long = format!("0.{}", reverse_name("::1".parse().unwrap()));
        assert_eq!(reverse(&too_long), None);
    }

    #[test]
    fn an_address_has_each_of_its_publishers_once() {
        let publishers = Publishers::default();
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let [one, two, three]: [ServiceKey; 3] =
            [b"\x01b\x01n", b"\x01a\x01n", b"\x01c\x01n"].map(|key| key[..].into());
        let count = || publishers.with(address, <[_]>::len);
        for service in [&one, &two, &one, &three, &two] {
            publishers.insert([address].into_iter(), service);
        }
        assert_eq!(publishers.pairs(), [&two, &one, &three].map(|service| (address, Arc::clone(service))));
        publishers.remove([address].into_iter(), &three);
        assert_eq!(count(), 2);
        assert!(publishers.any(address..=address));
        publishers.remove([address].into_iter(), &one);
        publishers.remove([address].into_iter(), &one);
        assert_eq!(publishers.pairs(), [(address, Arc::clone(&two))]);
        publishers.remove([address].into_iter(), &two);
        assert_eq!(count(), 0);
        assert!(!publishers.any("0.0.0.0".parse().unwrap()..="255.255.255.255".parse().unwrap()));
    }
}
