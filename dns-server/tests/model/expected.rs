//! The zone as the design describes it, built from all objects in the simplest way.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::LazyLock;

use multinet_dns::store::rrset::rtype;
use multinet_dns::store::schema::NameKind;

use crate::ask::{Reply, VERTEX_ZONE, ZONE};
use crate::events::{ADDRESSES, HOSTS, NAMESPACES, NETWORKS, PIPELINE, PORTS, SERVICES, VERTEX, World};

/// TTL of services that set none.
pub(crate) const DEFAULT_TTL: u32 = 5;

/// TTL and data of records, by owner and type.
type Records = BTreeMap<(String, &'static str), BTreeSet<String>>;

/// All records that must exist.
pub(crate) struct Expected {
    records: Records,
    existing: HashSet<String>,
}

/// A ready endpoint of a service: its network, host label, address and ports.
struct Member {
    network: &'static str,
    host: String,
    address: IpAddr,
    ports: BTreeSet<(&'static str, &'static str, u16)>,
}

impl Expected {
    pub(crate) fn new(world: &World) -> Self {
        let mut records = Records::new();
        let mut pointers: BTreeMap<IpAddr, Vec<(u32, String)>> = BTreeMap::new();
        // For each vertex's name, that of the service that has its labels. In this model all
        // services are of one age, so the first by name counts.
        let mut vertices: BTreeMap<String, String> = BTreeMap::new();
        for (key, service) in &world.services {
            let ttl = service.ttl.map_or(DEFAULT_TTL, u32::from);
            let mut members: Vec<Member> = Vec::new();
            let mut vertex = None;
            for (slice_key, slice) in &world.slices {
                if slice_key.namespace != key.namespace || slice.service != Some(key.name.as_str()) {
                    continue;
                }
                vertex = vertex.or(slice.vertex);
                for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.ready != Some(false)) {
                    let host = endpoint.host.map_or_else(|| dashed(endpoint.address), ToOwned::to_owned);
                    let (network, address) = (slice.network, endpoint.address);
                    let known = members.iter_mut().find(|member| {
                        (member.network, &member.host, member.address) == (network, &host, address)
                    });
                    match known {
                        Some(member) => member.ports.extend(&slice.ports),
                        None => {
                            let ports = slice.ports.iter().copied().collect();
                            members.push(Member { network, host, address, ports });
                        }
                    }
                }
            }
            let base = format!("{}.{}.svc.{ZONE}", key.name, key.namespace);
            if let Some(vertex) = vertex.filter(|_| !members.is_empty()) {
                let name = format!("{vertex}.{PIPELINE}.{}.{VERTEX_ZONE}", key.namespace);
                vertices.entry(name).or_insert_with(|| base.clone());
            }
            add_group(&mut records, &base, ttl, &members.iter().collect::<Vec<_>>());
            for network in NETWORKS {
                let members: Vec<&Member> =
                    members.iter().filter(|member| member.network == network).collect();
                add_group(&mut records, &format!("{network}._net.{base}"), ttl, &members);
            }
            // A host with a name of its own takes precedence over one that is named after its
            // address.
            let addresses: BTreeSet<IpAddr> = members.iter().map(|member| member.address).collect();
            for address in addresses.into_iter().filter(is_private) {
                let hosts =
                    members.iter().filter(|member| member.address == address).map(|member| &member.host);
                let host = hosts.min_by_key(|host| (**host == dashed(address), host.as_str()));
                if let Some(host) = host {
                    pointers.entry(address).or_default().push((ttl, format!("{host}.{base}")));
                }
            }
        }
        for (address, targets) in pointers {
            let ttl = targets.iter().map(|(ttl, _)| *ttl).min().unwrap_or_default();
            let set = records.entry((reverse(address), "PTR")).or_default();
            set.extend(targets.into_iter().map(|(_, target)| format!("{ttl} {target}")));
        }
        // All names of a vertex's service exist once more, below the name of the vertex.
        let mut of_vertices = Records::new();
        for (vertex, base) in &vertices {
            let is_below = |owner: &str| owner == base || owner.ends_with(&format!(".{base}"));
            for ((owner, rtype), data) in records.iter().filter(|((owner, _), _)| is_below(owner)) {
                let data = data.iter().map(|data| data.replace(base, vertex)).collect();
                of_vertices.insert((owner.replace(base, vertex), *rtype), data);
            }
        }
        records.extend(of_vertices);
        let apexes = [ZONE, VERTEX_ZONE].map(ToOwned::to_owned);
        let mut existing = HashSet::from(apexes);
        existing.insert(format!("svc.{ZONE}"));
        for (owner, _) in records.keys() {
            let mut name = Some(owner.as_str());
            while let Some(text) = name {
                existing.insert(text.to_owned());
                name = text.split_once('.').map(|(_, parent)| parent);
            }
        }
        Self { records, existing }
    }

    /// Returns the names that own records.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &str> {
        self.records.keys().map(|(owner, _)| owner.as_str())
    }

    /// Returns the reply to a query for ANY: one record instead of all (RFC 8482 §4.2).
    pub(crate) fn reply_to_any(&self, name: &str) -> Reply {
        let mut reply = self.reply(name, "none");
        let first = self.records.range((name.to_owned(), "")..).next();
        if let Some(((owner, _), records)) = first
            && owner == name
        {
            reply.records =
                records.iter().take(1).map(|record| format!("{} RFC8482 ", ttl_of(record))).collect();
        }
        reply
    }

    /// Returns the reply to a query.
    pub(crate) fn reply(&self, name: &str, qtype: &'static str) -> Reply {
        let records = self.records.get(&(name.to_owned(), qtype)).cloned().unwrap_or_default();
        let rcode = if self.existing.contains(name) { "NOERROR" } else { "NXDOMAIN" };
        Reply { rcode, records }
    }
}

/// Returns the TTL at the beginning of a record.
fn ttl_of(record: &str) -> &str {
    record.split(' ').next().unwrap_or_default()
}

/// Adds the names of a service, or of one of its networks.
fn add_group(records: &mut Records, base: &str, ttl: u32, members: &[&Member]) {
    for kind in NameKind::ALL {
        for &rtype in kind.types() {
            for (owner, data) in members.iter().flat_map(|member| member.records(kind, rtype, base, members))
            {
                records.entry((owner, mnemonic(rtype))).or_default().insert(format!("{ttl} {data}"));
            }
        }
    }
}

impl Member {
    /// Returns owners and data of the records of a type at names of a kind. `others` are all
    /// members below `base`.
    fn records(&self, kind: NameKind, rtype: u16, base: &str, others: &[&Self]) -> Vec<(String, String)> {
        let host = format!("{}.{base}", self.host);
        let owner = if kind == NameKind::Base { base.to_owned() } else { host.clone() };
        match rtype {
            rtype::A if self.address.is_ipv4() => vec![(owner, self.address.to_string())],
            rtype::AAAA if self.address.is_ipv6() => vec![(owner, self.address.to_string())],
            rtype::A | rtype::AAAA => Vec::new(),
            rtype::TXT => vec![(owner, format!("addr={} net={}", self.address, self.network))],
            rtype::SRV => {
                let named = self.ports.iter().filter(|(name, _, _)| !name.is_empty());
                let record = |&(name, protocol, port): &(&str, &str, u16)| {
                    // Every endpoint counts once, with any number of networks and port numbers.
                    let having = others.iter().filter(|other| {
                        other.ports.iter().any(|(other, proto, _)| (*other, *proto) == (name, protocol))
                    });
                    let endpoints: HashSet<(&str, IpAddr)> =
                        having.map(|other| (other.host.as_str(), other.address)).collect();
                    let weight = (100 / endpoints.len()).max(1);
                    let labels = format!("_{name}._{}.", protocol.to_lowercase());
                    let labels = if kind == NameKind::Port { labels } else { String::new() };
                    (format!("{labels}{base}"), format!("0 {weight} {port} {host}"))
                };
                named.map(record).collect()
            }
            other => panic!("the model has no records of type {other}"),
        }
    }
}

/// Returns the types that the model has records of.
pub(crate) fn types() -> Vec<&'static str> {
    let of_services = NameKind::ALL.iter().flat_map(|kind| kind.types()).map(|&rtype| mnemonic(rtype));
    let types: BTreeSet<&str> = of_services.chain(["PTR"]).collect();
    types.into_iter().collect()
}

fn mnemonic(rtype: u16) -> &'static str {
    rtype::MNEMONICS.iter().find(|(number, _)| *number == rtype).expect("a mnemonic").1
}

/// Returns whether an address has a reverse name by default.
fn is_private(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private(),
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

/// Returns the label of an endpoint without a hostname.
fn dashed(address: IpAddr) -> String {
    let label = address.to_string().replace(['.', ':'], "-");
    let lead = if label.starts_with('-') { "0" } else { "" };
    let end = if label.ends_with('-') { "0" } else { "" };
    format!("{lead}{label}{end}")
}

fn reverse(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(v6) => {
            let nibbles = format!("{:032x}", v6.to_bits());
            let labels: Vec<String> = nibbles.chars().rev().map(String::from).collect();
            format!("{}.ip6.arpa", labels.join("."))
        }
    }
}

/// Returns every name that may own records, or have a name below it that does.
pub(crate) fn universe() -> &'static BTreeSet<String> {
    static UNIVERSE: LazyLock<BTreeSet<String>> = LazyLock::new(all_names);
    &UNIVERSE
}

fn all_names() -> BTreeSet<String> {
    let addresses = ADDRESSES.map(|text| text.parse::<IpAddr>().expect("an address"));
    let labels: Vec<String> =
        HOSTS.iter().map(|host| (*host).to_owned()).chain(addresses.map(dashed)).collect();
    let mut names = BTreeSet::from([format!("svc.{ZONE}")]);
    for namespace in NAMESPACES {
        let services = SERVICES.map(|service| format!("{service}.{namespace}.svc.{ZONE}"));
        let pipeline = format!("{PIPELINE}.{namespace}.{VERTEX_ZONE}");
        let vertex = format!("{VERTEX}.{pipeline}");
        for service in services.into_iter().chain([vertex]) {
            let below = NETWORKS.map(|network| format!("{network}._net.{service}"));
            for base in std::iter::once(&service).chain(&below) {
                names.extend(labels.iter().map(|label| format!("{label}.{base}")));
                for protocol in ["_tcp", "_udp"] {
                    names.extend(PORTS.map(|port| format!("_{port}.{protocol}.{base}")));
                    names.insert(format!("{protocol}.{base}"));
                }
                names.insert(base.clone());
            }
            names.insert(format!("_net.{service}"));
        }
        names.extend([format!("{namespace}.svc.{ZONE}"), format!("{namespace}.{VERTEX_ZONE}"), pipeline]);
    }
    for address in addresses {
        let reverse = reverse(address);
        let parents = reverse.match_indices('.').map(|(dot, _)| &reverse[dot + 1..]);
        // Stops below the zone's apex, whose records are not part of this model.
        names.extend(parents.filter(|name| name.matches('.').count() > 1).map(ToOwned::to_owned));
        names.insert(reverse);
    }
    names
}
