//! A consistent copy of a whole zone for a transfer. It holds references to answers, from which
//! records are made while they are sent.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use crate::store::answers::{self, Answers};
use crate::store::build::ServiceAnswers;
use crate::store::name::{Name, reverse_name};
use crate::store::publisher;
use crate::store::records::{self, Cursor, RecordWriter};
use crate::store::reverse::{ReverseName, ServiceKey};
use crate::store::rrset::{Node, Record, rtype};
use crate::store::zone::ZoneKind;
use crate::sync;

/// Size of a batch of records in bytes. The records of one label stay together, so a batch may be
/// slightly larger.
const BATCH: usize = 64 << 10;

/// A day, in the hundredths of a second that serials count.
const A_DAY: u32 = 24 * 60 * 60 * 100;

/// Identifies one version of a zone, with its SOA record.
#[derive(Debug, Clone)]
pub struct ZoneVersion {
    /// Name of the zone's apex.
    pub apex: Name,
    /// Serial of this version.
    pub serial: u32,
    /// SOA record of this version in wire format, with uncompressed names.
    pub soa: Vec<u8>,
}

impl ZoneVersion {
    /// Tells whether a secondary with the serial `known` is up to date. A secondary with a newer
    /// serial is not sent back to ours (RFC 1995 §2). Its serial can only be slightly newer, from a
    /// replica whose clock is ahead. A serial that is far off, such as 0, was never one of ours.
    pub fn is_known_to(&self, known: u32) -> bool {
        known.wrapping_sub(self.serial) < A_DAY
    }
}

/// A consistent copy of all records of a zone, for a zone transfer.
#[derive(Debug)]
pub struct ZoneCopy {
    /// Version of the zone that was copied.
    pub version: ZoneVersion,
    /// Nodes of the zone's own names, and delegations of the zones below it.
    fixed: Vec<(Name, Node)>,
    /// All services, sorted by age and key. Their names are the keys with `above`, then `home`.
    services: Vec<(ServiceKey, Arc<ServiceAnswers>)>,
    above: &'static [u8],
    home: Name,
    /// Addresses with PTR records. `None` in a forward zone.
    reverse: Option<ReverseAddresses>,
}

/// Addresses in a reverse zone, which are gathered once records are needed.
#[derive(Debug)]
struct ReverseAddresses {
    answers: Arc<Answers>,
    /// Pairs of an address and the index of a service that publishes it, sorted. There are as many
    /// as endpoints, so they are gathered when the first batch is made, and not under the state's
    /// lock.
    pairs: OnceLock<Vec<(IpAddr, u32)>>,
}

impl ZoneCopy {
    /// Makes a copy of the zone of `version`, given all services of its kind. Returns `None` if
    /// there is no such zone.
    pub fn new(
        version: ZoneVersion,
        mut services: Vec<(ServiceKey, Arc<ServiceAnswers>)>,
        answers: &Arc<Answers>,
    ) -> Option<Self> {
        // Oldest first, as in PTR records.
        services.sort_unstable_by(|(one, a), (two, b)| (a.created, one).cmp(&(b.created, two)));
        let zones = answers.zones();
        let zone = zones.at(&version.apex)?;
        let is_reverse = zone.kind() == ZoneKind::Reverse;
        let home = if is_reverse { &zones.forward()[0] } else { zone.apex() };
        let reverse = || ReverseAddresses { answers: Arc::clone(answers), pairs: OnceLock::new() };
        Some(Self {
            fixed: [zone.fixed_names(), zones.delegations(zone)].concat(),
            services,
            above: zone.kind().above_namespaces(),
            home: home.clone(),
            reverse: is_reverse.then(reverse),
            version,
        })
    }

    /// Returns pairs of each address in the zone and the index of each service that publishes it,
    /// sorted.
    fn pairs(&self, answers: &Answers) -> Vec<(IpAddr, u32)> {
        let Some(own) = self.version.apex.with_labels(ReverseName::of) else { return Vec::new() };
        let is_own = |address: &IpAddr| answers.reverse_zone_of(address) == Some(&own);
        let mut pairs = Vec::new();
        for (index, (key, service)) in (0u32..).zip(&self.services) {
            let addresses =
                publisher::pointers(key, service, self.home.as_wire()).map(|(address, _)| address);
            pairs.extend(addresses.filter(is_own).map(|address| (address, index)));
        }
        pairs.sort_unstable();
        pairs
    }

    /// Appends the PTR records of one address. `pairs` are the address with each of its services.
    fn push_pointers(&self, pairs: &[(IpAddr, u32)], out: &mut Vec<u8>) {
        let Some(&(address, _)) = pairs.first() else { return };
        let services = pairs.iter().map(|&(_, index)| &self.services[index as usize]);
        let services = services.map(|(key, service)| (key, &**service));
        let Some((ttl, targets)) = answers::pointers(address, services, self.home.as_wire()) else { return };
        let owner = reverse_name(address);
        for target in targets {
            let (owner, data) = (owner.as_wire(), &target.concat());
            records::push(out, Record { owner, rtype: rtype::PTR, ttl, data });
        }
    }
}

/// Iterator over the records of a zone, in batches. It stores only its position.
#[derive(Debug)]
pub(crate) struct Batches {
    copy: Arc<ZoneCopy>,
    is_begun: bool,
    /// Index of the current service, or in a reverse zone of the current pair.
    position: usize,
    /// Position within the records of the current service.
    cursor: Cursor,
}

impl Batches {
    pub(crate) fn new(copy: Arc<ZoneCopy>) -> Self {
        Self { copy, is_begun: false, position: 0, cursor: Cursor::default() }
    }

    /// Appends records of the current service until the batch is full. Returns `None` after the
    /// last service.
    fn push_service(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let copy = &self.copy;
        let (key, service) = copy.services.get(self.position)?;
        let base = [key, copy.above, copy.home.as_wire()].concat();
        let mut writer = RecordWriter::new(&base);
        while out.len() < BATCH {
            let Some(item) = records::next_item(service, &mut self.cursor) else {
                (self.position, self.cursor) = (self.position + 1, Cursor::default());
                break;
            };
            writer.records(&item, &mut |record| records::push(out, record));
        }
        Some(())
    }

    /// Appends the PTR records of the next address. Returns `None` after the last one.
    fn push_address(&mut self, pointers: &[(IpAddr, u32)], out: &mut Vec<u8>) -> Option<()> {
        let rest = pointers.get(self.position..)?;
        let same = rest.chunk_by(|(one, _), (two, _)| one == two).next()?;
        self.copy.push_pointers(same, out);
        self.position += same.len();
        Some(())
    }
}

impl Iterator for Batches {
    type Item = Vec<u8>;

    /// Returns the next batch of records in wire format, one behind the other.
    fn next(&mut self) -> Option<Vec<u8>> {
        let copy = Arc::clone(&self.copy);
        let mut out = Vec::with_capacity(BATCH);
        if !std::mem::replace(&mut self.is_begun, true) {
            let own = copy.fixed.iter().flat_map(|(name, node)| node.records(name));
            own.for_each(|record| records::push(&mut out, record));
        }
        let pairs = copy.reverse.as_ref().map(|reverse| {
            let gather = || reverse.pairs.get_or_init(|| copy.pairs(&reverse.answers));
            reverse.pairs.get().unwrap_or_else(|| sync::block_in_place(gather))
        });
        while out.len() < BATCH {
            let more = match pairs {
                Some(pairs) => self.push_address(pairs, &mut out),
                None => self.push_service(&mut out),
            };
            if more.is_none() {
                break;
            }
        }
        (!out.is_empty()).then_some(out)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};
    use std::net::Ipv4Addr;

    use multinet_crds::Protocol;

    use super::*;
    use crate::limits::answers::MAX_POINTERS;
    use crate::store::build;
    use crate::store::endpoints::Endpoint;
    use crate::store::index::ServiceView;
    use crate::store::journal;
    use crate::store::name::wire_label;
    use crate::store::slice::{Port, Slice};
    use crate::store::zone::{ZoneSettings, Zones};

    /// Makes a service with many endpoints, and its key.
    fn service(name: &str, endpoints: u32) -> (ServiceKey, Arc<ServiceAnswers>) {
        let hosts: Vec<(Ipv4Addr, String)> = (0..endpoints)
            .map(|number| (Ipv4Addr::from_bits(0x0a00_0000 | number), format!("host-{number}")))
            .collect();
        let endpoints = hosts.iter().map(|(address, host)| Endpoint {
            address: (*address).into(),
            host,
            named: true,
            txt: b"\x01x",
        });
        let slice = Arc::new(Slice {
            network: "r".into(),
            ports: [Port { name: "p".into(), protocol: Protocol::Tcp, number: 7 }].into(),
            endpoints: endpoints.collect(),
            ..Slice::default()
        });
        let built =
            build::build(&ServiceView { ttl: 5, slices: vec![&slice], ..ServiceView::default() }).unwrap();
        let wire = wire_label(name).unwrap().iter().chain(b"\x01n").copied().collect();
        (wire, Arc::new(built))
    }

    fn batches(apex: &str, services: Vec<(ServiceKey, Arc<ServiceAnswers>)>) -> Vec<Vec<u8>> {
        let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
        let name = |text: &str| text.parse::<Name>().unwrap();
        let reverse = ["in-addr.arpa", "1.0.10.in-addr.arpa"].map(name);
        let zones = Zones::new(vec![name("z")], &reverse, &settings).unwrap();
        let answers = Arc::new(Answers::new(zones, 1));
        let version = ZoneVersion { apex: name(apex), serial: 1, soa: Vec::new() };
        Batches::new(Arc::new(ZoneCopy::new(version, services, &answers).unwrap())).collect()
    }

    /// Returns the number of records. Panics if a record occurs twice.
    fn count(batches: &[Vec<u8>]) -> usize {
        let records: Vec<&[u8]> = batches.iter().flat_map(|batch| journal::split_records(batch)).collect();
        assert_eq!(records.iter().collect::<HashSet<_>>().len(), records.len());
        records.len()
    }

    #[test]
    fn a_large_service_is_split_into_batches() {
        let batches = batches("z", vec![service("b", 3000), service("a", 1), service("c", 0x1_0000 / 40)]);
        // Every item here has less than 200 bytes.
        let (last, full) = batches.split_last().unwrap();
        assert!(full.len() > 10 && last.len() <= BATCH + 200);
        assert!(full.iter().all(|batch| (BATCH..BATCH + 200).contains(&batch.len())));
        // Ten records per endpoint: one A and one SRV record at the service and at its network, an
        // SRV record at the port of both, and an A and a TXT record of both hosts. Then the NS
        // record and the schema version.
        assert_eq!(count(&batches), (3000 + 1 + 0x1_0000 / 40) * 10 + 2);
    }

    #[test]
    fn an_address_is_in_the_closest_zone_only() {
        // The zone above has 10.0.0.0/24, the zone below the addresses from 10.0.1.0 on, which both
        // services have.
        let services = || vec![service("a", 300), service("b", 257)];
        // The NS records are those of the zone itself and of the zone below it.
        assert_eq!(count(&batches("in-addr.arpa", services())), 256 + 256 + 2);
        assert_eq!(count(&batches("1.0.10.in-addr.arpa", services())), 44 + 1 + 1);
    }

    #[test]
    fn an_address_has_no_more_ptr_records_than_in_answers() {
        let services = (0..20).map(|number| service(&format!("s{number}"), 1)).collect();
        // The other two are the NS records of the zone and of the one below it.
        assert_eq!(count(&batches("in-addr.arpa", services)), MAX_POINTERS + 2);
    }
}
