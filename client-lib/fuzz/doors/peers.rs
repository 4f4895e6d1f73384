//! Doors for the fuzz targets: what peers say, and what must hold of what is read from it.

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

use crate::handshake::{
    Answer, Chosen, HandshakeError, Hello, MAX_BODY, MAX_CONNECTIONS_PER_PEER, PREAMBLE, Preamble, encode,
};
use crate::inbound::{Seen, Teller};
pub use crate::resolve::fuzzing::{answer, facts};
use crate::wire::{ControlBody, HEADER, Header, MAX_IDS, MAX_KEY, MAX_METADATA, MAX_TEXT, WINDOW};

/// A message of the handshake, of either side.
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
            // The list of transports may be long; what is said of it is not.
            if let Ok(again) = encode(&hello) {
                assert_eq!(Hello::decode(&again[PREAMBLE..]).expect("what was written is read"), hello);
            }
        }
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
                assert_eq!(Answer::decode(&again[PREAMBLE..]).expect("what was written is read"), answer);
            }
        }
        Err(error) => refused(&error),
    }
}

/// It can be told in a refusal, and in a line of the log.
fn refused(error: &HandshakeError) {
    let refusal = error.refusal();
    line(&refusal.message, 1024 + 253);
    encode(&Answer::Refuse(refusal)).expect("a refusal fits");
}

fn line(text: &str, most: usize) {
    assert!(text.len() <= most && !text.contains(char::is_control), "{text:?}");
}

/// Messages one after the other, each with its body.
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
                    assert!(decided.is_none_or(|teller| matches!(
                        teller,
                        Teller::All | Teller::Lane(..MAX_CONNECTIONS_PER_PEER)
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
        };
        let (body, rest) = rest.split_at(length.min(rest.len()));
        if let Header::Control(control) = decoded {
            let said = ControlBody::new(&control, body);
            let counts = [said.acked().count(), said.rejected().count(), said.slots().count()];
            let told = [control.acked, control.rejected, control.slots].map(usize::from);
            assert!(counts == told || counts == [0; 3], "{counts:?}");
        }
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Replays the stored corpus of a fuzz target.
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
}
