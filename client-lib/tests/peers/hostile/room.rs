//! Senders that together want more memory than the listener has.

use std::time::Duration;

use multinet_client::{Acknowledge, Delivery, Frame, ListenerBuilder, Transport};
use serde_json::{Value, json};

use super::Victim;
use super::slow::connect_from;
use crate::log::{WaitFor as _, capture};
use crate::raw::{CONTROL, LIMITED, Raw, data, header, hello};
use crate::rig::{endpoint, eventually, follow, listener, mixed_connector, soon};

/// Size of a slot for frames of 1000 bytes, in bytes.
const SLOT: usize = 5440;

/// Returns a listener with this many slots in total, and a high limit per sender.
fn short(total: usize) -> ListenerBuilder {
    listener().frame_size(1000).memory(total * SLOT)
}

/// Returns the greeting of a sender that supports limits.
fn limitable(session: u128) -> Value {
    let mut hello = hello(session, 1);
    hello["is_limitable"] = json!(true);
    hello
}

/// Waits for the next limit from the listener.
async fn limit(raw: &mut Raw) -> u32 {
    loop {
        let message = raw.message().await.expect("a limit");
        if message.header[0] == CONTROL && message.header[1] == 1 {
            return u32::from_be_bytes(std::array::from_fn(|i| message.header[32 + i]));
        }
    }
}

async fn answer(raw: &mut Raw, limit: u32) {
    raw.write(&header(LIMITED, &[(4, &limit.to_be_bytes())])).await;
}

#[tokio::test]
async fn more_senders_than_slots_of_the_first_all_deliver() {
    for delivery in [Delivery::AtMostOnce, Delivery::AtLeastOnce] {
        let receiver = short(10).slots(8).acknowledge(Acknowledge::OnDrop).bind().await.unwrap();
        let mut senders = Vec::new();
        for number in 0..8 {
            let (peers, endpoints) = follow(mixed_connector().delivery(delivery).transport(Transport::Tcp));
            endpoints.unbounded_send(vec![endpoint(&receiver, "a", None)]).unwrap();
            let sending = peers.clone();
            let task = tokio::spawn(async move {
                for _ in 0..100 {
                    sending.send(Frame::new(vec![number; 1000])).await.unwrap();
                }
                sending.flush().await.unwrap();
                sending.outstanding_at_most(0).await;
            });
            senders.push((peers, endpoints, task));
        }
        let mut counts = [0; 8];
        while counts.iter().sum::<u32>() < 800 {
            let frame = soon(receiver.recv()).await.unwrap();
            counts[usize::from(frame.bytes()[0])] += 1;
            assert!(receiver.statistics().promised <= 10 * SLOT);
        }
        assert_eq!(counts, [100; 8]);
        for (peers, _endpoints, task) in senders {
            soon(task).await.unwrap();
            let sent = peers.statistics();
            assert_eq!((sent.disconnects, sent.lost, sent.connected), (0, 0, 1));
        }
        assert_eq!(receiver.statistics().refused, 0);
    }
}

#[tokio::test]
async fn slots_that_a_sender_returns_are_reused_after_its_answer() {
    let receiver = short(8).slots(8).bind().await.unwrap();
    let mut first = Raw::admitted(&receiver, &limitable(1)).await;
    // The receiving code holds two of its frames, whose slots count as used.
    first.write(&[data(1, 1, b"one"), data(2, 1, b"two")].concat()).await;
    let held = [soon(receiver.recv()).await.unwrap(), soon(receiver.recv()).await.unwrap()];
    let (mut newcomer, greeting) = (Raw::connect(&receiver).await, limitable(2));
    let (accepted, ()) = tokio::join!(newcomer.greet(&greeting), async {
        assert_eq!(limit(&mut first).await, 4);
        assert_eq!(receiver.statistics().promised, 8 * SLOT);
        // Frames that the sender sent before its answer are accepted.
        let frames: Vec<u8> = (3..=8).flat_map(|number| data(number, 1, b"more")).collect();
        first.write(&frames).await;
        answer(&mut first, 4).await;
        for _ in 3..=8 {
            soon(receiver.recv()).await.unwrap().acknowledge();
        }
    });
    assert_eq!(accepted["accept"]["slots"], 4);
    assert_eq!(receiver.statistics().promised, 8 * SLOT);
    // After the answer, the lower limit applies.
    drop(held);
    first.write(&(9..=24).flat_map(|number| data(number, 1, b"many")).collect::<Vec<u8>>()).await;
    assert!(first.goodbye().await.contains("more frames than it has credit for"));
}

#[tokio::test]
async fn a_newcomer_gets_an_even_share_although_less_is_free() {
    let receiver = short(9).slots(4).bind().await.unwrap();
    let mut first = Raw::admitted(&receiver, &limitable(1)).await;
    let mut second = Raw::admitted(&receiver, &limitable(2)).await;
    let (mut newcomer, greeting) = (Raw::connect(&receiver).await, limitable(3));
    let give_back = async |raw: &mut Raw| {
        let told = limit(raw).await;
        answer(raw, told).await;
    };
    let (accepted, (), ()) =
        tokio::join!(newcomer.greet(&greeting), give_back(&mut first), give_back(&mut second));
    assert_eq!(accepted["accept"]["slots"], 3);
}

#[tokio::test]
async fn a_sender_that_reconnects_takes_its_own_slots_and_no_others() {
    let receiver = short(8).slots(4).bind().await.unwrap();
    let _half_open = Raw::admitted(&receiver, &limitable(1)).await;
    let mut other = Raw::admitted(&receiver, &limitable(2)).await;
    let mut greeting = limitable(1);
    greeting["epoch"] = json!(2);
    assert_eq!(Raw::connect(&receiver).await.greet(&greeting).await["accept"]["slots"], 4);
    // The next message that the other sender gets is about its frame, and has no limit.
    other.write(&data(1, 1, b"frame")).await;
    soon(receiver.recv()).await.unwrap().acknowledge();
    let told = other.message().await.unwrap();
    assert_eq!((told.header[0], told.header[1]), (CONTROL, 0));
}

#[tokio::test]
async fn free_slots_go_to_a_sender_that_uses_all_of_its_own() {
    let receiver = short(8).slots(8).bind().await.unwrap();
    let mut held = Vec::new();
    let mut first = Raw::admitted(&receiver, &limitable(1)).await;
    let (mut second, greeting) = (Raw::connect(&receiver).await, limitable(2));
    let (accepted, ()) = tokio::join!(second.greet(&greeting), async {
        let told = limit(&mut first).await;
        answer(&mut first, told).await;
    });
    assert_eq!(accepted["accept"]["slots"], 4);
    drop(first);
    second.write(&(1..=4).flat_map(|number| data(number, 1, b"all")).collect::<Vec<u8>>()).await;
    for _ in 0..4 {
        held.push(soon(receiver.recv()).await.unwrap());
    }
    assert_eq!(limit(&mut second).await, 8);
    second.write(&(5..=8).flat_map(|number| data(number, 1, b"more")).collect::<Vec<u8>>()).await;
    for _ in 0..4 {
        held.push(soon(receiver.recv()).await.unwrap());
    }
}

#[tokio::test]
async fn a_sender_that_does_not_answer_excludes_no_other() {
    let receiver = short(8).slots(8).bind().await.unwrap();
    let mut silent = Raw::admitted(&receiver, &limitable(1)).await;
    let mut epoch = 0;
    soon(async {
        loop {
            epoch += 1;
            let greeting = hello(2, epoch);
            let answer = Raw::connect(&receiver).await.greet(&greeting).await;
            if answer["accept"].is_object() {
                return;
            }
            assert_eq!(answer["refuse"]["code"], "full");
        }
    })
    .await;
    assert!(silent.goodbye().await.contains("has made room for another"));
}

#[tokio::test]
async fn an_answer_to_no_limit_ends_the_connection() {
    let victim = Victim::new().await;
    let mut raw = Raw::admitted(&victim.listener, &limitable(1)).await;
    answer(&mut raw, 8).await;
    assert!(raw.goodbye().await.contains("it keeps to a limit that it was not told"));
    victim.recovers().await;
}

#[tokio::test]
async fn many_connections_of_one_address_exclude_no_other() {
    let (log, _guard) = capture();
    // The limits of connections and of memory are both reached.
    for listener in [short(5).slots(1), short(100).slots(1).max_connections(5)] {
        let victim = Victim::of(listener.patience(Duration::from_secs(4))).await;
        let mut strangers = Vec::new();
        for session in 1..=4 {
            let mut raw = connect_from(1, &victim.listener).await;
            assert!(raw.greet(&hello(session, 1)).await["accept"].is_object());
            strangers.push(raw);
        }
        // An address with an equal share already is refused, with the numbers.
        let refused = connect_from(1, &victim.listener).await.greet(&hello(5, 1)).await;
        let said = refused["refuse"]["message"].as_str().unwrap();
        assert!(said.contains("as many as may be"), "{said}");
        let mut newcomer = connect_from(2, &victim.listener).await;
        assert!(newcomer.greet(&hello(6, 1)).await["accept"].is_object());
        let mut latest = strangers.pop().unwrap();
        assert!(latest.goodbye().await.contains("has made room for another"));
        log.wait_for("INFO", "has made room for another").await;
        assert_eq!(victim.peers.statistics().disconnects, 0);
        // An unfinished frame does not protect a connection.
        for raw in &mut strangers {
            raw.write(&data(1, 1, &[0; 1000])[..500]).await;
        }
        let mut other = connect_from(3, &victim.listener).await;
        assert!(other.greet(&hello(7, 1)).await["accept"].is_object());
        drop((strangers, newcomer, other));
        eventually(|| victim.listener.statistics().connections == 1).await;
        victim.serves().await;
    }
}

#[tokio::test]
async fn a_quiet_sender_of_the_previous_version_is_closed_for_others() {
    let receiver = short(8).slots(8).acknowledge(Acknowledge::OnDrop).bind().await.unwrap();
    let mut first = Raw::admitted(&receiver, &hello(1, 1)).await;
    first.write(&data(1, 1, b"frame")).await;
    let held = soon(receiver.recv()).await.unwrap();
    let mut newcomer = Raw::connect(&receiver).await;
    let refused = newcomer.greet(&limitable(2)).await;
    assert_eq!(refused["refuse"]["code"], "full", "a frame of the first one has not been acknowledged");
    drop(held);
    // Until it counts as quiet, newcomers are refused, and come again.
    let let_in = soon(async {
        for session in 3.. {
            let answer = Raw::connect(&receiver).await.greet(&limitable(session)).await;
            if answer["accept"].is_object() {
                return;
            }
            assert_eq!(answer["refuse"]["code"], "full");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let ((), goodbye) = tokio::join!(let_in, first.goodbye());
    assert!(goodbye.contains("has made room for another"), "{goodbye}");
}
