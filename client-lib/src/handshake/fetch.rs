//! The handshake with a side that connects to fetch payloads.

use serde::{Deserialize, Serialize};

use super::{Answer, HandshakeError, Hello, MAX_NAME, Refusal, encode, sanitize};

/// First message of the handshake from a side that connects to fetch payloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fetch {
    /// Service that the fetcher asked for, as the caller wrote it.
    pub(crate) service: String,
    /// Uid of the pod that the fetcher expects to offer payloads at this address, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    /// Name of the fetcher's pod, for logs.
    pub(crate) from: String,
    /// Uid of the fetcher's pod, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from_uid: Option<String>,
    /// Name of the Kubernetes Node that the fetcher runs on, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// Whether the fetcher knows the answer that a payload was taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) knows_taken: bool,
}

/// First message from the side that connects, as the side that accepts reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    Send(Box<Hello>),
    Fetch(Fetch),
}

/// Answer to [`Fetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FetchAnswer {
    Hello(Box<Hello>),
    Refuse(Refusal),
}

/// JSON of a [`Fetch`], by which it differs from a [`Hello`].
#[derive(Serialize, Deserialize)]
struct FetchMessage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fetch: Option<Fetch>,
}

impl Fetch {
    pub(crate) fn encode(self) -> Result<Vec<u8>, HandshakeError> {
        encode(&FetchMessage { fetch: Some(self) })
    }
}

impl Opening {
    pub(crate) fn decode(json: &[u8]) -> Result<Self, HandshakeError> {
        let FetchMessage { fetch: Some(mut fetch) } = serde_json::from_slice(json)? else {
            return Hello::decode(json).map(|hello| Self::Send(Box::new(hello)));
        };
        for text in
            [&mut fetch.service, &mut fetch.from].into_iter().chain(&mut fetch.uid).chain(&mut fetch.from_uid)
        {
            *text = sanitize(std::mem::take(text), MAX_NAME);
        }
        fetch.node = fetch.node.map(|node| sanitize(node, MAX_NAME));
        Ok(Self::Fetch(fetch))
    }
}

impl FetchAnswer {
    pub(crate) fn decode(json: &[u8]) -> Result<Self, HandshakeError> {
        match Answer::decode(json) {
            Ok(Answer::Refuse(refusal)) => Ok(Self::Refuse(refusal)),
            _ => Hello::decode(json).map(|hello| Self::Hello(Box::new(hello))),
        }
    }
}
