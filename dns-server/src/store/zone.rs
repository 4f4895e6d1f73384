//! The zones that the server is authoritative for, and the names that every zone has: its apex, its
//! name server, and the schema version (Kubernetes DNS specification §2.2).

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::store::name::{Labels, Name, label_starts};
use crate::store::rrset::{self, HEADER, Node, Rrset, rtype};

/// Label `svc` in wire format, between the labels of a namespace and its zone of services.
pub const SVC: &[u8] = b"\x03svc";

/// Version of the Kubernetes DNS specification that the answers follow, as TXT data.
const SCHEMA_VERSION: &[u8] = b"\x051.1.0";

/// Time to live of the schema version's record in seconds, as in the specification's example.
const SCHEMA_VERSION_TTL: u32 = 28_800;

/// SOA timers in seconds, as CoreDNS sets them: refresh, retry and expire.
const TIMERS: [u32; 3] = [7_200, 1_800, 86_400];

/// Length of the longest apex whose SOA record fits a 512-byte reply with its names in full. The
/// record takes 50 bytes and twice the apex. Before it comes the longest question (12 + 255 + 4
/// bytes), after it an OPT record with a cookie and an error (11 + 28 + 6 bytes).
const LONG_APEX: usize = 73;

/// Settings that all zones share.
#[derive(Debug, Clone)]
pub struct ZoneSettings {
    /// Time to live of the zones' own records and of negative answers, in seconds.
    pub ttl: u32,
    /// Addresses of this server, which the name `ns.dns.<zone>` resolves to.
    pub ns_addresses: BTreeSet<IpAddr>,
}

/// Kind of a zone: what its names stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneKind {
    /// Services: `<service>.<namespace>.svc.<zone>`.
    Services,
    /// The services of Numaflow's vertices: `<vertex>.<pipeline>.<namespace>.<zone>`.
    Vertices,
    /// Addresses.
    Reverse,
}

impl ZoneKind {
    /// Returns the labels between a namespace and its zone, in wire format.
    pub fn above_namespaces(self) -> &'static [u8] {
        match self {
            Self::Services => SVC,
            Self::Vertices | Self::Reverse => &[],
        }
    }
}

/// All zones of the server. PTR records of reverse zones point into the first zone of services.
#[derive(Debug)]
pub struct Zones {
    /// Sorted by length, the longest apex first, so that the first match is the closest zone.
    zones: Vec<Zone>,
    forward: Vec<Name>,
    vertices: Vec<Name>,
}

impl Zones {
    /// Makes zones of services and reverse zones with these apexes. Returns `None` if there is no
    /// zone of services, or if the first one is so long that the names below it do not fit.
    pub fn new(forward: Vec<Name>, reverse: &[Name], settings: &ZoneSettings) -> Option<Self> {
        let first = forward.first()?;
        let own = forward.iter().map(|apex| Zone::new(apex, apex, ZoneKind::Services, settings));
        let others = reverse.iter().map(|apex| Zone::new(apex, first, ZoneKind::Reverse, settings));
        let zones = own.chain(others).collect::<Option<_>>()?;
        Some(Self { zones, forward, vertices: Vec::new() }.sorted())
    }

    /// Adds zones of vertices with these apexes.
    #[must_use]
    pub fn with_vertices(mut self, apexes: Vec<Name>) -> Self {
        // All zones have the same settings.
        let (first, settings) = (&self.forward[0], self.zones[0].settings.clone());
        let zone = |apex| Zone::new(apex, first, ZoneKind::Vertices, &settings);
        self.zones.extend(apexes.iter().filter_map(zone));
        Self { vertices: apexes, ..self }.sorted()
    }

    fn sorted(mut self) -> Self {
        self.zones.sort_by_key(|zone| std::cmp::Reverse(zone.apex.as_wire().len()));
        self
    }

    /// Returns the names of the zones of services, in the order of `--zone`.
    pub fn forward(&self) -> &[Name] {
        &self.forward
    }

    /// Returns the names of the zones of vertices.
    pub fn vertices(&self) -> &[Name] {
        &self.vertices
    }

    /// Returns the zone with this apex, or `None` if there is no such zone.
    pub fn at(&self, apex: &Name) -> Option<&Zone> {
        self.zones.iter().find(|zone| zone.apex == *apex)
    }

    /// Returns an iterator over all zones, those with the longest names first.
    pub fn iter(&self) -> impl Iterator<Item = &Zone> {
        self.zones.iter()
    }

    /// Returns the zone with the longest apex that contains a name, or `None` if no zone does.
    pub fn find(&self, name: Labels<'_>) -> Option<&Zone> {
        self.zones.iter().find(|zone| zone.contains(name))
    }

    /// Like [`Self::find`], for a [`Name`].
    pub fn of(&self, name: &Name) -> Option<&Zone> {
        name.with_labels(|labels| self.find(labels))
    }

    /// Returns the NS records and glue for the zones directly below `zone`. A secondary that has
    /// only this zone refers clients to them (RFC 1034 §4.2.1).
    pub fn delegations(&self, zone: &Zone) -> Vec<(Name, Node)> {
        let is_above = |below: &&Zone| self.above(below).is_some_and(|above| above.apex == zone.apex);
        self.zones.iter().filter(is_above).flat_map(Zone::delegation).collect()
    }

    /// Returns the closest zone that a zone's apex lies below.
    fn above(&self, zone: &Zone) -> Option<&Zone> {
        zone.apex.with_labels(|name| {
            self.zones.iter().find(|above| above.labels < zone.labels && above.contains(name))
        })
    }
}

/// One zone that the server is authoritative for.
#[derive(Debug, Clone)]
pub struct Zone {
    apex: Name,
    labels: usize,
    kind: ZoneKind,
    name_server: Name,
    hostmaster: Name,
    settings: ZoneSettings,
}

impl Zone {
    /// Makes a zone whose name server and host master are below `home`, a zone of services.
    fn new(apex: &Name, home: &Name, kind: ZoneKind, settings: &ZoneSettings) -> Option<Self> {
        Some(Self {
            apex: apex.clone(),
            labels: label_starts(apex.as_wire()).len(),
            kind,
            name_server: home.child("dns")?.child("ns")?,
            hostmaster: home.child("hostmaster")?,
            settings: settings.clone(),
        })
    }

    /// Returns the name of the zone's apex.
    pub fn apex(&self) -> &Name {
        &self.apex
    }

    /// Returns the number of labels of the zone's name, without the root.
    pub fn labels(&self) -> usize {
        self.labels
    }

    /// Tells whether a name is in this zone or in a zone below it.
    fn contains(&self, name: Labels<'_>) -> bool {
        let below = name.count().checked_sub(self.labels);
        below.is_some_and(|below| name.from(below) == self.apex.as_wire())
    }

    /// Returns the name of a service in this zone, in wire format, given its key. The name may be
    /// too long for DNS.
    pub fn base(&self, key: &[u8]) -> Vec<u8> {
        [key, self.kind.above_namespaces(), self.apex.as_wire()].concat()
    }

    /// Returns what the zone's names stand for.
    pub fn kind(&self) -> ZoneKind {
        self.kind
    }

    /// Returns the names that exist regardless of the cluster's objects. The SOA record is not
    /// among them: it carries the current serial, so [`Zone::push_soa`] writes it for each reply.
    pub fn fixed_names(&self) -> Vec<(Name, Node)> {
        let addresses = rrset::addresses(self.settings.ttl, &self.settings.ns_addresses);
        let ns = rrset::name_server(&self.apex, self.settings.ttl, &self.name_server, &addresses);
        let mut names = vec![(self.apex.clone(), Node { rrsets: ns.into_iter().collect() })];
        // A zone of vertices has no other names of its own, since any could be that of a namespace.
        if self.kind == ZoneKind::Services {
            let version = Rrset::of(rtype::TXT, SCHEMA_VERSION_TTL, &[SCHEMA_VERSION]);
            let version = Node { rrsets: version.into_iter().collect() };
            names.extend(self.apex.child("dns-version").map(|name| (name, version)));
            names.extend(self.apex.child("svc").map(|name| (name, Node::default())));
            names.push((self.name_server.clone(), Node { rrsets: addresses }));
        }
        names
    }

    /// Returns the zone's NS records, with the addresses of its name server as glue if that is in
    /// this zone.
    fn delegation(&self) -> impl Iterator<Item = (Name, Node)> {
        self.fixed_names().into_iter().filter(|(name, _)| *name == self.apex || *name == self.name_server)
    }

    /// Appends the SOA record (RFC 1035 §3.3.13) to a reply. `qname` is the length of the
    /// question's name, which is in this zone. The record's time to live is that of negative
    /// answers (RFC 2308 §5), and so is its minimum field.
    pub fn push_soa(&self, out: &mut Vec<u8>, qname: usize, serial: u32) {
        let apex_at = HEADER + qname - self.apex.as_wire().len();
        let apex = (0xc000 | apex_at as u16).to_be_bytes(); // the question ends before byte 273
        out.extend_from_slice(&apex);
        if self.kind == ZoneKind::Services && self.apex.as_wire().len() > LONG_APEX {
            // Compressed names take on the letter case of the question, but this way the reply fits
            // every datagram. In the other zones the names are in another zone, so there is nothing
            // to point at.
            let (ns, hostmaster) = (b"\x02ns\x03dns".as_slice(), b"\x0ahostmaster".as_slice());
            self.push_soa_behind(out, [&[ns, &apex], &[hostmaster, &apex]], serial);
        } else {
            self.push_soa_body(out, serial);
        }
    }

    /// Appends the SOA record without its owner. The names in its data are not compressed.
    pub fn push_soa_body(&self, out: &mut Vec<u8>, serial: u32) {
        let (ns, hostmaster) = ([self.name_server.as_wire()], [self.hostmaster.as_wire()]);
        self.push_soa_behind(out, [&ns, &hostmaster], serial);
    }

    /// Appends the SOA record without its owner. Each of its two names comes in parts.
    fn push_soa_behind(&self, out: &mut Vec<u8>, names: [&[&[u8]]; 2], serial: u32) {
        let parts = || names.iter().copied().flatten().copied();
        let length = parts().map(<[u8]>::len).sum::<usize>() + 20;
        out.extend_from_slice(&rtype::SOA.to_be_bytes());
        out.extend_from_slice(&rtype::CLASS_IN.to_be_bytes());
        out.extend_from_slice(&self.settings.ttl.to_be_bytes());
        out.extend_from_slice(&(length as u16).to_be_bytes()); // two names of 255 bytes at most
        parts().for_each(|part| out.extend_from_slice(part));
        let [refresh, retry, expire] = TIMERS;
        for number in [serial, refresh, retry, expire, self.settings.ttl] {
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones(forward: &[&str], reverse: &[&str]) -> Zones {
        let names = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Name>>();
        let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
        Zones::new(names(forward), &names(reverse), &settings).unwrap()
    }

    fn found(zones: &Zones, name: &str) -> Option<String> {
        let name: Name = name.parse().unwrap();
        zones.of(&name).map(|zone| zone.apex().to_string())
    }

    #[test]
    fn a_name_in_nested_zones_belongs_to_the_closest_one() {
        let zones = zones(&["cluster.local", "multinet.cluster.local"], &["in-addr.arpa"]);
        assert_eq!(found(&zones, "a.multinet.cluster.local").as_deref(), Some("multinet.cluster.local."));
        assert_eq!(found(&zones, "xmultinet.cluster.local").as_deref(), Some("cluster.local."));
        assert_eq!(found(&zones, "1.10.in-addr.arpa").as_deref(), Some("in-addr.arpa."));
        assert_eq!(found(&zones, "local"), None);
    }

    #[test]
    fn a_reverse_zone_has_the_name_server_of_the_first_forward_zone() {
        let zones = zones(&["multinet.cluster.local"], &["in-addr.arpa"]);
        let zone = zones.of(&"in-addr.arpa".parse().unwrap()).unwrap();
        let names = zone.fixed_names();
        assert_eq!(names.len(), 1);
        let ns: Name = "ns.dns.multinet.cluster.local".parse().unwrap();
        assert!(names[0].1.rrsets[0].body.ends_with(ns.as_wire()));
    }

    #[test]
    fn a_zone_of_vertices_has_the_first_zones_name_server_and_no_names_of_its_own() {
        let zones = zones(&["z.test", "y.test"], &[]).with_vertices(vec!["v.z.test".parse().unwrap()]);
        let zone = zones.at(&"v.z.test".parse().unwrap()).unwrap();
        let names = zone.fixed_names();
        assert_eq!((names.len(), zone.labels()), (1, 3));
        let ns: Name = "ns.dns.z.test".parse().unwrap();
        assert!(names[0].1.rrsets[0].body.ends_with(ns.as_wire()));
        assert_eq!(found(&zones, "a.b.c.v.z.test").as_deref(), Some("v.z.test."));
        let above = zones.delegations(zones.at(&"z.test".parse().unwrap()).unwrap());
        assert_eq!(above.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>(), ["v.z.test."]);
    }

    #[test]
    fn a_zone_delegates_the_zones_directly_below_it() {
        let forward = ["z", "a.b.z", "c.a.b.z", "d.z", "xz"];
        let reverse = ["in-addr.arpa", "10.in-addr.arpa", "1.10.in-addr.arpa", "ip6.arpa"];
        let names = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Name>>();
        let settings = ZoneSettings { ttl: 5, ns_addresses: ["10.0.0.1".parse().unwrap()].into() };
        let zones = Zones::new(names(&forward), &names(&reverse), &settings).unwrap();
        for (apex, delegates) in [
            ("z", &["a.b.z.", "d.z.", "ns.dns.a.b.z.", "ns.dns.d.z."][..]),
            ("a.b.z", &["c.a.b.z.", "ns.dns.c.a.b.z."]),
            ("d.z", &[]),
            ("in-addr.arpa", &["10.in-addr.arpa."]),
            ("10.in-addr.arpa", &["1.10.in-addr.arpa."]),
            ("ip6.arpa", &[]),
        ] {
            let zone = zones.of(&apex.parse().unwrap()).unwrap();
            let delegations = zones.delegations(zone);
            assert!(delegations.iter().all(|(_, node)| node.rrsets.len() == 1), "{apex}");
            let found: BTreeSet<String> = delegations.iter().map(|(name, _)| name.to_string()).collect();
            assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), delegates, "{apex}");
        }
    }

    #[test]
    fn the_owner_of_the_soa_points_at_the_zone_in_the_question() {
        let zones = zones(&["z.test"], &[]);
        let zone = zones.of(&"z.test".parse().unwrap()).unwrap();
        let mut out = Vec::new();
        let qname: Name = "a.b.z.test".parse().unwrap();
        zone.push_soa(&mut out, qname.as_wire().len(), 7);
        assert_eq!(out[..12], [0xc0, 12 + 4, 0, 6, 0, 1, 0, 0, 0, 5, 0, out.len() as u8 - 12]);
        assert_eq!(out[out.len() - 20..out.len() - 16], [0, 0, 0, 7]);
    }
}
