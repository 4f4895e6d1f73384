//! Check for any packet. The fast and the slow path give the same bytes. Every reply is a
//! well-formed message with the question of the query. The serial in a query for an incremental
//! transfer is the one that hickory reads. A signature is checked wherever one is claimed, and a
//! packet that is signed with a known key is recovered unchanged.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock};

use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::RData;
use hickory_proto::rr::rdata::opt::EdnsCode;
use multinet_dns::answer::cookie::CookieSigner;
use multinet_dns::answer::proto::Proto;
use multinet_dns::answer::query::{self, Declined, Edns, Query, Rcode, Style};
use multinet_dns::answer::slow::TransferKind;
use multinet_dns::answer::slow::{self, PacketAction};
use multinet_dns::net::engine::{Engine, Handled, Settings, Worker};
use multinet_dns::ops::metrics::Tallies;
use multinet_dns::secondary::tsig::{self, Algorithm, Keyring, Signer, TsigKey};
use multinet_dns::store::answers::Answers;
use multinet_dns::store::endpoints::Endpoint;
use multinet_dns::store::slice::{Port, Slice, protocol_of};
use multinet_dns::store::state::{Objects, State};
use multinet_dns::store::zone::{ZoneSettings, Zones};
use multinet_dns::store::{index, name};
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
        let hosts: Vec<(IpAddr, String)> = (1..=endpoints)
            .flat_map(|i| [[10, 0, 0, i].into(), [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(i)].into()])
            .map(|address| (address, name::address_label(address)))
            .collect();
        let endpoints = hosts.iter().map(|(address, host)| Endpoint {
            address: *address,
            host,
            named: false,
            txt: b"\x03a=b",
        });
        let slice = Slice {
            service: service.into(),
            network: "r".into(),
            ports: [Port {
                name: "p".into(),
                protocol: protocol_of(b"\x04_tcp").expect("a constant"),
                number: 1,
            }]
            .into(),
            endpoints: endpoints.collect(),
            ..Slice::default()
        };
        state.restore(Objects {
            services: vec![(key(service), index::Service::default())],
            slices: vec![(key(service), Arc::new(slice))],
            ..Objects::default()
        });
    }
    answers
});

/// The time at which packets are signed and verified.
const NOW: u64 = 1_800_000_000;

static KEYS: LazyLock<Keyring> = LazyLock::new(|| {
    [TsigKey::new("k".parse().expect("a constant"), Algorithm::HmacSha256, b"a secret")].into_iter().collect()
});

/// A server that is queried over UDP and TCP.
static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let state = State::new(Arc::clone(&ANSWERS), 5, |_| {});
    let settings = Settings { keys: KEYS.clone(), ..Settings::new(CookieSigner::new([7; 16], None)) };
    Engine::new(Arc::new(state), settings, Tallies::default())
});

thread_local! {
    static WORKERS: RefCell<[(bool, Worker); 2]> =
        RefCell::new([(true, ENGINE.worker(Proto::Udp)), (false, ENGINE.worker(Proto::Tcp))]);
}

/// Checks how the server handles a packet.
pub(crate) fn check(packet: &[u8]) {
    check_signatures(packet);
    check_serial(packet);
    for datagram in [true, false] {
        let style = Style { datagram, rotate: true, reserve: 0 };
        let mut action = slow::classify(packet);
        if let Some(action) = &mut action {
            stamp(action.edns_mut());
        }
        let mut slow_reply = Vec::new();
        if let Some(action) = &action {
            slow::reply(&ANSWERS, style, action, packet, 7, &mut slow_reply);
            check_reply(packet, &slow_reply, datagram.then_some(action));
        }
        match Query::parse(packet) {
            Ok(mut query) => {
                stamp(&mut query.edns);
                assert_eq!(
                    action,
                    Some(PacketAction::Answer(query)),
                    "the paths read the packet differently"
                );
                let mut reply = Vec::new();
                query::render(&ANSWERS, style, &query, packet, 7, &mut reply);
                assert_eq!(reply, slow_reply, "the paths answer differently");
            }
            Err(Declined::Question) => {
                let mut malformed = slow::classify_malformed(packet);
                stamp(malformed.edns_mut());
                assert_eq!(action, Some(malformed), "a malformed question is judged differently");
            }
            Err(Declined::Unusual) => {}
        }
    }
}

fn check_serial(packet: &[u8]) {
    let Some(PacketAction::Transfer(_, TransferKind::Since(serial))) = slow::classify(packet) else { return };
    // hickory parses more of the packet, and may reject that.
    let Ok(message) = Message::from_vec(packet) else { return };
    let read = message.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(soa.serial),
        _ => None,
    });
    assert_eq!(Some(serial), read, "another serial");
}

fn check_signatures(packet: &[u8]) {
    // Signs the packet as if its sender had the key.
    let Some(&[high, low]) = packet.get(..2).filter(|_| slow::classify(packet).is_some()) else { return };
    let mut signed = packet.to_vec();
    let key = KEYS.find(b"\x01k\0").expect("the key exists");
    Signer::of_query(Arc::clone(&key), u16::from_be_bytes([high, low])).sign(&mut signed, 0, NOW);
    match tsig::verify(&signed, &KEYS, NOW) {
        Ok(opened) => assert_eq!(opened.packet, packet, "the packet is recovered unchanged"),
        Err(_) => assert!(Query::parse(packet).is_err(), "a good signature is refused"),
    }
    // A valid signature of now makes the server sign its answer; the packet's own signature may be
    // refused.
    let mut current = packet.to_vec();
    Signer::of_query(key, u16::from_be_bytes([high, low])).sign(&mut current, 0, tsig::now());
    check_server(packet);
    check_server(&current);
}

/// Checks the whole server's reply to a packet, which may be signed.
fn check_server(packet: &[u8]) {
    WORKERS.with_borrow_mut(|workers| {
        for (datagram, worker) in workers {
            let mut reply = Vec::new();
            let handled = worker.answer(packet, SocketAddr::from(([127, 0, 0, 1], 53)), &mut reply);
            if matches!(handled, Handled::Reply) {
                let action = slow::classify(packet).expect("there is a reply");
                check_reply(packet, &reply, datagram.then_some(&action));
            }
        }
    });
}

/// Fills in the reply's cookie, at a time when the cookies of the seeds are valid.
fn stamp(edns: &mut Option<Edns>) {
    if let Some(cookie) = edns.as_mut().and_then(|edns| edns.cookie.as_mut()) {
        CookieSigner::new([7; 16], None).check_and_sign(cookie, [127, 0, 0, 1].into(), 1_795_000_000);
    }
}

/// Checks a reply. For UDP, `datagram` is the action on the packet.
fn check_reply(packet: &[u8], reply: &[u8], datagram: Option<&PacketAction>) {
    let message = Message::from_vec(reply).expect("a reply is a message");
    let cookie = message.edns.as_ref().and_then(|edns| edns.option(EdnsCode::Cookie));
    assert!(cookie.is_none_or(|cookie| cookie.len() == 24), "a reply's cookie is whole");
    assert_eq!(reply[..2], packet[..2], "the reply has the query's id");
    assert_eq!(message.metadata.message_type, MessageType::Response);
    if let Some(action) = datagram {
        let most = action.edns().map_or(512, |edns| usize::from(edns.payload).min(query::MAX_UDP));
        assert!(reply.len() <= most, "{} bytes, of {most}", reply.len());
    }
    assert!(message.queries.len() <= 1);
    if let Some(question) = query::Question::read(packet).filter(|_| message.queries.len() == 1) {
        assert_eq!(
            reply[12..question.end()],
            packet[12..question.end()],
            "the reply has the query's question"
        );
    }
    if u16::from(message.metadata.response_code) == Rcode::NxDomain as u16 {
        assert!(message.answers.is_empty() && message.authorities.len() == 1);
    }
}
