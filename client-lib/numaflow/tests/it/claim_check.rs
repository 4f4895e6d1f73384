//! References through MapStream and a sink.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use multinet_client::{Connector, Frame, Offers, OffersBuilder, Received, Targets};
use multinet_client_numaflow::{Claim, FetchingSink, OfferingMap};
use numaflow::mapstream::{MapStreamRequest, MapStreamer, Message};
use numaflow::sink::{Response, ResponseType, SinkRequest, Sinker, SystemMetadata, UserMetadata};
use tokio::sync::mpsc::{Receiver, channel};

use super::{LOOPBACK, connector, eventually, soon};

fn offers() -> OffersBuilder {
    Offers::builder().address(LOOPBACK).port(0).host("video-decode-0")
}

fn message(value: &str) -> MapStreamRequest {
    MapStreamRequest {
        keys: vec!["camera".to_owned()],
        value: value.into(),
        watermark: Default::default(),
        eventtime: Default::default(),
        headers: Default::default(),
    }
}

/// Calls a map function as the SDK does. Returns its outputs.
fn call<M: MapStreamer + Send + Sync + 'static>(map: &Arc<M>, value: &str) -> Receiver<Message> {
    let (sender, outputs) = channel(10);
    let (map, message) = (Arc::clone(map), message(value));
    tokio::spawn(async move { map.map_stream(message, sender).await });
    outputs
}

/// Returns a sink that remembers the payloads which it has processed, and fails for `"broken"`.
fn sink(connector: Connector, offers: &Offers) -> (impl Sinker + use<>, Receiver<String>) {
    let (sender, processed) = channel(100);
    let port = offers.local_addresses()[0].port();
    let sources = Targets::parse("", &format!("{LOOPBACK}:{port}"), "").unwrap();
    let sink = FetchingSink::new(connector, sources.sources(), move |frame: &Received, _| {
        let (sender, payload) = (sender.clone(), String::from_utf8_lossy(frame.bytes()).into_owned());
        Box::pin(async move {
            if payload == "broken" {
                return Err("cannot be processed");
            }
            sender.send(payload).await.map_err(|_| "the test is over")
        })
    });
    (sink.unwrap(), processed)
}

fn request(reference: &str) -> SinkRequest {
    SinkRequest {
        keys: Vec::new(),
        value: reference.into(),
        watermark: Default::default(),
        event_time: Default::default(),
        id: format!("id of {reference}"),
        headers: Default::default(),
        user_metadata: UserMetadata::new(),
        system_metadata: SystemMetadata::new(),
    }
}

/// Hands references to a sink. Returns the errors, in the order of the references.
async fn hand_over(sink: &impl Sinker, references: &[&str]) -> Vec<Option<String>> {
    let (sender, input) = channel(100);
    for reference in references {
        sender.send(request(reference)).await.unwrap();
    }
    drop(sender);
    let mut responses: Vec<Response> = soon(sink.sink(input)).await;
    assert_eq!(responses.len(), references.len());
    let mut answer = |reference: &&str| {
        let id = format!("id of {reference}");
        let at = responses.iter().position(|response| response.id == id).unwrap();
        let response = responses.swap_remove(at);
        assert_eq!(response.err.is_some(), matches!(response.response_type, ResponseType::Failure));
        response.err
    };
    references.iter().map(&mut answer).collect()
}

async fn reference(outputs: &mut Receiver<Message>) -> String {
    let message = soon(outputs.recv()).await.unwrap();
    assert_eq!(message.keys, Some(vec!["camera".to_owned()]));
    String::from_utf8(message.value).unwrap()
}

#[tokio::test]
async fn a_message_is_done_once_its_payload_was_processed() {
    let map = OfferingMap::bind(offers(), async |message: MapStreamRequest| {
        let id = String::from_utf8_lossy(&message.value).parse().ok()?;
        Some(Claim::new(id, message.value))
    });
    let map = Arc::new(map.await.unwrap());
    let offers = map.offers().clone();
    let connector = connector().fetch_wait(Duration::from_millis(200)).build().unwrap();
    let (sink, mut processed) = sink(connector, &offers);
    let (mut first, mut broken, mut none) = (call(&map, "first"), call(&map, "broken"), call(&map, ""));
    let references = [reference(&mut first).await, reference(&mut broken).await];
    assert_eq!(references, ["video-decode-0/first", "video-decode-0/broken"]);
    assert_eq!(soon(none.recv()).await, None, "a message without payload is done at once");

    let references = [&*references[0], &*references[1], "video-decode-0/absent", "no reference"];
    let errors = hand_over(&sink, &references).await;
    assert_eq!((&errors[0], errors[1].as_deref()), (&None, Some("cannot be processed")));
    assert!(errors[2].as_ref().unwrap().contains("no pod has video-decode-0/absent"), "{errors:?}");
    assert!(errors[3].as_ref().unwrap().contains("is no reference"), "{errors:?}");
    assert_eq!(soon(processed.recv()).await.as_deref(), Some("first"));
    assert_eq!(soon(first.recv()).await, None, "its message is done");
    assert!(
        broken.try_recv().is_err_and(|error| error != tokio::sync::mpsc::error::TryRecvError::Disconnected)
    );
    assert_eq!(offers.statistics().offers, 1, "the payload that was not processed stays on offer");

    // The reference is delivered again: it is done, and nothing is processed.
    assert_eq!(hand_over(&sink, &[references[0]]).await, [None]);
    assert!(processed.try_recv().is_err());
}

#[tokio::test]
async fn a_full_budget_holds_messages_back() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let map = OfferingMap::bind(offers().budget(8), move |message: MapStreamRequest| {
        count.fetch_add(1, Ordering::Relaxed);
        let id = String::from_utf8_lossy(&message.value).parse().unwrap();
        async move { Some(Claim::new(id, message.value)) }
    });
    let map = Arc::new(map.await.unwrap().at_once(1));
    let offers = map.offers().clone();
    let (sink, _processed) = sink(connector().build().unwrap(), &offers);
    let mut calls: Vec<_> = ["aaaa", "bbbb", "cccc", "dddd", "eeee"].map(|value| call(&map, value)).into();
    eventually(|| offers.statistics().waiting == 1).await;
    // Two fit, and one is the next.
    assert_eq!(made.load(Ordering::Relaxed), 3);
    assert_eq!(offers.statistics().offers, 2);
    // Each one that is taken makes room for the next.
    while !calls.is_empty() {
        let next = futures::future::select_all(calls.iter_mut().map(|call| Box::pin(call.recv())));
        let (output, at, _) = soon(next).await;
        match output {
            Some(output) => {
                let reference = String::from_utf8(output.value).unwrap();
                assert_eq!(hand_over(&sink, &[&reference]).await, [None]);
            }
            None => drop(calls.swap_remove(at)),
        }
    }
    assert_eq!((made.load(Ordering::Relaxed), offers.statistics().taken), (5, 5));
}

#[tokio::test]
async fn the_reference_of_a_payload_that_nothing_takes_is_emitted_again() {
    // The deadline of the builder does not count.
    let map = OfferingMap::bind(offers().deadline(Duration::ZERO), async |message: MapStreamRequest| {
        Some(Claim::new("a".parse().unwrap(), message.value))
    });
    let map = Arc::new(map.await.unwrap().repeat_after(Duration::from_millis(20)));
    let offers = map.offers().clone();
    let mut outputs = call(&map, "a payload");
    for _ in 0..3 {
        assert_eq!(reference(&mut outputs).await, "video-decode-0/a");
    }
    let (sink, mut processed) = sink(connector().build().unwrap(), &offers);
    assert_eq!(hand_over(&sink, &["video-decode-0/a"]).await, [None]);
    assert_eq!(soon(processed.recv()).await.as_deref(), Some("a payload"));
    while let Some(repeat) = soon(outputs.recv()).await {
        assert_eq!(repeat.value, b"video-decode-0/a");
    }
}

/// Memory of a payload, which is counted by the handles of an `Arc`.
struct Counted(#[expect(dead_code, reason = "it is only counted")] Arc<()>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        b"a payload"
    }
}

#[tokio::test]
async fn a_message_that_comes_again_shares_the_one_payload_and_its_offer() {
    let payloads = Arc::new(());
    let map = OfferingMap::bind(offers(), {
        let payloads = Arc::downgrade(&payloads);
        move |message: MapStreamRequest| {
            let payload = Frame::new(Bytes::from_owner(Counted(payloads.upgrade().unwrap())));
            async move { Some(Claim::new(String::from_utf8(message.value).unwrap().parse().unwrap(), payload)) }
        }
    });
    let map = Arc::new(map.await.unwrap().repeat_after(Duration::from_millis(20)));
    let (offers, is_one) = (map.offers().clone(), || Arc::strong_count(&payloads) == 2);
    let (mut before, mut again) = (call(&map, "a"), call(&map, "a"));
    for answer in [&mut before, &mut again] {
        assert_eq!(reference(answer).await, "video-decode-0/a");
    }
    eventually(is_one).await;
    // Numaflow does not await the first answer any more, which shows when it is repeated.
    drop(before);
    for _ in 0..5 {
        assert_eq!(reference(&mut again).await, "video-decode-0/a");
    }
    assert_eq!((offers.statistics().withdrawn, offers.statistics().offers), (0, 1));
    assert!(is_one());
    drop(again);
    eventually(|| offers.statistics().withdrawn == 1 && Arc::strong_count(&payloads) == 1).await;
}
