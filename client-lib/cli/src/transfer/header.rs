//! What a frame says of itself, in its metadata.

use serde::{Deserialize, Serialize};

use super::Summary;

/// A frame's place in a transfer.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Header {
    /// How many bytes of the transfer are before it.
    pub(super) offset: u64,
    /// How many there are in all, where that is known beforehand: of a file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) total: Option<u64>,
    /// SHA-256 of all of it, in hex: this is the last frame, and its offset is the size.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) sha256: Option<String>,
}

impl Header {
    pub(super) fn end(summary: &Summary) -> Self {
        let Summary { bytes, sha256 } = summary.clone();
        Self { offset: bytes, total: Some(bytes), sha256: Some(sha256) }
    }

    /// What the last frame says of the whole.
    pub(super) fn summary(&self) -> Option<Summary> {
        self.sha256.clone().map(|sha256| Summary { bytes: self.offset, sha256 })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // Numbers and a string in a struct are always JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// `None` if `multinet send` did not write it.
    pub(super) fn decode(metadata: &[u8]) -> Option<Self> {
        serde_json::from_slice(metadata).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let part = Header { offset: 1 << 40, total: None, sha256: None };
        let end = Header::end(&Summary { bytes: 7, sha256: "ab".to_owned() });
        for header in [&part, &end] {
            assert_eq!(Header::decode(&header.encode()).as_ref(), Some(header));
        }
        assert_eq!((part.summary(), end.summary().map(|summary| summary.bytes)), (None, Some(7)));
        assert_eq!(part.encode(), br#"{"offset":1099511627776}"#);
    }

    #[test]
    fn what_others_write_is_none() {
        for other in [&b""[..], b"{}", b"pts=1024", b"{\"offset\":-1}"] {
            assert_eq!(Header::decode(other), None);
        }
    }
}
