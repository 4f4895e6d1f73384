//! Queries of the benchmark, and the expected replies.
//!
//! A load is prepared as bursts of packets, and each sending changes only the ids. The packets of a
//! burst have the same length, because the kernel then takes them by one call (UDP GSO).

use std::iter;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::dns::{Edns, Query};

use super::data::{LONG, NAMESPACE, SMALL};

/// Packets per burst.
pub(crate) const BURST: usize = 32;

/// Bursts in a load: enough to name every service several times.
const BURSTS: usize = 300;

/// UDP payload size of queries, from DNS flag day 2020.
const UDP_SIZE: u16 = 1232;

/// Bytes of an OPT record without options, at the end of each query.
const OPT: usize = 11;

const HEADER: usize = 12;

/// Bytes of an address record whose name is a pointer: the smallest record here.
const RECORD: usize = 16;

/// Kind of query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Question {
    /// Three addresses.
    A,
    /// No AAAA records.
    Nodata,
    Nxdomain,
    /// Three targets, with their addresses as additionals.
    Srv,
    /// Four of ten queries A, three NODATA, two NXDOMAIN, one SRV.
    Mixed,
    /// A hundred addresses, over UDP.
    Truncated,
    /// A hundred addresses, over TCP.
    Whole,
}

/// Properties that a reply must have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    rcode: u8,
    /// None if the server may choose.
    answers: Option<u16>,
    /// The minimum.
    additionals: u16,
    is_truncated: bool,
}

/// The reply of an echo server: the query itself.
const ECHO: Expected = Expected { rcode: 0, answers: Some(0), additionals: 0, is_truncated: false };

/// Packets that are sent together.
#[derive(Debug)]
pub(crate) struct Burst {
    packets: Vec<u8>,
    /// Bytes of each packet.
    size: usize,
    expected: Vec<Expected>,
}

/// A ring of bursts.
#[derive(Debug)]
pub(crate) struct Load(Vec<Burst>);

impl Question {
    /// Returns the name in the tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::Nodata => "NODATA",
            Self::Nxdomain => "NXDOMAIN",
            Self::Srv => "SRV with additionals",
            Self::Mixed => "mixed",
            Self::Truncated => "100 endpoints, truncated",
            Self::Whole => "100 endpoints, whole",
        }
    }

    /// Returns whether additionals are expected.
    pub(crate) fn has_srv(self) -> bool {
        matches!(self, Self::Srv | Self::Mixed)
    }

    /// Returns the load for a server of `zone`, or for an echo server if `echoed`.
    pub(crate) fn load(self, zone: &str, echoed: bool) -> Result<Load> {
        // The seed is the same for every server and run.
        let mut random = fastrand::Rng::with_seed(7);
        let bursts = (0..BURSTS).map(|burst| {
            let queries = (0..BURST).map(|_| {
                let service = random.usize(..SMALL.services);
                let question = match self {
                    // SRV queries have longer names, so they fill bursts of their own.
                    Self::Mixed if burst % 10 == 0 => Self::Srv,
                    Self::Mixed => match random.u8(..9) {
                        0..4 => Self::A,
                        4..7 => Self::Nodata,
                        _ => Self::Nxdomain,
                    },
                    only => only,
                };
                let (packet, expected) = question.query(service, zone);
                (packet, if echoed { ECHO } else { expected })
            });
            Burst::new(queries)
        });
        Ok(Load(bursts.collect::<Result<_>>()?))
    }

    fn query(self, service: usize, zone: &str) -> (Vec<u8>, Expected) {
        let below = format!("{NAMESPACE}.svc.{zone}");
        let name = SMALL.service(service);
        let expected = |rcode, answers, additionals| Expected {
            rcode,
            answers: Some(answers),
            additionals,
            is_truncated: false,
        };
        let (name, rtype, expected) = match self {
            Self::A | Self::Mixed => (name, "A", expected(0, 3, 0)),
            Self::Nodata => (name, "AAAA", expected(0, 0, 0)),
            Self::Nxdomain => (name.replacen('s', "n", 1), "A", expected(3, 0, 0)),
            Self::Srv => (format!("_rdma._tcp.{name}"), "SRV", expected(0, 3, 3)),
            Self::Truncated => {
                let expected = Expected { rcode: 0, answers: None, additionals: 0, is_truncated: true };
                (LONG.service(0), "A", expected)
            }
            Self::Whole => (LONG.service(0), "A", expected(0, LONG.endpoints as u16, 0)),
        };
        let query = Query::new(&format!("{name}.{below}"), rtype).edns(Edns::new(UDP_SIZE));
        (query.to_wire(), expected)
    }
}

impl Load {
    /// Repeats the bursts forever.
    pub(crate) fn ring(&self) -> iter::Cycle<std::slice::Iter<'_, Burst>> {
        self.0.iter().cycle()
    }

    /// Repeats the packets one by one forever.
    pub(crate) fn singles<'l>(&'l self) -> impl Iterator<Item = (&'l [u8], Expected)> {
        let packets = |burst: &'l Burst| {
            let Burst { packets, size, expected } = burst;
            packets.chunks_exact(*size).zip(expected.iter().copied())
        };
        self.0.iter().flat_map(packets).cycle()
    }
}

impl Burst {
    fn new(queries: impl Iterator<Item = (Vec<u8>, Expected)>) -> Result<Self> {
        let (packets, expected): (Vec<_>, Vec<_>) = queries.unzip();
        let size = packets.first().context("an empty burst")?.len();
        ensure!(
            packets.iter().all(|packet| packet.len() == size),
            "a burst of packets with different lengths"
        );
        Ok(Self { packets: packets.concat(), size, expected })
    }

    pub(crate) fn len(&self) -> usize {
        self.expected.len()
    }

    /// Returns the bytes of each packet.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the packets, in order.
    pub(crate) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.packets.chunks_exact(self.size)
    }

    /// Returns a packet and its expected reply.
    pub(crate) fn at(&self, place: usize) -> Option<(&[u8], Expected)> {
        Some((self.packets.get(place * self.size..)?.get(..self.size)?, *self.expected.get(place)?))
    }
}

/// Returns the id of a message.
pub(crate) fn id(message: &[u8]) -> Option<u16> {
    message.first_chunk().map(|&octets| u16::from_be_bytes(octets))
}

impl Expected {
    /// Describes the fault of a reply, if it has one. The id is not checked.
    pub(crate) fn fault(self, query: &[u8], reply: &[u8]) -> Option<String> {
        let Some(&[_, _, flags, codes, q0, q1, a0, a1, _, _, x0, x1]) = reply.first_chunk::<HEADER>() else {
            return Some(format!("a reply of {} bytes", reply.len()));
        };
        let [questions, answers, additionals] = [[q0, q1], [a0, a1], [x0, x1]].map(u16::from_be_bytes);
        let question = HEADER..query.len() - OPT;
        let is_right = flags & 0xf8 == 0x80
            && (flags & 0x02 != 0) == self.is_truncated
            && codes & 0x0f == self.rcode
            && questions == 1
            && self.answers.is_none_or(|expected| answers == expected)
            && additionals >= self.additionals
            && reply.get(question.clone()) == query.get(question)
            && reply.len() >= query.len() - OPT + usize::from(answers) * RECORD;
        (!is_right).then(|| {
            format!(
                "flags {flags:02x}{codes:02x}, {questions} questions, {answers} answers, {additionals} additionals; expected {self:?}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a reply: the query with another header.
    fn reply(query: &[u8], flags: [u8; 2], counts: [u8; 3]) -> Vec<u8> {
        let [answers, authorities, additionals] = counts;
        let header =
            [query[0], query[1], flags[0], flags[1], 0, 1, 0, answers, 0, authorities, 0, additionals];
        let records = vec![0; usize::from(answers) * RECORD];
        [&header, &query[HEADER..], &records].concat()
    }

    #[test]
    fn only_the_expected_reply_is_accepted() {
        let (query, expected) = Question::A.query(5, "cluster.local");
        let good = reply(&query, [0x85, 0x00], [3, 0, 1]);
        assert_eq!(expected.fault(&query, &good), None);
        let bad = [
            reply(&query, [0x05, 0x00], [3, 0, 1]), // a query
            reply(&query, [0x87, 0x00], [3, 0, 1]), // truncated
            reply(&query, [0x85, 0x03], [3, 0, 1]), // NXDOMAIN
            reply(&query, [0x85, 0x00], [2, 0, 1]), // an address too few
            reply(&Question::A.query(6, "cluster.local").0, [0x85, 0x00], [3, 0, 1]), // another name
            good[..good.len() - OPT - 1].to_vec(),  // cut off
            good[..HEADER].to_vec(),
            Vec::new(),
        ];
        for bad in bad {
            assert!(expected.fault(&query, &bad).is_some(), "{bad:02x?}");
        }
    }

    #[test]
    fn loads_are_bursts_of_one_length() {
        for question in [Question::A, Question::Mixed, Question::Srv, Question::Truncated] {
            let load = question.load("cluster.local", false).unwrap();
            let burst = load.ring().next().unwrap();
            assert_eq!((burst.len(), burst.packets().count()), (BURST, BURST));
            assert!(burst.at(BURST).is_none() && burst.at(BURST - 1).is_some());
            assert_eq!(load.singles().take(BURSTS * BURST + 1).count(), BURSTS * BURST + 1);
        }
    }
}
