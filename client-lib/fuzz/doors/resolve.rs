//! Entry points of the fuzz targets for answers of DNS servers, with the properties that must hold.

use std::collections::{BTreeMap, BTreeSet};

use hickory_resolver::proto::op::Message;
use hickory_resolver::proto::rr::RecordType;
use hickory_resolver::proto::serialize::binary::BinDecodable as _;

use super::dns::{DnsAnswer, Reply, answer as answer_of};
use super::facts::Facts;
use super::records::{TargetRecords, endpoints, endpoints_by_address, is_complete};
use crate::endpoint::Endpoint;

/// Reads any bytes as a DNS message, and takes it as the answer to SRV, TXT, A and AAAA queries.
/// Panics if an endpoint found in it is not usable, or depends on the order of the records.
pub fn answer(bytes: &[u8]) {
    let Ok(message) = Message::from_bytes(bytes) else { return };
    let reply = |kind| match answer_of(&message, kind) {
        DnsAnswer::Found(reply) => reply,
        DnsAnswer::NoName { .. } | DnsAnswer::NoData => Reply::default(),
    };
    let Reply { services, glue, .. } = reply(RecordType::SRV);
    let facts = reply(RecordType::TXT).facts;
    let mut owned: BTreeMap<String, TargetRecords> = BTreeMap::new();
    for service in &services {
        owned
            .entry(service.target.clone())
            .or_insert_with(|| TargetRecords { addresses: Vec::new(), facts: facts.clone() });
    }
    for (owner, ip) in glue {
        owned.entry(owner).or_default().addresses.push(ip);
    }
    assert!(owned.values().all(|owned| !is_complete(owned) || !owned.addresses.is_empty()));
    let found = endpoints(&services, &owned);
    found.iter().flatten().for_each(usable);
    // The order of records in the message must not matter.
    let services: Vec<_> = services.into_iter().rev().collect();
    for owned in owned.values_mut() {
        owned.addresses.reverse();
        owned.facts.reverse();
    }
    assert_eq!(endpoints(&services, &owned), found);
    let addresses: Vec<_> =
        [RecordType::A, RecordType::AAAA].into_iter().flat_map(|kind| reply(kind).addresses).collect();
    endpoints_by_address(&addresses, 18515, "infer.test").iter().for_each(usable);
}

/// Checks that an endpoint has distinct addresses to connect to, and that its names are safe to
/// show.
fn usable(endpoint: &Endpoint) {
    let distinct: BTreeSet<_> = endpoint.addresses.iter().map(|address| address.ip).collect();
    assert!(!distinct.is_empty() && distinct.len() == endpoint.addresses.len() && endpoint.port != 0);
    assert!(distinct.iter().all(|ip| !ip.is_unspecified() && !ip.is_multicast()));
    assert!(endpoint.target.len() <= 253 && endpoint.target.starts_with(&endpoint.host));
    assert!(!endpoint.to_string().contains(char::is_control));
}

/// Reads any lines as the strings of a TXT record.
pub fn facts(bytes: &[u8]) {
    let strings: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
    let Some(Facts { pod, address, node, zone }) = Facts::parse(&strings) else { return };
    assert!(address.rdma_devices.len() <= 16 && address.numa.is_none_or(|node| node <= 1023));
    let texts = [
        &pod.uid,
        &pod.namespace,
        &pod.name,
        &address.network,
        &address.interface,
        &address.mac,
        &address.pci,
        &node,
        &zone,
    ];
    for text in texts.into_iter().flatten().chain(&address.rdma_devices) {
        assert!(!text.is_empty() && text.len() <= 253 && !text.contains(char::is_control), "{text:?}");
    }
}
