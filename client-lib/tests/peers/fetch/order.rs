//! The order of acknowledgements and questions on one connection, by TCP. By RDMA, they go by two.

use multinet_client::{FetchError, Transport};

use super::hostile::{ASK, Pod, answer, ask, fetcher_by_hand};
use super::{SERVICE, bind, fetch, fetcher, id, offers};
use crate::raw::{CONTROL, control};
use crate::rig::{rdma, soon};

/// Status of an answer, which follows the question's number.
const TAKEN: u8 = 3;

#[tokio::test]
async fn an_acknowledgement_that_comes_with_a_question_counts_before_it() {
    let offers = bind(offers().transport(Transport::Tcp)).await;
    let _offer = offers.offer(id("a"), "a").await.unwrap();
    let mut raw = fetcher_by_hand(&offers, 4).await;
    raw.write(&[ask(1, b"a"), ask(2, b"a"), ask(3, b"a")].concat()).await;
    for _ in 0..3 {
        assert_eq!(raw.message().await.unwrap().body.last(), Some(&b'a'));
    }
    // The other two are held.
    raw.write(&[control(1, 3, &[2], &[]), ask(4, b"a")].concat()).await;
    let answer = raw.message().await.unwrap();
    assert_eq!((answer.body.len(), answer.body[8]), (17, TAKEN));
}

#[tokio::test]
async fn a_fetcher_sends_an_acknowledgement_before_its_next_question() {
    if rdma().is_some() {
        // The pod by hand speaks TCP, and the fetcher would insist on RDMA.
        return;
    }
    let (pod, endpoint) = Pod::listen().await;
    let fetcher = fetcher();
    let reference = "decode-0/a".parse().unwrap();
    let find = || soon(fetcher.fetch_from(SERVICE, vec![endpoint.clone()], &reference));
    let asked = async {
        let mut raw = pod.asked().await;
        raw.write(&answer(1, 0, b"payload", 7)).await;
        raw
    };
    let (frame, mut raw) = futures::join!(find(), asked);
    frame.unwrap().acknowledge();
    let mut acknowledged = Vec::new();
    let read = async {
        loop {
            let message = raw.message().await.unwrap();
            match message.header[0] {
                CONTROL => acknowledged.extend(message.acked()),
                kind => return assert_eq!(kind, ASK),
            }
        }
    };
    tokio::select! {
        () = read => {}
        _ = find() => panic!("it is not answered"),
    }
    assert_eq!(acknowledged, [1]);
}

/// By RDMA, a question and the acknowledgement before it go by two connections.
#[tokio::test]
async fn an_acknowledgement_counts_before_the_question_after_it() {
    if rdma().is_some() {
        return;
    }
    let (offers, fetcher) = (bind(offers()).await, fetcher());
    // Another payload is held meanwhile, and the same one.
    let held = offers.offer(id("held"), "held").await.unwrap();
    let held = fetch(&fetcher, &offers, &held.reference()).await.unwrap();
    for number in 0..200 {
        let offer = offers.offer(id(&number.to_string()), "a").await.unwrap();
        let reference = offer.reference();
        let first = fetch(&fetcher, &offers, &reference).await.unwrap();
        let second = fetch(&fetcher, &offers, &reference).await.unwrap();
        first.acknowledge();
        let error = fetch(&fetcher, &offers, &reference).await.map(drop).unwrap_err();
        assert!(matches!(error, FetchError::Taken { .. }), "{number}: {error}");
        drop(second);
    }
    held.acknowledge();
}
