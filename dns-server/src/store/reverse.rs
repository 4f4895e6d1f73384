//! Reverse names: the addresses that they stand for (RFC 1035 §3.5, RFC 3596 §2.5), and the
//! services that publish each address.
//!
//! Addresses are kept sorted. A name above some of them exists if an address is within its range,
//! which is one search. So nothing is stored for the up to 31 names above an IPv6 address.
//!
//! A tenant who writes slices chooses the addresses in them. Therefore only addresses within
//! [`ReverseRanges`] have names. If many services publish an address, its PTR records name the
//! oldest, so that a newer service cannot take a name away.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;

use crate::store::index::Created;
use crate::store::name::Labels;
use crate::sync::RwLock;

/// Private ranges (RFC 1918, RFC 6598, RFC 4193), whose addresses have PTR records by default.
pub(crate) const PRIVATE: [&str; 5] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];

/// Key of a service: its two labels `<service>.<namespace>` in wire format.
pub(crate) type ServiceKey = Arc<[u8]>;

/// The addresses that a reverse name stands for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReverseName {
    /// The reverse name of one address.
    Address(IpAddr),
    /// A name above the reverse names of the addresses in this range.
    Range(RangeInclusive<IpAddr>),
}

impl ReverseName {
    /// Parses a name that is `in-addr.arpa`, `ip6.arpa` or below these. Returns `None` for any
    /// other name, and for one that no address can have.
    pub(crate) fn of(name: Labels<'_>) -> Option<Self> {
        let count = name.count().checked_sub(2)?;
        if name.label(count + 1) != b"\x04arpa" {
            return None;
        }
        let labels = (0..count).rev().map(|position| name.label(position));
        match name.label(count) {
            b"\x07in-addr" if count <= 4 => {
                let mut bytes = [0; 4];
                for (byte, label) in bytes.iter_mut().zip(labels) {
                    *byte = decimal(label)?;
                }
                let first = u32::from_be_bytes(bytes);
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
        if first == last { Self::Address(first) } else { Self::Range(first..=last) }
    }

    /// Tells whether the reverse name of an address is this name or below it.
    pub(crate) fn contains(&self, address: &IpAddr) -> bool {
        match self {
            Self::Address(own) => own == address,
            Self::Range(range) => range.contains(address),
        }
    }
}

/// Addresses that have PTR records: in `--reverse-range` and not in `--reverse-exclude`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReverseRanges {
    included: Vec<IpNet>,
    excluded: Vec<IpNet>,
}

impl ReverseRanges {
    /// Makes the ranges of addresses that are in any of `included` and in none of `excluded`.
    pub fn new(included: Vec<IpNet>, excluded: Vec<IpNet>) -> Self {
        Self { included, excluded }
    }

    /// Tells whether an address is in the ranges. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_in = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&address));
        is_in(&self.included) && !is_in(&self.excluded)
    }
}

impl Default for ReverseRanges {
    /// Returns the ranges of the private addresses.
    fn default() -> Self {
        Self::new(PRIVATE.iter().filter_map(|range| range.parse().ok()).collect(), Vec::new())
    }
}

/// Parses a label as a decimal byte (RFC 1035 §3.5). Leading zeros are rejected: they make another
/// name.
fn decimal(label: &[u8]) -> Option<u8> {
    let digits = &label[1..];
    if digits.len() > 1 && digits[0] == b'0' || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses a label of `ip6.arpa` as one hexadecimal digit (RFC 3596 §2.5).
fn nibble(label: &[u8]) -> Option<u128> {
    match label {
        &[1, digit] => char::from(digit).to_digit(16).map(u128::from),
        _ => None,
    }
}

/// For each address, the services that publish it, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct AddressIndex(RwLock<BTreeSet<AddressEntry>>);

/// An address and a service that publishes it. Entries of an address are sorted by the service's
/// age.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct AddressEntry {
    address: IpAddr,
    created: Created,
    /// Key of the service. `None` only in the search key that sorts before all entries of an
    /// address.
    service: Option<ServiceKey>,
}

impl AddressEntry {
    fn before_all_of(address: IpAddr) -> Self {
        Self { address, created: Created::EARLIEST, service: None }
    }
}

impl AddressIndex {
    /// Calls `read` with the services that publish an address, the oldest first.
    pub(crate) fn with_services<R>(
        &self,
        address: IpAddr,
        read: impl FnOnce(&mut dyn Iterator<Item = &ServiceKey>) -> R,
    ) -> R {
        let entries = self.0.read();
        let of_address = entries
            .range(AddressEntry::before_all_of(address)..)
            .take_while(|entry| entry.address == address);
        read(&mut of_address.filter_map(|entry| entry.service.as_ref()))
    }

    /// Tells whether a service publishes any address in the range.
    pub(crate) fn any(&self, range: RangeInclusive<IpAddr>) -> bool {
        let entries = self.0.read();
        let first = entries.range(AddressEntry::before_all_of(*range.start())..).next();
        first.is_some_and(|entry| entry.address <= *range.end())
    }

    /// Replaces a service's entry at each of these addresses: the one of creation time `before` by
    /// one of `now`. `None` stands for no entry.
    ///
    /// Takes the lock for one address at a time, so that queries never wait for a whole service. An
    /// address with an entry before and after has one at every moment.
    pub(crate) fn replace(
        &self,
        addresses: &[IpAddr],
        service: &ServiceKey,
        before: Option<Created>,
        now: Option<Created>,
    ) {
        for &address in addresses {
            let entry = |created| AddressEntry { address, created, service: Some(Arc::clone(service)) };
            let mut entries = self.0.write();
            if let Some(created) = before {
                entries.remove(&entry(created));
            }
            if let Some(created) = now {
                entries.insert(entry(created));
            }
        }
    }

    /// Returns each address with each service that publishes it, in order.
    #[cfg(test)]
    pub(crate) fn pairs(&self) -> Vec<(IpAddr, ServiceKey)> {
        let entries = self.0.read();
        let pair = |entry: &AddressEntry| Some((entry.address, entry.service.clone()?));
        entries.iter().filter_map(pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::name::{Name, label_starts, reverse_name};

    fn reverse(name: &str) -> Option<ReverseName> {
        let name: Name = name.parse().unwrap();
        ReverseName::of(Labels::new(name.as_wire(), &label_starts(name.as_wire())))
    }

    #[test]
    fn the_reverse_name_of_an_address_stands_for_it() {
        for text in ["192.0.2.10", "0.0.0.0", "255.255.255.255", "2001:db8::1", "::", "ffff::"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(reverse(&reverse_name(address).to_string()), Some(ReverseName::Address(address)));
        }
    }

    #[test]
    fn a_name_above_contains_the_addresses_below_it() {
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
            assert_eq!(reverse.contains(&address.parse().unwrap()), holds, "{name} {address}");
        }
    }

    #[test]
    fn a_name_that_no_address_can_have_stands_for_nothing() {
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
    fn ranges_contain_addresses_that_are_included_and_not_excluded() {
        let networks =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        let private = ReverseRanges::default();
        let chosen =
            ReverseRanges::new(networks(&["0.0.0.0/0", "2001:db8::/32"]), networks(&["10.96.0.0/12"]));
        for (address, in_private, in_chosen) in [
            ("10.0.0.1", true, true),
            ("10.96.0.1", true, false),
            ("10.111.255.255", true, false),
            ("10.112.0.0", true, true),
            ("::ffff:10.96.0.1", true, false),
            ("172.15.255.255", false, true),
            ("172.31.255.255", true, true),
            ("192.168.0.1", true, true),
            ("100.64.0.1", true, true),
            ("100.128.0.0", false, true),
            ("8.8.8.8", false, true),
            ("fd00::1", true, false),
            ("2001:db8::1", false, true),
            ("::1", false, false),
        ] {
            let parsed = address.parse().unwrap();
            assert_eq!(
                (private.contains(parsed), chosen.contains(parsed)),
                (in_private, in_chosen),
                "{address}"
            );
        }
    }

    #[test]
    fn an_address_has_each_of_its_services_once_oldest_first() {
        let index = AddressIndex::default();
        let [before, address, after] =
            ["10.0.0.0", "10.0.0.1", "10.0.0.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let [one, two, three]: [ServiceKey; 3] =
            [b"\x01b\x01n", b"\x01a\x01n", b"\x01c\x01n"].map(|key| key[..].into());
        let [early, late] = [1, 2].map(Created::at);
        let of = |address| index.with_services(address, |services| services.cloned().collect::<Vec<_>>());
        let insert =
            |addresses: &[IpAddr], created, service| index.replace(addresses, service, None, Some(created));
        let remove =
            |addresses: &[IpAddr], created, service| index.replace(addresses, service, Some(created), None);
        insert(&[address], late, &one);
        insert(&[address], early, &three);
        insert(&[address], late, &two);
        insert(&[address], late, &one);
        insert(&[before, after], early, &one);
        assert_eq!(of(address), [three.clone(), two.clone(), one.clone()]);
        assert_eq!((of(before), of(after)), (vec![one.clone()], vec![one.clone()]));
        index.replace(&[address], &one, Some(late), Some(Created::EARLIEST));
        assert_eq!(of(address), [one.clone(), three.clone(), two.clone()]);
        remove(&[address], early, &three);
        remove(&[before, address, after], early, &one);
        assert_eq!(index.pairs(), [(address, one.clone()), (address, two.clone())]);
        remove(&[address], Created::EARLIEST, &one);
        assert!(index.any(address..=address) && index.any(before..=after));
        assert!(!index.any(before..=before) && !index.any(after..=after));
        remove(&[address], late, &two);
        assert_eq!(of(address), []);
        assert!(!index.any("0.0.0.0".parse().unwrap()..="255.255.255.255".parse().unwrap()));
    }
}
