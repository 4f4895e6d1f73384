//! Payloads on offer and their fetches.

mod hostile;
mod order;

use std::time::Duration;

use futures::{StreamExt as _, stream};
use multinet_client::{
    Connector, Endpoint, FetchError, Frame, NotTaken, OfferError, Offers, OffersBuilder, Received, Reference,
    Transport,
};

use crate::rig::{connector, eventually, follow, listener, rdma, soon};

/// Service that the payloads are fetched from.
const SERVICE: &str = "decode.vision.svc.multinet";

/// Returns offers on loopback.
fn offers() -> OffersBuilder {
    let address = rdma().unwrap_or_else(|| std::net::Ipv4Addr::LOCALHOST.into());
    let transport = if rdma().is_some() { Transport::Rdma } else { Transport::Auto };
    Offers::builder().address(address).port(0).host("decode-0").budget(8 << 20).transport(transport)
}

async fn bind(builder: OffersBuilder) -> Offers {
    soon(builder.bind()).await.unwrap()
}

/// Returns a connector that takes small payloads, and does not wait for one that is not there.
fn fetcher() -> Connector {
    // The guest needs seconds for a handshake.
    let wait = Duration::from_millis(if rdma().is_some() { 20_000 } else { 2000 });
    connector().fetch_frame_size(1 << 20).fetch_slots(4).fetch_wait(wait).build().unwrap()
}

/// Returns the endpoint that DNS would have for a pod that offers payloads.
fn pod(offers: &Offers, host: &str) -> Endpoint {
    let mut endpoint = Endpoint::at(offers.local_addresses()[0]);
    endpoint.host = host.to_owned();
    endpoint.target = format!("{host}.{SERVICE}.cluster.local");
    endpoint
}

async fn fetch(from: &Connector, offers: &Offers, reference: &Reference) -> Result<Received, FetchError> {
    soon(from.fetch_from(SERVICE, vec![pod(offers, "decode-0")], reference)).await
}

fn id(text: &str) -> multinet_client::OfferId {
    text.parse().unwrap()
}

#[tokio::test]
async fn a_fetched_payload_is_taken_when_it_is_acknowledged() {
    let (offers, fetcher) = (bind(offers()).await, fetcher());
    let payload = vec![7; 300 << 10];
    let frame = Frame::new(payload.clone()).key("camera-17").metadata("640x480");
    let offer = soon(offers.offer(id("camera-17/1"), frame)).await.unwrap();
    assert_eq!(offer.reference().to_string(), "decode-0/camera-17/1");
    let received = fetch(&fetcher, &offers, &offer.reference()).await.unwrap();
    assert_eq!((received.key(), received.metadata()), (&b"camera-17"[..], &b"640x480"[..]));
    assert!(received.bytes() == payload);
    let now = offers.statistics();
    assert_eq!((now.offers, now.fetches, now.fetchers, now.taken), (1, 1, 1, 0));
    received.acknowledge();
    soon(offer.taken()).await.unwrap();
    let now = offers.statistics();
    assert_eq!((now.offers, now.bytes, now.fetches, now.taken), (0, 0, 0, 1));
    let gone = fetch(&fetcher, &offers, &offer.reference()).await.unwrap_err();
    assert!(matches!(gone, FetchError::Taken { .. }), "{gone}");
    // The message was only delivered again.
    soon(soon(offers.offer(id("camera-17/1"), "again")).await.unwrap().taken()).await.unwrap();
}

#[tokio::test]
async fn a_payload_that_is_dropped_or_fetched_twice_stays_on_offer() {
    let (offers, fetcher, other) = (bind(offers()).await, fetcher(), fetcher());
    let offer = soon(offers.offer(id("a"), "payload")).await.unwrap();
    for _ in 0..20 {
        drop(fetch(&fetcher, &offers, &offer.reference()).await.unwrap());
    }
    let first = fetch(&fetcher, &offers, &offer.reference()).await.unwrap();
    let second = fetch(&other, &offers, &offer.reference()).await.unwrap();
    assert_eq!((first.bytes(), second.bytes()), (&b"payload"[..], &b"payload"[..]));
    second.acknowledge();
    soon(offer.taken()).await.unwrap();
    first.acknowledge();
    assert_eq!(offers.statistics().taken, 1);
}

#[tokio::test]
async fn an_id_on_offer_gives_the_same_offer() {
    let (offers, fetcher) = (bind(offers()).await, fetcher());
    let first = soon(offers.offer(id("a"), "first")).await.unwrap();
    let second = soon(offers.offer(id("a"), "second")).await.unwrap();
    let received = fetch(&fetcher, &offers, &second.reference()).await.unwrap();
    assert_eq!(received.bytes(), b"first");
    received.acknowledge();
    soon(first.taken()).await.unwrap();
    soon(second.taken()).await.unwrap();
}

#[tokio::test]
async fn a_handle_that_waits_is_woken_after_another_one_of_the_id_is_dropped() {
    let (offers, fetcher) = (bind(offers()).await, fetcher());
    let offer = soon(offers.offer(id("a"), "payload")).await.unwrap();
    let waiting = tokio::spawn({
        let offer = offer.clone();
        async move { offer.taken().await }
    });
    let again = soon(offers.offer(id("a"), "payload")).await.unwrap();
    let given_up = tokio::spawn(async move { again.taken().await });
    tokio::task::yield_now().await;
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    fetch(&fetcher, &offers, &offer.reference()).await.unwrap().acknowledge();
    soon(waiting).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_offer_waits_until_the_budget_has_room() {
    let (offers, fetcher) = (bind(offers().budget(1000)).await, fetcher());
    let first = soon(offers.offer(id("first"), vec![1; 600])).await.unwrap();
    let waiting = tokio::spawn({
        let offers = offers.clone();
        async move { offers.offer(id("second"), vec![2; 600]).await.unwrap().reference() }
    });
    eventually(|| offers.statistics().waiting > 0).await;
    let too_large = soon(offers.offer(id("third"), vec![3; 1001])).await.unwrap_err();
    assert_eq!(too_large, OfferError::TooLarge { length: 1001, budget: 1000 });
    fetch(&fetcher, &offers, &first.reference()).await.unwrap().acknowledge();
    let second = soon(waiting).await.unwrap();
    assert_eq!(fetch(&fetcher, &offers, &second).await.unwrap().len(), 600);
}

#[tokio::test]
async fn an_offer_ends_at_its_deadline_by_withdrawal_and_with_its_program() {
    let short = bind(offers().deadline(Duration::from_millis(50))).await;
    let late = soon(short.offer(id("a"), "late")).await.unwrap();
    assert!(matches!(soon(late.taken()).await, Err(NotTaken::Deadline { .. })));
    let offers = bind(offers()).await;
    let (withdrawn, closed) =
        (offers.offer(id("a"), "a").await.unwrap(), offers.offer(id("b"), "b").await.unwrap());
    let fetcher = fetcher();
    let held = fetch(&fetcher, &offers, &withdrawn.reference()).await.unwrap();
    withdrawn.withdraw();
    assert_eq!(soon(withdrawn.taken()).await, Err(NotTaken::Withdrawn));
    assert_eq!((offers.statistics().bytes, held.bytes()), (2, &b"a"[..]), "a live fetch keeps its payload");
    let unknown = fetch(&fetcher, &offers, &withdrawn.reference()).await.unwrap_err();
    assert!(matches!(unknown, FetchError::NotFound { .. }), "{unknown}");
    drop(held);
    soon(offers.close()).await;
    assert_eq!(soon(closed.taken()).await, Err(NotTaken::Closed));
    assert_eq!(offers.offer(id("c"), "c").await.unwrap_err(), OfferError::Closed);
}

#[tokio::test]
async fn the_pod_that_is_named_is_asked_first_and_then_the_others() {
    let pods = [bind(offers()).await, bind(offers().host("decode-1")).await];
    let endpoints = vec![pod(&pods[0], "decode-0"), pod(&pods[1], "decode-1")];
    let fetcher = fetcher();
    let find = |reference: &Reference| {
        let (fetcher, endpoints, reference) = (fetcher.clone(), endpoints.clone(), reference.clone());
        async move { soon(fetcher.fetch_from(SERVICE, endpoints, &reference)).await }
    };
    let offer = pods[1].offer(id("a"), "a").await.unwrap();
    drop(find(&offer.reference()).await.unwrap());
    assert_eq!(pods[0].statistics().fetchers, 0, "it need not be asked");
    // The pod has been replaced, and another has got its message.
    find(&"decode-7/a".parse().unwrap()).await.unwrap().acknowledge();
    soon(offer.taken()).await.unwrap();
    let error = find(&"decode-0/b".parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, FetchError::NotFound { asked: 2, .. }), "{error}");
}

#[tokio::test]
async fn a_payload_that_was_taken_is_found_where_it_is_offered_again() {
    let pods = [bind(offers()).await, bind(offers().host("decode-1")).await];
    let endpoints = vec![pod(&pods[0], "decode-0"), pod(&pods[1], "decode-1")];
    let fetcher = fetcher();
    let reference: Reference = "decode-0/a".parse().unwrap();
    let find = || soon(fetcher.fetch_from(SERVICE, endpoints.clone(), &reference));
    let first = pods[0].offer(id("a"), "a").await.unwrap();
    find().await.unwrap().acknowledge();
    soon(first.taken()).await.unwrap();
    let error = find().await.unwrap_err();
    assert_eq!(error.to_string(), "decode-0/a was taken: its payload has been acknowledged before");
    // The message was delivered again, to the other pod.
    let second = pods[1].offer(id("a"), "a").await.unwrap();
    find().await.unwrap().acknowledge();
    soon(second.taken()).await.unwrap();
}

#[tokio::test]
async fn a_payload_that_was_taken_counts_as_taken_though_another_pod_hangs() {
    let (offers, hanging) = (bind(offers()).await, std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let mut hung = Endpoint::at(hanging.local_addr().unwrap());
    hung.host = "decode-1".to_owned();
    let hour = Duration::from_secs(3600);
    let fetcher = connector().patience(hour).fetch_wait(hour).build().unwrap();
    let offer = offers.offer(id("a"), "a").await.unwrap();
    let endpoints = || vec![hung.clone(), pod(&offers, "decode-0")];
    let reference = offer.reference();
    let find = || soon(fetcher.fetch_from(SERVICE, endpoints(), &reference));
    find().await.unwrap().acknowledge();
    soon(offer.taken()).await.unwrap();
    let error = find().await.unwrap_err();
    assert!(matches!(error, FetchError::Taken { .. }), "{error}");
}

#[tokio::test]
async fn a_fetch_waits_for_a_payload_that_comes_later() {
    let offers = bind(offers()).await;
    let fetcher = connector().fetch_wait(Duration::from_secs(60)).build().unwrap();
    let fetching = tokio::spawn({
        let (fetcher, endpoints) = (fetcher.clone(), vec![pod(&offers, "decode-0")]);
        async move { fetcher.fetch_from(SERVICE, endpoints, &"decode-0/a".parse().unwrap()).await }
    });
    eventually(|| offers.statistics().unknown > 0).await;
    let offer = offers.offer(id("a"), "a").await.unwrap();
    soon(fetching).await.unwrap().unwrap().acknowledge();
    soon(offer.taken()).await.unwrap();
}

#[tokio::test]
async fn a_pod_that_hangs_does_not_keep_the_others_from_being_asked_again() {
    let (offers, hanging) = (bind(offers()).await, std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let mut hung = Endpoint::at(hanging.local_addr().unwrap());
    hung.host = "decode-1".to_owned();
    let fetcher = connector().patience(Duration::from_secs(600)).build().unwrap();
    let fetching = tokio::spawn({
        let (fetcher, endpoints) = (fetcher.clone(), vec![hung, pod(&offers, "decode-0")]);
        async move { fetcher.fetch_from(SERVICE, endpoints, &"decode-7/a".parse().unwrap()).await }
    });
    eventually(|| offers.statistics().unknown > 0).await;
    let offer = offers.offer(id("a"), "a").await.unwrap();
    soon(fetching).await.unwrap().unwrap().acknowledge();
    soon(offer.taken()).await.unwrap();
}

#[tokio::test]
async fn a_pod_that_moves_while_it_is_asked_is_asked_at_its_new_address() {
    let offers = bind(offers()).await;
    let _offer = offers.offer(id("a"), "a").await.unwrap();
    let moved = pod(&offers, "decode-0");
    let hanging = tokio::net::TcpListener::bind(("127.0.0.2", moved.port)).await.unwrap();
    let mut before = moved.clone();
    before.addresses = Endpoint::at(hanging.local_addr().unwrap()).addresses;
    let fetcher = connector().patience(Duration::from_millis(500)).build().unwrap();
    let reference: Reference = "decode-0/a".parse().unwrap();
    let fetching = tokio::spawn({
        let (fetcher, reference) = (fetcher.clone(), reference.clone());
        async move { fetcher.fetch_from(SERVICE, vec![before], &reference).await }
    });
    // Until it has connected. The connection stays open, and nothing answers.
    let (_hung, hanging) = soon(hanging.accept()).await.map(|(hung, _)| (hung, hanging)).unwrap();
    // Another fetch that knows the new address, and is given up before it is answered.
    let mut other = Box::pin(fetcher.fetch_from(SERVICE, vec![moved], &reference));
    assert!(futures::poll!(other.as_mut()).is_pending());
    drop(other);
    assert_eq!(soon(fetching).await.unwrap().unwrap().bytes(), b"a");
    drop(hanging);
}

#[tokio::test]
async fn a_fetch_asks_the_endpoints_that_it_is_given_not_those_of_an_earlier_one() {
    let (offers, fetcher) = (bind(offers()).await, fetcher());
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let reference = "decode-0/a".parse().unwrap();
    let error = soon(fetcher.fetch_from(SERVICE, vec![Endpoint::at(gone)], &reference)).await.unwrap_err();
    assert!(matches!(error, FetchError::NoPeer { .. }), "{error}");
    assert!(error.to_string().contains("nothing listens there"), "{error}");
    let _offer = offers.offer(id("a"), "a").await.unwrap();
    assert_eq!(fetch(&fetcher, &offers, &reference).await.unwrap().bytes(), b"a");
}

#[tokio::test]
async fn a_payload_that_is_too_large_is_refused_and_stays_on_offer() {
    let (offers, fetcher) = (bind(offers()).await, fetcher());
    let offer = offers.offer(id("a"), vec![0; (1 << 20) + 1]).await.unwrap();
    let error = fetch(&fetcher, &offers, &offer.reference()).await.unwrap_err();
    assert!(matches!(error, FetchError::TooLarge { length: 1_048_577, most: 1_048_576, .. }), "{error}");
    assert_eq!(offers.statistics().offers, 1);
}

#[tokio::test]
async fn more_fetches_than_slots_take_turns() {
    let offers = bind(offers()).await;
    let fetcher = connector().fetch_slots(4).build().unwrap();
    let mut fetches = Vec::new();
    for number in 0..64_u8 {
        let offer = offers.offer(id(&format!("{number}")), vec![number; 50 << 10]).await.unwrap();
        fetches.push(tokio::spawn({
            let (fetcher, endpoints) = (fetcher.clone(), vec![pod(&offers, "decode-0")]);
            async move {
                let frame = fetcher.fetch_from(SERVICE, endpoints, &offer.reference()).await.unwrap();
                assert!(frame.bytes().iter().all(|&byte| byte == number));
                frame.acknowledge();
                offer.taken().await.unwrap();
            }
        }));
    }
    for fetch in fetches {
        soon(fetch).await.unwrap();
    }
    assert_eq!(offers.statistics().taken, 64);
}

#[tokio::test]
async fn a_fetcher_with_many_small_payloads_under_way_is_not_cut_off() {
    let offers = bind(offers()).await;
    let fetcher = connector().fetch_slots(400).build().unwrap();
    let count = if rdma().is_some() { 500 } else { 5_000 };
    let fetches = (0..count).map(async |number: u32| {
        let offer = offers.offer(id(&number.to_string()), "small").await.unwrap();
        let endpoints = vec![pod(&offers, "decode-0")];
        fetcher.fetch_from(SERVICE, endpoints, &offer.reference()).await.unwrap().acknowledge();
        offer.taken().await.unwrap();
    });
    soon(stream::iter(fetches).buffer_unordered(800).collect::<()>()).await;
    assert_eq!((offers.statistics().taken, offers.statistics().fetchers), (count.into(), 1));
}

#[tokio::test]
async fn a_fetcher_that_ends_gives_its_payload_back() {
    let offers = bind(offers()).await;
    let offer = offers.offer(id("a"), "a").await.unwrap();
    let first = fetcher();
    let held = fetch(&first, &offers, &offer.reference()).await.unwrap();
    assert_eq!(offers.statistics().fetches, 1);
    soon(first.close()).await;
    let error = fetch(&first, &offers, &offer.reference()).await.unwrap_err();
    assert!(matches!(error, FetchError::Closed), "{error}");
    eventually(|| offers.statistics().fetches == 0).await;
    assert_eq!(held.bytes(), b"a");
    held.acknowledge();
    fetch(&fetcher(), &offers, &offer.reference()).await.unwrap().acknowledge();
    soon(offer.taken()).await.unwrap();
}

#[tokio::test]
async fn an_acknowledgement_arrives_though_the_connector_is_closed_at_once() {
    let offers = bind(offers()).await;
    for number in 0..20 {
        let offer = offers.offer(id(&number.to_string()), "a").await.unwrap();
        let fetcher = fetcher();
        fetch(&fetcher, &offers, &offer.reference()).await.unwrap().acknowledge();
        soon(fetcher.close()).await;
        soon(offer.taken()).await.unwrap();
    }
}

#[tokio::test]
async fn a_port_for_frames_and_one_for_fetches_refuse_each_others_peers() {
    let (offers, fetcher) = (bind(offers()).await, fetcher());
    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![pod(&offers, "decode-0")]).unwrap();
    let error = || peers.status().first().and_then(|status| status.last_error.clone());
    eventually(|| error().is_some()).await;
    let refused = error().unwrap().to_string();
    assert!(refused.contains("this port offers payloads to fetch; it receives no frames"), "{refused}");
    let listener = listener().bind().await.unwrap();
    let mut endpoint = Endpoint::at(listener.local_addresses()[0]);
    endpoint.host = "decode-0".to_owned();
    let error = soon(fetcher.fetch_from(SERVICE, vec![endpoint], &"decode-0/a".parse().unwrap())).await;
    let error = error.unwrap_err();
    assert!(matches!(error, FetchError::Lasting { .. }), "{error}");
    assert!(
        error.to_string().contains("this port receives frames; it offers no payloads to fetch"),
        "{error}"
    );
}
