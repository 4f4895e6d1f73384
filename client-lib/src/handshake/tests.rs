//! Handshakes as bytes: round trips, other versions, strangers and hostile texts.

use proptest::prelude::*;

use super::*;

fn hello() -> Hello {
    Hello {
        service: "infer.vision.svc.multinet".into(),
        uid: Some("7f1c2d3e".into()),
        from: "decode-0".into(),
        from_uid: None,
        session: SessionId(7),
        epoch: 3,
        peer: 0,
        lane: 0,
        delivery: Delivery::AtLeastOnce,
        window: Some(512),
        is_limitable: true,
        transports: vec![TransportKind::Tcp],
        rdma: None,
    }
}

fn preamble(bytes: &[u8]) -> Result<Preamble, HandshakeError> {
    Preamble::decode(std::array::from_fn(|i| bytes.get(i).copied().unwrap_or_default()))
}

#[test]
fn a_hello_survives_encoding() {
    let bytes = encode(&hello()).unwrap();
    assert_eq!(preamble(&bytes).unwrap(), Preamble { version: VERSION, length: bytes.len() - PREAMBLE });
    assert_eq!(Hello::decode(&bytes[PREAMBLE..]).unwrap(), hello());
}

#[test]
fn fields_and_values_of_later_versions_are_ignored() {
    let mut json = serde_json::to_value(hello()).unwrap();
    json["rails"] = 4.into();
    json["transports"] = serde_json::json!(["carrier-pigeon", "tcp"]);
    let decoded = Hello::decode(json.to_string().as_bytes()).unwrap();
    assert_eq!(decoded.transports, [TransportKind::Other, TransportKind::Tcp]);
    let refusal = Answer::decode(br#"{"refuse": {"code": "tuesday", "message": "closed"}}"#).unwrap();
    assert_eq!(refusal, Answer::Refuse(Refusal::new(RefusalCode::Other, "closed")));
}

#[test]
fn a_malformed_handshake_is_an_error_that_names_the_cause() {
    let cases: [(&[u8], &str); 4] = [
        (b"GET / HTTP/1.1", "does not begin with MNET"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "speaks TLS"),
        (b"MNET\x00\x01\xff\xff", "65535 bytes"),
        (b"", "does not begin with MNET"),
    ];
    for (bytes, expected) in cases {
        let error = preamble(bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{bytes:?}: {error}");
    }
    assert!(Hello::decode(b"{}").is_err());
    let no_slot = br#"{"accept": {"name": "a", "frame_size": 1, "slots": 0, "transport": "tcp"}}"#;
    assert!(Answer::decode(no_slot).is_err());
}

#[test]
fn texts_of_a_peer_are_cut_to_one_safe_line() {
    let mut json = serde_json::to_value(hello()).unwrap();
    json["from"] = "a\n\u{1b}[2J\u{202e}".into();
    json["service"] = "s".repeat(4000).into();
    let decoded = Hello::decode(json.to_string().as_bytes()).unwrap();
    assert_eq!((decoded.from.as_str(), decoded.service.len()), ("a\u{fffd}\u{fffd}[2J\u{fffd}", MAX_NAME));
    json["delivery"] = "\n".repeat(2000).into();
    let error = Hello::decode(json.to_string().as_bytes()).unwrap_err();
    assert!(!error.to_string().contains('\n') && encode(&Answer::Refuse(error.refusal())).is_ok());
    let refusal = Answer::decode(br#"{"refuse": {"code": "full", "message": "a\nb"}}"#).unwrap();
    assert_eq!(refusal, Answer::Refuse(Refusal::new(RefusalCode::Full, "a\u{fffd}b")));
}

#[test]
fn a_refusal_with_any_message_fits() {
    for text in ["\u{0}", "\"", "\\", "é", "a"] {
        let refusal = Refusal::new(RefusalCode::Service, text.repeat(5000));
        let bytes = encode(&Answer::Refuse(refusal.clone())).unwrap();
        assert_eq!(Answer::decode(&bytes[PREAMBLE..]).unwrap(), Answer::Refuse(refusal));
    }
}

#[test]
fn an_unknown_transport_is_refused() {
    let answer = br#"{"accept": {"name": "a", "frame_size": 1, "slots": 1, "transport": "pigeon"}}"#;
    assert!(Answer::decode(answer).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = preamble(&bytes);
        let _ = Hello::decode(&bytes);
        let _ = Answer::decode(&bytes);
    }
}
