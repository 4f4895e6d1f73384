//! Any packet: the fast and the slow path give the same bytes, and every reply is a well-formed message
//! to the question that was asked.

#![no_main]

use std::sync::{Arc, LazyLock};

use hickory_proto::op::{Message, MessageType};
use libfuzzer_sys::fuzz_target;
use multinet_dns::answers::Answers;
use multinet_dns::query::{self, Query, Rcode, Style};
use multinet_dns::slow::{self, Verdict};
use multinet_dns::state::{Objects, State};
use multinet_dns::zone::{ZoneSettings, Zones};
use multinet_dns::{index, name};
use multinet_runtime::ObjectKey;

static ANSWERS: LazyLock<Arc<Answers>> = LazyLock::new(|| {
    let settings = ZoneSettings { ttl: 5, ns_addresses: [[127, 0, 0, 1].into()].into() };
    let reverse = ["in-addr.arpa", "ip6.arpa"].map(|zone| zone.parse().expect("a constant"));
    let zones = Zones::new(vec!["z".parse().expect("a constant")], &reverse, &settings).expect("constants");
    let answers = Arc::new(Answers::new(zones, 1));
    let state = State::new(Arc::clone(&answers), 5, |_| {});
    let key = |name: &str| ObjectKey { namespace: "n".into(), name: name.into() };
    // A small service, and one whose answers never fit a datagram.
    for (service, endpoints) in [("s", 2u8), ("b", 200)] {
        let slice = index::Slice {
            service: service.into(),
            network: "r".into(),
            ports: vec![index::Port { name: "p".into(), protocol: index::ProtocolLabel::Tcp, number: 1 }],
            endpoints: (1..=endpoints)
                .flat_map(|i| [[10, 0, 0, i].into(), [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(i)].into()])
                .map(|address| index::Endpoint {
                    address,
                    host: name::address_label(address).into(),
                    named: false,
                    txt: b"\x03a=b".as_slice().into(),
                })
                .collect(),
            ..index::Slice::default()
        };
        state.restore(Objects {
            services: vec![(key(service), index::Service::default())],
            slices: vec![(key(service), slice)],
            ..Objects::default()
        });
    }
    answers
});

fuzz_target!(|packet: &[u8]| {
    for datagram in [true, false] {
        let style = Style { datagram, rotate: true };
        let verdict = slow::judge(packet);
        let mut slow_reply = Vec::new();
        if let Some(verdict) = &verdict {
            slow::reply(&ANSWERS, style, verdict, packet, 7, &mut slow_reply);
            check(packet, &slow_reply, datagram);
        }
        if let Some(query) = Query::parse(packet) {
            assert_eq!(verdict, Some(Verdict::Answer(query)), "the paths read the packet differently");
            let mut reply = Vec::new();
            query::render(&ANSWERS, style, &query, packet, 7, &mut reply);
            assert_eq!(reply, slow_reply, "the paths answer differently");
        }
    }
});

fn check(packet: &[u8], reply: &[u8], datagram: bool) {
    let message = Message::from_vec(reply).expect("a reply is a message");
    assert_eq!(reply[..2], packet[..2], "the id comes back");
    assert_eq!(message.metadata.message_type, MessageType::Response);
    assert!(!datagram || reply.len() <= query::MAX_UDP);
    assert!(message.queries.len() <= 1);
    if let Some(question) = query::Question::read(packet).filter(|_| message.queries.len() == 1) {
        assert_eq!(reply[12..question.end()], packet[12..question.end()], "the question comes back");
    }
    if u16::from(message.metadata.response_code) == Rcode::NxDomain as u16 {
        assert!(message.answers.is_empty() && message.authorities.len() == 1);
    }
}
