//! First bytes of strangers. The listener refuses each with a reason, which it also logs.

use serde_json::json;

use super::Victim;
use crate::log::{WaitFor as _, capture};
use crate::raw::{Raw, greeting, hello};
use crate::rig::{listener, soon};

/// Sends bytes to a listener. Checks its answer and its log line; "" means that it sends or logs
/// nothing.
async fn greets(bytes: &[u8], answer: &str, logged: &str) {
    let (log, _guard) = capture();
    let victim = Victim::new().await;
    let mut raw = Raw::connect(&victim.listener).await;
    raw.write(bytes).await;
    let said = String::from_utf8_lossy(&raw.rest().await).into_owned();
    let address = raw.0.local_addr().unwrap();
    drop(raw);
    assert_eq!(said.is_empty(), answer.is_empty(), "{said}");
    assert!(said.contains(answer), "{said}");
    log.wait_for("WARN", logged).await;
    let line = log.with(logged).swap_remove(0);
    assert!(line.len() < 1500 && !line.contains(char::is_control), "{line}");
    assert!(line.contains(&format!("address={address}")), "{line}");
    victim.recovers().await;
}

#[tokio::test]
async fn a_greeting_of_another_protocol_is_turned_away() {
    for bytes in [&b"\xde\xad\xbe\xef\xde\xad\xbe\xef"[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 100_000]] {
        greets(bytes, "", "turned away: it does not begin with MNET").await;
    }
}

#[tokio::test]
async fn a_tls_hello_is_refused_with_advice() {
    let mut client_hello = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    client_hello.resize(517, 7);
    greets(&client_hello, "MNET", "refused: it speaks TLS: give this side certificates").await;
}

#[tokio::test]
async fn wrong_lengths_and_older_versions_are_refused() {
    for length in [4097, 65535_u16] {
        let preamble = [&b"MNET\0\x01"[..], &length.to_be_bytes(), &[b' '; 70_000]].concat();
        let expected = format!("a handshake of {length} bytes, more than the 4096 allowed");
        greets(&preamble, &expected, &format!("refused: {expected}")).await;
    }
    let older = greeting(0, hello(1, 1).to_string().as_bytes());
    greets(&older, r#""code":"version""#, "protocol version 0, not 1").await;
}

#[tokio::test]
async fn a_newer_version_is_answered_in_our_version() {
    let victim = Victim::new().await;
    let mut raw = Raw::connect(&victim.listener).await;
    let mut newer = hello(1, 1);
    newer["rails"] = json!([{"gid": "fe80::1"}]);
    raw.write(&greeting(9, newer.to_string().as_bytes())).await;
    assert!(raw.handshake_message().await["accept"].is_object());
    drop(raw);
    victim.recovers().await;
    // A greeting that this version cannot decode is refused because of its version.
    let other = greeting(9, br#"{"who": "decode-0"}"#);
    greets(&other, r#""code":"version""#, "refused: protocol version 9, not 1").await;
}

#[tokio::test]
async fn malformed_json_is_refused_with_the_reason() {
    let with = |field: &str, value: serde_json::Value| {
        let mut hello = hello(1, 1);
        hello[field] = value;
        hello.to_string()
    };
    let plain = hello(1, 1).to_string();
    let cases = [
        (String::new(), "EOF"),
        ("{}".to_owned(), "missing field"),
        ("[]".to_owned(), "invalid length 0"),
        ("[".repeat(4000), "invalid type: sequence"),
        (plain.replace('{', &format!(r#"{{"x": {}"#, "[".repeat(4000 - plain.len()))), "expected `,` or `]`"),
        (plain.replacen('{', r#"{"lane": 0, "#, 1), "duplicate field `lane`"),
        (plain.replace(r#""epoch":1"#, r#""epoch":1e400"#), "number out of range"),
        (plain.replace(r#""epoch":1"#, r#""epoch":18446744073709551616"#), "invalid type: floating point"),
        (with("epoch", "1".into()), "invalid type: string"),
        (with("lane", (-1).into()), "invalid value"),
        (with("lane", 64.into()), "a lane of 64 or more"),
        (with("lane", 65536.into()), "invalid value"),
        (with("session", "1".into()), "a session is 32 hexadecimal digits"),
        (with("session", "+".repeat(32).into()), "a session is 32 hexadecimal digits"),
        (with("delivery", "\n\u{1b}[2J".repeat(300).into()), "unknown variant"),
        (with("from", json!({"a": "b"})), "invalid type: map"),
        ("\u{0}".repeat(4096), "expected value"),
    ];
    for (json, expected) in cases {
        greets(&greeting(1, json.as_bytes()), r#""code":"malformed""#, expected).await;
    }
    greets(&greeting(1, b"{\"from\": \"\xff\xff\"}"), r#""code":"malformed""#, "unicode").await;
    for transports in [json!([]), json!(["carrier-pigeon"])] {
        let hello = greeting(1, with("transports", transports).as_bytes());
        greets(&hello, r#""code":"transport""#, "refused: the sender offers no transport").await;
    }
}

#[tokio::test]
async fn names_of_strangers_do_not_break_log_lines() {
    let (log, _guard) = capture();
    let victim = Victim::new().await;
    let mut nasty = hello(1, 1);
    nasty["from"] = format!("a\nWARN {}", "\u{1b}[31m".repeat(100)).into();
    let mut raw = Raw::admitted(&victim.listener, &nasty).await;
    raw.write(&crate::raw::data(1, 1, b"frame")).await;
    let frame = soon(victim.listener.recv()).await.unwrap();
    assert!(frame.sender().name().len() < 1000 && !frame.sender().name().contains(char::is_control));
    drop((raw, frame));
    victim.recovers().await;
    assert!(log.text().lines().all(|line| !line.contains(char::is_control) && !line.starts_with("WARN")));
}

#[tokio::test]
async fn a_long_refusal_arrives() {
    let victim = Victim::of(listener().service("infer.vision")).await;
    let mut raw = Raw::connect(&victim.listener).await;
    let mut other = hello(1, 1);
    other["service"] = "\u{1}".repeat(600).into();
    let answer = raw.greet(&other).await;
    assert_eq!(answer["refuse"]["code"], "service");
    victim.recovers().await;
}

#[tokio::test]
async fn a_connection_closed_early_is_not_logged() {
    let (log, _guard) = capture();
    let victim = Victim::new().await;
    let whole = greeting(1, hello(1, 1).to_string().as_bytes());
    for length in [0, 1, 7, 8, whole.len() - 1] {
        let mut raw = Raw::connect(&victim.listener).await;
        raw.write(&whole[..length]).await;
    }
    victim.recovers().await;
    assert!(log.with("WARN").is_empty(), "{}", log.text());
}
