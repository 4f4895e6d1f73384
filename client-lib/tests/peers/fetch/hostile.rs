//! Fetchers and pods that break the protocol. Each is cut off, and others are not affected.

use std::net::Ipv4Addr;
use std::time::Duration;

use multinet_client::{Connector, Endpoint, FetchError, Offers};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use super::{SERVICE, bind, fetch, fetcher, id, offers};
use crate::raw::{CONTROL, Raw, accept, control, data, greeting, header, hello};
use crate::rig::{connector, eventually, soon};

pub(super) const ASK: u8 = 5;

fn fetch_message() -> Value {
    json!({"fetch": {"service": SERVICE, "from": "stranger", "knows_taken": true}})
}

pub(super) fn ask(number: u64, id: &[u8]) -> Vec<u8> {
    let length = u16::try_from(id.len()).unwrap().to_be_bytes();
    [&header(ASK, &[(2, &length), (16, &number.to_be_bytes())])[..], id].concat()
}

/// Connects as a fetcher does, and grants some slots.
pub(super) async fn fetcher_by_hand(offers: &Offers, slots: u32) -> Raw {
    let mut raw = Raw(soon(TcpStream::connect(offers.local_addresses()[0])).await.unwrap());
    let hello = raw.greet(&fetch_message()).await;
    assert_eq!(hello["delivery"], "at-least-once", "{hello}");
    raw.write(&greeting(1, accept(slots).to_string().as_bytes())).await;
    raw
}

#[tokio::test]
async fn a_fetcher_that_breaks_the_protocol_is_cut_off_with_the_reason() {
    let offers = bind(offers().transport(multinet_client::Transport::Tcp)).await;
    let offer = offers.offer(id("a"), "a").await.unwrap();
    let too_long = header(ASK, &[(2, &[1, 0])]).to_vec();
    let breaches = [
        (ask(1, b""), "an id that cannot be one"),
        (ask(1, b"a b"), "an id that cannot be one"),
        (ask(1, &[0xff; 4]), "an id that cannot be one"),
        (too_long, "id of 256 bytes, more than the 255 allowed"),
        ((0..4000).flat_map(|number| ask(number, b"a")).collect(), "more payloads at a time than is allowed"),
        (data(1, 1, b"payload"), "only receivers' messages are allowed"),
        (header(9, &[]).to_vec(), "unknown message kind 9"),
        (control(5, 0, &[], &[]), "5 frames have left their slots"),
    ];
    for (breach, reason) in breaches {
        let mut raw = fetcher_by_hand(&offers, 4).await;
        raw.write(&breach).await;
        let said = raw.goodbye().await;
        assert!(said.contains(reason), "{said:?} for {reason}");
    }
    let fetcher = fetcher();
    fetch(&fetcher, &offers, &offer.reference()).await.unwrap().acknowledge();
    soon(offer.taken()).await.unwrap();
}

#[tokio::test]
async fn guessed_ids_and_fetches_without_end_do_not_hold_others_up() {
    let offers = bind(offers().transport(multinet_client::Transport::Tcp)).await;
    let offer = offers.offer(id("a"), vec![1; 900 << 10]).await.unwrap();
    // One guesses, one reads nothing, one acknowledges nothing.
    let mut guessing = fetcher_by_hand(&offers, 4).await;
    guessing.write(&ask(1, b"b")).await;
    let answer = guessing.message().await.unwrap();
    assert_eq!((answer.body.len(), answer.body[8]), (17, 1), "unknown");
    let mut silent = fetcher_by_hand(&offers, 100).await;
    for number in 0..100 {
        silent.write(&ask(number, b"a")).await;
    }
    let mut holding = fetcher_by_hand(&offers, 1).await;
    holding.write(&ask(1, b"a")).await;
    assert_eq!(holding.message().await.unwrap().body.len(), 17 + (900 << 10));
    let fetcher = fetcher();
    fetch(&fetcher, &offers, &offer.reference()).await.unwrap().acknowledge();
    soon(offer.taken()).await.unwrap();
    assert_eq!(offers.statistics().bytes, 900 << 10, "they still read it");
    drop((silent, holding));
    eventually(|| offers.statistics().bytes == 0).await;
}

#[tokio::test]
async fn a_fetcher_that_holds_a_payload_long_after_its_deadline_is_cut_off() {
    let offers = offers().transport(multinet_client::Transport::Tcp).deadline(Duration::from_millis(300));
    let offers = bind(offers).await;
    let offer = offers.offer(id("a"), "payload").await.unwrap();
    let mut holding = fetcher_by_hand(&offers, 1).await;
    holding.write(&ask(1, b"a")).await;
    assert_eq!(holding.message().await.unwrap().body.len(), 17 + 7);
    assert!(soon(offer.taken()).await.is_err());
    eventually(|| offers.statistics().bytes == 0 && offers.statistics().fetchers == 0).await;
}

#[tokio::test]
async fn one_address_cannot_take_all_connections() {
    let offers = bind(offers().max_connections(16).transport(multinet_client::Transport::Tcp)).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(fetcher_by_hand(&offers, 1).await);
    }
    let mut ninth = Raw(soon(TcpStream::connect(offers.local_addresses()[0])).await.unwrap());
    let answer = ninth.greet(&fetch_message()).await;
    assert_eq!(answer["refuse"]["code"], "full", "{answer}");
    drop(held.pop());
    let again = async {
        loop {
            let mut raw = Raw(TcpStream::connect(offers.local_addresses()[0]).await.unwrap());
            if raw.greet(&fetch_message()).await.get("refuse").is_none() {
                return;
            }
        }
    };
    soon(again).await;
}

/// One of them asks for the same payload again and again, and reads no answer.
#[tokio::test]
async fn many_fetchers_get_one_payload_at_once() {
    let offers = bind(offers().transport(multinet_client::Transport::Tcp)).await;
    let offer = offers.offer(id("a"), vec![1; 100 << 10]).await.unwrap();
    let mut silent = fetcher_by_hand(&offers, 1).await;
    for number in 0..100 {
        silent.write(&ask(number, b"a")).await;
    }
    let fetches = (0..40).map(async |_| {
        let fetcher = fetcher();
        for _ in 0..5 {
            let frame = fetch(&fetcher, &offers, &offer.reference()).await.unwrap();
            assert_eq!(frame.len(), 100 << 10);
        }
    });
    soon(futures::future::join_all(fetches)).await;
    assert_eq!(offers.statistics().offers, 1);
    fetch(&fetcher(), &offers, &offer.reference()).await.unwrap().acknowledge();
    soon(offer.taken()).await.unwrap();
    drop(silent);
    eventually(|| offers.statistics().bytes == 0).await;
}

/// Pod by hand that a fetcher connects to.
pub(super) struct Pod(TcpListener);

impl Pod {
    pub(super) async fn listen() -> (Self, Endpoint) {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut endpoint = Endpoint::at(socket.local_addr().unwrap());
        endpoint.host = "decode-0".to_owned();
        (Self(socket), endpoint)
    }

    /// Accepts a fetcher, and reads its first question.
    pub(super) async fn asked(&self) -> Raw {
        let mut raw = Raw(soon(self.0.accept()).await.unwrap().0);
        let fetch = raw.handshake_message().await;
        assert_eq!(fetch["fetch"]["service"], SERVICE);
        let answer = raw.greet(&hello(rand(), 1)).await;
        assert!(answer.get("accept").is_some(), "{answer}");
        loop {
            let message = raw.message().await.unwrap();
            if message.header[0] != CONTROL {
                assert_eq!((message.header[0], &message.body[..]), (ASK, &b"a"[..]));
                return raw;
            }
        }
    }
}

fn rand() -> u128 {
    u128::from(std::process::id()) << 64 | u128::from(std::time::Instant::now().elapsed().subsec_nanos())
}

/// Returns a frame that answers the question with a number, of `length` bytes as it says.
pub(super) fn answer(number: u64, status: u8, payload: &[u8], length: usize) -> Vec<u8> {
    let metadata = [&number.to_be_bytes()[..], &[status], &[0; 8]].concat();
    let mut frame = data(1, 1, payload);
    frame[4..6].copy_from_slice(&17_u16.to_be_bytes());
    frame[8..12].copy_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
    [&frame[..40], &metadata, &frame[40..]].concat()
}

#[tokio::test]
async fn a_pod_that_answers_what_was_not_asked_or_announces_more_than_it_has_is_not_believed() {
    if crate::rig::rdma().is_some() {
        // The pod by hand speaks TCP, and the fetcher would insist on RDMA.
        return;
    }
    let honest = bind(offers()).await;
    let offer = honest.offer(id("a"), "honest").await.unwrap();
    for (number, status, length) in [(77, 0, 4), (1, 9, 4), (1, 0, 1 << 19), (1, 0, 1 << 30)] {
        let (pod, liar) = Pod::listen().await;
        let fetcher = connector().build().unwrap();
        let lying = tokio::spawn(async move {
            let mut raw = pod.asked().await;
            raw.write(&answer(number, status, b"lies", length)).await;
            if length == 4 {
                assert_eq!(
                    raw.goodbye().await,
                    "the sender broke the protocol: it answers a question that it was not asked"
                );
            }
        });
        let endpoints = vec![liar, super::pod(&honest, "decode-1")];
        let frame = soon(fetcher.fetch_from(SERVICE, endpoints, &"decode-0/a".parse().unwrap())).await;
        assert_eq!(
            frame.map(|frame| frame.bytes().to_vec()).map_err(|error| error.to_string()),
            Ok(b"honest".to_vec())
        );
        drop(fetcher);
        soon(lying).await.unwrap();
    }
    drop(offer);
}

/// Returns a fetcher whose wait ends so many milliseconds after the last byte. `None` where the
/// handshake alone may take longer.
fn fetcher_that_waits(milliseconds: u64) -> Option<Connector> {
    let builder = connector().fetch_frame_size(1 << 20).fetch_wait(Duration::from_millis(milliseconds));
    crate::rig::rdma().is_none().then(|| builder.build().unwrap())
}

#[tokio::test]
async fn a_payload_that_comes_slowly_is_waited_for_and_one_that_stops_is_not() {
    let payload = [7; 60];
    for pieces in [60, 20] {
        let Some(fetcher) = fetcher_that_waits(300) else { return };
        let (pod, endpoint) = Pod::listen().await;
        let fetching = tokio::spawn(async move {
            fetcher.fetch_from(SERVICE, vec![endpoint], &"decode-0/a".parse().unwrap()).await
        });
        let mut raw = pod.asked().await;
        let frame = answer(1, 0, &payload, payload.len());
        let (head, body) = frame.split_at(frame.len() - payload.len());
        raw.write(head).await;
        // It takes more than the fetcher's wait.
        for piece in body.chunks(3).take(pieces / 3) {
            tokio::time::sleep(Duration::from_millis(30)).await;
            raw.write(piece).await;
        }
        let fetched = soon(fetching).await.unwrap();
        match fetched {
            Ok(frame) => assert_eq!((pieces, frame.bytes()), (60, &payload[..])),
            Err(error) => assert!(pieces == 20 && matches!(error, FetchError::NoPeer { .. }), "{error}"),
        }
    }
}

/// The fetcher looks at what has come after two seconds, before it would ask other pods, and again
/// at the end of its wait, before which nothing more comes.
#[tokio::test]
async fn a_payload_that_stalls_for_less_than_the_wait_is_waited_for() {
    let Some(fetcher) = fetcher_that_waits(3000) else { return };
    let (pod, endpoint) = Pod::listen().await;
    let fetching = tokio::spawn(async move {
        let frame = fetcher.fetch_from(SERVICE, vec![endpoint], &"decode-0/a".parse().unwrap()).await;
        frame.map(|frame| frame.bytes().to_vec()).map_err(|error| error.to_string())
    });
    let mut raw = pod.asked().await;
    let frame = answer(1, 0, b"payload", 7);
    let (head, rest) = frame.split_at(frame.len() - 3);
    tokio::time::sleep(Duration::from_millis(1000)).await;
    raw.write(head).await;
    // The rest comes after the wait as counted from the question, and before it as counted from the
    // last byte.
    tokio::time::sleep(Duration::from_millis(2300)).await;
    raw.write(rest).await;
    assert_eq!(soon(fetching).await.unwrap(), Ok(b"payload".to_vec()));
}

#[tokio::test]
async fn garbage_for_an_answer_to_a_fetch_is_named() {
    let (pod, endpoint) = Pod::listen().await;
    let fetching = tokio::spawn(async move {
        fetcher().fetch_from(SERVICE, vec![endpoint], &"decode-0/a".parse().unwrap()).await.map(drop)
    });
    let mut raw = Raw(soon(pod.0.accept()).await.unwrap().0);
    raw.handshake_message().await;
    raw.write(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let error = soon(fetching).await.unwrap().unwrap_err();
    assert!(matches!(error, FetchError::Lasting { .. }), "{error}");
    assert!(error.to_string().contains("no peer of multinet speaks there"), "{error}");
}
