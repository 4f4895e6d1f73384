//! Writes the records of an answer behind the question, within the room that there is.
//!
//! ```text
//!  reply  = header │ question │ answer                 │ glue                      │ OPT
//!           12     │ copied   │ copied, or made of     │ whole RRsets, as many     │ not here
//!                    ▲          labels and addresses   │ as fit; owner = pointer
//!                    └────────  owner = 0xC00C         │ to the SRV target
//! ```
//!
//! Address records are copied as they lie. Records with names in them are put together from the label of the
//! endpoint and the end of the name in the question: what a service says is the same in every zone and for
//! every network, so it is in memory once.
//!
//! **What does not fit**: a datagram has the TC bit, with as many address records as there is room for and none of
//! other types, whose order may matter. A stream has no better way to offer, so its answer is a subset: as many whole
//! records as 64 KiB hold, from one on that turns like the first of address records do.

use std::net::IpAddr;
use std::sync::Arc;

use crate::store::build::ServiceAnswers;
use crate::store::group::{EndpointRef, Group, SrvRecord, SrvRecords};
use crate::store::lookup::{Found, PORT_LABELS};
use crate::store::name::{Labels, MAX_NAME};
use crate::store::rrset::{self, A_LEN, AAAA_LEN, QUESTION_POINTER, RECORD_FIXED, Rrset, rtype};
use crate::store::slice::Slice;

/// Data of the HINFO record that answers ANY: the CPU names the RFC, the operating system is empty.
const ANY: &[u8] = b"\x07RFC8482\0";

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Records of the answer.
    pub answers: u16,
    /// Additional records.
    pub additionals: u16,
    /// Whether the answer is all that there is.
    pub fit: Fit,
}

/// How an answer fits its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It is there as a whole.
    Whole,
    /// There is more, over TCP.
    Truncated,
    /// There is more than any message holds.
    Subset,
}

/// A message whose answer is being written.
#[derive(Debug)]
pub struct Composer<'o> {
    /// What is written to.
    pub out: &'o mut Vec<u8>,
    /// Where the message begins in it.
    pub start: usize,
    /// The offset in `out` that records may not pass.
    pub end: usize,
    /// Any number that differs from query to query, if the order is to change with it.
    pub turn: Option<u32>,
    /// Whether the message goes over UDP.
    pub datagram: bool,
}

impl Composer<'_> {
    /// A set that is there as it is to be sent.
    pub fn rrset(&mut self, rrset: &Rrset) -> Written {
        let mut written = match rrset.stride {
            Some(stride) => self.addresses(&rrset.body, stride),
            None => self.records(1, |out, _| out.extend_from_slice(&rrset.body)),
        };
        if written.fit == Fit::Whole {
            written.answers = rrset.records as u16;
            for glue in &rrset.glue {
                if self.out.len() + glue.bytes.len() > self.end {
                    break;
                }
                self.out.extend_from_slice(&glue.bytes);
                written.additionals += glue.records;
            }
        }
        written
    }

    /// A group's A or AAAA records.
    pub fn group_addresses(&mut self, group: &Group, qtype: u16) -> Option<Written> {
        let (body, stride) = match qtype {
            rtype::A => (&group.a, A_LEN),
            rtype::AAAA => (&group.aaaa, AAAA_LEN),
            _ => return None,
        };
        (!body.is_empty()).then(|| self.addresses(body, stride))
    }

    /// Address records of `stride` bytes each.
    fn addresses(&mut self, body: &[u8], stride: usize) -> Written {
        let free = self.end.saturating_sub(self.out.len());
        let all = body.len() / stride;
        let fitting = all.min(free / stride);
        let first = self.first(all) * stride;
        let tail = (body.len() - first).min(fitting * stride);
        self.out.extend_from_slice(&body[first..first + tail]);
        self.out.extend_from_slice(&body[..fitting * stride - tail]);
        self.written(fitting, fitting == all)
    }

    /// The addresses of one host: a few of the group's endpoints.
    pub fn host_addresses(
        &mut self,
        service: &ServiceAnswers,
        hosts: &[EndpointRef],
        qtype: u16,
    ) -> Option<Written> {
        let slices = &service.slices;
        let hosts = match qtype {
            rtype::A => of_family(slices, hosts, true),
            rtype::AAAA => of_family(slices, hosts, false),
            _ => &[],
        };
        if hosts.is_empty() {
            return None;
        }
        // Not amid the endpoints of one address, which has to come once.
        let address = |position: usize| hosts[position].endpoint(slices).address;
        let mut first = self.first(hosts.len());
        while first > 0 && address(first - 1) == address(first) {
            first -= 1;
        }
        let (rest, from) = hosts.split_at(first);
        let mut count = 0;
        for address in addresses_of(slices, from).chain(addresses_of(slices, rest)) {
            let before = self.out.len();
            push_address(self.out, &QUESTION_POINTER, service.ttl, address);
            if self.out.len() > self.end {
                self.out.truncate(before);
                return Some(self.written(count, false));
            }
            count += 1;
        }
        Some(self.written(count, true))
    }

    /// What is known of each endpoint of one host.
    pub fn texts(&mut self, service: &ServiceAnswers, hosts: &[EndpointRef]) -> Written {
        self.records(hosts.len(), |out, position| {
            let txt = hosts[position].endpoint(&service.slices).txt;
            rrset::push_record(out, &QUESTION_POINTER, rtype::TXT, service.ttl, txt);
        })
    }

    /// SRV records with their targets' addresses as glue. The targets are below `base`; they are not compressed:
    /// RFC 2782 forbids it. Their glue points at the first mention. None where no target's name is short enough.
    pub fn services(
        &mut self,
        service: &ServiceAnswers,
        group: &Group,
        srv: SrvRecords<'_>,
        base: &[u8],
    ) -> Option<Written> {
        let begin = self.out.len();
        let mut written = self.records(srv.slots(), |out, place| {
            if let Some(record) = srv.get(place)
                && let Some(label) = target(group, &service.slices, &record, base)
            {
                push_service(out, service.ttl, &record, label, base);
            }
        });
        if written.fit == Fit::Whole {
            written.additionals = self.glue(service, group, srv, base, begin);
        }
        (written.answers > 0 || written.fit != Fit::Whole).then_some(written)
    }

    /// The targets' addresses, of each target once, in whole RRsets; how many records.
    fn glue(
        &mut self,
        service: &ServiceAnswers,
        group: &Group,
        srv: SrvRecords<'_>,
        base: &[u8],
        begin: usize,
    ) -> u16 {
        let mut records = 0;
        let mut target_at = begin - self.start + RECORD_FIXED + SrvRecord::FIXED;
        let mut last = None;
        for record in srv.iter() {
            let Some(label) = target(group, &service.slices, &record, base) else { continue };
            let pointer = rrset::pointer(target_at);
            target_at += RECORD_FIXED + SrvRecord::FIXED + label.len() + base.len();
            if last.replace(record.host()) == Some(record.host()) {
                continue;
            }
            let hosts = group.hosts_from(&service.slices, record.host());
            for wants_ipv4 in [true, false] {
                let addresses = addresses_of(&service.slices, of_family(&service.slices, hosts, wants_ipv4));
                let written = self.whole_set(addresses, |out, address| match &pointer {
                    Some(pointer) => push_address(out, pointer, service.ttl, address),
                    None => {
                        out.extend_from_slice(label);
                        push_address(out, base, service.ttl, address);
                    }
                });
                let Some(count) = written else { return records };
                records += count;
            }
        }
        records
    }

    /// Writes a set of addresses if it fits: how many they are.
    fn whole_set(
        &mut self,
        addresses: impl Iterator<Item = IpAddr>,
        write: impl Fn(&mut Vec<u8>, IpAddr),
    ) -> Option<u16> {
        let before = self.out.len();
        let mut count = 0;
        for address in addresses {
            write(self.out, address);
            // A set may be far larger than any message: it is left at the first record that is too much.
            if self.out.len() > self.end {
                self.out.truncate(before);
                return None;
            }
            count += 1;
        }
        Some(count)
    }

    /// The one record that stands for all that a name owns (RFC 8482 §4.2).
    pub fn any(&mut self, ttl: u32) -> Written {
        self.records(1, |out, _| rrset::push_record(out, &QUESTION_POINTER, rtype::HINFO, ttl, ANY))
    }

    /// PTR records, each with a name in parts.
    pub fn pointers(&mut self, ttl: u32, targets: &[[&[u8]; 4]]) -> Written {
        self.records(targets.len(), |out, position| {
            let parts = &targets[position];
            rrset::push_record_header(
                out,
                &QUESTION_POINTER,
                rtype::PTR,
                ttl,
                parts.iter().map(|part| part.len()).sum(),
            );
            parts.iter().for_each(|part| out.extend_from_slice(part));
        })
    }

    /// `count` records of any length, in their order; `write` may leave one out.
    fn records(&mut self, count: usize, write: impl Fn(&mut Vec<u8>, usize)) -> Written {
        let begin = self.out.len();
        let (answers, fits) = self.fill(0..count, &write);
        if fits {
            return Written { answers, additionals: 0, fit: Fit::Whole };
        }
        self.out.truncate(begin);
        if self.datagram {
            return Written { answers: 0, additionals: 0, fit: Fit::Truncated };
        }
        let first = self.first(count);
        let (answers, _) = self.fill((first..count).chain(0..first), &write);
        Written { answers, additionals: 0, fit: Fit::Subset }
    }

    /// Writes records until one does not fit: how many, and whether all did.
    fn fill(
        &mut self,
        positions: impl Iterator<Item = usize>,
        write: &impl Fn(&mut Vec<u8>, usize),
    ) -> (u16, bool) {
        let mut answers = 0;
        for position in positions {
            let before = self.out.len();
            write(self.out, position);
            if self.out.len() > self.end {
                self.out.truncate(before);
                return (answers, false);
            }
            answers += u16::from(self.out.len() > before);
        }
        (answers, true)
    }

    fn written(&self, fitting: usize, are_all: bool) -> Written {
        let fit = match (are_all, self.datagram) {
            (true, _) => Fit::Whole,
            (false, true) => Fit::Truncated,
            (false, false) => Fit::Subset,
        };
        Written { answers: fitting as u16, additionals: 0, fit } // bounded by the size of a message
    }

    /// Where a set of records begins at this turn.
    fn first(&self, records: usize) -> usize {
        self.turn.map_or(0, |turn| rotation_start(turn, records))
    }
}

/// Those endpoints of one label that have an address of a family; they are sorted by address, IPv4 first.
fn of_family<'a>(slices: &[Arc<Slice>], hosts: &'a [EndpointRef], wants_ipv4: bool) -> &'a [EndpointRef] {
    let (v4, v6) = hosts.split_at(hosts.partition_point(|host| host.endpoint(slices).address.is_ipv4()));
    if wants_ipv4 { v4 } else { v6 }
}

/// The addresses of some endpoints of one label, ascending, each once.
fn addresses_of<'a>(
    slices: &'a [Arc<Slice>],
    hosts: &'a [EndpointRef],
) -> impl Iterator<Item = IpAddr> + use<'a> {
    let address = |position: usize| hosts[position].endpoint(slices).address;
    (0..hosts.len())
        .filter(move |&position| position == 0 || address(position - 1) != address(position))
        .map(address)
}

/// The label of an SRV record's target; none where the target's name would be too long.
fn target<'a>(group: &Group, slices: &'a [Arc<Slice>], record: &SrvRecord, base: &[u8]) -> Option<&'a [u8]> {
    let label = group.label_at(slices, record.host());
    (label.len() + base.len() <= MAX_NAME).then_some(label)
}

fn push_service(out: &mut Vec<u8>, ttl: u32, record: &SrvRecord, label: &[u8], base: &[u8]) {
    rrset::push_record_header(
        out,
        &QUESTION_POINTER,
        rtype::SRV,
        ttl,
        SrvRecord::FIXED + label.len() + base.len(),
    );
    record.push_data(out, label, base);
}

/// Appends an A or AAAA record.
pub fn push_address(out: &mut Vec<u8>, owner: &[u8], ttl: u32, address: IpAddr) {
    match address {
        IpAddr::V4(address) => rrset::push_record(out, owner, rtype::A, ttl, &address.octets()),
        IpAddr::V6(address) => rrset::push_record(out, owner, rtype::AAAA, ttl, &address.octets()),
    }
}

/// Where a set of `records` begins at the given turn. Multiples of the golden ratio visit all places
/// evenly, also when a client's queries take every second turn only (an A and an AAAA each time).
fn rotation_start(turn: u32, records: usize) -> usize {
    let fraction = u64::from(turn.wrapping_mul(0x9e37_79b9));
    ((fraction * records as u64) >> 32) as usize
}

impl Found<'_> {
    /// Writes the name's records of a type; none where it has none. `name` is the one that was looked up.
    pub fn answer(&self, qtype: u16, name: Labels<'_>, composer: &mut Composer<'_>) -> Option<Written> {
        match *self {
            _ if qtype == rtype::ANY => Some(composer.any(self.ttl()?)),
            Self::Nothing | Self::Empty => None,
            Self::Node(node) => Some(composer.rrset(node.rrset(qtype)?)),
            Self::Base(service, group) if qtype == rtype::SRV => {
                composer.services(service, group, group.all_srv(), name.wire())
            }
            Self::Zone(service, group, below) if qtype == rtype::SRV => {
                composer.services(service, group, group.all_srv(), name.from(below))
            }
            Self::Base(_, group) | Self::Zone(_, group, _) => composer.group_addresses(group, qtype),
            Self::Host(service, hosts) if qtype == rtype::TXT => Some(composer.texts(service, hosts)),
            Self::Host(service, hosts) => composer.host_addresses(service, hosts, qtype),
            Self::Port(service, group, port) if qtype == rtype::SRV => {
                composer.services(service, group, group.srv(port), name.from(PORT_LABELS))
            }
            Self::Port(..) => None,
            Self::Pointers(ttl, targets) => (qtype == rtype::PTR).then(|| composer.pointers(ttl, targets)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::build;
    use crate::store::endpoints::Endpoint;
    use crate::store::index::ServiceView;
    use crate::store::slice::{Port, ProtocolLabel};

    /// A service of one host with so many addresses, all of them in each of some networks.
    fn one_host(addresses: u32, networks: &[&str]) -> ServiceAnswers {
        let endpoints = (0..addresses).map(|number| Endpoint {
            address: std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into(),
            host: "h",
            named: true,
            txt: b"\x01x",
        });
        let slices: Vec<_> = networks
            .iter()
            .map(|&network| {
                Arc::new(Slice {
                    network: network.into(),
                    ports: [Port { name: "p".into(), protocol: ProtocolLabel::Tcp, number: 7 }].into(),
                    endpoints: endpoints.clone().collect(),
                    ..Slice::default()
                })
            })
            .collect();
        build::build(&ServiceView { ttl: 5, slices: slices.iter().collect(), ..ServiceView::default() })
            .unwrap()
    }

    #[test]
    fn no_more_is_written_than_a_record_behind_the_end() {
        let service = one_host(10_000, &["r"]);
        let mut out = Vec::with_capacity(1232 + A_LEN);
        let capacity = out.capacity();
        let mut composer = Composer { out: &mut out, start: 0, end: 1232, turn: None, datagram: true };
        let written = composer.services(&service, &service.all, service.all.all_srv(), b"\x01s\0");
        assert_eq!(written, Some(Written { answers: 1, additionals: 0, fit: Fit::Whole }));
        let written = composer.host_addresses(&service, service.all.hosts_from(&service.slices, 0), rtype::A);
        assert_eq!(written.unwrap().fit, Fit::Truncated);
        assert_eq!(out.capacity(), capacity, "more was written than there is room for");
    }

    #[test]
    fn an_address_comes_once_wherever_the_answer_begins() {
        let service = one_host(5, &["r", "s", "t"]);
        let hosts = service.all.hosts_from(&service.slices, 0);
        assert_eq!(hosts.len(), 15);
        let mut firsts = std::collections::BTreeSet::new();
        for turn in 0..100 {
            let mut out = Vec::new();
            let mut composer =
                Composer { out: &mut out, start: 0, end: 1232, turn: Some(turn), datagram: true };
            let written = composer.host_addresses(&service, hosts, rtype::A).unwrap();
            assert_eq!((written.answers, written.fit), (5, Fit::Whole));
            let records: std::collections::BTreeSet<&[u8]> = out.chunks(A_LEN).collect();
            assert_eq!(records.len(), 5, "an address twice");
            firsts.insert(out[..A_LEN].to_vec());
        }
        assert_eq!(firsts.len(), 5, "an address that never comes first");
    }

    #[test]
    fn rotation_visits_every_place_also_at_every_second_turn() {
        for records in 1..50 {
            for step in 1..4 {
                let places: std::collections::BTreeSet<usize> =
                    (0..4 * records as u32).map(|turn| rotation_start(turn * step, records)).collect();
                assert_eq!(places.len(), records, "{records} records, step {step}");
            }
        }
    }
}
