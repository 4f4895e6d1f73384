//! The keys of a service's names, in the format of SkyDNS, as CoreDNS' plugin etcd reads it. Pure.
//!
//! ```text
//!   /skydns/local/cluster/multinet/svc/vision/infer      S, the reversed name
//!     h/10-0-0-1-7            address and port: A and AAAA of h.S and S, SRV of S
//!     h/_txt/rail0-10-0-0-1   TXT of h.S
//!     _tcp/_p/h/10-0-0-1-7    SRV of _p._tcp.S
//!     _tcp/_p/h/_txt/…        TXT of the targets of these
//!     _net/rail0/…            the same for one network
//! ```
//!
//! CoreDNS answers a name from all keys below it. What makes the answers those of multinet-dns:
//!
//! - A key of an address has no text, and a key with a text has no address, since a text beside an
//!   address is never answered.
//! - `group` tells apart the trees that lie within each other. Of all keys that it finds, CoreDNS
//!   uses those with the group of the key that is the least deep.
//! - `targetstrip` removes the key's last element from the target of an SRV record.
//! - A key with the port -1 has no SRV record.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::limits::keys::MAX_KEYS_OF_SERVICE;
use crate::objects::{Port, Slice, address_label};

/// Keys of etcd with their values.
pub type Keys = BTreeMap<String, String>;

/// Length of the longest DNS name in characters, without the last dot.
pub const MAX_NAME: usize = 253;

/// Mark in the values of this program's keys.
const MARK: &str = "multinet";

/// Group of the keys of all networks together. It is no DNS label, so no network has it.
const ALL: &str = ".";

/// Version of the Kubernetes DNS specification that the names follow.
const SCHEMA_VERSION: &str = "1.1.0";

/// Time to live of the schema version's record in seconds, as in the specification's example.
const SCHEMA_VERSION_TTL: u32 = 28_800;

/// Value of a key: a service in SkyDNS' sense, with the mark of this program.
#[derive(Debug, Default, Serialize)]
struct Value<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    host: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<i32>,
    #[serde(skip_serializing_if = "str::is_empty")]
    text: &'a str,
    ttl: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    targetstrip: Option<u8>,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'a str,
    by: &'a str,
}

impl Value<'_> {
    fn to_json(&self) -> String {
        // A struct of strings and numbers always serializes. CoreDNS replaces a time to live of 0
        // by 300.
        serde_json::to_string(&Value { ttl: self.ttl.max(1), by: MARK, ..*self }).unwrap_or_default()
    }
}

/// Returns whether a value in etcd has the mark of this program.
pub fn is_ours(value: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Marked {
        by: String,
    }
    serde_json::from_slice::<Marked>(value).is_ok_and(|marked| marked.by == MARK)
}

/// Returns whether CoreDNS can read a value. Otherwise it answers SERVFAIL for all names above.
pub fn is_readable(value: &[u8]) -> bool {
    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only the types matter")]
    struct CoreDnsService {
        host: Option<String>,
        port: Option<i64>,
        priority: Option<i64>,
        weight: Option<i64>,
        text: Option<String>,
        mail: Option<bool>,
        ttl: Option<u32>,
        targetstrip: Option<i64>,
        group: Option<String>,
    }
    serde_json::from_slice::<CoreDnsService>(value).is_ok()
}

/// Returns the key of a name, without a slash at its end.
pub fn path(prefix: &str, name: &str) -> String {
    let labels = name.rsplit('.');
    labels.fold(prefix.to_owned(), |path, label| path + "/" + label)
}

/// Returns the key of the reverse name of an address.
pub fn reverse_path(prefix: &str, address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{prefix}/arpa/in-addr/{a}/{b}/{c}/{d}")
        }
        IpAddr::V6(v6) => {
            let nibbles = format!("{:032x}", v6.to_bits());
            nibbles.chars().fold(format!("{prefix}/arpa/ip6"), |path, nibble| format!("{path}/{nibble}"))
        }
    }
}

/// Returns the keys of a zone's own names. Without them, CoreDNS would answer a query for the apex
/// with all addresses of the zone, and a query for its name server with NXDOMAIN.
pub fn of_zone(prefix: &str, zone: &str, ttl: u32, has_services: bool) -> Keys {
    let path = path(prefix, zone);
    let value = |text, ttl| Value { text, ttl, ..Value::default() }.to_json();
    let own = |name: &str| (format!("{path}/dns/{name}"), value("multinet", ttl));
    let mut keys = Keys::from(["apex", "ns"].map(own));
    if has_services {
        keys.insert(format!("{path}/dns-version"), value(SCHEMA_VERSION, SCHEMA_VERSION_TTL));
    }
    keys
}

/// Returns the key and the value of a reverse name.
pub fn of_address(prefix: &str, address: IpAddr, name: &str, ttl: u32) -> (String, String) {
    (reverse_path(prefix, address), Value { host: name, ttl, ..Value::default() }.to_json())
}

/// A ready endpoint of a service on one network, from all of the service's slices.
#[derive(Debug)]
struct Member<'a> {
    alias: &'a str,
    host: &'a str,
    address: IpAddr,
    ports: BTreeSet<&'a Port>,
    text: &'a str,
}

/// Returns the endpoints of a service, by host. One that is in several slices has the ports of all
/// of them, and the text of the first.
fn members<'a>(slices: impl Iterator<Item = &'a Slice>) -> Vec<Member<'a>> {
    let mut members: BTreeMap<(&str, &str, IpAddr), Member<'a>> = BTreeMap::new();
    for slice in slices {
        for endpoint in &slice.endpoints {
            let (alias, host, address) = (slice.alias.as_str(), endpoint.host.as_str(), endpoint.address);
            let member = members.entry((host, alias, address)).or_insert_with(|| Member {
                alias,
                host,
                address,
                ports: BTreeSet::new(),
                text: &endpoint.text,
            });
            member.ports.extend(&slice.ports);
        }
    }
    members.into_values().collect()
}

/// Endpoints of a service that have keys, as [`MAX_KEYS_OF_SERVICE`] allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of endpoints with keys. They are the first by host.
    pub endpoints: usize,
    /// Number of endpoints without keys.
    pub left_out: usize,
    /// Number of keys. Where names are too long or addresses recur, the service has fewer.
    pub keys: usize,
}

impl Share {
    /// Returns the share of a service that has its names at this number of base names.
    pub fn new<'a>(slices: impl Iterator<Item = &'a Slice>, bases: usize) -> Self {
        let members = members(slices);
        let mut share = Self { endpoints: 0, left_out: members.len(), keys: 0 };
        for member in &members {
            let ports = member.ports.len();
            // At each base name, in the trees of all networks and of its own: its text, its
            // addresses, and for each port address and text. And a reverse name.
            let keys = share.keys + 2 * bases * (1 + ports.max(1) + 2 * ports) + 1;
            if keys > MAX_KEYS_OF_SERVICE {
                break;
            }
            share = Self { endpoints: share.endpoints + 1, left_out: share.left_out - 1, keys };
        }
        share
    }
}

/// Returns the keys of a service at the names `bases`, which are full DNS names, for this number of
/// endpoints.
pub fn of_service<'a>(
    prefix: &str,
    bases: impl Iterator<Item = String>,
    ttl: u32,
    slices: impl Iterator<Item = &'a Slice>,
    endpoints: usize,
) -> Keys {
    let mut members = members(slices);
    members.truncate(endpoints);
    let aliases: BTreeSet<&str> = members.iter().map(|member| member.alias).collect();
    let mut keys = Keys::new();
    for base in bases {
        let path = path(prefix, &base);
        let mut tree =
            Tree { keys: &mut keys, room: MAX_NAME.saturating_sub(base.len()), path, group: ALL, ttl };
        members.iter().for_each(|member| tree.add(member));
        for alias in &aliases {
            let path = self::path(prefix, &format!("{alias}._net.{base}"));
            let room = MAX_NAME.saturating_sub(base.len() + alias.len() + "._net.".len());
            let mut tree = Tree { keys: &mut keys, room, path, group: alias, ttl };
            members.iter().filter(|member| member.alias == *alias).for_each(|member| tree.add(member));
        }
    }
    keys
}

/// The keys below one base name.
struct Tree<'k> {
    keys: &'k mut Keys,
    /// Number of characters that a name below may have in front of the base name.
    room: usize,
    path: String,
    group: &'k str,
    ttl: u32,
}

impl Tree<'_> {
    /// Adds the keys of an endpoint. Names that are too long for DNS are left out.
    fn add(&mut self, member: &Member<'_>) {
        let (id, address) = (address_label(member.address), member.address.to_string());
        let fits = |length: usize| length < self.room;
        let host = if fits(member.host.len()) { member.host } else { id.as_str() };
        let text = format!("_txt/{}-{id}", member.alias);
        let of_text =
            |ttl, group: &str| Value { text: member.text, ttl, group, ..Value::default() }.to_json();
        let of_address = |ttl, group: &str, port: Option<u16>| {
            let targetstrip = port.map(|_| 1);
            let port = Some(port.map_or(-1, i32::from));
            Value { host: &address, port, ttl, targetstrip, group, ..Value::default() }.to_json()
        };
        let below = format!("{}/{host}", self.path);
        self.keys.insert(format!("{below}/{text}"), of_text(self.ttl, self.group));
        if member.ports.is_empty() {
            self.keys.insert(format!("{below}/{id}"), of_address(self.ttl, self.group, None));
        }
        for port in &member.ports {
            let Port { name, protocol, number } = *port;
            let key = format!("{below}/{id}-{number}");
            self.keys.insert(key, of_address(self.ttl, self.group, Some(*number)));
            if !fits(host.len() + name.len() + protocol.len() + 3) {
                continue;
            }
            let group = match self.group {
                ALL => format!("_{name}.{protocol}"),
                alias => format!("_{name}.{protocol}.{alias}"),
            };
            let below = format!("{}/{protocol}/_{name}/{host}", self.path);
            self.keys.insert(format!("{below}/{id}-{number}"), of_address(self.ttl, &group, Some(*number)));
            self.keys.insert(format!("{below}/{text}"), of_text(self.ttl, &group));
        }
    }
}

/// Returns the host label that each address of a service has in reverse: a hostname rather than a
/// label made from an address, then the first. Addresses whose names are too long, and those of
/// endpoints without keys, are left out.
pub fn pointers<'a>(
    base: &str,
    slices: impl Iterator<Item = &'a Slice> + Clone,
    endpoints: usize,
) -> BTreeMap<IpAddr, String> {
    let members = members(slices.clone()).into_iter().take(endpoints);
    let known: BTreeSet<(&str, IpAddr)> = members.map(|member| (member.host, member.address)).collect();
    let mut best: BTreeMap<IpAddr, (bool, &str)> = BTreeMap::new();
    for endpoint in slices.flat_map(|slice| &slice.endpoints) {
        if !known.contains(&(endpoint.host.as_str(), endpoint.address)) {
            continue;
        }
        let rank = (!endpoint.is_named, endpoint.host.as_str());
        let known = best.entry(endpoint.address).or_insert(rank);
        *known = rank.min(*known);
    }
    best.retain(|_, (_, host)| host.len() + 1 + base.len() <= MAX_NAME);
    best.into_iter().map(|(address, (_, host))| (address, host.to_owned())).collect()
}

#[cfg(test)]
mod tests;
