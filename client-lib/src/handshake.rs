//! Handshake between two peers, before any frame.
//!
//! The side that connects sends a [`Hello`]: who it is, which service it asked for, and what it
//! offers. The listener answers with an [`Accept`] or a [`Refusal`]. If it accepts RDMA, the side
//! that connects sends a third message, [`Chosen`]: whether RDMA works after all.
//!
//! A pod that fetches payloads connects, too, but sends a [`Fetch`]. From then on the roles are
//! reversed: the pod that offers payloads sends the [`Hello`], and then frames.
//!
//! A message is 4 bytes `MNET`, the version, the length of the rest (two bytes each, in network
//! byte order), then a JSON object of at most [`MAX_BODY`] bytes. Each side ignores fields that it
//! does not know. So the version changes only where an old peer could not go on. A refusal has the
//! same form in every version.

mod fetch;
mod rdma;
#[cfg(test)]
mod tests;

use std::fmt;

pub(crate) use fetch::{Fetch, FetchAnswer, Opening};
pub(crate) use rdma::{Chosen, RdmaEnd};
#[cfg(feature = "rdma")]
pub(crate) use rdma::{PairEnd, PayloadEnd};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::tls::looks_like_tls;

/// Version of the handshake and wire protocol that this library speaks.
pub(crate) const VERSION: u16 = 1;

/// Length of the part of a handshake message before the JSON, in bytes.
pub(crate) const PREAMBLE: usize = 8;

/// Maximum length of the JSON in a handshake message, in bytes.
pub(crate) const MAX_BODY: usize = 4096;

/// Maximum number of connections from one sender to one listener.
pub(crate) const MAX_CONNECTIONS_PER_PEER: u16 = 64;

/// The longest name that is accepted from a peer, in bytes. Longer ones are truncated.
const MAX_NAME: usize = 253;

/// The longest message for people that is accepted from a peer, in bytes.
const MAX_MESSAGE: usize = 1024;

const MAGIC: [u8; 4] = *b"MNET";

/// First message of the handshake, from the side that connects (the sender).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Service that the sender asked for, as the caller wrote it.
    pub(crate) service: String,
    /// Uid of the pod that the sender expects to listen at this address, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    /// Name of the sender's pod, for logs.
    pub(crate) from: String,
    /// Uid of the sender's pod, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from_uid: Option<String>,
    pub(crate) session: SessionId,
    /// Number that is larger for each later connection with the same `lane`.
    pub(crate) epoch: u64,
    /// Sender's number for this listener's name in DNS. It never changes. A sender may know one
    /// listener by several names.
    #[serde(default)]
    pub(crate) peer: u64,
    /// Index of this connection among those of the sender to this listener, from 0.
    pub(crate) lane: u16,
    pub(crate) delivery: Delivery,
    /// Maximum number of slots that the sender uses, however many the listener grants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) window: Option<u32>,
    /// Whether the sender keeps to limits on slots that come after the handshake, and confirms
    /// them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_limitable: bool,
    /// Transports that the sender can use, in order of preference.
    pub(crate) transports: Vec<TransportKind>,
    /// Sender's end of an RDMA connection, if the sender offers RDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rdma: Option<RdmaEnd>,
}

/// Listener's answer to [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Accept(Accept),
    Refuse(Refusal),
}

/// Listener's acceptance of a connection, with the connection's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Accept {
    /// Uid of the listener's pod, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    /// Name of the listener's pod, for logs.
    pub(crate) name: String,
    /// Largest payload of a frame that the listener accepts, in bytes.
    pub(crate) frame_size: u32,
    /// Number of frames that the sender may have in flight on this connection.
    pub(crate) slots: u32,
    pub(crate) transport: TransportKind,
    /// Listener's end of the RDMA connection, if RDMA is the chosen transport.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rdma: Option<RdmaEnd>,
    /// Whether the listener refuses to fall back to TCP if RDMA fails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) rdma_only: bool,
    /// Reason why the listener chose another transport than the sender prefers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// Listener's refusal of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) code: RefusalCode,
    /// Reason for the refusal in words, for people.
    pub(crate) message: String,
}

/// Kinds of refusals.
///
/// # Examples
///
/// ```
/// use multinet_client::{DialError, RefusalCode};
///
/// /// Returns whether there may be room soon.
/// fn may_be_admitted_later(error: &DialError) -> bool {
///     matches!(error, DialError::Refused { code: RefusalCode::Full, .. })
/// }
/// # let peer = "192.168.111.5:18515".parse()?;
/// # let (name, message) = ("infer-0".to_owned(), String::new());
/// # let refused = |code| {
/// #     let (name, message) = (name.clone(), message.clone());
/// #     DialError::Refused { peer, name, code, message }
/// # };
/// assert!(may_be_admitted_later(&refused(RefusalCode::Full)));
/// assert!(!may_be_admitted_later(&refused(RefusalCode::Service)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RefusalCode {
    /// The listener does not speak the sender's protocol version.
    Version,
    /// The listener is not an endpoint of the service that the sender asked for.
    Service,
    /// The listener is another pod than the sender expects.
    Pod,
    /// The listener accepts no connections from the sender's address.
    Sender,
    /// The listener has a later connection of this sender, or has seen this handshake before.
    Epoch,
    /// The listener has reached its limit of connections or memory, so that there may be room
    /// later.
    Full,
    /// The sender and the listener have no transport in common.
    Transport,
    /// The sender's handshake is malformed.
    Malformed,
    /// The side that connected wants to send frames where payloads are offered to fetch, or to
    /// fetch where frames are received.
    Role,
    /// A code that a later version of the listener sent, which this version does not know.
    #[serde(other)]
    Other,
}

/// Delivery guarantee for frames.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Connector, Delivery};
///
/// // A late picture is useless, but a result has to arrive.
/// let pictures = Connector::builder().delivery(Delivery::AtMostOnce).build()?;
/// let results = Connector::builder().delivery(Delivery::AtLeastOnce).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// A frame arrives once or not at all. Frames that were in flight when a connection broke count
    /// as lost.
    #[default]
    AtMostOnce,
    /// A frame is kept, and sent again if need be, until a receiver's application acknowledges it.
    /// It may go to another peer.
    ///
    /// A receiver that keeps frames for long can hold up the sender: at most 65,535 frames may
    /// follow the oldest undecided one
    /// ([`TrySendError::Undecided`](crate::TrySendError::Undecided)).
    AtLeastOnce,
}

/// Transport of frames.
///
/// # Examples
///
/// ```no_run
/// # fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::TransportKind;
///
/// for status in peers.status() {
///     if status.transport == Some(TransportKind::Tcp) {
///         println!("{} by TCP: {:?}", status.endpoint, status.instead_of_rdma);
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TransportKind {
    /// Frames go by RDMA queue pairs.
    Rdma,
    /// Frames go by the TCP connection of the handshake.
    Tcp,
    /// A transport of a later version, which this version does not know.
    #[serde(other)]
    Other,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
            Self::Other => "unknown",
        })
    }
}

/// Identifier of a sender's PeerSet: 128 random bits, sent as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SessionId(pub(crate) u128);

impl SessionId {
    /// Returns a new identifier.
    pub(crate) fn random() -> Self {
        let mut bytes = [0; 16];
        #[expect(
            clippy::expect_used,
            reason = "a kernel without getrandom runs no Kubernetes; there is nothing to go on with"
        )]
        getrandom::fill(&mut bytes).expect("the system gives random bytes");
        Self(u128::from_be_bytes(bytes))
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        format!("{:032x}", id.0)
    }
}

impl TryFrom<String> for SessionId {
    type Error = &'static str;

    fn try_from(digits: String) -> Result<Self, Self::Error> {
        let is_valid = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = is_valid.then(|| u128::from_str_radix(&digits, 16).ok()).flatten();
        id.map(Self).ok_or("a session is 32 hexadecimal digits")
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Fixed-length part of a handshake message, before the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) version: u16,
    pub(crate) length: usize,
}

/// Error in reading a peer's handshake.
///
/// # Examples
///
/// ```
/// use multinet_client::{DialError, HandshakeError};
///
/// // As in the log and in PeerStatus::last_error, if a web server has the port.
/// let peer = "192.168.111.5:80".parse()?;
/// let error = DialError::Handshake { peer, source: HandshakeError::Magic };
/// assert!(error.to_string().ends_with("no peer of multinet speaks there"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer's first bytes are neither those of a multinet handshake nor of TLS.
    #[error("it does not begin with MNET: no peer of multinet speaks there")]
    Magic,
    /// The peer's first bytes are those of TLS, which this side does not use.
    #[error("it speaks TLS: give this side certificates too")]
    Tls,
    /// The JSON is longer than allowed. The field is its length, in bytes.
    #[error("a handshake of {0} bytes, more than the {MAX_BODY} allowed")]
    TooLong(usize),
    /// The peer speaks another protocol version, which is the field.
    #[error("protocol version {0}, not {VERSION}: run the same release on both sides")]
    Version(u16),
    /// The message is not JSON of the expected form.
    #[error("{}", sanitize_message(.0.to_string()))]
    Json(#[from] serde_json::Error),
    /// A value in the message is invalid. The text says which.
    #[error("{0}")]
    Value(&'static str),
}

impl Preamble {
    /// Decodes a preamble and checks the length of the JSON. The version may be any.
    pub(crate) fn decode(bytes: [u8; PREAMBLE]) -> Result<Self, HandshakeError> {
        let [m, n, e, t, version @ .., high, low] = bytes;
        if [m, n, e, t] != MAGIC {
            return Err(HandshakeError::from_first_bytes(&[m, n, e, t]));
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > MAX_BODY {
            return Err(HandshakeError::TooLong(length));
        }
        Ok(Self { version: u16::from_be_bytes(version), length })
    }
}

impl Hello {
    pub(crate) fn decode(json: &[u8]) -> Result<Self, HandshakeError> {
        let mut hello: Self = serde_json::from_slice(json)?;
        for text in
            [&mut hello.service, &mut hello.from].into_iter().chain(&mut hello.uid).chain(&mut hello.from_uid)
        {
            *text = sanitize(std::mem::take(text), MAX_NAME);
        }
        hello.rdma.as_mut().map_or(Ok(()), RdmaEnd::check)?;
        if hello.lane >= MAX_CONNECTIONS_PER_PEER {
            return Err(HandshakeError::Value("a lane of 64 or more"));
        }
        Ok(hello)
    }
}

impl Answer {
    pub(crate) fn decode(json: &[u8]) -> Result<Self, HandshakeError> {
        let mut answer: Self = serde_json::from_slice(json)?;
        match &mut answer {
            Self::Accept(accept) if accept.slots == 0 => {
                return Err(HandshakeError::Value("it grants no slot"));
            }
            Self::Accept(accept) if accept.transport == TransportKind::Other => {
                return Err(HandshakeError::Value("a transport that was not offered"));
            }
            Self::Accept(accept) => {
                accept.rdma.as_mut().map_or(Ok(()), RdmaEnd::check)?;
                for text in [&mut accept.name].into_iter().chain(&mut accept.uid) {
                    *text = sanitize(std::mem::take(text), MAX_NAME);
                }
                if let Some(reason) = &mut accept.reason {
                    *reason = sanitize_message(std::mem::take(reason));
                }
            }
            Self::Refuse(refusal) => {
                refusal.message = sanitize_message(std::mem::take(&mut refusal.message));
            }
        }
        Ok(answer)
    }
}

impl Refusal {
    /// Creates a refusal. The message is cut to the length that the peer accepts. A longer one
    /// might not fit, and the peer would never learn of the refusal.
    pub(crate) fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: sanitize_message(message.into()) }
    }
}

impl HandshakeError {
    /// Returns the error for a peer whose first bytes do not begin a multinet handshake.
    pub(crate) fn from_first_bytes(bytes: &[u8]) -> Self {
        if looks_like_tls(bytes) { Self::Tls } else { Self::Magic }
    }

    /// Returns the refusal with which a listener answers a sender's handshake that has this error.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Version(_) => Refusal::new(RefusalCode::Version, self.to_string()),
            _ => Refusal::new(RefusalCode::Malformed, self.to_string()),
        }
    }
}

/// Makes a message for people safe to show, and short enough for the peer.
pub(crate) fn sanitize_message(text: String) -> String {
    sanitize(text, MAX_MESSAGE)
}

/// Makes a peer's text safe to show: one line, without terminal controls, of limited length.
fn sanitize(mut text: String, most: usize) -> String {
    if text.contains(controls_terminal) {
        text = text.replace(controls_terminal, "\u{fffd}");
    }
    text.truncate(text.floor_char_boundary(most));
    text
}

/// Returns whether a character can control a terminal: control characters, line ends, and marks
/// that change the direction of writing.
pub(crate) fn controls_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Encodes a handshake message: the preamble, then the message as JSON.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, HandshakeError> {
    let mut bytes = vec![0; PREAMBLE];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - PREAMBLE;
    let short = u16::try_from(length).ok().filter(|_| length <= MAX_BODY);
    let short = short.ok_or(HandshakeError::TooLong(length))?;
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_be_bytes());
    bytes[6..8].copy_from_slice(&short.to_be_bytes());
    Ok(bytes)
}
