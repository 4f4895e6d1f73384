//! References to payloads on offer, and their text form.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::handshake::controls_terminal;
use crate::resolve::name_flaw;

/// The longest id, in bytes.
pub(crate) const MAX_ID: usize = 255;

/// The longest part of a wrong text that an error repeats, in bytes.
const MAX_EXCERPT: usize = 100;

/// Name of a payload on offer, chosen by the program: 1 to 255 bytes of UTF-8 without white space
/// and control characters.
///
/// One id stands for one payload. A payload that is offered again, because the message that led to
/// it was delivered again, has to get the same id again. So derive it from that message, for
/// example from its id in the queue.
///
/// # Examples
///
/// ```
/// use multinet_client::OfferId;
///
/// let id: OfferId = "camera-17/1024".parse()?;
/// assert_eq!(id.as_str(), "camera-17/1024");
/// assert!(OfferId::try_from("two words").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OfferId(Arc<str>);

/// Host name in references, in lower case: one label or several, of at most 253 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct HostName(Arc<str>);

/// Reference to a payload on offer: the host name of the pod that offers it, and its id.
///
/// The text form, for messages between programs, is `HOST/ID`. With serde, a reference is a string
/// of that form.
///
/// # Examples
///
/// ```
/// use multinet_client::Reference;
///
/// let text = "decode-0/camera-17/1024";
/// let reference: Reference = text.parse()?;
/// assert_eq!(reference.host(), "decode-0");
/// assert_eq!(reference.id().as_str(), "camera-17/1024");
/// assert_eq!(reference.to_string(), text);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    host: HostName,
    id: OfferId,
}

/// Reason why a text is no [`Reference`] or no [`OfferId`].
///
/// # Examples
///
/// ```
/// use multinet_client::{Reference, ReferenceError};
///
/// let error = "camera-17".parse::<Reference>().unwrap_err();
/// assert!(matches!(error, ReferenceError::NoSlash { .. }));
/// assert_eq!(error.to_string(), "\"camera-17\" is no reference: it has to be HOST/ID");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The text has no host name, or no slash after it.
    #[error("{text:?} is no reference: it has to be HOST/ID")]
    NoSlash {
        /// Beginning of the text.
        text: String,
    },
    /// The part before the first slash is no host name.
    #[error("{host:?} is no host name for a reference HOST/ID: {reason}")]
    Host {
        /// Beginning of that part.
        host: String,
        /// Fault of the host name, in words.
        reason: &'static str,
    },
    /// The id is empty, too long, or has a character that ids may not have.
    #[error("{id:?} is no id of an offer: {reason}")]
    Id {
        /// Beginning of the id.
        id: String,
        /// Fault of the id, in words.
        reason: &'static str,
    },
}

impl OfferId {
    /// Returns the id as text.
    ///
    /// ```
    /// use multinet_client::OfferId;
    ///
    /// let id = OfferId::try_from("camera-17")?;
    /// assert_eq!(id.as_str(), id.to_string());
    /// # Ok::<(), multinet_client::ReferenceError>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for OfferId {
    type Error = ReferenceError;

    fn try_from(text: &str) -> Result<Self, ReferenceError> {
        let reason = if text.is_empty() {
            "it is empty"
        } else if text.len() > MAX_ID {
            "it is longer than 255 bytes"
        } else if text.contains(|c: char| c.is_whitespace() || controls_terminal(c)) {
            "white space and control characters may not stand in it"
        } else {
            return Ok(Self(text.into()));
        };
        Err(ReferenceError::Id { id: excerpt(text), reason })
    }
}

impl FromStr for OfferId {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        Self::try_from(text)
    }
}

impl fmt::Display for OfferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Borrow<str> for OfferId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for HostName {
    type Error = ReferenceError;

    fn try_from(text: &str) -> Result<Self, ReferenceError> {
        match name_flaw(text) {
            None => Ok(Self(text.to_ascii_lowercase().into())),
            Some(reason) => Err(ReferenceError::Host { host: excerpt(text), reason }),
        }
    }
}

impl HostName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Reference {
    pub(crate) fn new(host: HostName, id: OfferId) -> Self {
        Self { host, id }
    }

    /// Returns the host name of the pod that offers the payload, in lower case.
    ///
    /// ```
    /// use multinet_client::Reference;
    ///
    /// let reference: Reference = "decode-0/camera-17".parse()?;
    /// assert_eq!(reference.host(), "decode-0");
    /// # Ok::<(), multinet_client::ReferenceError>(())
    /// ```
    pub fn host(&self) -> &str {
        self.host.as_str()
    }

    /// Returns the id under which the payload is on offer.
    ///
    /// ```
    /// use multinet_client::{OfferId, Reference};
    ///
    /// let reference: Reference = "decode-0/camera-17".parse()?;
    /// assert_eq!(reference.id(), &OfferId::try_from("camera-17")?);
    /// # Ok::<(), multinet_client::ReferenceError>(())
    /// ```
    pub fn id(&self) -> &OfferId {
        &self.id
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let Some((host, id)) = text.split_once('/').filter(|(host, _)| !host.is_empty()) else {
            return Err(ReferenceError::NoSlash { text: excerpt(text) });
        };
        Ok(Self::new(host.try_into()?, id.try_into()?))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host.as_str(), self.id)
    }
}

impl Serialize for Reference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Returns the beginning of a text, for an error.
fn excerpt(text: &str) -> String {
    match text.floor_char_boundary(MAX_EXCERPT) {
        end if end < text.len() => format!("{}…", &text[..end]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_slash_separates_host_name_and_id() {
        let table = [
            ("decode-0/a", "decode-0", "a"),
            ("Decode-0.decode.vision/a/b//c", "decode-0.decode.vision", "a/b//c"),
            ("a_b/Ünï-17:3", "a_b", "Ünï-17:3"),
            ("a//", "a", "/"),
        ];
        for (text, host, id) in table {
            let reference: Reference = text.parse().unwrap();
            assert_eq!((reference.host(), reference.id().as_str()), (host, id));
        }
    }

    #[test]
    fn a_text_that_is_no_reference_is_refused_with_its_fault() {
        let long = "x".repeat(MAX_ID + 1);
        let table = [
            ("", r#""" is no reference: it has to be HOST/ID"#),
            ("decode-0", r#""decode-0" is no reference: it has to be HOST/ID"#),
            ("/a", r#""/a" is no reference: it has to be HOST/ID"#),
            (
                "a..b/c",
                r#""a..b" is no host name for a reference HOST/ID: it is empty, or has two dots in a row"#,
            ),
            (
                "192.168.111.5:18516/a",
                r#""192.168.111.5:18516" is no host name for a reference HOST/ID: only letters, digits, '-', '_' and '.' may stand in it, and no port"#,
            ),
            ("decode-0/", r#""" is no id of an offer: it is empty"#),
            (
                "decode-0/a b",
                r#""a b" is no id of an offer: white space and control characters may not stand in it"#,
            ),
            (
                "decode-0/a\u{202e}\n",
                r#""a\u{202e}\n" is no id of an offer: white space and control characters may not stand in it"#,
            ),
            (
                &format!("decode-0/{long}"),
                &format!(r#""{}…" is no id of an offer: it is longer than 255 bytes"#, &long[..MAX_EXCERPT]),
            ),
        ];
        for (text, expected) in table {
            assert_eq!(text.parse::<Reference>().unwrap_err().to_string(), expected, "{text:?}");
        }
    }

    #[test]
    fn an_id_of_the_most_bytes_is_accepted() {
        assert!(OfferId::try_from("x".repeat(MAX_ID).as_str()).is_ok());
        // 128 characters of two bytes.
        assert!(OfferId::try_from("ü".repeat(128).as_str()).is_err());
    }

    #[test]
    fn serde_writes_and_reads_the_text_form() {
        let reference: Reference = "decode-0/a".parse().unwrap();
        let json = serde_json::to_string(&reference).unwrap();
        assert_eq!(json, r#""decode-0/a""#);
        assert_eq!(serde_json::from_str::<Reference>(&json).unwrap(), reference);
        let error = serde_json::from_str::<Reference>(r#""decode-0""#).unwrap_err();
        assert!(error.to_string().starts_with(r#""decode-0" is no reference"#), "{error}");
    }

    proptest! {
        #[test]
        fn a_reference_that_is_written_reads_as_the_same(host in "[a-z0-9_-]{1,20}(\\.[a-z0-9]{1,9}){0,3}", id in "\\P{C}{1,60}") {
            let Ok(id) = OfferId::try_from(id.as_str()) else { return Ok(()) };
            let reference = Reference::new(host.as_str().try_into().unwrap(), id);
            prop_assert_eq!(reference.to_string().parse(), Ok(reference));
        }
    }
}
