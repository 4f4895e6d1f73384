//! Builds the answers of one service from its slices. Pure.
//!
//! Let `S` be `<service>.<namespace>.svc.<zone>`. The names that the
//! [`schema`](crate::store::schema) lists exist below `S` for all networks together, and below
//! `<alias>._net.S` for each network. The answers do not depend on the zone. So they also serve the
//! names below `<vertex>.<pipeline>.<namespace>.<zone>`, if the service is a vertex.
//!
//! The endpoints in a topology zone form a group, too. Its base records are at `<zone>.pin._zone.S`
//! and `<zone>.prefer._zone.S`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::limits::answers::MAX_ZONES;
use crate::store::group::{self, EndpointRef, Group, GroupView};
use crate::store::index::{Created, ServiceView};
use crate::store::name::wire_label;
use crate::store::slice::{Slice, VertexName};
use crate::store::txt;

/// All records of one service at all of its names, from one version of its objects.
#[derive(Debug)]
pub struct ServiceAnswers {
    /// Time to live of the records, in seconds.
    pub ttl: u32,
    /// Creation time of the service. If many services have an address, its PTR records name the
    /// oldest.
    pub created: Created,
    /// Vertex whose name the service has, too: `<vertex>.<pipeline>` in wire format.
    pub vertex: Option<Box<[u8]>>,
    /// Slices with ready endpoints, which the groups refer to by index.
    slices: Box<[Arc<Slice>]>,
    /// Group of the endpoints on all networks together.
    all: Group,
    networks: Box<[NamedGroup]>,
    zones: Box<[NamedGroup]>,
}

/// The group of a service's endpoints that are on one network or in one topology zone.
#[derive(Debug)]
struct NamedGroup {
    /// Alias of the network in wire format, or name of the topology zone in wire format without the
    /// root. Lowercased.
    name: Box<[u8]>,
    /// Group of the endpoints. `None` if these are all endpoints of the service.
    group: Option<Group>,
}

/// Builds the answers of a service. Returns `None` if it has no ready endpoint: then it has no
/// names (Kubernetes DNS specification §2.4.1).
pub(crate) fn build(service: &ServiceView<'_>) -> Option<ServiceAnswers> {
    let ServiceView { ttl, created, .. } = *service;
    let slices: Box<[Arc<Slice>]> = service
        .slices
        .iter()
        .filter(|slice| !slice.endpoints.is_empty())
        .map(|&slice| Arc::clone(slice))
        .collect();
    if slices.is_empty() {
        return None;
    }
    let mentions = group::mentions(&slices, None);
    let all = Group::of(ttl, &slices, &mentions);
    let aliases: BTreeSet<&str> = slices.iter().map(|slice| &*slice.network).collect();
    let alone = aliases.len() == 1;
    let networks = aliases
        .into_iter()
        .filter_map(|alias| {
            let group = (!alone).then(|| sharing(Group::new(ttl, &slices, Some(alias)), &all));
            Some(NamedGroup { name: wire_label(alias)?, group })
        })
        .collect();
    let zones = zones(ttl, &slices, &mentions, &all);
    let vertex = service.vertex.and_then(VertexName::to_wire);
    Some(ServiceAnswers { ttl, created, vertex, slices, all, networks, zones })
}

/// Makes `group`, a part of `all`, share the port table of `all` if both are equal.
fn sharing(mut group: Group, all: &Group) -> Group {
    group.share_ports(all);
    group
}

/// Builds the group of each topology zone, from the zones in the endpoints' TXT data.
fn zones(ttl: u32, slices: &[Arc<Slice>], mentions: &[EndpointRef], all: &Group) -> Box<[NamedGroup]> {
    let mut zones: Vec<(Box<[u8]>, Vec<EndpointRef>)> = Vec::new();
    // Index in `zones` for each zone as endpoints write it. Two texts that differ only in case are
    // one zone.
    let mut known_zones: BTreeMap<&[u8], Option<usize>> = BTreeMap::new();
    for mention in mentions {
        let Some(text) = txt::value(mention.endpoint(slices).txt, b"zone") else { continue };
        let index = *known_zones.entry(text).or_insert_with(|| {
            let name = zone_name(text)?;
            let known = zones.iter().position(|(known, _)| *known == name);
            known.or_else(|| {
                let is_one_more = zones.len() < MAX_ZONES;
                is_one_more.then(|| {
                    zones.push((name, Vec::new()));
                    zones.len() - 1
                })
            })
        });
        if let Some(index) = index {
            zones[index].1.push(*mention);
        }
    }
    let part = |(name, of_zone): (_, Vec<EndpointRef>)| {
        let group = (of_zone.len() < mentions.len()).then(|| sharing(Group::of(ttl, slices, &of_zone), all));
        NamedGroup { name, group }
    };
    zones.into_iter().map(part).collect()
}

/// Returns the name of a topology zone in wire format without the root, lowercased. Returns `None`
/// if DNS cannot express the name.
fn zone_name(zone: &[u8]) -> Option<Box<[u8]>> {
    let labels = zone.split(|&byte| byte == b'.').map(|label| wire_label(str::from_utf8(label).ok()?));
    Some(labels.collect::<Option<Vec<_>>>()?.concat().into())
}

impl ServiceAnswers {
    /// Returns the group of the endpoints on all networks together.
    pub fn all(&self) -> GroupView<'_> {
        self.view(&self.all)
    }

    /// Returns the group of a network, whose alias is in wire format and lowercased.
    pub fn network(&self, label: &[u8]) -> Option<GroupView<'_>> {
        self.named_group(&self.networks, label)
    }

    /// Returns the group of a topology zone, whose name is in wire format without the root and
    /// lowercased.
    pub fn zone(&self, name: &[u8]) -> Option<GroupView<'_>> {
        self.named_group(&self.zones, name)
    }

    fn named_group<'a>(&'a self, groups: &'a [NamedGroup], name: &[u8]) -> Option<GroupView<'a>> {
        let named = groups.iter().find(|named| *named.name == *name)?;
        Some(self.view_named(named))
    }

    fn view_named<'a>(&'a self, named: &'a NamedGroup) -> GroupView<'a> {
        self.view(named.group.as_ref().unwrap_or(&self.all))
    }

    fn view<'a>(&'a self, group: &'a Group) -> GroupView<'a> {
        GroupView::new(group, &self.slices)
    }

    /// Returns each network's alias in wire format with the group of its endpoints.
    pub fn networks(&self) -> impl Iterator<Item = (&[u8], GroupView<'_>)> {
        self.networks.iter().map(|network| (&*network.name, self.view_named(network)))
    }
}

impl PartialEq for ServiceAnswers {
    /// Tells whether both give the same answers, even if they were built from different slices.
    fn eq(&self, other: &Self) -> bool {
        // The groups of topology zones follow from `all`, so they need no comparison.
        let same_network = |(one, two): (&NamedGroup, &NamedGroup)| {
            one.name == two.name
                && match (&one.group, &two.group) {
                    (Some(one), Some(two)) => self.view(one).has_same_answers(other.view(two)),
                    (one, two) => one.is_none() && two.is_none(),
                }
        };
        self.ttl == other.ttl
            && self.created == other.created
            && self.vertex == other.vertex
            && self.networks.len() == other.networks.len()
            && self.all().has_same_answers(other.all())
            && self.networks.iter().zip(&other.networks).all(same_network)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use multinet_crds::Protocol;

    use super::*;
    use crate::store::endpoints::Endpoint;
    use crate::store::name::{self, Name, Presented};
    use crate::store::records;
    use crate::store::rrset::rtype;
    use crate::store::slice::Port;

    fn slice(network: &str, port: &str, endpoints: &[(Option<&str>, &str)]) -> Arc<Slice> {
        let ports = [Port { name: port.into(), protocol: Protocol::Tcp, number: 7 }];
        let hosts: Vec<(String, IpAddr, bool)> = endpoints
            .iter()
            .map(|&(host, address)| {
                let address = address.parse().unwrap();
                let label = host.map_or_else(|| name::address_label(address), str::to_owned);
                (label, address, host.is_some())
            })
            .collect();
        let endpoints = hosts.iter().map(|(host, address, named)| Endpoint {
            address: *address,
            host,
            named: *named,
            txt: b"\x03a=b",
        });
        Arc::new(Slice {
            service: "s".into(),
            network: network.into(),
            ports: ports.into(),
            endpoints: endpoints.collect(),
            ..Slice::default()
        })
    }

    fn built(slices: &[Arc<Slice>]) -> Option<ServiceAnswers> {
        build(&ServiceView { ttl: 5, slices: slices.iter().collect(), ..ServiceView::default() })
    }

    /// Returns owner, type and data of every record below a base.
    fn records(slices: &[Arc<Slice>], base: &str) -> Vec<(String, u16, Vec<u8>)> {
        let base: Name = base.parse().unwrap();
        let mut all = Vec::new();
        let (built, mut writer) = (built(slices).unwrap(), records::RecordWriter::new(base.as_wire()));
        for item in records::items(&built) {
            writer.records(&item, &mut |record| {
                all.push((Presented(record.owner).to_string(), record.rtype, record.data.to_vec()));
            });
        }
        all
    }

    fn owners(slices: &[Arc<Slice>], wanted: u16) -> Vec<String> {
        let mut owners: Vec<String> = records(slices, "s")
            .into_iter()
            .filter(|(_, rtype, _)| *rtype == wanted)
            .map(|(name, ..)| name)
            .collect();
        owners.sort();
        owners.dedup();
        owners
    }

    fn weights(slices: &[Arc<Slice>], owner: &str) -> Vec<u16> {
        let records = records(slices, "s").into_iter();
        let srv = records.filter(|(name, rtype, _)| *rtype == rtype::SRV && name == owner);
        srv.map(|(_, _, data)| u16::from_be_bytes([data[2], data[3]])).collect()
    }

    fn count(slices: &[Arc<Slice>], owner: &str, wanted: u16) -> usize {
        records(slices, "s").iter().filter(|(name, rtype, _)| *rtype == wanted && name == owner).count()
    }

    #[test]
    fn a_service_has_the_names_of_the_schema() {
        let slices = [slice("r", "p", &[(Some("h"), "10.0.0.1")])];
        assert_eq!(owners(&slices, rtype::A), ["h.r._net.s.", "h.s.", "r._net.s.", "s."]);
        assert_eq!(owners(&slices, rtype::TXT), ["h.r._net.s.", "h.s."]);
        assert_eq!(owners(&slices, rtype::SRV), ["_p._tcp.r._net.s.", "_p._tcp.s.", "r._net.s.", "s."]);
    }

    #[test]
    fn a_service_without_ready_endpoints_has_no_names() {
        assert!(built(&[]).is_none());
        assert!(built(&[slice("r", "p", &[])]).is_none());
    }

    #[test]
    fn a_single_network_shares_the_group_of_the_service() {
        let alone = built(&[slice("r", "p", &[(None, "10.0.0.1")])]).unwrap();
        assert!(alone.network(b"\x01r").unwrap().is_same_group(alone.all()));
        let two = [slice("r", "p", &[(None, "10.0.0.1")]), slice("q", "p", &[(None, "10.0.0.2")])];
        let two = built(&two).unwrap();
        assert_eq!(two.network(b"\x01q").unwrap().addresses().count(), 1);
        assert_eq!(two.all().addresses().count(), 2);
        assert!(two.network(b"\x01x").is_none());
    }

    #[test]
    fn a_topology_zone_has_the_endpoints_that_are_in_it() {
        let hosts: Vec<(String, Ipv4Addr, Vec<u8>)> =
            [("a", "B.example"), ("b", "b.EXAMPLE"), ("c", "x"), ("d", "")]
                .into_iter()
                .zip(1..)
                .map(|((host, zone), number)| {
                    let mut txt = Vec::new();
                    txt::push_pair(&mut txt, "zone", zone);
                    (host.to_owned(), Ipv4Addr::new(10, 0, 0, number), txt)
                })
                .collect();
        let of = |hosts: &[(String, Ipv4Addr, Vec<u8>)]| {
            let endpoints = hosts.iter().map(|(host, address, txt)| Endpoint {
                address: (*address).into(),
                host,
                named: true,
                txt,
            });
            let slice = Slice { network: "r".into(), endpoints: endpoints.collect(), ..Slice::default() };
            built(&[Arc::new(slice)]).unwrap()
        };
        let mixed = of(&hosts);
        let counts = [&b"\x01b\x07example"[..], b"\x01x", b"\x07example", b""]
            .map(|zone| mixed.zone(zone).map(|group| group.addresses().count()));
        assert_eq!(counts, [Some(2), Some(1), None, None]);
        let alone = of(&hosts[..2]);
        assert!(alone.zone(b"\x01b\x07example").unwrap().is_same_group(alone.all()));
    }

    #[test]
    fn weights_are_divided_among_endpoints_and_never_zero() {
        let endpoints = |count: u8| {
            let addresses: Vec<String> = (1..=count).map(|i| format!("10.0.0.{i}")).collect();
            let endpoints: Vec<_> = addresses.iter().map(|address| (None, address.as_str())).collect();
            [slice("r", "p", &endpoints)]
        };
        assert_eq!(weights(&endpoints(3), "_p._tcp.s."), [33, 33, 33]);
        assert_eq!(weights(&endpoints(200), "_p._tcp.s.")[0], 1);
    }

    #[test]
    fn endpoints_with_one_hostname_share_an_srv_record_but_count_for_its_weight() {
        let shared = [slice("r", "p", &[(Some("h"), "10.0.0.1"), (Some("h"), "10.0.0.2")])];
        assert_eq!(weights(&shared, "_p._tcp.s."), [50]);
        assert_eq!(count(&shared, "h.s.", rtype::A), 2);
    }

    #[test]
    fn an_endpoint_in_two_slices_is_one_with_the_ports_of_both() {
        let both = [slice("r", "p", &[(Some("h"), "10.0.0.1")]), slice("r", "q", &[(Some("h"), "10.0.0.1")])];
        assert_eq!(count(&both, "s.", rtype::A), 1);
        assert_eq!(count(&both, "h.s.", rtype::TXT), 1);
        assert_eq!(weights(&both, "_p._tcp.s."), [100]);
        assert_eq!(weights(&both, "_q._tcp.s."), [100]);
        // Both ports have the same number, so that at the service their records are one.
        assert_eq!(weights(&both, "s."), [100]);
    }

    #[test]
    fn a_ptr_record_prefers_a_hostname_to_a_label_made_from_an_address() {
        let built = built(&[slice("r", "", &[(None, "10.0.0.1"), (Some("z"), "10.0.0.1")])]).unwrap();
        let pointer = |address: &str| built.all().pointer(address.parse().unwrap());
        assert_eq!(pointer("10.0.0.1"), Some(&b"\x01z"[..]));
        assert_eq!(pointer("10.0.0.2"), None);
        assert_eq!(pointer("::1"), None);
    }

    #[test]
    fn a_port_without_a_name_has_no_srv_record() {
        assert!(weights(&[slice("r", "", &[(Some("h"), "10.0.0.1")])], "s.").is_empty());
    }

    #[test]
    fn a_name_too_long_for_dns_is_left_out_with_the_records_that_point_at_it() {
        let long = "x".repeat(63);
        let slices = [slice("r", "p", &[(Some(&long), "10.0.0.1")])];
        let records = records(&slices, &[long.as_str(); 3].join("."));
        assert!(records.iter().any(|(_, rtype, _)| *rtype == rtype::A));
        assert!(records.iter().all(|(_, rtype, _)| *rtype == rtype::A));
    }

    #[test]
    fn equal_answers_compare_equal_if_they_come_from_different_slices() {
        let (one, two) = ((Some("a"), "10.0.0.1"), (Some("b"), "10.0.0.2"));
        let together = built(&[slice("r", "p", &[one, two])]).unwrap();
        let apart = built(&[slice("r", "p", &[two]), slice("r", "p", &[one])]).unwrap();
        assert!(together == apart);
        for other in [
            [slice("r", "p", &[one])].as_slice(),
            &[slice("q", "p", &[one, two])],
            &[slice("r", "q", &[one, two])],
            &[slice("r", "p", &[one]), slice("q", "p", &[two])],
            &[slice("r", "p", &[one, (Some("c"), "10.0.0.2")])],
        ] {
            assert!(together != built(other).unwrap());
        }
    }
}
