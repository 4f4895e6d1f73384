//! One service in, everything that DNS says about it out: pure, and the only place that knows the
//! schema of names below a service (docs/dns.md).
//!
//! With `S` = `<service>.<namespace>.svc.<zone>`, the same shape stands twice: below `S` for all
//! networks together and below `<alias>._net.S` for each one.
//!
//! ```text
//!            base (S, or <alias>._net.S)        A AAAA  all addresses; SRV  every named port
//!            ├── <host>                         A AAAA TXT  that endpoint
//!            └── _<port>._<proto>               SRV  →  <host>.<base>, their A AAAA as glue
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use multinet_runtime::ObjectKey;

use crate::index::{Endpoint, Port, ProtocolLabel, ServiceView};
use crate::name::Name;
use crate::rrset::{self, Node, Rrset, RrsetWriter, Service, rtype};

/// The names of one service with their prebuilt answers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Built {
    /// Names that others point at: published before them, withdrawn after them.
    pub hosts: Vec<(Name, Arc<Node>)>,
    /// Names whose records may point at hosts.
    pub sets: Vec<(Name, Arc<Node>)>,
    /// For each address, the host that its reverse name is to give.
    pub pointers: Vec<(IpAddr, Name)>,
    /// Time to live of the pointers, in seconds.
    pub ttl: u32,
}

/// Builds a service's answers in every zone; pointers lead into the first.
///
/// Names that DNS cannot express (over 255 octets) are left out, and so is what would point at them.
pub fn build(service: &ServiceView<'_>, zones: &[Name]) -> Built {
    let members = members(service);
    let ttl = service.ttl;
    let everywhere = Group::new(ttl, members.iter().collect());
    let by_network = by_network(&members);
    // Of a single network all is said already: its names share the records of the service's own.
    let alone = by_network.len() == 1;
    let networks: Vec<(&str, Option<Group<'_>>)> = by_network
        .into_iter()
        .map(|(alias, members)| (alias, (!alone).then(|| Group::new(ttl, members))))
        .collect();

    let mut built = Built { ttl, ..Built::default() };
    for (position, zone) in zones.iter().enumerate() {
        let Some(base) = service_name(zone, service.key) else {
            continue;
        };
        if position == 0 {
            built.pointers = everywhere.pointers(&base);
        }
        everywhere.add_to(&mut built, &base);
        let Some(below) = base.child("_net") else { continue };
        for (alias, group) in &networks {
            if let Some(base) = below.child(alias) {
                group.as_ref().unwrap_or(&everywhere).add_to(&mut built, &base);
            }
        }
    }
    built
}

/// `<service>.<namespace>.svc.<zone>`.
fn service_name(zone: &Name, key: &ObjectKey) -> Option<Name> {
    zone.child("svc")?.child(&key.namespace)?.child(&key.name)
}

/// One ready endpoint of one network, however many slices mention it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Member<'a> {
    network: &'a str,
    host: &'a str,
    address: IpAddr,
    /// Whether `host` is a name that somebody chose.
    named: bool,
    txt: &'a [u8],
    ports: BTreeSet<&'a Port>,
}

/// Merges the slices: the first mention of an endpoint describes it, later ones add their ports.
fn members<'a>(service: &ServiceView<'a>) -> Vec<Member<'a>> {
    let mut merged: BTreeMap<(&str, &str, IpAddr), (&Endpoint, BTreeSet<&Port>)> = BTreeMap::new();
    for slice in &service.slices {
        for endpoint in &slice.endpoints {
            merged
                .entry((&slice.network, &endpoint.host, endpoint.address))
                .or_insert_with(|| (endpoint, BTreeSet::new()))
                .1
                .extend(&slice.ports);
        }
    }
    merged
        .into_iter()
        .map(|((network, host, address), (endpoint, ports))| Member {
            network,
            host,
            address,
            named: endpoint.named,
            txt: &endpoint.txt,
            ports,
        })
        .collect()
}

fn by_network<'a>(members: &'a [Member<'a>]) -> BTreeMap<&'a str, Vec<&'a Member<'a>>> {
    let mut networks: BTreeMap<&str, Vec<&Member<'_>>> = BTreeMap::new();
    for member in members {
        networks.entry(member.network).or_default().push(member);
    }
    networks
}

/// The members that one base name speaks for, with the records that do not depend on the base.
struct Group<'a> {
    ttl: u32,
    members: Vec<&'a Member<'a>>,
    hosts: BTreeMap<&'a str, Arc<Node>>,
    addresses: Vec<Rrset>,
}

impl<'a> Group<'a> {
    fn new(ttl: u32, members: Vec<&'a Member<'a>>) -> Self {
        let mut by_host: BTreeMap<&str, Vec<&Member<'_>>> = BTreeMap::new();
        for member in &members {
            by_host.entry(member.host).or_default().push(member);
        }
        let hosts = by_host.into_iter().map(|(host, members)| (host, host_node(ttl, &members))).collect();
        let addresses = rrset::addresses(ttl, &addresses(&members));
        Self { ttl, members, hosts, addresses }
    }

    fn add_to(&self, built: &mut Built, base: &Name) {
        if self.members.is_empty() {
            return;
        }
        let targets: BTreeMap<&str, (Name, &Arc<Node>)> =
            self.hosts.iter().filter_map(|(&host, node)| Some((host, (base.child(host)?, node)))).collect();
        built.hosts.extend(targets.values().map(|(name, node)| (name.clone(), Arc::clone(node))));

        let mut every_port = Vec::new();
        for (port, services) in self.services(&targets) {
            let owner =
                base.child(port.protocol.as_str()).and_then(|name| name.child(&format!("_{}", port.name)));
            if let Some(owner) = owner
                && let Some(set) = rrset::services(&owner, self.ttl, &services)
            {
                built.sets.push((owner, Arc::new(Node { rrsets: vec![set] })));
                every_port.extend(services);
            }
        }
        // Two ports of one number say the same here, and a set holds no record twice (RFC 2181 §5).
        let mut seen = BTreeSet::new();
        every_port.retain(|service| seen.insert((service.target.clone(), service.port, service.weight)));
        let mut rrsets = self.addresses.clone();
        rrsets.extend(rrset::services(base, self.ttl, &every_port));
        built.sets.push((base.clone(), Arc::new(Node { rrsets })));
    }

    /// The SRV records of each named port, in the order of ports and hosts.
    fn services<'t>(
        &self,
        targets: &'t BTreeMap<&str, (Name, &Arc<Node>)>,
    ) -> BTreeMap<PortName<'a>, Vec<Service<'t>>> {
        // Per port: the endpoints that have it, and its records, as host and number.
        type Hosts<'p, T> = BTreeSet<(&'p str, T)>;
        type Ports<'p> = BTreeMap<PortName<'p>, (Hosts<'p, IpAddr>, Hosts<'p, u16>)>;
        let mut ports = Ports::new();
        for member in &self.members {
            for port in member.ports.iter().filter(|port| !port.name.is_empty()) {
                let name = PortName { protocol: port.protocol, name: &port.name };
                let (endpoints, records) = ports.entry(name).or_default();
                endpoints.insert((member.host, member.address));
                records.insert((member.host, port.number));
            }
        }
        ports
            .into_iter()
            .map(|(name, (endpoints, records))| {
                let weight = weight(endpoints.len());
                let services = records.into_iter().filter_map(|(host, port)| {
                    let (target, node) = targets.get(host)?;
                    let addresses = &node.rrsets[..address_sets(node)];
                    Some(Service { weight, port, target: target.clone(), addresses })
                });
                (name, services.collect())
            })
            .collect()
    }

    /// One host per address: one that somebody named before one made of an address, then the first.
    fn pointers(&self, base: &Name) -> Vec<(IpAddr, Name)> {
        let mut best: BTreeMap<IpAddr, (bool, &str)> = BTreeMap::new();
        for member in &self.members {
            let candidate = (!member.named, member.host);
            best.entry(member.address)
                .and_modify(|known| *known = (*known).min(candidate))
                .or_insert(candidate);
        }
        best.into_iter().filter_map(|(address, (_, host))| Some((address, base.child(host)?))).collect()
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PortName<'a> {
    name: &'a str,
    protocol: ProtocolLabel,
}

/// As CoreDNS gives it: 100 shared among the endpoints, at least 1.
fn weight(endpoints: usize) -> u16 {
    (100 / endpoints.clamp(1, 100)) as u16 // at most 100
}

fn addresses(members: &[&Member<'_>]) -> BTreeSet<IpAddr> {
    members.iter().map(|member| member.address).collect()
}

/// A, AAAA and TXT of one host.
fn host_node(ttl: u32, members: &[&Member<'_>]) -> Arc<Node> {
    let mut rrsets = rrset::addresses(ttl, &addresses(members));
    let mut txt = RrsetWriter::new(rtype::TXT, ttl);
    for member in members {
        txt.push(member.txt);
    }
    rrsets.extend(txt.finish());
    Arc::new(Node { rrsets })
}

/// How many of a host's RRsets are addresses; they stand first.
fn address_sets(node: &Node) -> usize {
    node.rrsets.iter().take_while(|rrset| rrset.stride.is_some()).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Slice;
    use crate::name;

    fn key() -> ObjectKey {
        ObjectKey { namespace: "n".into(), name: "s".into() }
    }

    fn endpoint(host: Option<&str>, address: &str) -> Endpoint {
        let address = address.parse().unwrap();
        Endpoint {
            address,
            host: host.map_or_else(|| name::address_label(address), str::to_owned).into(),
            named: host.is_some(),
            txt: b"\x03a=b".as_slice().into(),
        }
    }

    fn slice(network: &str, port: &str, endpoints: Vec<Endpoint>) -> Slice {
        let ports = vec![Port { name: port.into(), protocol: ProtocolLabel::Tcp, number: 7 }];
        Slice { service: "s".into(), network: network.into(), ports, endpoints, ..Slice::default() }
    }

    fn built(slices: &[Slice]) -> Built {
        let zones = ["z".parse().unwrap()];
        build(&ServiceView { key: &key(), ttl: 5, slices: slices.iter().collect() }, &zones)
    }

    fn names(names: &[(Name, Arc<Node>)]) -> Vec<String> {
        let mut names: Vec<String> = names.iter().map(|(name, _)| name.to_string()).collect();
        names.sort();
        names
    }

    fn node<'a>(nodes: &'a [(Name, Arc<Node>)], name: &str) -> &'a Arc<Node> {
        let name: Name = name.parse().unwrap();
        &nodes.iter().find(|(owner, _)| *owner == name).unwrap().1
    }

    fn weights(built: &Built, name: &str) -> Vec<u16> {
        let set = node(&built.sets, name).rrset(rtype::SRV).unwrap().clone();
        let data = set.body.len() / set.records;
        set.body.chunks_exact(data).map(|record| u16::from_be_bytes([record[14], record[15]])).collect()
    }

    #[test]
    fn a_service_has_the_names_of_the_schema() {
        let built = built(&[slice("r", "p", vec![endpoint(Some("h"), "10.0.0.1")])]);
        assert_eq!(names(&built.hosts), ["h.r._net.s.n.svc.z.", "h.s.n.svc.z."]);
        assert_eq!(
            names(&built.sets),
            ["_p._tcp.r._net.s.n.svc.z.", "_p._tcp.s.n.svc.z.", "r._net.s.n.svc.z.", "s.n.svc.z."]
        );
        assert_eq!(built.pointers.len(), 1);
    }

    #[test]
    fn a_service_without_ready_endpoints_has_no_names() {
        assert_eq!(built(&[]), Built { ttl: 5, ..Built::default() });
        assert_eq!(built(&[slice("r", "p", vec![])]), Built { ttl: 5, ..Built::default() });
    }

    #[test]
    fn names_with_the_same_records_share_them() {
        let built = built(&[slice("r", "p", vec![endpoint(Some("h"), "10.0.0.1")])]);
        let below = node(&built.hosts, "h.r._net.s.n.svc.z");
        assert!(Arc::ptr_eq(node(&built.hosts, "h.s.n.svc.z"), below));
    }

    #[test]
    fn weights_are_shared_among_endpoints_and_never_zero() {
        let endpoints = |count: u8| (1..=count).map(|i| endpoint(None, &format!("10.0.0.{i}"))).collect();
        assert_eq!(weights(&built(&[slice("r", "p", endpoints(3))]), "_p._tcp.s.n.svc.z"), [33, 33, 33]);
        assert_eq!(weights(&built(&[slice("r", "p", endpoints(200))]), "_p._tcp.s.n.svc.z")[0], 1);
    }

    #[test]
    fn shared_hosts_count_as_endpoints_but_have_one_record() {
        let shared = vec![endpoint(Some("h"), "10.0.0.1"), endpoint(Some("h"), "10.0.0.2")];
        let built = built(&[slice("r", "p", shared)]);
        assert_eq!(weights(&built, "_p._tcp.s.n.svc.z"), [50]);
        assert_eq!(node(&built.hosts, "h.s.n.svc.z").rrset(rtype::A).unwrap().records, 2);
    }

    #[test]
    fn the_same_endpoint_in_two_slices_is_one_with_both_ports() {
        let built = built(&[
            slice("r", "p", vec![endpoint(Some("h"), "10.0.0.1")]),
            slice("r", "q", vec![endpoint(Some("h"), "10.0.0.1")]),
        ]);
        assert_eq!(node(&built.sets, "s.n.svc.z").rrset(rtype::A).unwrap().records, 1);
        assert_eq!(node(&built.hosts, "h.s.n.svc.z").rrset(rtype::TXT).unwrap().records, 1);
        assert_eq!(weights(&built, "_p._tcp.s.n.svc.z"), [100]);
        assert_eq!(weights(&built, "_q._tcp.s.n.svc.z"), [100]);
        // Both ports have the same number, so of the service both say the same.
        assert_eq!(weights(&built, "s.n.svc.z"), [100]);
    }

    #[test]
    fn pointers_prefer_a_chosen_hostname() {
        let both = vec![endpoint(None, "10.0.0.1"), endpoint(Some("z"), "10.0.0.1")];
        let built = built(&[slice("r", "", both)]);
        assert_eq!(built.pointers, [("10.0.0.1".parse().unwrap(), "z.s.n.svc.z".parse().unwrap())]);
    }

    #[test]
    fn unnamed_ports_have_no_srv() {
        let built = built(&[slice("r", "", vec![endpoint(Some("h"), "10.0.0.1")])]);
        assert!(node(&built.sets, "s.n.svc.z").rrset(rtype::SRV).is_none());
    }

    #[test]
    fn names_too_long_for_dns_are_left_out_with_what_would_point_at_them() {
        let long = "x".repeat(63);
        let zone: Name = [long.as_str(); 3].join(".").parse().unwrap();
        let slices = [slice("r", "p", vec![endpoint(Some(&long), "10.0.0.1")])];
        let built = build(&ServiceView { key: &key(), ttl: 5, slices: slices.iter().collect() }, &[zone]);
        assert!(built.hosts.is_empty() && built.pointers.is_empty());
        assert!(built.sets.iter().all(|(_, node)| node.rrset(rtype::SRV).is_none()));
        assert!(built.sets.iter().any(|(_, node)| node.rrset(rtype::A).is_some()));
    }
}
