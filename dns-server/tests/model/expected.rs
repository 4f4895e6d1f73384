//! The zone as the design describes it, built from all objects in the simplest way.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::LazyLock;

use crate::ask::{Reply, ZONE};
use crate::events::{ADDRESSES, HOSTS, NAMESPACES, NETWORKS, PORTS, SERVICES, World};

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
        for (key, service) in &world.services {
            let ttl = service.ttl.map_or(DEFAULT_TTL, u32::from);
            let mut members: Vec<Member> = Vec::new();
            for (slice_key, slice) in &world.slices {
                if slice_key.namespace != key.namespace || slice.service != Some(key.name.as_str()) {
                    continue;
                }
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
        let mut existing = HashSet::from([ZONE.to_owned(), format!("svc.{ZONE}")]);
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
    let mut add = |owner: &str, rtype, data: String| {
        records.entry((owner.to_owned(), rtype)).or_default().insert(format!("{ttl} {data}"));
    };
    for member in members {
        let host = format!("{}.{base}", member.host);
        let rtype = if member.address.is_ipv4() { "A" } else { "AAAA" };
        add(base, rtype, member.address.to_string());
        add(&host, rtype, member.address.to_string());
        add(&host, "TXT", format!("addr={} net={}", member.address, member.network));
        for (name, protocol, port) in member.ports.iter().filter(|(name, _, _)| !name.is_empty()) {
            // Every endpoint counts once, with any number of networks and port numbers.
            let having = members.iter().filter(|other| {
                other.ports.iter().any(|(other, proto, _)| (other, proto) == (name, protocol))
            });
            let endpoints: HashSet<(&str, IpAddr)> =
                having.map(|other| (other.host.as_str(), other.address)).collect();
            let weight = (100 / endpoints.len()).max(1);
            let data = format!("0 {weight} {port} {host}");
            add(&format!("_{name}._{}.{base}", protocol.to_lowercase()), "SRV", data.clone());
            add(base, "SRV", data);
        }
    }
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
        let namespace = format!("{namespace}.svc.{ZONE}");
        for service in SERVICES {
            let service = format!("{service}.{namespace}");
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
        names.insert(namespace);
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
