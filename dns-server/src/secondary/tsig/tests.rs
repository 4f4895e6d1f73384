use proptest::prelude::*;

use super::*;

/// Secret of the vectors.
const SECRET: &[u8] = b"secret of at least sixteen octets";

/// Time at which the vectors were made.
const THEN: u64 = 0x6b03_22e5;

/// Queries that dig of BIND 9.18 has signed.
const VECTORS: [(Algorithm, &str); 2] = [
    (
        Algorithm::HmacSha256,
        "559501200001000000000001017a0474657374000006000106766563746f72036b65790000fa00ff00000000003d0b686d61632d\
         7368613235360000006b0322e5012c0020142e626d690040a8dc8009760be684be16ca283f9cbaa1ac6cb76d92e0511343559500\
         000000",
    ),
    (
        Algorithm::HmacSha512,
        "0d6301200001000000000001017a0474657374000006000106766563746f72036b65790000fa00ff00000000005d0b686d61632d\
         7368613531320000006b0322e6012c00408a1d42c6988b8283a252664e2c5490fb78bb8e61cefc072a4bafebbee815cf1bbb6693\
         c276b59489c502a821a4c5f306db515a1a14dc4e26c7d8ab598e3e88130d6300000000",
    ),
];

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|c| Some(c.to_digit(16)? as u8)).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn ring_of(name: &str, algorithm: Algorithm) -> Keyring {
    [TsigKey::new(name.parse().unwrap(), algorithm, SECRET)].into_iter().collect()
}

fn key(name: &str, algorithm: Algorithm) -> Arc<TsigKey> {
    Arc::new(TsigKey::new(name.parse().unwrap(), algorithm, SECRET))
}

/// Makes a query for the SOA of z.test.
fn query() -> Vec<u8> {
    b"\x12\x34\x01\x20\0\x01\0\0\0\0\0\0\x01z\x04test\0\0\x06\0\x01".to_vec()
}

/// Returns the error of a packet, and the reply to it.
fn refused(packet: &[u8], keys: &Keyring, now: u64) -> (Option<TsigError>, Vec<u8>) {
    let refusal = verify(packet, keys, now).unwrap_err();
    let error = refusal.error();
    assert_eq!(refusal.rcode(), if error.is_some() { Rcode::NotAuth } else { Rcode::FormErr });
    let mut reply = query();
    reply[2..4].copy_from_slice(&[0x80, refusal.rcode() as u8]);
    let before = reply.len();
    let room = refusal.tsig_len();
    refusal.append_tsig(&mut reply, 0, now);
    assert_eq!(reply.len(), before + room, "the length of the signature differs from tsig_len");
    (error, reply)
}

#[test]
fn signatures_of_bind_are_valid_and_the_same_as_ours() {
    for (algorithm, hex) in VECTORS {
        let packet = bytes(hex);
        let opened = verify(&packet, &ring_of("vector.key", algorithm), THEN + 200).unwrap();
        assert_eq!(opened.packet[2..], query()[2..]);
        assert_eq!(opened.packet[..2], packet[..2]);
        assert_eq!(opened.signer.key().name().to_string(), "vector.key.");
        // Our own signature is the same.
        let id = u16::from_be_bytes([packet[0], packet[1]]);
        let mut ours = opened.packet;
        let (_, tsig) = TsigRecord::find(&packet).unwrap();
        Signer::of_query(key("vector.key", algorithm), id).sign(&mut ours, 0, tsig.time);
        assert_eq!(ours, packet);
    }
}

#[test]
fn each_invalid_signature_has_its_error() {
    let keys = ring_of("vector.key", Algorithm::HmacSha256);
    let packet = bytes(VECTORS[0].1);
    let signature = packet.len() - 6 - 32;
    let changed = |at: usize, byte: u8| {
        let mut changed = packet.clone();
        changed[at] = byte;
        changed
    };
    let shortened = |mac: usize| {
        let mut short = packet.clone();
        short.drain(signature + mac..signature + 32);
        short[signature - 1] = mac as u8;
        let length = signature - 2 - 8 - 13 - 1;
        short[length] -= 32 - mac as u8;
        short
    };
    let bad = |error| Some(error);
    for (what, packet, keys, now, expected) in [
        ("another key", &packet, &ring_of("other.key", Algorithm::HmacSha256), THEN, bad(TsigError::BadKey)),
        (
            "another algorithm",
            &packet,
            &ring_of("vector.key", Algorithm::HmacSha512),
            THEN,
            bad(TsigError::BadKey),
        ),
        ("no keys", &packet, &Keyring::default(), THEN, bad(TsigError::BadKey)),
        ("another question", &changed(13, b'y'), &keys, THEN, bad(TsigError::BadSig)),
        ("another MAC", &changed(signature + 31, 0), &keys, THEN, bad(TsigError::BadSig)),
        ("another time", &changed(signature - 5, 0), &keys, THEN, bad(TsigError::BadSig)),
        ("too late", &packet, &keys, THEN + 301, bad(TsigError::BadTime)),
        ("too early", &packet, &keys, THEN - 301, bad(TsigError::BadTime)),
        ("half of the MAC", &shortened(16), &keys, THEN, bad(TsigError::BadTrunc)),
        ("less than half", &shortened(15), &keys, THEN, None),
        ("no class ANY", &changed(31 + 11, 1), &keys, THEN, None),
        ("cut off", &packet[..packet.len() - 1].to_vec(), &keys, THEN, None),
        ("not signed", &query(), &keys, THEN, None),
    ] {
        let (error, reply) = refused(packet, keys, now);
        assert_eq!(error, expected, "{what}");
        let found = TsigRecord::find(&reply).map(|(_, tsig)| tsig);
        assert_eq!(found.as_ref().map(|tsig| tsig.error), expected.map(|error| error as u16), "{what}");
        let is_signed = found.as_ref().is_some_and(|tsig| !tsig.mac.is_empty());
        assert_eq!(is_signed, matches!(expected, Some(TsigError::BadTime | TsigError::BadTrunc)), "{what}");
        if expected == Some(TsigError::BadTime) {
            // The client's time, with which it can check the signature, and the server's.
            let found = found.unwrap();
            assert_eq!((found.time, found.other), (THEN, record::time(now).to_vec()));
        }
    }
    // A truncated MAC that is wrong is an invalid signature.
    let mut wrong = shortened(16);
    wrong[signature] ^= 1;
    assert_eq!(refused(&wrong, &keys, THEN).0, Some(TsigError::BadSig));
}

#[test]
fn a_forwarded_query_keeps_its_new_id() {
    let mut packet = bytes(VECTORS[0].1);
    packet[..2].copy_from_slice(&[7, 7]);
    let opened = verify(&packet, &ring_of("vector.key", Algorithm::HmacSha256), THEN).unwrap();
    assert_eq!(opened.packet[..2], [7, 7]);
}

#[test]
fn a_reply_is_bound_to_its_query() {
    let keys = ring_of("k", Algorithm::HmacSha384);
    let mut packet = query();
    let mut asker = Signer::of_query(key("k", Algorithm::HmacSha384), 0x1234);
    asker.sign(&mut packet, 0, THEN);
    assert_eq!(packet.len(), query().len() + asker.tsig_len());
    let mut opened = verify(&packet, &keys, THEN).unwrap();
    let mut reply = b"before".to_vec();
    reply.extend(query());
    reply[6 + 2] = 0x84;
    opened.signer.sign(&mut reply, 6, THEN + 1);
    let mut reply = reply.split_off(6);
    assert!(asker.verifies(&reply, THEN + 2));
    assert!(!asker.verifies(&reply, THEN + 1000));
    assert!(!asker.verifies(&reply[..reply.len() - 1], THEN + 2));
    let mut other = Signer::of_query(key("k", Algorithm::HmacSha384), 0x1234);
    other.sign(&mut query(), 0, THEN + 1);
    assert!(!other.verifies(&reply, THEN + 2));
    reply[3] = 5;
    assert!(!asker.verifies(&reply, THEN + 2));
}

/// Each of several messages is signed with the MAC of the one before (RFC 8945 §5.3.1).
#[test]
fn messages_of_a_stream_are_chained() {
    let secret = key("k", Algorithm::HmacSha256);
    let mut packet = query();
    Signer::of_query(Arc::clone(&secret), 0x1234).sign(&mut packet, 0, THEN);
    let mut opened = verify(&packet, &ring_of("k", Algorithm::HmacSha256), THEN).unwrap();
    let mut prior = TsigRecord::find(&packet).unwrap().1.mac;
    for number in 0..3 {
        let mut message = query();
        opened.signer.sign(&mut message, 0, THEN + number);
        let (at, tsig) = TsigRecord::find(&message).unwrap();
        let variables = if number == 0 { tsig.variables() } else { tsig.timers() };
        let expected = compute_mac(&secret, Some(&prior), &at.unsigned(&message, 0x1234), &variables);
        assert_eq!(tsig.mac, expected.as_ref());
        prior = tsig.mac;
    }
}

#[test]
fn compression_pointers_in_a_loop_are_malformed() {
    let keys = ring_of("k", Algorithm::HmacSha256);
    for name in [&b"\xc0\x15"[..], b"\xc0\x17", b"\x01a\xc0\x15", b"\xff\xff", b"\x40", b"\xc0"] {
        let mut packet = query();
        packet[11] = 1;
        packet.extend(name);
        packet.extend([0; 40]);
        assert_eq!(refused(&packet, &keys, THEN).0, None);
    }
    // A pointer to the question is a valid name.
    let mut signer = Signer::of_query(key("z.test", Algorithm::HmacSha256), 0x1234);
    let mut packet = query();
    signer.sign(&mut packet, 0, THEN);
    packet.splice(query().len()..query().len() + 8, [0xc0, 12]);
    assert!(verify(&packet, &ring_of("z.test", Algorithm::HmacSha256), THEN).is_ok());
}

/// RFC 8945 §4.2 forbids compression here.
#[test]
fn a_compressed_algorithm_name_is_malformed() {
    let mut packet = query();
    Signer::of_query(key("k", Algorithm::HmacSha256), 0x1234).sign(&mut packet, 0, THEN);
    let keys = ring_of("k", Algorithm::HmacSha256);
    assert!(verify(&packet, &keys, THEN).is_ok());
    // The length of the data comes before the algorithm, which is now a pointer to the question.
    let at = query().len() + 3 + 10;
    packet[at - 1] -= 13 - 2;
    packet.splice(at..at + 13, [0xc0, 12]);
    assert_eq!(refused(&packet, &keys, THEN).0, None);
}

proptest! {
    #[test]
    fn a_signed_message_is_restored_by_verification(body in prop::collection::vec(any::<u8>(), 0..200), counts: [u8; 3]) {
        let mut message = query();
        message.extend(&body);
        message[7] = counts[0] % 3;
        message[9] = counts[1] % 3;
        message[11] = counts[2] % 3;
        let mut packet = message.clone();
        Signer::of_query(key("k", Algorithm::HmacSha256), 0x1234).sign(&mut packet, 0, THEN);
        // Verification succeeds only if the bytes before the signature are records, and their
        // number matches the header.
        if let Ok(opened) = verify(&packet, &ring_of("k", Algorithm::HmacSha256), THEN) {
            prop_assert_eq!(opened.packet, message);
        } else {
            prop_assert!(!body.is_empty() || counts.iter().any(|count| count % 3 > 0));
        }
    }

    #[test]
    fn no_packet_causes_a_panic(packet in prop::collection::vec(any::<u8>(), 0..300), start in 0usize..300) {
        let keys = ring_of("k", Algorithm::HmacSha256);
        let _ = verify(&packet, &keys, THEN);
        let mut signed = bytes(VECTORS[0].1);
        let end = (start + packet.len()).min(signed.len());
        let start = start.min(end);
        signed.splice(start..end, packet);
        let _ = verify(&signed, &ring_of("vector.key", Algorithm::HmacSha256), THEN);
    }
}
