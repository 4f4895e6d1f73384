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
    struct Service {
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
    serde_json::from_slice::<Service>(value).is_ok()
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

/// Returns the endpoints of a service. One that is in several slices has the ports of all of them,
/// and the text of the first.
fn members<'a>(slices: impl Iterator<Item = &'a Slice>) -> Vec<Member<'a>> {
    let mut members: BTreeMap<(&str, &str, IpAddr), Member<'a>> = BTreeMap::new();
    for slice in slices {
        for endpoint in &slice.endpoints {
            let (alias, host, address) = (slice.alias.as_str(), endpoint.host.as_str(), endpoint.address);
            let member = members.entry((alias, host, address)).or_insert_with(|| Member {
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

/// Returns the keys of a service at the names `bases`, which are full DNS names.
pub fn of_service<'a>(
    prefix: &str,
    bases: impl Iterator<Item = String>,
    ttl: u32,
    slices: impl Iterator<Item = &'a Slice>,
) -> Keys {
    let members = members(slices);
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
/// label made from an address, then the first. Addresses whose names are too long are left out.
pub fn pointers<'a>(base: &str, slices: impl Iterator<Item = &'a Slice>) -> BTreeMap<IpAddr, String> {
    let mut best: BTreeMap<IpAddr, (bool, &str)> = BTreeMap::new();
    for endpoint in slices.flat_map(|slice| &slice.endpoints) {
        let rank = (!endpoint.is_named, endpoint.host.as_str());
        let known = best.entry(endpoint.address).or_insert(rank);
        *known = rank.min(*known);
    }
    best.retain(|_, (_, host)| host.len() + 1 + base.len() <= MAX_NAME);
    best.into_iter().map(|(address, (_, host))| (address, host.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Endpoint;

    fn slice(alias: &str, port: Option<u16>, endpoints: &[(&str, &str)]) -> Slice {
        let ports = port.map(|number| Port { name: "p".into(), protocol: "_tcp", number });
        Slice {
            service: "infer".into(),
            vertex: None,
            alias: alias.into(),
            ports: ports.into_iter().collect(),
            endpoints: endpoints
                .iter()
                .map(|&(host, address)| Endpoint {
                    host: host.into(),
                    is_named: !host.contains('-'),
                    address: address.parse().unwrap(),
                    text: format!("addr={address}"),
                })
                .collect(),
        }
    }

    fn keys(base: &str, slices: &[Slice]) -> Keys {
        of_service("/skydns", [base.to_owned()].into_iter(), 5, slices.iter())
    }

    #[test]
    fn a_service_has_the_keys_of_the_layout() {
        let keys = keys("infer.vision.svc.z", &[slice("r", Some(7), &[("h", "10.0.0.1")])]);
        let address = |group: &str| {
            format!(
                r#"{{"host":"10.0.0.1","port":7,"ttl":5,"targetstrip":1,"group":"{group}","by":"multinet"}}"#
            )
        };
        let text =
            |group: &str| format!(r#"{{"text":"addr=10.0.0.1","ttl":5,"group":"{group}","by":"multinet"}}"#);
        let base = "/skydns/z/svc/vision/infer";
        let expected: Keys = [
            ("h/10-0-0-1-7", address(".")),
            ("h/_txt/r-10-0-0-1", text(".")),
            ("_tcp/_p/h/10-0-0-1-7", address("_p._tcp")),
            ("_tcp/_p/h/_txt/r-10-0-0-1", text("_p._tcp")),
            ("_net/r/h/10-0-0-1-7", address("r")),
            ("_net/r/h/_txt/r-10-0-0-1", text("r")),
            ("_net/r/_tcp/_p/h/10-0-0-1-7", address("_p._tcp.r")),
            ("_net/r/_tcp/_p/h/_txt/r-10-0-0-1", text("_p._tcp.r")),
        ]
        .into_iter()
        .map(|(key, value)| (format!("{base}/{key}"), value))
        .collect();
        assert_eq!(keys, expected);
    }

    #[test]
    fn an_endpoint_without_a_named_port_has_no_srv_record() {
        let keys = keys("s", &[slice("r", None, &[("h", "fd00::1")])]);
        assert!(keys["/skydns/s/h/fd00--1"].contains(r#""port":-1,"#));
        assert!(keys.keys().all(|key| !key.contains("_tcp")));
    }

    #[test]
    fn an_endpoint_in_two_slices_has_the_ports_of_both() {
        let slices = [slice("r", Some(7), &[("h", "10.0.0.1")]), slice("r", Some(8), &[("h", "10.0.0.1")])];
        let keys = keys("s", &slices);
        assert!(keys.contains_key("/skydns/s/h/10-0-0-1-7") && keys.contains_key("/skydns/s/h/10-0-0-1-8"));
        assert_eq!(keys.keys().filter(|key| key.starts_with("/skydns/s/h/_txt/")).count(), 1);
    }

    #[test]
    fn every_value_has_a_time_to_live_and_the_mark() {
        let slices = [slice("r", Some(7), &[("h", "10.0.0.1"), ("i", "fd00::1")])];
        let mut keys = of_service("/p", ["s".to_owned()].into_iter(), 0, slices.iter());
        keys.extend(of_zone("/p", "z", 0, true));
        keys.extend([of_address("/p", "10.0.0.1".parse().unwrap(), "h.s", 0)]);
        for (key, value) in keys {
            let value: serde_json::Value = serde_json::from_str(&value).unwrap();
            assert!(value["ttl"].as_u64() > Some(0), "{key} {value}");
            assert!(is_ours(value.to_string().as_bytes()), "{key} {value}");
        }
        for foreign in
            [&b"{\"host\":\"10.0.0.1\"}"[..], b"{\"by\":\"other\"}", b"\"multinet\"", b"no JSON", b""]
        {
            assert!(!is_ours(foreign));
        }
        assert!(is_readable(b"{\"host\":\"10.0.0.1\",\"other\":[]}"));
        for unreadable in [&b"no JSON"[..], b"[]", b"{\"ttl\":-1}", b"{\"host\":1}"] {
            assert!(!is_readable(unreadable));
        }
    }

    #[test]
    fn names_too_long_for_dns_have_no_keys() {
        let long = "x".repeat(63);
        let base = [long.as_str(); 3].join(".");
        // 191 characters: a host of 61 fits, and one of 62 does not.
        for (length, fits) in [(61, true), (62, false)] {
            let host = "h".repeat(length);
            let keys = keys(&base, &[slice("r", None, &[(&host, "10.0.0.1")])]);
            let with = |host: &str| keys.contains_key(&format!("{}/{host}/10-0-0-1", path("/skydns", &base)));
            assert_eq!((with(&host), with("10-0-0-1")), (fits, !fits));
        }
        let slices = [slice("r", None, &[("h", "10.0.0.1")])];
        assert!(pointers(&"x".repeat(251), slices.iter()).len() == 1);
        assert!(pointers(&"x".repeat(252), slices.iter()).is_empty());
    }

    #[test]
    fn reverse_names_are_paths() {
        let path = |address: &str| reverse_path("/skydns", address.parse().unwrap());
        assert_eq!(path("192.168.111.5"), "/skydns/arpa/in-addr/192/168/111/5");
        assert_eq!(
            path("fd00::5"),
            "/skydns/arpa/ip6/f/d/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/5"
        );
    }

    #[test]
    fn a_reverse_name_prefers_a_hostname() {
        let slices = [slice("r", None, &[("10-0-0-1", "10.0.0.1"), ("z", "10.0.0.1"), ("a", "10.0.0.1")])];
        assert_eq!(
            pointers("s", slices.iter()),
            BTreeMap::from([("10.0.0.1".parse().unwrap(), "a".to_owned())])
        );
    }
}
