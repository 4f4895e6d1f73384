//! A state and its answers, which tests query by packets.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use multinet_dns::answer::query::Style;
use multinet_dns::answer::slow::{self, PacketAction};
use multinet_dns::secondary::transfer::{Transfer, TransferContents};
use multinet_dns::store::answers::Answers;
use multinet_dns::store::state::State;
use multinet_dns::store::zone::{ZoneSettings, Zones};

use crate::expected::DEFAULT_TTL;

/// The forward zone, without the final dot.
pub(crate) const ZONE: &str = "z.test";

/// The zone of vertices.
pub(crate) const VERTEX_ZONE: &str = "v.test";

/// A state and its answers.
pub(crate) struct Asker {
    pub(crate) state: State,
    pub(crate) reader: Reader,
}

/// The answers alone, as a worker of the server uses them.
#[derive(Clone)]
pub(crate) struct Reader {
    answers: Arc<Answers>,
    turn: Cell<u32>,
}

/// A reply in the terms of the model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) rcode: &'static str,
    /// TTL and data of the records in the answer section.
    pub(crate) records: BTreeSet<String>,
}

impl Asker {
    /// Returns a state without objects.
    pub(crate) fn new() -> Self {
        let name = |text: &str| text.parse().expect("a name");
        let settings = ZoneSettings { ttl: DEFAULT_TTL, ns_addresses: BTreeSet::new() };
        let reverse = [name("in-addr.arpa"), name("ip6.arpa")];
        let zones = Zones::new(vec![name(ZONE)], &reverse, &settings).expect("zones");
        let zones = zones.with_vertices(vec![name(VERTEX_ZONE)]);
        let answers = Arc::new(Answers::new(zones, 1));
        let state = State::new(Arc::clone(&answers), DEFAULT_TTL, |_| {});
        Self { state, reader: Reader { answers, turn: Cell::new(0) } }
    }

    /// Sends a query as over TCP, and checks the form of the reply.
    ///
    /// # Panics
    /// If the reply is malformed.
    pub(crate) fn ask(&self, name: &str, qtype: &'static str) -> Reply {
        let message = self.reader.message(name, qtype);
        let records: BTreeSet<String> = message.answers.iter().map(data).collect();
        assert_eq!(records.len(), message.answers.len(), "{name} {qtype}: a record occurs twice");
        check_additionals(&message);
        let rcode = match message.metadata.response_code {
            ResponseCode::NoError => "NOERROR",
            ResponseCode::NXDomain => "NXDOMAIN",
            ResponseCode::ServFail => "SERVFAIL",
            other => panic!("{name} {qtype}: {other}"),
        };
        let is_negative = records.is_empty() && rcode != "SERVFAIL";
        assert_eq!(message.authorities.len(), usize::from(is_negative), "{name} {qtype}: the SOA");
        Reply { rcode, records }
    }

    /// Returns the names that own records of services, read from zone transfers.
    pub(crate) fn owners(&self) -> BTreeSet<String> {
        let own = ["", "ns.dns.", "dns-version."].map(|name| format!("{name}{ZONE}"));
        let others = [VERTEX_ZONE, "in-addr.arpa", "ip6.arpa"];
        let own: HashSet<&str> = own.iter().map(String::as_str).chain(others).collect();
        let mut owners = BTreeSet::new();
        for apex in [ZONE, VERTEX_ZONE, "in-addr.arpa", "ip6.arpa"] {
            let copy = self.state.zone_copy(&apex.parse().expect("a name")).expect("a zone");
            let mut query = Message::query();
            let name = Name::from_ascii(format!("{apex}.")).expect("a name");
            query.add_query(Query::query(name, RecordType::AXFR));
            let packet = query.to_vec().expect("a query");
            let Some(PacketAction::Transfer(query, _)) = slow::classify(&packet) else { panic!("{apex}") };
            for message in Transfer::new(&packet, &query, TransferContents::Whole(copy.into()), None) {
                let message = Message::from_vec(&message).expect("a message");
                let names = message.answers.iter().map(|record| record.name.to_ascii());
                owners.extend(names.map(|name| name.trim_end_matches('.').to_owned()));
            }
        }
        owners.retain(|name| !own.contains(name.as_str()));
        owners
    }
}

impl Reader {
    /// Returns the whole reply.
    pub(crate) fn message(&self, name: &str, qtype: &str) -> Message {
        let mut query = Message::query();
        let name = Name::from_ascii(format!("{name}.")).expect("a name");
        query.add_query(Query::query(name, qtype.parse::<RecordType>().expect("a type")));
        let packet = query.to_vec().expect("a query");
        let mut reply = Vec::new();
        self.turn.set(self.turn.get().wrapping_add(1));
        let style = Style { datagram: false, rotate: true, reserve: 0 };
        let action = slow::classify(&packet).expect("a query");
        slow::reply(&self.answers, style, &action, &packet, self.turn.get(), &mut reply);
        Message::from_vec(&reply).expect("a reply")
    }
}

/// Checks that the additional section has addresses of exactly the targets of SRV records.
fn check_additionals(message: &Message) {
    let targets: HashSet<&Name> = message
        .answers
        .iter()
        .filter_map(|record| match &record.data {
            RData::SRV(srv) => Some(&srv.target),
            _ => None,
        })
        .collect();
    let described: HashSet<&Name> = message.additionals.iter().map(|record| &record.name).collect();
    let has_srv = !targets.is_empty();
    assert!(
        described == targets || !has_srv && described.is_empty(),
        "targets {targets:?}, not {described:?}"
    );
}

/// Returns the TTL and data of a record.
pub(crate) fn data(record: &Record) -> String {
    let name = |name: &Name| name.to_ascii().trim_end_matches('.').to_owned();
    let data = match &record.data {
        RData::A(address) => IpAddr::from(address.0).to_string(),
        RData::AAAA(address) => IpAddr::from(address.0).to_string(),
        RData::PTR(target) => name(&target.0),
        RData::SRV(srv) => format!("{} {} {} {}", srv.priority, srv.weight, srv.port, name(&srv.target)),
        RData::TXT(txt) => {
            let strings: Vec<_> = txt.txt_data.iter().map(|text| String::from_utf8_lossy(text)).collect();
            strings.join(" ")
        }
        other => panic!("{other} in an answer"),
    };
    format!("{} {data}", record.ttl)
}
