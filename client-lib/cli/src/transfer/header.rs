//! The header of a frame, which is its metadata.
//!
//! After the parts of a transfer come two frames without payload. The first, the *seal*, asks
//! whether all of it has come; it is acknowledged when all of it is safe on the receiver's disk.
//! The second, the *end*, says that the sender has heard that; it is acknowledged when the file is
//! in its place. Receivers of earlier versions take a seal for an empty part, and decide at the
//! end; senders of earlier versions send no seal.

use serde::{Deserialize, Serialize};

use super::Summary;

/// Number of digits of a SHA-256 in hex.
const DIGITS: usize = 64;

/// A frame's place in a transfer, and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Number of the transfer's bytes before those of the frame.
    pub(super) offset: u64,
    /// Size of the transfer, if that is known beforehand, as of a file.
    pub(super) total: Option<u64>,
    pub(super) meaning: Meaning,
}

/// Purpose of a frame of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Part,
    /// Asks whether all of the transfer is on the receiver's disk.
    Seal(Summary),
    /// Says that the sender knows that all of the transfer is on the receiver's disk.
    End(Summary),
    /// Says that the sender gives the transfer up, and why.
    Abort(Abort),
}

/// Reason why the sender gives a transfer up, which it tells the receiver.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Abort {
    /// The file that is sent has become shorter.
    Truncated,
    /// The file that is sent has changed.
    Changed,
    Unreadable,
    /// A reason that only senders of later versions have.
    #[serde(other)]
    Other,
}

/// A frame's header as it is written in JSON.
#[derive(Default, Deserialize, Serialize)]
struct Fields {
    offset: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    total: Option<u64>,
    /// SHA-256 of the whole transfer, in hex. The frame is the seal, and its offset the size.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    seal: Option<String>,
    /// SHA-256 of the whole transfer, in hex. The frame is the end, and its offset the size.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    abort: Option<Abort>,
}

impl Header {
    pub(super) fn part(offset: u64, total: Option<u64>) -> Self {
        Self { offset, total, meaning: Meaning::Part }
    }

    pub(super) fn seal(summary: &Summary) -> Self {
        let bytes = summary.bytes;
        Self { offset: bytes, total: Some(bytes), meaning: Meaning::Seal(summary.clone()) }
    }

    pub(super) fn end(summary: &Summary) -> Self {
        let bytes = summary.bytes;
        Self { offset: bytes, total: Some(bytes), meaning: Meaning::End(summary.clone()) }
    }

    pub(super) fn abort(offset: u64, reason: Abort) -> Self {
        Self { offset, total: None, meaning: Meaning::Abort(reason) }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { offset, total, meaning } = self.clone();
        let mut fields = Fields { offset, total, ..Fields::default() };
        match meaning {
            Meaning::Part => {}
            Meaning::Seal(summary) => fields.seal = Some(summary.sha256),
            Meaning::End(summary) => fields.sha256 = Some(summary.sha256),
            Meaning::Abort(reason) => fields.abort = Some(reason),
        }
        // Numbers and strings in a struct are always JSON.
        serde_json::to_vec(&fields).unwrap_or_default()
    }

    /// Decodes a header; `None` if `multinet send` did not write it.
    pub(super) fn decode(metadata: &[u8], payload: usize) -> Option<Self> {
        let Fields { offset, total, seal, sha256, abort } = serde_json::from_slice(metadata).ok()?;
        let summary = |sha256: String| is_sha256(&sha256).then_some(Summary { bytes: offset, sha256 });
        let meaning = match (abort, sha256, seal) {
            (Some(reason), _, _) => Meaning::Abort(reason),
            (None, Some(sha256), _) => Meaning::End(summary(sha256)?),
            (None, None, Some(seal)) => Meaning::Seal(summary(seal)?),
            (None, None, None) => Meaning::Part,
        };
        (payload == 0 || meaning == Meaning::Part).then_some(Self { offset, total, meaning })
    }
}

fn is_sha256(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        Summary { bytes: 7, sha256: "ab".repeat(32) }
    }

    #[test]
    fn an_encoded_header_is_decoded() {
        let abort = Header::abort(3, Abort::Truncated);
        for header in [Header::part(1 << 40, None), Header::seal(&summary()), Header::end(&summary()), abort]
        {
            assert_eq!(Header::decode(&header.encode(), 0), Some(header));
        }
    }

    /// Headers that were there before the seal stay as they were; a seal was a part.
    #[test]
    fn an_earlier_version_reads_the_fields_that_it_knows() {
        #[derive(Debug, Deserialize, PartialEq)]
        struct Before {
            offset: u64,
            total: Option<u64>,
            sha256: Option<String>,
        }
        let read = |header: Header| serde_json::from_slice::<Before>(&header.encode()).unwrap();
        let sha256 = summary().sha256;
        let of = |offset, total, sha256| Before { offset, total, sha256 };
        assert_eq!(read(Header::part(5, Some(7))), of(5, Some(7), None));
        assert_eq!(read(Header::seal(&summary())), of(7, Some(7), None));
        assert_eq!(read(Header::end(&summary())), of(7, Some(7), Some(sha256.clone())));
        assert_eq!(read(Header::abort(5, Abort::Changed)), of(5, None, None));
        let end = format!(r#"{{"offset":7,"total":7,"sha256":"{sha256}"}}"#);
        assert_eq!(Header::decode(end.as_bytes(), 0), Some(Header::end(&summary())));
        assert_eq!(Header::part(1 << 40, None).encode(), br#"{"offset":1099511627776}"#);
    }

    #[test]
    fn metadata_of_other_programs_is_no_header() {
        let digest = "0".repeat(64);
        let with_payload = format!(r#"{{"offset":1,"sha256":"{digest}"}}"#);
        let cases: [(&str, usize); 9] = [
            ("", 1),
            ("{}", 1),
            ("pts=1024", 1),
            (r#"{"offset":-1}"#, 1),
            (r#"{"offset":0,"sha256":"00"}"#, 0),
            (r#"{"offset":0,"seal":"zz"}"#, 0),
            (&r#"{"offset":0,"sha256":"X"}"#.replace('X', &"A".repeat(64)), 0),
            (&with_payload, 1),
            (r#"{"offset":0,"abort":"changed"}"#, 1),
        ];
        for (metadata, payload) in cases {
            assert_eq!(Header::decode(metadata.as_bytes(), payload), None, "{metadata}");
        }
        let later = Header::decode(br#"{"offset":0,"abort":"bored"}"#, 0);
        assert_eq!(later, Some(Header::abort(0, Abort::Other)));
    }
}
