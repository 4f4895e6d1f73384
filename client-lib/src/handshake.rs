//! The first words between two peers, before any frame.
//!
//! The side that connects says who it is and whom it means to reach; the other accepts, with what it has to offer, or refuses, with
//! the reason. Where RDMA is accepted, the side that connects says a third message, which
//! transport it is after all. A message is 4 bytes `MNET`, the version, the length of what follows (two bytes each, network byte
//! order), then a JSON object of at most [`MAX_BODY`] bytes. Fields that a side does not know are passed over, so that versions
//! change only where an old peer could not go on. A refusal has this form in every version.

mod rdma;

use std::fmt;

pub(crate) use rdma::{Chosen, PairEnd, PayloadEnd, RdmaEnd};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::tls::looks_like_tls;

/// The version that this library speaks.
pub(crate) const VERSION: u16 = 1;

/// Length of what comes before the JSON.
pub(crate) const PREAMBLE: usize = 8;

/// The longest JSON, in bytes.
pub(crate) const MAX_BODY: usize = 4096;

/// The most connections of one peer to another.
pub(crate) const MAX_CONNECTIONS_PER_PEER: u16 = 64;

/// The longest name that is taken from a peer, in bytes.
const MAX_NAME: usize = 253;

/// The longest text for people that is.
const MAX_MESSAGE: usize = 1024;

const MAGIC: [u8; 4] = *b"MNET";

/// What the side that connects says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The service that was asked for, as the caller wrote it.
    pub(crate) service: String,
    /// Uid of the pod that is expected there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    /// What the sender is called, for the log.
    pub(crate) from: String,
    /// Uid of the sender's own pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from_uid: Option<String>,
    pub(crate) session: SessionId,
    /// Counts up with every connection of a lane.
    pub(crate) epoch: u64,
    /// The sender's number for the name that it knows the listener by, the same for ever: it may know one by several names.
    #[serde(default)]
    pub(crate) peer: u64,
    /// Which of several connections this is.
    pub(crate) lane: u16,
    pub(crate) delivery: Delivery,
    /// How many slots the sender uses at most, however many it gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) window: Option<u32>,
    /// Whether the sender keeps to a limit that it is told later, and answers it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_limitable: bool,
    /// What the sender can use, what it likes best first.
    pub(crate) transports: Vec<TransportKind>,
    /// The sender's end, if RDMA is among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rdma: Option<RdmaEnd>,
}

/// What the side that listens says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Accept(Accept),
    Refuse(Refusal),
}

/// What a sender gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Accept {
    /// Uid of the pod that listens, if it knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    /// What the listener is called.
    pub(crate) name: String,
    /// The largest payload of a frame, in bytes.
    pub(crate) frame_size: u32,
    /// How many frames may be under way.
    pub(crate) slots: u32,
    pub(crate) transport: TransportKind,
    /// The listener's end, if that is RDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rdma: Option<RdmaEnd>,
    /// Whether there is no falling back to TCP.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) rdma_only: bool,
    /// Why it is not the transport that the sender likes best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// Why there will be no connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) code: RefusalCode,
    /// In words, for people.
    pub(crate) message: String,
}

/// The kinds of refusals.
///
/// # Examples
///
/// ```
/// use multinet_client::{DialError, RefusalCode};
///
/// /// Whether there may be room soon.
/// fn may_be_let_in_later(error: &DialError) -> bool {
///     matches!(error, DialError::Refused { code: RefusalCode::Full, .. })
/// }
/// # let (peer, name, message) = ("192.168.111.5:18515".parse()?, "infer-0".to_owned(), String::new());
/// # let refused = |code| DialError::Refused { peer, name: name.clone(), code, message: message.clone() };
/// assert!(may_be_let_in_later(&refused(RefusalCode::Full)));
/// assert!(!may_be_let_in_later(&refused(RefusalCode::Service)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RefusalCode {
    /// The listener speaks none of the sender's versions.
    Version,
    /// The listener is not an endpoint of that service.
    Service,
    /// The listener is another pod than the sender expects.
    Pod,
    /// The listener takes no frames from the sender's address.
    Sender,
    /// The sender has connected since, or repeats an old handshake.
    Epoch,
    /// The listener has as many connections, or as much memory in use, as it may.
    Full,
    /// There is no transport that both can use.
    Transport,
    /// The handshake could not be read.
    Malformed,
    /// Another one, of a later version.
    #[serde(other)]
    Other,
}

/// What is promised of a frame.
///
/// # Examples
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Connector, Delivery};
///
/// // A picture that is late is of no use any more; a result has to arrive.
/// let pictures = Connector::builder().delivery(Delivery::AtMostOnce).build()?;
/// let results = Connector::builder().delivery(Delivery::AtLeastOnce).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// It arrives once or not at all. What was under way when a connection broke is counted as lost.
    #[default]
    AtMostOnce,
    /// It is kept until a receiver's code has acknowledged it, and sent again until then, to another peer if need be. Receivers that keep frames
    /// for long hold a sender up: of the frames that have been sent since the oldest that is not decided on, 65,535 are the most
    /// ([`TrySendError::Undecided`](crate::TrySendError::Undecided)).
    AtLeastOnce,
}

/// A way to move frames.
///
/// # Examples
///
/// ```no_run
/// # fn example(peers: &multinet_client::PeerSet) -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::TransportKind;
///
/// for status in peers.status().iter().filter(|status| status.transport == Some(TransportKind::Tcp)) {
///     println!("{} by TCP: {:?}", status.endpoint, status.instead_of_rdma);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TransportKind {
    /// Queue pairs.
    Rdma,
    /// The connection of the handshake itself.
    Tcp,
    /// Another one, of a later version.
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

/// A sender's session: 128 random bits, as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SessionId(pub(crate) u128);

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

/// What comes before the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) version: u16,
    pub(crate) length: usize,
}

/// A handshake that cannot be read.
///
/// # Examples
///
/// ```
/// use multinet_client::{DialError, HandshakeError};
///
/// // As the log and PeerStatus::last_error have it, of a port that a web server has.
/// let error = DialError::Handshake { peer: "192.168.111.5:80".parse()?, source: HandshakeError::Magic };
/// assert!(error.to_string().ends_with("no peer of multinet speaks there"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// It does not begin as ours does.
    #[error("it does not begin with MNET: no peer of multinet speaks there")]
    Magic,
    /// It begins as TLS does.
    #[error("it speaks TLS: give this side certificates too")]
    Tls,
    /// It is longer than [`MAX_BODY`].
    #[error("a handshake of {0} bytes, where {MAX_BODY} are allowed")]
    TooLong(usize),
    /// A version that is not spoken here.
    #[error("version {0} of the protocol, where {VERSION} is spoken here: bring both sides to one release")]
    Version(u16),
    /// Not the JSON that belongs there.
    #[error("{}", sanitize_message(.0.to_string()))]
    Json(#[from] serde_json::Error),
    /// A value that cannot be.
    #[error("{0}")]
    Value(&'static str),
}

impl Preamble {
    /// Reads a preamble. Its length is within limits; the version may be any.
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
            Self::Accept(accept) if accept.slots == 0 => return Err(HandshakeError::Value("no slot at all")),
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
    /// Of the message only as much is said as is heard: more might not fit, and then nobody would hear of the refusal.
    pub(crate) fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: sanitize_message(message.into()) }
    }
}

impl HandshakeError {
    /// What the first bytes of something that is no peer tell of it.
    pub(crate) fn from_first_bytes(bytes: &[u8]) -> Self {
        if looks_like_tls(bytes) { Self::Tls } else { Self::Magic }
    }

    /// What its sender is told.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Version(_) => Refusal::new(RefusalCode::Version, self.to_string()),
            _ => Refusal::new(RefusalCode::Malformed, self.to_string()),
        }
    }
}

/// A text for people as the other side takes it.
pub(crate) fn sanitize_message(text: String) -> String {
    sanitize(text, MAX_MESSAGE)
}

/// What a stranger wrote, for people: one line, not too long.
fn sanitize(mut text: String, most: usize) -> String {
    if text.contains(controls_terminal) {
        text = text.replace(controls_terminal, "\u{fffd}");
    }
    text.truncate(text.floor_char_boundary(most));
    text
}

/// Whether a terminal does something for it: control characters, ends of lines, and marks that turn the direction of writing.
fn controls_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A message with its preamble.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello() -> Hello {
        Hello {
            service: "infer.vision.svc.multinet".into(),
            uid: Some("7f1c2d3e".into()),
            from: "decode-0".into(),
            from_uid: None,
            session: SessionId(7),
            epoch: 3,
            peer: 0,
            lane: 0,
            delivery: Delivery::AtLeastOnce,
            window: Some(512),
            is_limitable: true,
            transports: vec![TransportKind::Tcp],
            rdma: None,
        }
    }

    fn preamble(bytes: &[u8]) -> Result<Preamble, HandshakeError> {
        Preamble::decode(std::array::from_fn(|i| bytes.get(i).copied().unwrap_or_default()))
    }

    #[test]
    fn a_hello_comes_back_as_it_was() {
        let bytes = encode(&hello()).unwrap();
        assert_eq!(preamble(&bytes).unwrap(), Preamble { version: VERSION, length: bytes.len() - PREAMBLE });
        assert_eq!(Hello::decode(&bytes[PREAMBLE..]).unwrap(), hello());
    }

    #[test]
    fn what_later_versions_add_is_passed_over() {
        let mut json = serde_json::to_value(hello()).unwrap();
        json["rails"] = 4.into();
        json["transports"] = serde_json::json!(["carrier-pigeon", "tcp"]);
        let decoded = Hello::decode(json.to_string().as_bytes()).unwrap();
        assert_eq!(decoded.transports, [TransportKind::Other, TransportKind::Tcp]);
        let refusal = Answer::decode(br#"{"refuse": {"code": "tuesday", "message": "closed"}}"#).unwrap();
        assert_eq!(refusal, Answer::Refuse(Refusal::new(RefusalCode::Other, "closed")));
    }

    #[test]
    fn what_is_not_ours_says_what_it_is() {
        let cases: [(&[u8], &str); 4] = [
            (b"GET / HTTP/1.1", "does not begin with MNET"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01", "speaks TLS"),
            (b"MNET\x00\x01\xff\xff", "65535 bytes"),
            (b"", "does not begin with MNET"),
        ];
        for (bytes, expected) in cases {
            let error = preamble(bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{bytes:?}: {error}");
        }
        assert!(Hello::decode(b"{}").is_err());
        let no_slot = br#"{"accept": {"name": "a", "frame_size": 1, "slots": 0, "transport": "tcp"}}"#;
        assert!(Answer::decode(no_slot).is_err());
    }

    #[test]
    fn what_a_peer_says_is_one_line() {
        let mut json = serde_json::to_value(hello()).unwrap();
        json["from"] = "a\n\u{1b}[2J\u{202e}".into();
        json["service"] = "s".repeat(4000).into();
        let decoded = Hello::decode(json.to_string().as_bytes()).unwrap();
        assert_eq!(
            (decoded.from.as_str(), decoded.service.len()),
            ("a\u{fffd}\u{fffd}[2J\u{fffd}", MAX_NAME)
        );
        json["delivery"] = "\n".repeat(2000).into();
        let error = Hello::decode(json.to_string().as_bytes()).unwrap_err();
        assert!(!error.to_string().contains('\n') && encode(&Answer::Refuse(error.refusal())).is_ok());
        let refusal = Answer::decode(br#"{"refuse": {"code": "full", "message": "a\nb"}}"#).unwrap();
        assert_eq!(refusal, Answer::Refuse(Refusal::new(RefusalCode::Full, "a\u{fffd}b")));
    }

    #[test]
    fn a_refusal_always_fits() {
        for text in ["\u{0}", "\"", "\\", "é", "a"] {
            let refusal = Refusal::new(RefusalCode::Service, text.repeat(5000));
            let bytes = encode(&Answer::Refuse(refusal.clone())).unwrap();
            assert_eq!(Answer::decode(&bytes[PREAMBLE..]).unwrap(), Answer::Refuse(refusal));
        }
    }

    #[test]
    fn a_transport_that_was_not_offered_is_not_taken() {
        let answer = br#"{"accept": {"name": "a", "frame_size": 1, "slots": 1, "transport": "pigeon"}}"#;
        assert!(Answer::decode(answer).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = preamble(&bytes);
            let _ = Hello::decode(&bytes);
            let _ = Answer::decode(&bytes);
        }
    }
}
