//! The manifest of a file that `multinet put` has on offer, in JSON.
//!
//! A file is on offer as the chunks `ID.TOKEN.0`, `ID.TOKEN.1` and so on. The manifest, which has
//! `ID` itself, tells `multinet get` what they are, and whose: another pod may have a file with the
//! same id on offer. A `multinet get` that has the file acknowledges the manifest. When it knows
//! that this has arrived, it acknowledges the empty payload `ID.TOKEN.end`, so that `multinet put`
//! can end.

use anyhow::{Context as _, ensure};
use multinet_client::Reference;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::Summary;
use super::share::FETCHED;

/// Metadata of the manifest's frame, by which it differs from what other programs offer.
pub(super) const MARK: &[u8] = b"multinet put";

/// The longest manifest, in bytes.
pub(super) const MAX_LENGTH: usize = 512;

/// Number of digits of a SHA-256 in hex.
const DIGITS: usize = 64;

/// Number of digits of a token in hex.
const TOKEN: usize = 16;

/// Size and checksum of a file on offer, and the chunks that it is cut into.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Manifest {
    pub(super) bytes: u64,
    pub(super) chunks: u64,
    /// Length of each chunk but the last, which may be shorter.
    pub(super) chunk_size: u32,
    sha256: String,
    /// Host name of the pod that offers the file.
    pub(super) host: String,
    /// Random part of the ids of the chunks.
    token: String,
}

impl Manifest {
    pub(super) fn new(summary: &Summary, chunk_size: u32, host: &str, token: String) -> Self {
        let Summary { bytes, sha256 } = summary.clone();
        let (host, chunks) = (host.to_owned(), bytes.div_ceil(chunk_size.into()));
        Self { bytes, chunks, chunk_size, sha256, host, token }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // Numbers and strings in a struct are always JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes a manifest, which the peer may have made up.
    ///
    /// # Errors
    ///
    /// If it is no manifest, or contradicts itself.
    pub(super) fn decode(json: &[u8]) -> anyhow::Result<Self> {
        ensure!(json.len() <= MAX_LENGTH, "{} bytes, more than {MAX_LENGTH}", json.len());
        let manifest: Self = serde_json::from_slice(json).context("no JSON of the expected form")?;
        let Self { bytes, chunks, chunk_size, sha256, token, .. } = &manifest;
        ensure!(
            *chunk_size > 0 && bytes.div_ceil((*chunk_size).into()) == *chunks,
            "{bytes} bytes are not {chunks} chunks of {chunk_size} bytes"
        );
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        ensure!(token.len() == TOKEN && token.bytes().all(is_digit), "a token has {TOKEN} digits");
        ensure!(sha256.len() == DIGITS && sha256.bytes().all(is_digit), "a SHA-256 has {DIGITS} digits");
        Ok(manifest)
    }

    pub(super) fn summary(&self) -> Summary {
        Summary { bytes: self.bytes, sha256: self.sha256.clone() }
    }

    /// Returns the id of a chunk of the file with this id, or reference with that id.
    pub(super) fn chunk_id(&self, id: &impl std::fmt::Display, chunk: u64) -> String {
        chunk_id(id, &self.token, chunk)
    }

    /// Returns the id of the payload that is acknowledged last.
    pub(super) fn end_id(&self, id: &impl std::fmt::Display) -> String {
        format!("{id}.{}.end", self.token)
    }

    /// Returns the number of the chunk that has the byte at an offset.
    pub(super) fn chunk_at(&self, offset: u64) -> u64 {
        offset / u64::from(self.chunk_size)
    }

    /// Returns the offset of a chunk's first byte, and the chunk's length.
    pub(super) fn extent(&self, chunk: u64) -> (u64, u64) {
        let size = u64::from(self.chunk_size);
        let offset = chunk.saturating_mul(size);
        (offset, size.min(self.bytes.saturating_sub(offset)))
    }

    /// Returns the id of the file's transfer, which is in the names of its files until it is
    /// placed. The same file under the same reference has the same id, so that a `multinet get`
    /// that is killed is continued by the next.
    pub(super) fn transfer_id(&self, reference: &Reference) -> u128 {
        let hash = digest(&SHA256, format!("{reference} {}", self.sha256).as_bytes());
        let id: u128 = hash.as_ref().iter().take(16).fold(0, |id, &byte| id << 8 | u128::from(byte));
        id | FETCHED
    }
}

/// Returns a new token.
pub(super) fn token() -> String {
    format!("{:016x}", fastrand::u64(..))
}

/// Returns the id of a chunk of the file with this id and token.
pub(super) fn chunk_id(id: &impl std::fmt::Display, token: &str, chunk: u64) -> String {
    format!("{id}.{token}.{chunk}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(bytes: u64) -> Manifest {
        Manifest::new(&Summary { bytes, sha256: "ab".repeat(32) }, 10, "infer-0", token())
    }

    #[test]
    fn a_manifest_is_decoded_as_it_was_encoded_and_tells_the_chunks() {
        for (bytes, chunks, last) in
            [(0, 0, 0), (1, 1, 1), (10, 1, 10), (11, 2, 1), (u64::MAX, u64::MAX / 10 + 1, 5)]
        {
            let manifest = manifest(bytes);
            let json = manifest.encode();
            assert!(json.len() <= MAX_LENGTH);
            assert_eq!(Manifest::decode(&json).unwrap(), manifest);
            assert_eq!(manifest.chunks, chunks, "{bytes}");
            if let Some(number) = chunks.checked_sub(1) {
                assert_eq!(manifest.extent(number), (number * 10, last), "{bytes}");
                assert_eq!(manifest.chunk_at(bytes - 1), number, "{bytes}");
            }
        }
    }

    #[test]
    fn a_manifest_that_contradicts_itself_is_refused() {
        let hex = "ab".repeat(32);
        let json = |bytes: u64, chunks: u64, size: u64, sha256: &str| {
            let numbers = format!(r#""bytes":{bytes},"chunks":{chunks},"chunk_size":{size}"#);
            format!(r#"{{{numbers},"sha256":"{sha256}","host":"infer-0","token":"0123456789abcdef"}}"#)
        };
        assert!(Manifest::decode(json(20, 2, 10, &hex).as_bytes()).is_ok());
        let cases = [
            (json(20, 3, 10, &hex), "20 bytes are not 3 chunks of 10 bytes"),
            (json(20, 2, 0, &hex), "20 bytes are not 2 chunks of 0 bytes"),
            (json(20, 2, 10, "ab"), "a SHA-256 has 64 digits"),
            (json(20, 2, 10, &"AB".repeat(32)), "a SHA-256 has 64 digits"),
            (json(20, 2, 1 << 32, &hex), "no JSON of the expected form"),
            ("a picture".to_owned(), "no JSON of the expected form"),
            ("x".repeat(513), "513 bytes, more than 512"),
            (json(20, 2, 10, &hex).replace("abcdef", "/.."), "a token has 16 digits"),
        ];
        for (json, expected) in cases {
            let error = Manifest::decode(json.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{json}: {error}");
        }
    }

    #[test]
    fn the_id_of_a_transfer_depends_on_reference_and_content() {
        let reference = |text: &str| text.parse::<Reference>().unwrap();
        let other = Manifest { sha256: "cd".repeat(32), ..manifest(1) };
        let ids = [
            manifest(1).transfer_id(&reference("infer-0/a")),
            manifest(1).transfer_id(&reference("infer-0/b")),
            other.transfer_id(&reference("infer-0/a")),
        ];
        assert_eq!(ids[0], manifest(1).transfer_id(&reference("infer-0/a")));
        assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2]);
    }
}
