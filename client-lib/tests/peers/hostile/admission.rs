//! Addresses that may not connect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use multinet_client::{DialError, Frame, RefusalCode};

use crate::log::{WaitFor as _, capture};
use crate::raw::Raw;
use crate::rig::{connector, endpoint, eventually, follow, listener, soon};

#[tokio::test]
async fn an_address_that_is_not_admitted_is_refused_before_its_handshake() {
    let (log, _guard) = capture();
    let is_open = Arc::new(AtomicBool::new(false));
    let admits = {
        let is_open = Arc::clone(&is_open);
        move |address| match is_open.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(format!("{address} is not on the list")),
        }
    };
    let receiver = listener().admit(admits).bind().await.unwrap();
    let address = receiver.local_addresses()[0].ip();
    // These are more connections than stay open until their refusal has arrived.
    let mut strangers = Vec::new();
    for _ in 0..40 {
        strangers.push(Raw::connect(&receiver).await);
    }
    for stranger in &mut strangers {
        let answer = stranger.handshake_message().await;
        assert_eq!(answer["refuse"]["code"], "sender");
        assert_eq!(answer["refuse"]["message"], format!("{address} is not on the list"));
    }
    let statistics = receiver.statistics();
    assert_eq!((statistics.refused, statistics.connections), (40, 0));
    log.wait_for("WARN", "is not on the list").await;

    let (peers, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![endpoint(&receiver, "infer-0", None)]).unwrap();
    eventually(|| peers.status().iter().any(|peer| peer.last_error.is_some())).await;
    let error = peers.status()[0].last_error.clone().unwrap();
    assert!(matches!(*error, DialError::Refused { code: RefusalCode::Sender, .. }), "{error}");
    assert!(error.to_string().ends_with(&format!("refuses: {address} is not on the list")), "{error}");
    is_open.store(true, Ordering::Relaxed);
    soon(peers.send(Frame::new("frame"))).await.unwrap();
    assert_eq!(soon(receiver.recv()).await.unwrap().bytes(), b"frame");
}
