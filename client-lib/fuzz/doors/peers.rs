//! Entry points of the fuzz targets for messages of peers and for references, with the properties
//! that must hold.

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

use crate::handshake::{
    Answer, Chosen, HandshakeError, Hello, MAX_BODY, MAX_CONNECTIONS_PER_PEER, Opening, PREAMBLE, Preamble,
    encode,
};
use crate::inbound::{Reporter, Seen};
use crate::reference::Reference;
pub use crate::resolve::fuzzing::{answer, facts};
use crate::wire::{ControlBody, HEADER, Header, MAX_IDS, MAX_KEY, MAX_METADATA, MAX_TEXT, WINDOW};

/// Decodes any bytes as a handshake message of either side.
pub fn handshake(bytes: &[u8]) {
    let Some((preamble, body)) = bytes.split_first_chunk::<PREAMBLE>() else {
        return refused(&HandshakeError::from_first_bytes(bytes));
    };
    match Preamble::decode(*preamble) {
        Ok(preamble) => assert!(preamble.length <= MAX_BODY),
        Err(error) => refused(&error),
    }
    match Hello::decode(body) {
        Ok(hello) => {
            assert!(hello.lane < MAX_CONNECTIONS_PER_PEER);
            let names = [&hello.service, &hello.from].into_iter().chain(&hello.uid).chain(&hello.from_uid);
            names.for_each(|name| line(name, 253));
            // Encoding fails if the list of transports is too long. Nothing else can be.
            if let Ok(again) = encode(&hello) {
                assert_eq!(
                    Hello::decode(&again[PREAMBLE..]).expect("an encoded message can be decoded"),
                    hello
                );
            }
        }
        Err(error) => refused(&error),
    }
    match Opening::decode(body) {
        Ok(Opening::Fetch(fetch)) => {
            let names = [&fetch.service, &fetch.from].into_iter();
            let names = names.chain(&fetch.uid).chain(&fetch.from_uid).chain(&fetch.node);
            names.for_each(|name| line(name, 253));
            if let Ok(again) = fetch.clone().encode() {
                let again = Opening::decode(&again[PREAMBLE..]);
                assert_eq!(again.expect("an encoded message can be decoded"), Opening::Fetch(fetch));
            }
        }
        Ok(Opening::Send(_)) => {}
        Err(error) => refused(&error),
    }
    match Chosen::decode(body) {
        Ok(chosen) => chosen.reason.iter().for_each(|reason| line(reason, 1024)),
        Err(error) => refused(&error),
    }
    match Answer::decode(body) {
        Ok(answer) => {
            match &answer {
                Answer::Accept(accept) => {
                    assert!(accept.slots > 0);
                    line(&accept.name, 253);
                    accept.reason.iter().for_each(|reason| line(reason, 1024));
                    accept.rdma.iter().for_each(|end| line(&end.device, 253));
                    accept.uid.iter().for_each(|uid| line(uid, 253));
                }
                Answer::Refuse(refusal) => line(&refusal.message, 1024),
            }
            if let Ok(again) = encode(&answer) {
                assert_eq!(
                    Answer::decode(&again[PREAMBLE..]).expect("an encoded message can be decoded"),
                    answer
                );
            }
        }
        Err(error) => refused(&error),
    }
}

/// Checks that an error can be sent in a refusal, and shown in one line of a log.
fn refused(error: &HandshakeError) {
    let refusal = error.refusal();
    line(&refusal.message, 1024 + 253);
    encode(&Answer::Refuse(refusal)).expect("a refusal fits");
}

/// Checks that a text is one line of limited length.
fn line(text: &str, most: usize) {
    assert!(text.len() <= most && !text.contains(char::is_control), "{text:?}");
}

/// Decodes any bytes as a stream of messages, each with its body.
pub fn messages(mut bytes: &[u8]) {
    let mut seen = Seen::default();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() {
        let decoded = match Header::decode(header) {
            Ok(decoded) => decoded,
            Err(error) => return line(&error.to_string(), 253),
        };
        assert_eq!(Header::decode(&decoded.encode()), Ok(decoded));
        let length = match decoded {
            Header::Data(data) => {
                assert!(data.prefix() <= MAX_KEY + MAX_METADATA && data.sequence - data.floor < WINDOW);
                let lane = u16::from(data.key) % MAX_CONNECTIONS_PER_PEER;
                seen.arrived_by(lane, data.sequence, data.floor);
                if data.is_repeat {
                    let decided = seen.decided(data.sequence, data.metadata % 2 == 0);
                    assert!(decided.is_none_or(|reporter| matches!(
                        reporter,
                        Reporter::All | Reporter::Lane(..MAX_CONNECTIONS_PER_PEER)
                    )));
                }
                data.body()
            }
            Header::Control(control) => {
                assert!(control.body() <= MAX_IDS * (2 * size_of::<u64>() + size_of::<u16>()));
                control.body()
            }
            Header::Close { text, .. } => {
                assert!(text <= MAX_TEXT);
                text
            }
            Header::Limited { .. } => 0,
            Header::Ask { id, .. } => id,
        };
        let (body, rest) = rest.split_at(length.min(rest.len()));
        if let Header::Control(control) = decoded {
            let parts = ControlBody::new(&control, body);
            let counts = [parts.acked().count(), parts.rejected().count(), parts.slots().count()];
            let expected = [control.acked, control.rejected, control.slots].map(usize::from);
            assert!(counts == expected || counts == [0; 3], "{counts:?}");
        }
        bytes = rest;
    }
}

/// Parses any text as a reference.
pub fn reference(bytes: &[u8]) {
    match String::from_utf8_lossy(bytes).parse::<Reference>() {
        Ok(reference) => {
            line(reference.host(), 253);
            line(reference.id().as_str(), 255);
            assert_eq!(reference.to_string().parse(), Ok(reference));
        }
        Err(error) => line(&error.to_string(), 1024),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Checks the stored corpus of a fuzz target.
    fn replay(target: &str, check: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
        replay::replay(&folder, check);
    }

    #[test]
    fn handshakes_of_the_corpus_pass() {
        replay("handshake", handshake);
    }

    #[test]
    fn messages_of_the_corpus_pass() {
        replay("messages", messages);
    }

    #[test]
    fn answers_of_the_corpus_pass() {
        replay("answer", answer);
    }

    #[test]
    fn facts_of_the_corpus_pass() {
        replay("facts", facts);
    }

    #[test]
    fn references_of_the_corpus_pass() {
        replay("reference", reference);
    }
}
