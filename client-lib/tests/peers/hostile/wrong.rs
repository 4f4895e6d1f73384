//! Peers that are not the intended ones: another pod at the same address, another service.

use std::net::Ipv4Addr;
use std::time::Duration;

use multinet_client::{ConnectError, DialError, Endpoint, Frame, Identity, PeerSet, RefusalCode};

use crate::log::{WaitFor as _, capture};
use crate::raw::{Raw, Receiver, accept, greeting, hello};
use crate::rig::{connector, endpoint, eventually, follow, listener, mixed_connector, soon};

fn last_error(peers: &PeerSet) -> String {
    peers
        .status()
        .first()
        .and_then(|peer| peer.last_error.clone())
        .map_or_else(String::new, |error| error.to_string())
}

#[tokio::test]
async fn a_listener_of_another_pod_refuses_with_its_name() {
    let (log, _guard) = capture();
    let old = Identity::new("infer-0-old").uid("uid-1");
    let receiver = listener().identity(Identity::new("infer-0-new").uid("uid-2")).bind().await.unwrap();
    let (peers, endpoints) = follow(connector().identity(old));
    let stale = endpoint(&receiver, "infer-0", Some("uid-9"));
    endpoints.unbounded_send(vec![stale]).unwrap();
    eventually(|| !last_error(&peers).is_empty()).await;
    let expected = "refuses: this is pod infer-0-new with uid uid-2, not uid-9: the address has a new owner";
    let error = last_error(&peers);
    assert!(error.contains(expected), "{error}");
    let status = peers.status();
    assert!(matches!(
        status[0].last_error.as_deref(),
        Some(DialError::Refused { code: RefusalCode::Pod, .. })
    ));
    log.wait_for("WARN", "refused: this is pod infer-0-new").await;
    // Once DNS has the new uid, the same address is another peer.
    endpoints.unbounded_send(vec![endpoint(&receiver, "infer-0", Some("uid-2"))]).unwrap();
    soon(peers.send(Frame::new("frame"))).await.unwrap();
    assert_eq!(soon(receiver.recv()).await.unwrap().bytes(), b"frame");
    assert_eq!(last_error(&peers), "");
}

#[tokio::test]
async fn a_sender_notices_a_wrong_uid_that_the_listener_ignores() {
    let receiver = Receiver::new().await;
    let (peers, endpoints) = follow(mixed_connector());
    let mut expected: Endpoint = receiver.endpoint("infer-0");
    let mut pod = multinet_client::PodRef::default();
    pod.uid = Some("uid-1".to_owned());
    expected.pod = Some(pod);
    endpoints.unbounded_send(vec![expected]).unwrap();
    let mut raw = receiver.next().await;
    assert_eq!(raw.handshake_message().await["uid"], "uid-1");
    let mut other = accept(8);
    other["accept"]["uid"] = "uid-2".into();
    other["accept"]["name"] = "infer-0\n-new".into();
    raw.write(&greeting(1, other.to_string().as_bytes())).await;
    eventually(|| !last_error(&peers).is_empty()).await;
    let error = last_error(&peers);
    assert!(error.contains("is pod infer-0\u{fffd}-new with uid uid-2, not uid-1"), "{error}");
    assert!(peers.statistics().connected == 0);
}

#[tokio::test]
async fn a_pod_without_a_uid_is_accepted_at_its_address() {
    let receiver = listener().identity(Identity::new("infer-0")).bind().await.unwrap();
    let (peers, endpoints) = follow(connector().identity(Identity::new("decode-0")));
    endpoints.unbounded_send(vec![endpoint(&receiver, "infer-0", Some("uid-1"))]).unwrap();
    soon(peers.send(Frame::new("frame"))).await.unwrap();
    let frame = soon(receiver.recv()).await.unwrap();
    assert_eq!((frame.sender().name(), frame.sender().uid()), ("decode-0", None));
}

#[tokio::test]
async fn a_sender_to_another_service_is_refused_with_the_names() {
    let (log, _guard) = capture();
    let receiver = listener()
        .identity(Identity::new("track-0"))
        .service("track.vision")
        .service("tr")
        .bind()
        .await
        .unwrap();
    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![endpoint(&receiver, "infer-0", None)]).unwrap();
    eventually(|| !last_error(&peers).is_empty()).await;
    let expected = "refuses: track-0 is no endpoint of infer.vision.svc.multinet, but of track.vision, tr";
    let error = last_error(&peers);
    assert!(error.contains(expected), "{error}");
    log.wait_for("WARN", "refused: track-0 is no endpoint of infer.vision.svc.multinet").await;
}

#[tokio::test]
async fn lasting_refusals_end_the_wait() {
    let receiver = listener().service("track.vision").bind().await.unwrap();
    let address = receiver.local_addresses()[0];
    let connector = connector().wait(Duration::from_secs(3600)).build().unwrap();
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let error = soon(connector.connect(&ip, &port)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Lasting { .. }), "{error}");
}

/// A peer has several addresses. A refusal from one of them says more than a timeout of another.
#[tokio::test]
async fn the_error_of_the_address_that_got_farthest_is_reported() {
    let receiver = listener().service("track.vision").bind().await.unwrap();
    let (peers, endpoints) = follow(connector());
    let mut infer = endpoint(&receiver, "infer-0", None);
    let mut deaf = infer.addresses[0].clone();
    deaf.ip = Ipv4Addr::new(127, 0, 0, 2).into();
    infer.addresses.push(deaf);
    endpoints.unbounded_send(vec![infer]).unwrap();
    eventually(|| !last_error(&peers).is_empty()).await;
    for _ in 0..3 {
        let error = peers.status()[0].last_error.clone().unwrap();
        assert!(matches!(*error, DialError::Refused { code: RefusalCode::Service, .. }), "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn service_names_match_by_whole_labels() {
    let receiver = listener().service("infer.vision").bind().await.unwrap();
    for (number, (service, is_let_in)) in [
        ("infer.vision", true),
        ("infer.vision.svc.multinet.cluster.local", true),
        ("Infer.Vision.svc.multinet", true),
        ("rail0._net.infer.vision.svc.multinet", true),
        ("rail0._NET.INFER.vision", true),
        ("rail0._net.track.vision.svc.multinet", false),
        ("infer.vision._net.track.vision.svc.multinet", false),
        ("infer.visions", false),
        ("infer", false),
        ("", false),
        // A host of the service.
        ("track.infer.vision", true),
        ("a.track.infer.vision", false),
    ]
    .into_iter()
    .enumerate()
    {
        let mut hello = hello(number as u128, 1);
        hello["service"] = service.into();
        let answer = Raw::connect(&receiver).await.greet(&hello).await;
        assert_eq!(answer.get("accept").is_some(), is_let_in, "{service}: {answer}");
    }
    let receiver = listener().service("Rail0._net.Infer.vision").bind().await.unwrap();
    for (service, is_let_in) in [("rail1._net.infer.vision.svc", true), ("rail0._net.infer", false)] {
        let mut hello = hello(1, 1);
        hello["service"] = service.into();
        let answer = Raw::connect(&receiver).await.greet(&hello).await;
        assert_eq!(answer.get("accept").is_some(), is_let_in, "{service}: {answer}");
    }
}
