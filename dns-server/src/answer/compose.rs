//! Writes the records of an answer behind the question, within the room of the message.
//!
//! ```text
//!  reply  = header │ question │ answer                 │ glue                      │ OPT
//!           12     │ copied   │ copied, or made of     │ whole RRsets, as many     │ see edns.rs
//!                    ▲          labels and addresses   │ as fit; owner = pointer
//!                    └────────  owner = 0xC00C         │ to the SRV target
//! ```
//!
//! Address records are copied from the group. Records that contain names are assembled from the
//! endpoint's label and the end of the name in the question, so that one copy of a service's
//! answers serves all zones and networks.
//!
//! **Truncation.** A datagram that cannot hold the answer gets the TC bit, with as many address
//! records as fit, and no records of other types, whose order may matter. Over a stream, a client
//! has no better way to ask. So its answer is a subset: as many whole records as fit 64 KiB,
//! starting at a record that rotates like the first address record does.

use std::net::IpAddr;

use crate::store::group::{GroupView, Hosts, SrvRecord, SrvRecords};
use crate::store::lookup::LookupResult;
use crate::store::name::{Labels, MAX_NAME};
use crate::store::rrset::{self, QUESTION_POINTER, RECORD_FIXED, Rrset, rtype};
use crate::store::schema::RecordSet;

/// Data of the HINFO record that answers ANY queries: the CPU field names the RFC, the operating
/// system is empty.
const ANY: &[u8] = b"\x07RFC8482\0";

/// Counts of the records that were written into a reply, and how much of the answer they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenAnswer {
    /// Number of records in the answer section.
    pub answers: u16,
    /// Number of records in the additional section: the glue.
    pub additionals: u16,
    /// Whether the message holds the whole answer or a part of it.
    pub fit: Fit,
}

/// How much of an answer a message holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// All records of the answer.
    Whole,
    /// A part of the answer. The reply's TC bit tells the client to ask again over TCP.
    Truncated,
    /// A part of the answer, over a stream, because no message can hold all of it.
    Subset,
}

/// Writer of the records of one reply: the answer section and its glue.
#[derive(Debug)]
pub struct Composer<'o> {
    /// Buffer that the reply is written to, behind its header and question.
    pub out: &'o mut Vec<u8>,
    /// Offset in `out` at which the reply's header begins.
    pub start: usize,
    /// Offset in `out` behind which no record may reach.
    pub end: usize,
    /// Number that differs from query to query, from which the first record is chosen. `None` if
    /// the order is fixed.
    pub turn: Option<u32>,
    /// `true` if the reply is sent over UDP, where an answer that does not fit is truncated.
    pub datagram: bool,
}

impl Composer<'_> {
    /// Writes an RRset into the answer section and, if it fits, its glue.
    pub fn rrset(&mut self, rrset: &Rrset) -> WrittenAnswer {
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

    /// Writes address records of `stride` bytes each, as many as fit.
    fn addresses(&mut self, body: &[u8], stride: usize) -> WrittenAnswer {
        let free = self.end.saturating_sub(self.out.len());
        let all = body.len() / stride;
        let fitting = all.min(free / stride);
        let first = self.first(all) * stride;
        let tail = (body.len() - first).min(fitting * stride);
        self.out.extend_from_slice(&body[first..first + tail]);
        self.out.extend_from_slice(&body[..fitting * stride - tail]);
        self.written(fitting, fitting == all)
    }

    /// Writes the addresses of one host, all of one family. Returns `None` if there are none.
    fn host_addresses(&mut self, ttl: u32, hosts: Hosts<'_>) -> Option<WrittenAnswer> {
        if hosts.is_empty() {
            return None;
        }
        // Start at the first endpoint of an address, so that each address is written once.
        let address = |position: usize| hosts.get(position).address;
        let mut first = self.first(hosts.len());
        while first > 0 && address(first - 1) == address(first) {
            first -= 1;
        }
        let (rest, from) = hosts.split_at(first);
        let mut count = 0;
        for address in from.addresses().chain(rest.addresses()) {
            let before = self.out.len();
            push_address(self.out, &QUESTION_POINTER, ttl, address);
            if self.out.len() > self.end {
                self.out.truncate(before);
                return Some(self.written(count, false));
            }
            count += 1;
        }
        Some(self.written(count, true))
    }

    /// Writes the TXT records of the endpoints that share one host name.
    fn texts(&mut self, ttl: u32, hosts: Hosts<'_>) -> WrittenAnswer {
        self.records(hosts.len(), |out, position| {
            rrset::push_record(out, &QUESTION_POINTER, rtype::TXT, ttl, hosts.get(position).txt);
        })
    }

    /// Writes SRV records, and the addresses of their targets as glue. The targets are below
    /// `base`. They are not compressed, since RFC 2782 forbids it; the owner of the glue points at
    /// the first occurrence of the target. Returns `None` if no target's name is short enough.
    fn services(
        &mut self,
        ttl: u32,
        group: GroupView<'_>,
        srv: SrvRecords<'_>,
        base: &[u8],
    ) -> Option<WrittenAnswer> {
        let begin = self.out.len();
        let mut written = self.records(srv.slots(), |out, slot| {
            if let Some(record) = srv.get(slot)
                && let Some(label) = target(group, &record, base)
            {
                push_service(out, ttl, &record, label, base);
            }
        });
        if written.fit == Fit::Whole {
            written.additionals = self.glue(ttl, group, srv, base, begin);
        }
        (written.answers > 0 || written.fit != Fit::Whole).then_some(written)
    }

    /// Writes the addresses of each target once, in whole RRsets. Returns the number of records.
    fn glue(
        &mut self,
        ttl: u32,
        group: GroupView<'_>,
        srv: SrvRecords<'_>,
        base: &[u8],
        begin: usize,
    ) -> u16 {
        let mut records = 0;
        let mut target_at = begin - self.start + RECORD_FIXED + SrvRecord::FIXED;
        let mut last = None;
        for record in srv.iter() {
            let Some(label) = target(group, &record, base) else { continue };
            let pointer = rrset::pointer(target_at);
            target_at += RECORD_FIXED + SrvRecord::FIXED + label.len() + base.len();
            if last.replace(record.host()) == Some(record.host()) {
                continue;
            }
            let hosts = group.hosts_from(record.host());
            for wants_ipv4 in [true, false] {
                let addresses = hosts.of_family(wants_ipv4).addresses();
                let written = self.whole_set(addresses, |out, address| match &pointer {
                    Some(pointer) => push_address(out, pointer, ttl, address),
                    None => {
                        out.extend_from_slice(label);
                        push_address(out, base, ttl, address);
                    }
                });
                let Some(count) = written else { return records };
                records += count;
            }
        }
        records
    }

    /// Writes a set of addresses if all of it fits. Returns the number of records, or `None` if the
    /// set does not fit.
    fn whole_set(
        &mut self,
        addresses: impl Iterator<Item = IpAddr>,
        write: impl Fn(&mut Vec<u8>, IpAddr),
    ) -> Option<u16> {
        let before = self.out.len();
        let mut count = 0;
        for address in addresses {
            write(self.out, address);
            // A set may be far larger than any message, so stop at the first record that does not
            // fit.
            if self.out.len() > self.end {
                self.out.truncate(before);
                return None;
            }
            count += 1;
        }
        Some(count)
    }

    /// Writes the HINFO record that answers ANY queries (RFC 8482 §4.2).
    pub fn any(&mut self, ttl: u32) -> WrittenAnswer {
        self.records(1, |out, _| rrset::push_record(out, &QUESTION_POINTER, rtype::HINFO, ttl, ANY))
    }

    /// Writes PTR records. Each target name comes in four parts, which are written one after
    /// another.
    pub fn pointers(&mut self, ttl: u32, targets: &[[&[u8]; 4]]) -> WrittenAnswer {
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

    /// Writes `count` records of any length, in order. `write` may leave out a record.
    fn records(&mut self, count: usize, write: impl Fn(&mut Vec<u8>, usize)) -> WrittenAnswer {
        let begin = self.out.len();
        let (answers, fits) = self.fill(0..count, &write);
        if fits {
            return WrittenAnswer { answers, additionals: 0, fit: Fit::Whole };
        }
        self.out.truncate(begin);
        if self.datagram {
            return WrittenAnswer { answers: 0, additionals: 0, fit: Fit::Truncated };
        }
        let first = self.first(count);
        let (answers, _) = self.fill((first..count).chain(0..first), &write);
        WrittenAnswer { answers, additionals: 0, fit: Fit::Subset }
    }

    /// Writes records until one does not fit. Returns the number written, and whether all fit.
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

    fn written(&self, fitting: usize, are_all: bool) -> WrittenAnswer {
        let fit = match (are_all, self.datagram) {
            (true, _) => Fit::Whole,
            (false, true) => Fit::Truncated,
            (false, false) => Fit::Subset,
        };
        WrittenAnswer { answers: fitting as u16, additionals: 0, fit } // bounded by the size of a message
    }

    /// Returns the index of the first of `records` records to write, which rotates with each query.
    fn first(&self, records: usize) -> usize {
        self.turn.map_or(0, |turn| rotation_start(turn, records))
    }
}

/// Returns the label of an SRV record's target, or `None` if the target's name would be too long.
fn target<'a>(group: GroupView<'a>, record: &SrvRecord, base: &[u8]) -> Option<&'a [u8]> {
    let label = group.label_at(record.host());
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

/// Appends an A or AAAA record of class IN.
pub(crate) fn push_address(out: &mut Vec<u8>, owner: &[u8], ttl: u32, address: IpAddr) {
    match address {
        IpAddr::V4(address) => rrset::push_record(out, owner, rtype::A, ttl, &address.octets()),
        IpAddr::V6(address) => rrset::push_record(out, owner, rtype::AAAA, ttl, &address.octets()),
    }
}

/// Returns the index at which a set of `records` begins for a given `turn`. Multiples of the golden
/// ratio visit all positions evenly, even if a client sends an A and an AAAA query each time, and
/// so sees only every second turn.
fn rotation_start(turn: u32, records: usize) -> usize {
    let fraction = u64::from(turn.wrapping_mul(0x9e37_79b9));
    ((fraction * records as u64) >> 32) as usize
}

impl LookupResult<'_> {
    /// Writes the records of a type at the name that was looked up. Returns `None` if the name has
    /// none.
    pub fn answer(&self, qtype: u16, name: Labels<'_>, composer: &mut Composer<'_>) -> Option<WrittenAnswer> {
        match *self {
            _ if qtype == rtype::ANY => Some(composer.any(self.ttl()?)),
            Self::Nothing | Self::Empty => None,
            Self::Node(node) => Some(composer.rrset(node.rrset(qtype)?)),
            Self::Service { ttl, owner, labels } => match owner.records(qtype)? {
                RecordSet::Prebuilt(&[], _) => None,
                RecordSet::Prebuilt(body, length) => Some(composer.addresses(body, length)),
                RecordSet::Addresses(hosts) => composer.host_addresses(ttl, hosts),
                RecordSet::Texts(hosts) => Some(composer.texts(ttl, hosts)),
                RecordSet::Services(group, srv) => composer.services(ttl, group, srv, name.from(labels)),
            },
            Self::Pointers(ttl, targets) => (qtype == rtype::PTR).then(|| composer.pointers(ttl, targets)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use multinet_crds::Protocol;

    use super::*;
    use crate::store::build::{self, ServiceAnswers};
    use crate::store::endpoints::Endpoint;
    use crate::store::index::ServiceView;
    use crate::store::rrset::A_LEN;
    use crate::store::slice::{Port, Slice};

    /// Makes a service of one host with that many addresses on each of some networks.
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
                    ports: [Port { name: "p".into(), protocol: Protocol::Tcp, number: 7 }].into(),
                    endpoints: endpoints.clone().collect(),
                    ..Slice::default()
                })
            })
            .collect();
        build::build(&ServiceView { ttl: 5, slices: slices.iter().collect(), ..ServiceView::default() })
            .unwrap()
    }

    #[test]
    fn writing_stops_at_the_first_record_behind_the_end() {
        let service = one_host(10_000, &["r"]);
        let mut out = Vec::with_capacity(1232 + A_LEN);
        let capacity = out.capacity();
        let mut composer = Composer { out: &mut out, start: 0, end: 1232, turn: None, datagram: true };
        let written = composer.services(5, service.all(), service.all().all_srv(), b"\x01s\0");
        assert_eq!(written, Some(WrittenAnswer { answers: 1, additionals: 0, fit: Fit::Whole }));
        let written = composer.host_addresses(5, service.all().hosts_from(0));
        assert_eq!(written.unwrap().fit, Fit::Truncated);
        assert_eq!(out.capacity(), capacity, "more than one record was written behind the end");
    }

    #[test]
    fn each_address_is_written_once_wherever_the_answer_begins() {
        let service = one_host(5, &["r", "s", "t"]);
        let hosts = service.all().hosts_from(0);
        assert_eq!(hosts.len(), 15);
        let mut firsts = std::collections::BTreeSet::new();
        for turn in 0..100 {
            let mut out = Vec::new();
            let mut composer =
                Composer { out: &mut out, start: 0, end: 1232, turn: Some(turn), datagram: true };
            let written = composer.host_addresses(5, hosts).unwrap();
            assert_eq!((written.answers, written.fit), (5, Fit::Whole));
            let records: std::collections::BTreeSet<&[u8]> = out.chunks(A_LEN).collect();
            assert_eq!(records.len(), 5, "an address twice");
            firsts.insert(out[..A_LEN].to_vec());
        }
        assert_eq!(firsts.len(), 5, "an address that never comes first");
    }

    #[test]
    fn rotation_visits_every_position_even_at_every_second_turn() {
        for records in 1..50 {
            for step in 1..4 {
                let places: std::collections::BTreeSet<usize> =
                    (0..4 * records as u32).map(|turn| rotation_start(turn * step, records)).collect();
                assert_eq!(places.len(), records, "{records} records, step {step}");
            }
        }
    }
}
