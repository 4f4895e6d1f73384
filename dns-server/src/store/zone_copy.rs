//! A whole zone at one moment: as little as its records can be made of while they are sent.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use crate::store::answers::{self, Answers, SVC};
use crate::store::build::ServiceAnswers;
use crate::store::name::{Name, reverse_name};
use crate::store::publisher;
use crate::store::records::{self, Cursor, RecordWriter};
use crate::store::reverse::{ReverseName, ServiceKey};
use crate::store::rrset::{Node, Record, rtype};
use crate::sync;

/// How much is made at a time. One label's records stay together, so it may be a little more.
const BATCH: usize = 64 << 10;

/// A day in the serial's hundredths of a second.
const A_DAY: u32 = 24 * 60 * 60 * 100;

/// Which version of which zone.
#[derive(Debug, Clone)]
pub struct ZoneVersion {
    /// The zone's name.
    pub apex: Name,
    /// Its serial.
    pub serial: u32,
    /// The SOA record, names in full.
    pub soa: Vec<u8>,
}

impl ZoneVersion {
    /// Whether who has the version `known` needs nothing. Whoever has a newer one is not sent back to ours
    /// (RFC 1995 §2). It can only be a little newer, from a replica whose clock is ahead; a serial far off, such
    /// as 0, was never one of ours.
    pub fn is_known_to(&self, known: u32) -> bool {
        known.wrapping_sub(self.serial) < A_DAY
    }
}

/// A zone at one moment.
#[derive(Debug)]
pub struct ZoneCopy {
    /// Which version it is.
    pub version: ZoneVersion,
    /// Its own names, and those of the zones below it.
    fixed: Vec<(Name, Node)>,
    /// The services, sorted, and the rest of their names.
    services: Vec<(ServiceKey, Arc<ServiceAnswers>)>,
    home: Name,
    /// What a reverse zone holds instead of them.
    reverse: Option<ReverseAddresses>,
}

/// The addresses of a reverse zone.
#[derive(Debug)]
struct ReverseAddresses {
    answers: Arc<Answers>,
    /// Each with the places of the services that publish it, ascending. There are as many as endpoints, so they are
    /// gathered when they are first sent, and not while others wait.
    pairs: OnceLock<Vec<(IpAddr, u32)>>,
}

impl ZoneCopy {
    /// What the zone of `version` holds if there are these services; none for what is no zone.
    pub fn new(
        version: ZoneVersion,
        mut services: Vec<(ServiceKey, Arc<ServiceAnswers>)>,
        answers: &Arc<Answers>,
    ) -> Option<Self> {
        // The oldest first, as the names of an address are.
        services.sort_unstable_by(|(one, a), (two, b)| (a.created, one).cmp(&(b.created, two)));
        let zones = answers.zones();
        let zone = zones.iter().find(|zone| *zone.apex() == version.apex)?;
        let home = if zone.is_forward() { zone.apex() } else { &zones.forward()[0] };
        let reverse = || ReverseAddresses { answers: Arc::clone(answers), pairs: OnceLock::new() };
        Some(Self {
            fixed: [zone.fixed_names(), zones.delegations(zone)].concat(),
            services,
            home: home.clone(),
            reverse: (!zone.is_forward()).then(reverse),
            version,
        })
    }

    /// Every address in the zone with the place of each service that publishes it, ascending.
    fn pairs(&self, answers: &Answers) -> Vec<(IpAddr, u32)> {
        let Some(own) = self.version.apex.with_labels(ReverseName::of) else { return Vec::new() };
        let is_own = |address: &IpAddr| answers.reverse_zone_of(address) == Some(&own);
        let mut pairs = Vec::new();
        for (place, (key, service)) in (0u32..).zip(&self.services) {
            let addresses =
                publisher::pointers(key, service, self.home.as_wire()).map(|(address, _)| address);
            pairs.extend(addresses.filter(is_own).map(|address| (address, place)));
        }
        pairs.sort_unstable();
        pairs
    }

    /// The PTR records of one address, which these services publish.
    fn push_pointers(&self, pairs: &[(IpAddr, u32)], out: &mut Vec<u8>) {
        let Some(&(address, _)) = pairs.first() else { return };
        let services = pairs.iter().map(|&(_, place)| &self.services[place as usize]);
        let services = services.map(|(key, service)| (key, &**service));
        let Some((ttl, targets)) = answers::pointers(address, services, self.home.as_wire()) else { return };
        let owner = reverse_name(address);
        for target in targets {
            let (owner, data) = (owner.as_wire(), &target.concat());
            records::push(out, Record { owner, rtype: rtype::PTR, ttl, data });
        }
    }
}

/// Makes the records of a zone, some at a time, and remembers no more than where it is.
#[derive(Debug)]
pub(crate) struct Batches {
    copy: Arc<ZoneCopy>,
    is_begun: bool,
    /// Of a service, or of an address.
    position: usize,
    /// Within the service.
    cursor: Cursor,
}

impl Batches {
    pub(crate) fn new(copy: Arc<ZoneCopy>) -> Self {
        Self { copy, is_begun: false, position: 0, cursor: Cursor::default() }
    }

    /// Appends the next records of a service, as many as fit a batch.
    fn push_service(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let copy = &self.copy;
        let (key, service) = copy.services.get(self.position)?;
        let base = [key, SVC, copy.home.as_wire()].concat();
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

    /// Appends the records of the next address.
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

    /// Records in wire format, one behind the other.
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

    use super::*;
    use crate::store::build;
    use crate::store::endpoints::Endpoint;
    use crate::store::index::ServiceView;
    use crate::store::journal;
    use crate::store::reverse::MAX_POINTERS;
    use crate::store::slice::{Port, ProtocolLabel, Slice};
    use crate::store::zone::{ZoneSettings, Zones};

    /// A service with many endpoints, and what it is called.
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
            ports: [Port { name: "p".into(), protocol: ProtocolLabel::Tcp, number: 7 }].into(),
            endpoints: endpoints.collect(),
            ..Slice::default()
        });
        let built =
            build::build(&ServiceView { ttl: 5, slices: vec![&slice], ..ServiceView::default() }).unwrap();
        let wire = build::wire_label(name).unwrap().iter().chain(b"\x01n").copied().collect();
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

    /// How many records there are; none is there twice.
    fn count(batches: &[Vec<u8>]) -> usize {
        let records: Vec<&[u8]> = batches.iter().flat_map(|batch| journal::split_records(batch)).collect();
        assert_eq!(records.iter().collect::<HashSet<_>>().len(), records.len());
        records.len()
    }

    #[test]
    fn a_large_service_comes_in_batches() {
        let batches = batches("z", vec![service("b", 3000), service("a", 1), service("c", 0x1_0000 / 40)]);
        // No item here has as much as 200 bytes.
        let (last, full) = batches.split_last().unwrap();
        assert!(full.len() > 10 && last.len() <= BATCH + 200);
        assert!(full.iter().all(|batch| (BATCH..BATCH + 200).contains(&batch.len())));
        // At the service and at its network A and SRV, SRV at the port, A and TXT of each host; NS and the version.
        assert_eq!(count(&batches), (3000 + 1 + 0x1_0000 / 40) * 10 + 2);
    }

    #[test]
    fn an_address_stands_in_the_closest_zone() {
        // 10.0.0.0 and 256 addresses further on 10.0.1.0, which both services have.
        let services = || vec![service("a", 300), service("b", 257)];
        // The NS records are its own and that of the zone below it.
        assert_eq!(count(&batches("in-addr.arpa", services())), 256 + 256 + 2);
        assert_eq!(count(&batches("1.0.10.in-addr.arpa", services())), 44 + 1 + 1);
    }

    #[test]
    fn an_address_has_no_more_names_than_are_answered() {
        let services = (0..20).map(|number| service(&format!("s{number}"), 1)).collect();
        // Beside the NS records of the zone and of the one below it.
        assert_eq!(count(&batches("in-addr.arpa", services)), MAX_POINTERS + 2);
    }
}
