//! The parts of a message that go with its frame, as the frame's metadata.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Header of the messages of a [`FrameSource`](crate::FrameSource): the id that a message had in
/// the sender's Pipeline.
pub(crate) const ID_HEADER: &str = "multinet-id";

/// Parts of a message beside its value and event time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Envelope {
    /// Id of the message in the sender's Pipeline: the same when Numaflow delivers it again.
    pub(super) id: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) keys: Vec<String>,
    #[serde(default, skip_serializing_if = "HashMap::is_empty")]
    pub(super) headers: HashMap<String, String>,
}

/// JSON of an envelope, by which it differs from the metadata of other senders.
#[derive(Serialize, Deserialize)]
struct Numaflow {
    numaflow: Envelope,
}

impl Envelope {
    pub(super) fn encode(self) -> Vec<u8> {
        // Text, lists and maps of text always have a JSON form.
        serde_json::to_vec(&Numaflow { numaflow: self }).unwrap_or_default()
    }

    /// Reads a frame's metadata. `None` if the sender is no [`FrameSink`](crate::FrameSink).
    pub(super) fn decode(metadata: &[u8]) -> Option<Self> {
        let Numaflow { numaflow } = serde_json::from_slice(metadata).ok()?;
        // Numaflow ends at an offset that is empty.
        Some(numaflow).filter(|envelope| !envelope.id.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_survives_encoding_and_other_metadata_is_none() {
        let headers = HashMap::from([("x".to_owned(), "ü".to_owned())]);
        let envelope = Envelope { id: "send-7-0".to_owned(), keys: vec!["a".to_owned()], headers };
        assert_eq!(Envelope::decode(&envelope.clone().encode()), Some(envelope));
        let bare = Envelope { id: "7".to_owned(), keys: Vec::new(), headers: HashMap::new() };
        assert_eq!(bare.clone().encode(), br#"{"numaflow":{"id":"7"}}"#);
        assert_eq!(Envelope::decode(&bare.clone().encode()), Some(bare));
        for other in [&b""[..], b"640x480", br#"{"id":"7"}"#, br#"{"numaflow":{"id":""}}"#, b"\xff"] {
            assert_eq!(Envelope::decode(other), None, "{}", other.escape_ascii());
        }
    }
}
