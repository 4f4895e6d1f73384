//! Cookies, the rate limit, and the size of replies over UDP, on a worker without a socket.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use hickory_proto::op::Message;
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use multinet_dns::answer::cookie::{Cookie, CookieStatus};
use multinet_dns::answer::limit::Limiter;
use multinet_dns::answer::proto::Proto;
use multinet_dns::net::engine::{Engine, Handled, Settings, Worker};
use multinet_dns::ops::metrics::Tallies;
use multinet_dns::secondary::tsig::{self, Algorithm, Signer, TsigKey};
use multinet_dns::store::state::State;
use proptest::prelude::*;

use crate::support::{
    A, BIG, PEER, SMALL, answers, cookie_signer, engine, option, query, query_with_opt, state,
};

const TXT: u16 = 16;
const ANY: u16 = 255;
const COOKIE: u16 = 10;

fn worker_with(change: impl FnOnce(&mut Settings), proto: Proto) -> Worker {
    let mut settings = Settings::new(cookie_signer());
    change(&mut settings);
    static STATE: LazyLock<Arc<State>> = LazyLock::new(|| Arc::new(state()));
    Engine::new(Arc::clone(&STATE), settings, Tallies::default()).worker(proto)
}

fn limited(proto: Proto) -> Worker {
    let exempt = vec!["10.9.0.0/16".parse().unwrap()];
    worker_with(|settings| settings.limiter = Some(Arc::new(Limiter::new(10, exempt))), proto)
}

fn ask(worker: &mut Worker, packet: &[u8], peer: IpAddr) -> Option<Vec<u8>> {
    let mut reply = Vec::new();
    matches!(worker.answer(packet, SocketAddr::new(peer, 53), &mut reply), Handled::Reply).then_some(reply)
}

/// Returns the cookie of a reply.
fn cookie_of(reply: &[u8]) -> Option<Vec<u8>> {
    match Message::from_vec(reply).unwrap().edns?.option(EdnsCode::Cookie)? {
        EdnsOption::Unknown(_, data) => Some(data.clone()),
        other => panic!("{other:?}"),
    }
}

fn rcode(reply: &[u8]) -> u16 {
    Message::from_vec(reply).unwrap().metadata.response_code.into()
}

fn is_truncated(reply: &[u8]) -> bool {
    reply[2] & 2 != 0
}

#[test]
fn a_query_with_a_cookie_gets_a_complete_one() {
    let mut worker = engine().worker(Proto::Udp);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as u32;
    let client = option(COOKIE, &[5; 8]);
    for (case, options) in [
        ("the fast path", client.clone()),
        ("the slow path", [option(3, b""), client.clone()].concat()),
        ("the first of two", [client.clone(), option(COOKIE, &[6; 8])].concat()),
        ("one that is not ours", option(COOKIE, &[[5; 8], [9; 8], [9; 8]].concat())),
        ("one of another length", option(COOKIE, &[5; 40])),
    ] {
        for name in [SMALL, "nobody.n.svc.z", "example.org"] {
            let reply = ask(&mut worker, &query_with_opt(1, name, A, 1232, &options), PEER).unwrap();
            let cookie = cookie_of(&reply).unwrap();
            assert_eq!((cookie.len(), &cookie[..8]), (24, &[5; 8][..]), "{case}");
            let mut cookie = Cookie::read(&cookie).unwrap();
            assert_eq!(cookie_signer().check_and_sign(&mut cookie, PEER, now), CookieStatus::Valid, "{case}");
        }
    }
    let reply = ask(&mut worker, &query_with_opt(1, SMALL, A, 1232, &[]), PEER).unwrap();
    assert_eq!(cookie_of(&reply), None);
}

#[test]
fn a_cookie_of_an_impossible_length_is_a_format_error() {
    let mut worker = engine().worker(Proto::Udp);
    for length in [0, 7, 9, 15, 41, 200] {
        let packet = query_with_opt(1, SMALL, A, 1232, &option(COOKIE, &vec![5; length]));
        let reply = ask(&mut worker, &packet, PEER).unwrap();
        assert_eq!((rcode(&reply), cookie_of(&reply)), (1, None), "{length}");
        assert!(Message::from_vec(&reply).unwrap().edns.is_some());
        assert_eq!(rcode(&ask(&mut worker, &without_question(&packet), PEER).unwrap()), 1, "{length}");
    }
}

/// Returns a query for the small service without its question.
fn without_question(packet: &[u8]) -> Vec<u8> {
    [&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], &packet[query(1, SMALL, A).len()..]].concat()
}

#[test]
fn both_paths_write_the_same_cookie() {
    let mut worker = engine().worker(Proto::Udp);
    let first = ask(&mut worker, &query_with_opt(1, SMALL, A, 1232, &option(COOKIE, &[5; 8])), PEER).unwrap();
    // With a fresh server cookie, the replies no longer depend on the time.
    let cookie = option(COOKIE, &cookie_of(&first).unwrap());
    let fast = ask(&mut worker, &query_with_opt(1, SMALL, A, 1232, &cookie), PEER).unwrap();
    let slow = [cookie, option(65_001, b"x")].concat();
    assert_eq!(ask(&mut worker, &query_with_opt(1, SMALL, A, 1232, &slow), PEER).unwrap(), fast);
    assert_eq!(fast, first);
}

#[test]
fn a_query_over_the_limit_is_truncated_or_dropped() {
    let mut worker = limited(Proto::Udp);
    let replies: Vec<_> = (0..1010).map(|id| ask(&mut worker, &query(id, SMALL, A), PEER)).collect();
    // The test itself takes time, so a few more queries pass.
    let whole = replies.iter().flatten().filter(|reply| answers(reply) == 1).count();
    assert!((10..40).contains(&whole), "{whole}");
    let cut: Vec<_> = replies.iter().flatten().filter(|reply| is_truncated(reply)).collect();
    assert!((450..550).contains(&cut.len()), "{}", cut.len());
    assert!(cut.iter().all(|reply| answers(reply) == 0 && reply.len() == query(0, SMALL, A).len()));
    assert_eq!(replies.iter().flatten().count(), whole + cut.len());
    // Of pairs such as A and AAAA, both get replies equally often.
    let firsts = replies.iter().step_by(2).flatten().filter(|reply| is_truncated(reply)).count();
    assert!((200..300).contains(&firsts), "{firsts}");
    // An unreadable packet gets no reply, but counts against the limit.
    assert!(ask(&mut worker, &query(1, SMALL, A)[..20], PEER).is_none());
    // Another network has a limit of its own.
    assert_eq!(answers(&ask(&mut worker, &query(1, SMALL, A), [10, 1, 2, 3].into()).unwrap()), 1);
}

/// A reply without an error would look as if the UPDATE had succeeded.
#[test]
fn an_update_over_the_limit_gets_an_error() {
    let mut worker = limited(Proto::Udp);
    for (what, opcode) in [("STATUS", 2), ("NOTIFY", 4), ("UPDATE", 5)] {
        for opt in [false, true] {
            let mut packet = if opt { query_with_opt(1, SMALL, A, 1232, &[]) } else { query(1, SMALL, A) };
            packet[2] |= opcode << 3;
            let replies: Vec<_> = (0..200).map(|_| ask(&mut worker, &packet, PEER)).collect();
            let answered = replies.iter().flatten().count();
            assert!((80..140).contains(&answered), "{what}: {answered}");
            for reply in replies.iter().flatten() {
                assert_eq!((rcode(reply), is_truncated(reply)), (4, false), "{what}");
                assert!(reply[2] >> 3 == 0x10 | opcode && reply.len() <= packet.len(), "{what}: {reply:?}");
            }
        }
    }
}

/// Returns a query for the small service's address, signed with a key of this secret.
fn signed(secret: &[u8]) -> (Vec<u8>, Signer) {
    let key = TsigKey::new("k".parse().unwrap(), Algorithm::HmacSha256, secret);
    let mut packet = query(7, SMALL, A);
    let mut signer = Signer::of_query(Arc::new(key), 7);
    signer.sign(&mut packet, 0, tsig::now());
    (packet, signer)
}

/// RFC 8945 §5.3: a client that signs ignores unsigned answers.
#[test]
fn a_signed_query_over_the_limit_gets_a_signed_answer_or_none() {
    let mut worker = worker_with(
        |settings| {
            let key = TsigKey::new("k".parse().unwrap(), Algorithm::HmacSha256, &[1; 32]);
            settings.keys = [key].into_iter().collect();
            settings.limiter = Some(Arc::new(Limiter::new(1, Vec::new())));
        },
        Proto::Udp,
    );
    for _ in 0..50 {
        let (packet, signer) = signed(&[1; 32]);
        let reply = ask(&mut worker, &packet, PEER).unwrap();
        assert!(answers(&reply) == 1 && signer.verifies(&reply, tsig::now()));
    }
    // Forged signatures do not count against others: this is the first query that counts.
    assert_eq!(answers(&ask(&mut worker, &query(1, SMALL, A), PEER).unwrap()), 1);
    let forged = signed(&[2; 32]).0;
    let answered = (0..50).filter(|_| ask(&mut worker, &forged, PEER).is_some()).count();
    assert!(answered <= 2, "{answered}");
}

#[test]
fn a_client_with_a_valid_cookie_is_not_limited() {
    let mut worker = limited(Proto::Udp);
    let with = |cookie: &[u8]| query_with_opt(7, SMALL, A, 1232, &option(COOKIE, cookie));
    for _ in 0..100 {
        let _ = ask(&mut worker, &query(1, SMALL, A), PEER);
    }
    let bad = ask(&mut worker, &with(&[5; 8]), PEER).unwrap();
    assert_eq!((rcode(&bad), answers(&bad)), (23, 0));
    assert!(bad.len() <= with(&[5; 8]).len() + 16, "{} bytes", bad.len());
    let cookie = cookie_of(&bad).unwrap();
    for _ in 0..100 {
        let reply = ask(&mut worker, &with(&cookie), PEER).unwrap();
        assert_eq!((rcode(&reply), answers(&reply)), (0, 1));
    }
    // From another address the cookie is worthless.
    for _ in 0..100 {
        let _ = ask(&mut worker, &query(1, SMALL, A), [10, 1, 2, 3].into());
    }
    assert_eq!(rcode(&ask(&mut worker, &with(&cookie), [10, 1, 2, 3].into()).unwrap()), 23);
}

/// RFC 7873 §5.4: the reply reveals no more than any other reply.
#[test]
fn a_query_for_a_cookie_only_is_never_limited() {
    let mut worker = limited(Proto::Udp);
    let mut ask = |cookie: &[u8]| {
        let opt = query_with_opt(1, SMALL, A, 1232, &option(COOKIE, cookie));
        let reply = ask(&mut worker, &without_question(&opt), PEER).unwrap();
        assert_eq!(reply[4..10], [0; 6], "a question or a record");
        reply
    };
    for _ in 0..50 {
        let reply = ask(&[5; 8]);
        assert_eq!((rcode(&reply), cookie_of(&reply).unwrap().len()), (0, 24));
        // The client's cookie is valid. The BADCOOKIE reply has a valid one, too.
        assert_eq!(rcode(&ask(&cookie_of(&reply).unwrap())), 0);
        let bad = ask(&[[5; 8], [7; 8], [7; 8]].concat());
        assert_eq!((rcode(&bad), rcode(&ask(&cookie_of(&bad).unwrap()))), (23, 0));
    }
}

#[test]
fn forwarders_and_streams_are_never_limited() {
    for (proto, peer) in [
        (Proto::Udp, [10, 9, 8, 7].into()),
        (Proto::Tcp, PEER),
        (Proto::Tls, PEER),
        (Proto::Https, PEER),
        (Proto::Quic, PEER),
    ] {
        let mut worker = limited(proto);
        for id in 0..200 {
            assert_eq!(answers(&ask(&mut worker, &query(id, SMALL, A), peer).unwrap()), 1, "{proto:?}");
        }
    }
}

#[test]
fn a_reply_is_as_large_as_both_sides_accept() {
    for (ours, theirs, limit) in
        [(1232, 4096, 1232), (4096, 4096, 4096), (4096, 2000, 2000), (512, 4096, 512), (4096, 0, 512)]
    {
        let mut worker = worker_with(|settings| settings.udp_payload = ours, Proto::Udp);
        let reply = ask(&mut worker, &query_with_opt(1, BIG, A, theirs, &[]), PEER).unwrap();
        let case = format!("ours {ours}, theirs {theirs}: {} bytes", reply.len());
        assert!(is_truncated(&reply) && reply.len() <= limit && reply.len() + 16 > limit, "{case}");
        assert_eq!(Message::from_vec(&reply).unwrap().edns.unwrap().max_payload(), ours, "{case}");
    }
}

fn names() -> impl Strategy<Value = &'static str> {
    let host = "a-host-with-quite-a-long-name-1.small.n.svc.z";
    prop::sample::select(vec![SMALL, BIG, host, "z", "ns.dns.z", "dns-version.z", "nobody.z", "example.org"])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Replies to addresses that may be forged stay within the limit of the query.
    #[test]
    fn replies_over_udp_are_bounded(
        name in names(),
        qtype in prop::sample::select(vec![A, 28, 33, TXT, 12, 6, 2, ANY, 1000]),
        payload in prop::option::of(0u16..),
        cookie in any::<bool>(),
        ours in 512u16..=4096,
        garble in prop::option::of((12usize..60, any::<u8>())),
    ) {
        let options = if cookie { option(COOKIE, &[5; 8]) } else { Vec::new() };
        let mut packet = match payload {
            Some(payload) => query_with_opt(1, name, qtype, payload, &options),
            None => query(1, name, qtype),
        };
        if let Some((at, octet)) = garble && let Some(place) = packet.get_mut(at) {
            *place = octet;
        }
        // A garbled byte in the payload size may mean any size.
        let theirs = if garble.is_some() { u16::MAX } else { payload.unwrap_or(0) };
        let mut worker = worker_with(|settings| settings.udp_payload = ours, Proto::Udp);
        if let Some(reply) = ask(&mut worker, &packet, PEER) {
            prop_assert!(reply.len() <= usize::from(ours.min(theirs.max(512))), "{} bytes", reply.len());
            if payload.is_none() {
                prop_assert!(reply.len() <= 512);
            }
        }
    }
}

/// ANY is used to get large replies to small queries.
#[test]
fn any_gives_one_small_record() {
    let mut worker = engine().worker(Proto::Udp);
    for name in [SMALL, BIG, "z", "a-host-with-quite-a-long-name-1.small.n.svc.z"] {
        let packet = query_with_opt(1, name, ANY, 4096, &[]);
        let reply = ask(&mut worker, &packet, PEER).unwrap();
        assert_eq!(answers(&reply), 1);
        assert!(reply.len() <= packet.len() + 21, "{name}: {} for {} bytes", reply.len(), packet.len());
    }
}
