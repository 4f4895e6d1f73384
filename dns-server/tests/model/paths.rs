//! The fast and the slow path give the same bytes for any query. Another parser reads the replies,
//! and they agree with the model.

use std::collections::BTreeSet;
use std::net::IpAddr;

use domain::base::iana::Class;
use domain::base::{CharStr, Message, ParsedName, Rtype, ToName as _};
use domain::rdata::AllRecordData;
use multinet_dns::answer::query::{MAX_UDP, Query, Style};
use multinet_dns::answer::slow;
use multinet_runtime::ObjectKey;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::ask::{Asker, ZONE};
use crate::events::{self, Endpoint, Event, NAMESPACES, NETWORKS, Service, Slice, World};
use crate::expected::{self, Expected, universe};

/// Query type for all types (RFC 8482).
const ANY: u16 = 255;

/// Types that no service owns.
const OTHERS: [u16; 6] = [5, 15, 48, 64, ANY, 65_280];

/// A service whose addresses and SRV records never fit a datagram without EDNS, in the terms of the
/// model.
const MANY: &str = "many";

/// Number of its addresses of each family.
const MANY_ADDRESSES: u8 = 90;

/// A query as a client may send it.
#[derive(Debug, Clone)]
struct Asked {
    /// One of all names, or [`MANY`] with this prefix.
    name: Option<prop::sample::Index>,
    prefix: Option<&'static str>,
    /// Bits that choose which letters are uppercase.
    capitals: u64,
    qtype: Result<&'static str, u16>,
    /// The flags RD, CD and AD.
    flags: [u8; 2],
    /// The payload size, and the byte with the DO bit.
    edns: Option<(u16, u8)>,
    datagram: bool,
    turn: u32,
}

fn asked() -> impl Strategy<Value = Asked> {
    let qtype = prop_oneof![
        6 => prop::sample::select(expected::types()).prop_map(Ok),
        1 => prop::sample::select(&OTHERS[..]).prop_map(Err),
    ];
    let edns = (prop_oneof![Just(512u16), Just(1232), any::<u16>()], prop::sample::select(&[0u8, 0x80][..]));
    let flags = (any::<bool>(), prop::sample::select(&[0u8, 0x10, 0x20, 0x30][..]));
    let name = (
        prop::option::weighted(0.9, any::<prop::sample::Index>()),
        prop::option::weighted(0.1, prop::sample::select(&["x", "_tcp", "_net"][..])),
    );
    (name, any::<u64>(), qtype, flags, prop::option::of(edns), any::<bool>(), any::<u32>()).prop_map(
        |((name, prefix), capitals, qtype, (rd, bits), edns, datagram, turn)| Asked {
            name,
            prefix,
            capitals,
            qtype,
            flags: [u8::from(rd), bits],
            edns,
            datagram,
            turn,
        },
    )
}

impl Asked {
    /// Returns the name in lowercase.
    fn name(&self) -> String {
        let names = universe();
        let name = match self.name {
            Some(index) => names.iter().nth(index.index(names.len())).expect("an index").clone(),
            None => format!("{MANY}.{}.svc.{ZONE}", NAMESPACES[0]),
        };
        self.prefix.map_or_else(|| name.clone(), |prefix| format!("{prefix}.{name}"))
    }

    fn packet(&self) -> Vec<u8> {
        let mut packet = vec![0xab, 0xcd, self.flags[0], self.flags[1], 0, 1, 0, 0, 0, 0, 0, 0];
        packet[11] = u8::from(self.edns.is_some());
        for (position, label) in self.name().split('.').enumerate() {
            packet.push(label.len() as u8);
            packet.extend(label.bytes().enumerate().map(|(at, octet)| {
                let is_capital = self.capitals.rotate_left((position * 7 + at) as u32) & 1 == 1;
                if is_capital { octet.to_ascii_uppercase() } else { octet }
            }));
        }
        packet.push(0);
        let qtype =
            self.qtype.map_or_else(|number| number, |name| name.parse::<Rtype>().expect("a type").to_int());
        packet.extend(qtype.to_be_bytes());
        packet.extend([0, 1]);
        if let Some((payload, flags)) = self.edns {
            packet.extend([0, 0, 41]);
            packet.extend(payload.to_be_bytes());
            packet.extend([0, 0, flags, 0, 0, 0]);
        }
        packet
    }

    fn limit(&self) -> usize {
        match self.edns {
            _ if !self.datagram => usize::from(u16::MAX),
            Some((payload, _)) => usize::from(payload).clamp(512, MAX_UDP),
            None => 512,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn both_paths_say_what_the_model_says(
        events in prop::collection::vec(events::event(), 1..60),
        queries in prop::collection::vec(asked(), 200),
    ) {
        let mut world = World::default();
        let asker = Asker::new();
        world.sync(&asker.state);
        events.iter().for_each(|event| world.take(event, &asker.state));
        many().iter().for_each(|event| world.take(event, &asker.state));
        let expected = Expected::new(&world);
        for query in &queries {
            check(&asker, &expected, query)?;
        }
    }
}

/// Returns the events that create [`MANY`].
fn many() -> [Event; 2] {
    let key = ObjectKey { namespace: NAMESPACES[0].to_owned(), name: MANY.to_owned() };
    let addresses = (1..=MANY_ADDRESSES)
        .flat_map(|n| [IpAddr::from([10, 9, 0, n]), IpAddr::from([0xfd09, 0, 0, 0, 0, 0, 0, u16::from(n)])]);
    let endpoint = |address| Endpoint { address, host: None, ready: None };
    let slice = Slice {
        service: Some(MANY),
        vertex: None,
        network: NETWORKS[0],
        ports: vec![("http", "TCP", 80)],
        endpoints: addresses.map(endpoint).collect(),
    };
    [Event::Service(key.clone(), Service { ttl: None }), Event::Slice(key, slice)]
}

fn check(asker: &Asker, expected: &Expected, asked: &Asked) -> Result<(), TestCaseError> {
    let packet = asked.packet();
    let answers = asker.state.answers();
    let style = Style { datagram: asked.datagram, rotate: true, reserve: 0 };
    let (mut fast, mut slow) = (Vec::new(), Vec::new());
    let query = Query::parse(&packet).expect("a query for the fast path");
    multinet_dns::answer::query::render(answers, style, &query, &packet, asked.turn, &mut fast);
    let action = slow::classify(&packet).expect("a query");
    slow::reply(answers, style, &action, &packet, asked.turn, &mut slow);
    prop_assert_eq!(&fast, &slow);
    prop_assert!(fast.len() <= asked.limit());
    if asked.edns.is_some() && !asked.datagram {
        check_padded(asker, asked, &fast)?;
    }
    let question = packet.len() - if asked.edns.is_some() { 11 } else { 0 };
    prop_assert_eq!(&fast[12..question], &packet[12..question], "the reply has the query's question");

    let (is_truncated, seen) = read(&fast)?;
    let wanted = match asked.qtype {
        Ok(qtype) => expected.reply(&asked.name(), qtype),
        Err(ANY) => expected.reply_to_any(&asked.name()),
        Err(_) => expected.reply(&asked.name(), "none"),
    };
    prop_assert_eq!(seen.rcode, wanted.rcode, "{:?}", asked.name());
    prop_assert_eq!(seen.has_opt, asked.edns.is_some());
    if is_truncated {
        // A truncated reply holds as many whole address records as fit, and no records of other
        // types.
        let room = asked.limit() - packet.len();
        let fitting = match asked.qtype {
            Ok("A") => room / 16,
            Ok("AAAA") => room / 28,
            _ => 0,
        };
        prop_assert!(seen.answers.is_subset(&wanted.records) && fitting < wanted.records.len());
        prop_assert_eq!(seen.answers.len(), fitting);
    } else {
        prop_assert_eq!(&seen.answers, &wanted.records, "{:?} {:?}", asked.name(), asked.qtype);
    }
    prop_assert_eq!(seen.authorities, usize::from(wanted.records.is_empty()));
    Ok(())
}

/// Checks that padding a query changes nothing in the reply but the padding (RFC 7830, RFC 8467).
fn check_padded(asker: &Asker, asked: &Asked, plain: &[u8]) -> Result<(), TestCaseError> {
    let mut packet = asked.packet();
    packet.truncate(packet.len() - 2);
    packet.extend([0, 9, 0, 12, 0, 5, 0, 0, 0, 0, 0]);
    let style = Style { datagram: false, rotate: true, reserve: 0 };
    let action = slow::classify(&packet).expect("a query");
    let mut padded = Vec::new();
    slow::reply(asker.state.answers(), style, &action, &packet, asked.turn, &mut padded);
    let before = plain.len() - 2;
    prop_assert_eq!(&padded[..before], &plain[..before]);
    prop_assert!(padded.len().is_multiple_of(468), "{} bytes", padded.len());
    prop_assert!(read(&padded)?.1.has_opt);
    Ok(())
}

/// A reply as the other parser reads it.
struct Seen {
    rcode: &'static str,
    /// TTL and data, in the terms of the model.
    answers: BTreeSet<String>,
    authorities: usize,
    has_opt: bool,
}

fn read(reply: &[u8]) -> Result<(bool, Seen), TestCaseError> {
    let fail =
        |error: &dyn std::fmt::Display| TestCaseError::fail(format!("the reply cannot be read: {error}"));
    let message = Message::from_octets(reply).map_err(|error| fail(&error))?;
    let header = message.header();
    prop_assert!(header.qr() && header.aa() && !header.ra());
    let mut section = message.answer().map_err(|error| fail(&error))?;
    let owner = message.sole_question().map_err(|error| fail(&error))?.qname().to_name::<Vec<u8>>();
    let mut sections = [const { Vec::new() }; 3];
    for (position, records) in sections.iter_mut().enumerate() {
        for record in section.limit_to::<AllRecordData<&[u8], ParsedName<&[u8]>>>() {
            let record = record.map_err(|error| fail(&error))?;
            prop_assert!(record.class() == Class::IN || record.rtype() == Rtype::OPT);
            prop_assert!(position > 0 || *record.owner() == owner, "an answer to another question");
            records.push(record);
        }
        match section.next_section().map_err(|error| fail(&error))? {
            Some(next) => section = next,
            None => break,
        }
    }
    let [answers, authorities, additionals] = sections;
    let texts: BTreeSet<String> =
        answers.iter().map(|record| format!("{} {}", record.ttl().as_secs(), data(record.data()))).collect();
    prop_assert_eq!(texts.len(), answers.len(), "a record occurs twice");
    let rcode = match header.rcode().to_int() {
        0 => "NOERROR",
        3 => "NXDOMAIN",
        _ => "another",
    };
    let has_opt = additionals.iter().any(|record| record.rtype() == Rtype::OPT);
    Ok((header.tc(), Seen { rcode, answers: texts, authorities: authorities.len(), has_opt }))
}

/// Returns record data in the terms of the model.
fn data(data: &AllRecordData<&[u8], ParsedName<&[u8]>>) -> String {
    match data {
        AllRecordData::Srv(srv) => {
            format!("{} {} {} {}", srv.priority(), srv.weight(), srv.port(), srv.target())
        }
        AllRecordData::Txt(txt) => {
            let strings: Vec<_> =
                txt.iter().map(|string| String::from_utf8_lossy(string).into_owned()).collect();
            strings.join(" ")
        }
        AllRecordData::A(address) => address.addr().to_string(),
        AllRecordData::Aaaa(address) => address.addr().to_string(),
        AllRecordData::Hinfo(info) => {
            let text = |string: &CharStr<&[u8]>| String::from_utf8_lossy(string.as_slice()).into_owned();
            format!("{} {}", text(info.cpu()), text(info.os()))
        }
        AllRecordData::Ptr(target) => target.ptrdname().to_string(),
        other => format!("{other:?}"),
    }
}
