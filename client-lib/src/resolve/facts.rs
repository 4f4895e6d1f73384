//! Facts about one address of an endpoint, from a TXT record.
//!
//! The record is `addr=… net=<alias> if=… mac=… rdma=… pci=… numa=… node=… zone=… pod=<ns>/<name>
//! uid=…`, with each `key=value` in a character string of its own. From CoreDNS' plugin etcd, it is
//! one text with spaces between the pairs, split after 255 bytes. It is untrusted input: a
//! malformed value counts as unknown.

use std::net::IpAddr;

use crate::endpoint::{EndpointAddress, PodRef};
use crate::pci;

/// Maximum number of strings that are read from a TXT record. Genuine ones have eleven at most.
const MAX_STRINGS: usize = 64;
/// Limit on the RDMA devices of one address: `rdma=` has room for so many short names.
const MAX_RDMA_DEVICES: usize = 16;
/// Largest number of a NUMA node: the kernel's `MAX_NUMNODES` is at most 1024.
const MAX_NUMA_NODE: u16 = 1023;

/// Facts about an address. They are ordered, so that the choice among several records does not
/// depend on the records' order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Facts {
    pub(super) pod: PodRef,
    pub(super) address: EndpointAddress,
    pub(super) node: Option<String>,
    pub(super) zone: Option<String>,
}

impl Facts {
    /// Returns the facts of an address for which no TXT record is known: all but `ip` are empty.
    pub(super) fn unknown(ip: IpAddr) -> Self {
        Self { pod: PodRef::default(), address: EndpointAddress::new(ip), node: None, zone: None }
    }

    /// Parses the strings of a record. Returns nothing if they name no address. Of repeated keys
    /// the first counts (RFC 6763 §6.4).
    pub(super) fn parse<S: AsRef<[u8]>>(strings: &[S]) -> Option<Self> {
        let strings = || strings.iter().take(MAX_STRINGS).map(S::as_ref);
        let is_one_text = strings().next().is_some_and(|first| first.contains(&b' '));
        let text = if is_one_text { strings().flatten().copied().collect() } else { Vec::new() };
        let of_text = text.split(|&byte| byte == b' ').take(MAX_STRINGS).filter(|_| is_one_text);
        let pair = |string| std::str::from_utf8(string).ok()?.split_once('=');
        let pairs: Vec<(&str, &str)> =
            strings().filter(|_| !is_one_text).chain(of_text).filter_map(pair).collect();
        let value = |key| pairs.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
        let checked = |key, is_valid: fn(&str) -> bool| value(key).filter(|v| is_valid(v)).map(str::to_owned);

        let ip = value("addr")?.parse().ok()?;
        let (namespace, name) = value("pod").and_then(pod_name).unzip();
        Some(Self {
            pod: PodRef { namespace, name, uid: checked("uid", |v| is_printable(v, 128)) },
            address: EndpointAddress {
                ip,
                network: checked("net", |v| is_name(v, 63)),
                interface: checked("if", |v| is_printable(v, 15) && !v.contains(['/', ':', ' '])),
                mac: value("mac").filter(|v| is_mac(v)).map(str::to_ascii_lowercase),
                rdma_devices: value("rdma").map_or_else(Vec::new, rdma_devices),
                pci: value("pci").filter(|v| pci::is_address(v)).map(str::to_ascii_lowercase),
                numa: value("numa").and_then(|v| v.parse().ok()).filter(|numa| *numa <= MAX_NUMA_NODE),
            },
            node: checked("node", |v| is_name(v, 253)),
            zone: checked("zone", |v| is_name(v, 63)),
        })
    }
}

/// Parses a pod's `<namespace>/<name>`. `None` if one of the two is no Kubernetes name.
fn pod_name(value: &str) -> Option<(String, String)> {
    let (namespace, name) = value.split_once('/')?;
    (is_name(namespace, 63) && is_name(name, 253)).then(|| (namespace.to_owned(), name.to_owned()))
}

/// Parses names joined by commas, as the SR-IOV device plugin writes them. Returns no names if one
/// of them is malformed.
fn rdma_devices(value: &str) -> Vec<String> {
    let names: Vec<&str> = value.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if names.len() > MAX_RDMA_DEVICES || !names.iter().all(|name| is_name(name, 63)) {
        return Vec::new();
    }
    names.into_iter().map(str::to_owned).collect()
}

/// Returns whether a text has only the characters of Kubernetes' names and label values.
fn is_name(value: &str, max: usize) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !value.is_empty() && value.len() <= max && value.bytes().all(allowed)
}

fn is_printable(value: &str, max: usize) -> bool {
    !value.is_empty() && value.len() <= max && value.bytes().all(|b| matches!(b, b' '..=b'~'))
}

/// Returns whether a text is a hardware address: EUI-48, EUI-64, or the 20 bytes of IP over
/// InfiniBand.
fn is_mac(value: &str) -> bool {
    let octets = value.split(':');
    octets.clone().all(|octet| pci::is_hex(octet, 2..=2)) && matches!(octets.count(), 6 | 8 | 20)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn parse(strings: &[&str]) -> Option<Facts> {
        Facts::parse(strings)
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_text_that_is_split_anywhere_is_read_like_its_pairs() {
        let pairs = ["addr=192.168.1.5", "net=rail0", "node=worker-1", "uid=6f1c6e0e"];
        let (expected, text) = (parse(&pairs), pairs.join(" "));
        assert!(expected.is_some());
        for at in "addr=192.168.1.5 ".len()..text.len() {
            let (one, two) = text.split_at(at);
            assert_eq!(parse(&[one, two]), expected, "{one}|{two}");
        }
    }

    #[test]
    fn every_key_that_multinet_dns_writes_is_read() {
        let facts = parse(&[
            "addr=192.168.1.5",
            "net=rail0",
            "if=net1",
            "mac=02:00:00:00:0A:01",
            "rdma=mlx5_2,mlx5_3",
            "pci=0000:18:00.2",
            "numa=1",
            "node=worker-1.example.com",
            "zone=eu-west-1a",
            "pod=vision/infer-0",
            "uid=6f1c6e0e-3b6e-4a53-9f0e-0d6c5a1c9a11",
            "future=whatever",
        ]);
        let expected = Facts {
            pod: PodRef {
                namespace: some("vision"),
                name: some("infer-0"),
                uid: some("6f1c6e0e-3b6e-4a53-9f0e-0d6c5a1c9a11"),
            },
            address: EndpointAddress {
                ip: "192.168.1.5".parse().unwrap(),
                network: some("rail0"),
                interface: some("net1"),
                mac: some("02:00:00:00:0a:01"),
                rdma_devices: vec!["mlx5_2".to_owned(), "mlx5_3".to_owned()],
                pci: some("0000:18:00.2"),
                numa: Some(1),
            },
            node: some("worker-1.example.com"),
            zone: some("eu-west-1a"),
        };
        assert_eq!(facts, Some(expected));
    }

    #[test]
    fn a_record_without_an_address_is_ignored() {
        for strings in [&[][..], &["net=rail0"], &["addr"], &["addr="], &["addr=x"], &["addr=10.0.0.1\t"]] {
            assert_eq!(parse(strings), None, "{strings:?}");
        }
        assert_eq!(Facts::parse(&[&b"addr=\xff"[..]]), None);
    }

    #[test]
    fn malformed_values_leave_the_field_empty() {
        let unknown = Facts::unknown("10.0.0.1".parse().unwrap());
        let long = format!("node={}", "x".repeat(254));
        for string in [
            "net=",
            "net=a b",
            "if=sixteen-octets-x",
            "if=net/1",
            "mac=02:00:00:00:00",
            "mac=2:0:0:0:0:1",
            "rdma=,",
            "rdma=mlx5 0",
            "rdma=../uverbs0",
            "pci=18:00.2",
            "pci=0000.18:00:2",
            "pci=0000:18:00.2.1",
            "numa=-1",
            "numa=1024",
            "numa=99999999999",
            &long,
            "zone=a\u{1b}[31m",
            "pod=vision",
            "pod=/infer-0",
            "pod=a/b/c",
            "uid=a\nb",
            "=x",
            "nothing",
        ] {
            assert_eq!(parse(&["addr=10.0.0.1", string]), Some(unknown.clone()), "{string:?}");
        }
    }

    #[test]
    fn the_first_of_several_values_of_a_key_counts() {
        let facts = parse(&["addr=10.0.0.1", "addr=10.0.0.2", "numa=x", "numa=1"]);
        assert_eq!(facts, Some(Facts::unknown("10.0.0.1".parse().unwrap())));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(strings in vec(vec(any::<u8>(), 0..=255), 0..80)) {
            let _ = Facts::parse(&strings);
        }

        #[test]
        fn values_that_are_nearly_right_are_bounded(
            values in vec(("(addr|net|if|mac|rdma|pci|numa|node|zone|pod|uid)", "[0-9a-f:./, _-]{0,250}|\\PC{0,30}"), 0..20)
        ) {
            let mut strings = vec!["addr=fd00::1".to_owned()];
            strings.extend(values.iter().map(|(key, value)| format!("{key}={value}")));
            let facts = Facts::parse(&strings).unwrap();
            let Facts { pod, address, node, .. } = facts;
            prop_assert!(address.rdma_devices.len() <= MAX_RDMA_DEVICES);
            let texts = [&pod.uid, &address.network, &address.interface, &address.mac, &address.pci, &node];
            prop_assert!(texts.into_iter().flatten().all(|text| is_printable(text, 253)));
        }
    }
}
