//! Messages over an established connection, after the [handshake](crate::handshake).
//!
//! Every message begins with a fixed header of [`HEADER`] bytes, all numbers in network byte order.
//!
//! ```text
//!            0      1       2         3        4          6          8
//! data      | kind | flags | key len | 0      | meta len | 0        | payload len | 0     |
//!           | sequence (u64)    16 | floor (u64)       24 | timestamp (i64)          32 |
//!           then key, metadata, payload
//! control   | kind | flags | acked (u16)      | rejected | slots    | 0                   |
//!           | freed (u64)       16 | taken (u64)       24 | limit (u32) 32 | 0       36 |
//!           then the sequences, u64 each, then the slots, u16 each
//! close     | kind | code  | text len (u16)   | 0                                         |
//!           then the text
//! limited   | kind | 0                        | limit (u32)         | 0                   |
//! ask       | kind | 0     | id len (u16)     | 0                                         |
//!           | number (u64)      16 | 0                                              24 |
//!           then the id
//! ```
//!
//! Data messages carry frames from the side that connected, or, where it has come to fetch, from
//! the side that accepted. Control messages report back. A pod that fetches sends asks beside them,
//! always by TCP, and each is answered by a frame.
//!
//! Where memory is short, a receiver sends a limit that replaces the slots of the handshake, if the
//! sender has said there that it understands limits. The sender confirms each limit by `limited`,
//! after the last frame that exceeds it. From then on the receiver can give the other slots to
//! other senders. By RDMA there are no limits, because the slots are memory that the sender may
//! write to.

use thiserror::Error;

/// Length of the header of every message, in bytes.
pub(crate) const HEADER: usize = 40;

/// Maximum length of a frame's key, in bytes.
pub(crate) const MAX_KEY: usize = 255;

/// Maximum length of a frame's metadata, in bytes.
pub(crate) const MAX_METADATA: usize = 4096;

/// Maximum length of the text in a close message, in bytes.
pub(crate) const MAX_TEXT: usize = 512;

/// Maximum length of the id of a payload on offer, in bytes.
pub(crate) const MAX_ID: usize = 255;

/// Maximum number of questions that a fetcher may have unanswered on one connection.
pub(crate) const MAX_ASKS: usize = 128;

/// Maximum number of acknowledgements, and of rejections, in one control message.
pub(crate) const MAX_IDS: usize = 256;

/// Size of the window of sequences: every sequence is less than the floor plus this.
pub(crate) const WINDOW: u64 = 1 << 16;

/// Header of a message between peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    Data(Data),
    Control(Control),
    Close {
        code: CloseCode,
        text: usize,
    },
    /// The sender confirms a limit on slots, and keeps to it from this message on.
    Limited {
        limit: u32,
    },
    /// A pod that fetches asks for the payload whose id follows the header.
    Ask {
        /// Number by which the answer names the question.
        number: u64,
        /// Length of the id, in bytes.
        id: usize,
    },
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Data {
    /// Whether the frame was sent before, to this peer or to another.
    pub(crate) is_repeat: bool,
    /// Length of the frame's key, in bytes.
    pub(crate) key: u8,
    /// Length of the frame's metadata, in bytes.
    pub(crate) metadata: u16,
    /// Length of the frame's payload, in bytes.
    pub(crate) payload: u32,
    pub(crate) sequence: u64,
    /// Lowest sequence of a frame that the sender may still send.
    pub(crate) floor: u64,
    /// Time of the frame in nanoseconds since 1970, or 0 for none.
    pub(crate) timestamp: i64,
}

/// Header of a receiver's report. The two counters count from the beginning of the connection, so a
/// message can replace those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Control {
    /// Number of acknowledged frames, whose sequences follow the header.
    pub(crate) acked: u16,
    /// Number of rejected frames, whose sequences follow those of the acknowledged ones.
    pub(crate) rejected: u16,
    /// Number of slot numbers that follow those. By RDMA, where senders choose the slot, these are
    /// all the slots freed. By TCP, none.
    pub(crate) slots: u16,
    /// Number of slots that have become free, since the connection was made.
    pub(crate) freed: u64,
    /// Number of frames that the receiver's application has taken, since the connection was made.
    pub(crate) taken: u64,
    /// Number of frames that may be in flight from now on. `None` leaves it as it is.
    pub(crate) limit: Option<u32>,
}

/// Reason why a side ends the connection, sent in a close message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCode {
    /// The side has no more messages to send.
    Done,
    /// The other side has broken the protocol.
    Protocol,
    /// A later connection of the same session has replaced this connection.
    Superseded,
}

/// Fault in a message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum WireError {
    #[error("unknown message kind {0}")]
    Kind(u8),
    #[error("{what} of {length} bytes, more than the {most} allowed")]
    TooLong { what: &'static str, length: usize, most: usize },
    #[error("{count} {what}, more than the {most} allowed")]
    TooMany { what: &'static str, count: usize, most: usize },
    #[error("sequence {sequence} is not within {WINDOW} of the floor {floor}")]
    Sequence { sequence: u64, floor: u64 },
    #[error("unknown flags {0:#04x}")]
    Flags(u8),
    #[error("unknown close code {0}")]
    CloseCode(u8),
}

const DATA: u8 = 1;
const CONTROL: u8 = 2;
const CLOSE: u8 = 3;
const LIMITED: u8 = 4;
const ASK: u8 = 5;
const REPEAT_FLAG: u8 = 1;
/// Flag of a control message that has a limit on slots.
const LIMIT_FLAG: u8 = 1;

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        match *self {
            Self::Data(data) => {
                bytes[0] = DATA;
                bytes[1] = if data.is_repeat { REPEAT_FLAG } else { 0 };
                bytes[2] = data.key;
                bytes[4..6].copy_from_slice(&data.metadata.to_be_bytes());
                bytes[8..12].copy_from_slice(&data.payload.to_be_bytes());
                bytes[16..24].copy_from_slice(&data.sequence.to_be_bytes());
                bytes[24..32].copy_from_slice(&data.floor.to_be_bytes());
                bytes[32..40].copy_from_slice(&data.timestamp.to_be_bytes());
            }
            Self::Control(control) => {
                bytes[0] = CONTROL;
                bytes[2..4].copy_from_slice(&control.acked.to_be_bytes());
                bytes[4..6].copy_from_slice(&control.rejected.to_be_bytes());
                bytes[6..8].copy_from_slice(&control.slots.to_be_bytes());
                bytes[16..24].copy_from_slice(&control.freed.to_be_bytes());
                bytes[24..32].copy_from_slice(&control.taken.to_be_bytes());
                if let Some(limit) = control.limit {
                    bytes[1] = LIMIT_FLAG;
                    bytes[32..36].copy_from_slice(&limit.to_be_bytes());
                }
            }
            Self::Limited { limit } => {
                bytes[0] = LIMITED;
                bytes[4..8].copy_from_slice(&limit.to_be_bytes());
            }
            Self::Ask { number, id } => {
                bytes[0] = ASK;
                let id = u16::try_from(id.min(MAX_ID)).unwrap_or_default();
                bytes[2..4].copy_from_slice(&id.to_be_bytes());
                bytes[16..24].copy_from_slice(&number.to_be_bytes());
            }
            Self::Close { code, text } => {
                bytes[0] = CLOSE;
                bytes[1] = code as u8;
                let text = u16::try_from(text.min(MAX_TEXT)).unwrap_or_default();
                bytes[2..4].copy_from_slice(&text.to_be_bytes());
            }
        }
        bytes
    }

    /// Decodes a header, and checks all that does not depend on the handshake.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Self, WireError> {
        match bytes[0] {
            DATA => Data::decode(bytes).map(Self::Data),
            CONTROL => Control::decode(bytes).map(Self::Control),
            CLOSE => {
                let text = usize::from(u16_at(bytes, 2));
                check_length("close text", text, MAX_TEXT)?;
                Ok(Self::Close { code: CloseCode::from_byte(bytes[1])?, text })
            }
            LIMITED => Ok(Self::Limited { limit: u32::from_be_bytes(array_at(bytes, 4)) }),
            ASK => {
                let id = usize::from(u16_at(bytes, 2));
                check_length("id", id, MAX_ID)?;
                Ok(Self::Ask { number: u64_at(bytes, 16), id })
            }
            kind => Err(WireError::Kind(kind)),
        }
    }
}

impl Data {
    fn decode(bytes: &[u8; HEADER]) -> Result<Self, WireError> {
        if bytes[1] & !REPEAT_FLAG != 0 {
            return Err(WireError::Flags(bytes[1]));
        }
        let data = Self {
            is_repeat: bytes[1] & REPEAT_FLAG != 0,
            key: bytes[2],
            metadata: u16_at(bytes, 4),
            payload: u32::from_be_bytes(array_at(bytes, 8)),
            sequence: u64_at(bytes, 16),
            floor: u64_at(bytes, 24),
            timestamp: i64::from_be_bytes(array_at(bytes, 32)),
        };
        check_length("metadata", usize::from(data.metadata), MAX_METADATA)?;
        let Self { sequence, floor, .. } = data;
        if sequence < floor || sequence - floor >= WINDOW {
            return Err(WireError::Sequence { sequence, floor });
        }
        Ok(data)
    }

    /// Returns the length of the frame's key and metadata together, which precede the payload.
    pub(crate) fn prefix(&self) -> usize {
        usize::from(self.key) + usize::from(self.metadata)
    }

    /// Returns the length of the message after the header (key, metadata, payload), in bytes.
    pub(crate) fn body(&self) -> usize {
        self.prefix() + self.payload as usize
    }
}

impl Control {
    fn decode(bytes: &[u8; HEADER]) -> Result<Self, WireError> {
        let control = Self {
            acked: u16_at(bytes, 2),
            rejected: u16_at(bytes, 4),
            slots: u16_at(bytes, 6),
            freed: u64_at(bytes, 16),
            taken: u64_at(bytes, 24),
            limit: (bytes[1] & LIMIT_FLAG != 0).then(|| u32::from_be_bytes(array_at(bytes, 32))),
        };
        let counts =
            [("acknowledgements", control.acked), ("rejections", control.rejected), ("slots", control.slots)];
        for (what, count) in counts {
            let count = usize::from(count);
            if count > MAX_IDS {
                return Err(WireError::TooMany { what, count, most: MAX_IDS });
            }
        }
        Ok(control)
    }

    /// Returns the length of the message after the header (sequences, slot numbers), in bytes.
    pub(crate) fn body(&self) -> usize {
        self.sequences() + usize::from(self.slots) * size_of::<u16>()
    }

    /// Returns the length of the acknowledged and rejected sequences together, in bytes.
    fn sequences(&self) -> usize {
        (usize::from(self.acked) + usize::from(self.rejected)) * size_of::<u64>()
    }
}

/// Part of a control message after the header: sequences and slot numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlBody<'a> {
    acked: &'a [[u8; 8]],
    rejected: &'a [[u8; 8]],
    #[cfg_attr(not(any(feature = "rdma", test)), expect(dead_code, reason = "only RDMA names slots"))]
    slots: &'a [[u8; 2]],
}

impl<'a> ControlBody<'a> {
    /// Splits a body, which may be longer than its header says. A body that is too short counts as
    /// empty.
    pub(crate) fn new(control: &Control, body: &'a [u8]) -> Self {
        let body = body.get(..control.body()).unwrap_or_default();
        let (sequences, slots) = body.split_at_checked(control.sequences()).unwrap_or_default();
        let sequences = sequences.as_chunks().0;
        let (acked, rejected) = sequences.split_at_checked(control.acked.into()).unwrap_or_default();
        Self { acked, rejected, slots: slots.as_chunks().0 }
    }

    /// Returns the sequences of the frames that the message acknowledges.
    pub(crate) fn acked(self) -> impl Iterator<Item = u64> {
        self.acked.iter().map(|&bytes| u64::from_be_bytes(bytes))
    }

    /// Returns the sequences of the frames that the message rejects.
    pub(crate) fn rejected(self) -> impl Iterator<Item = u64> {
        self.rejected.iter().map(|&bytes| u64::from_be_bytes(bytes))
    }

    /// Returns the numbers of the slots that have become free.
    #[cfg(any(feature = "rdma", test))]
    pub(crate) fn slots(self) -> impl Iterator<Item = u16> {
        self.slots.iter().map(|&bytes| u16::from_be_bytes(bytes))
    }
}

impl CloseCode {
    fn from_byte(byte: u8) -> Result<Self, WireError> {
        match byte {
            0 => Ok(Self::Done),
            1 => Ok(Self::Protocol),
            2 => Ok(Self::Superseded),
            other => Err(WireError::CloseCode(other)),
        }
    }
}

fn check_length(what: &'static str, length: usize, most: usize) -> Result<(), WireError> {
    if length > most { Err(WireError::TooLong { what, length, most }) } else { Ok(()) }
}

/// Returns the `N` bytes of a header at offset `at`. Panics if they exceed the header.
fn array_at<const N: usize>(bytes: &[u8; HEADER], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

fn u16_at(bytes: &[u8; HEADER], at: usize) -> u16 {
    u16::from_be_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8; HEADER], at: usize) -> u64 {
    u64::from_be_bytes(array_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = Header> {
        let data = (any::<(bool, u8, u32, u64, i64)>(), 0..=MAX_METADATA as u16, 0..WINDOW).prop_map(
            |((is_repeat, key, payload, floor, timestamp), metadata, ahead)| {
                let floor = floor.min(u64::MAX - WINDOW);
                let sequence = floor + ahead;
                Header::Data(Data { is_repeat, key, metadata, payload, sequence, floor, timestamp })
            },
        );
        let count = || 0..=MAX_IDS as u16;
        let control = (count(), count(), count(), any::<(u64, u64, Option<u32>)>()).prop_map(
            |(acked, rejected, slots, (freed, taken, limit))| {
                Header::Control(Control { acked, rejected, slots, freed, taken, limit })
            },
        );
        let limited = any::<u32>().prop_map(|limit| Header::Limited { limit });
        let codes = [CloseCode::Done, CloseCode::Protocol, CloseCode::Superseded];
        let close = (prop::sample::select(codes.to_vec()), 0..=MAX_TEXT)
            .prop_map(|(code, text)| Header::Close { code, text });
        let ask = (any::<u64>(), 0..=MAX_ID).prop_map(|(number, id)| Header::Ask { number, id });
        prop_oneof![data, control, close, limited, ask]
    }

    /// Checks the table above byte by byte: other versions and languages rely on it.
    #[test]
    fn headers_have_the_documented_layout() {
        let data = Data {
            is_repeat: true,
            key: 2,
            metadata: 0x0304,
            payload: 0x0506_0708,
            sequence: 0x0910,
            floor: 0x090a,
            timestamp: -2,
        };
        let control = Control { acked: 3, rejected: 4, slots: 5, freed: 0x0506, taken: 0x0708, limit: None };
        let check = |header: Header, parts: &[(usize, &[u8])]| {
            let mut expected = [0; HEADER];
            for (at, part) in parts {
                expected[*at..at + part.len()].copy_from_slice(part);
            }
            assert_eq!(header.encode(), expected, "{header:?}");
        };
        let timestamp = [255, 255, 255, 255, 255, 255, 255, 254];
        let start = [1, 1, 2, 0, 3, 4, 0, 0, 5, 6, 7, 8];
        check(Header::Data(data), &[(0, &start), (22, &[9, 0x10]), (30, &[9, 0x0a]), (32, &timestamp)]);
        check(Header::Control(control), &[(0, &[2, 0, 0, 3, 0, 4, 0, 5]), (22, &[5, 6]), (30, &[7, 8])]);
        let limited = Control { limit: Some(0x0900_0a00), ..Control::default() };
        check(Header::Control(limited), &[(0, &[2, 1]), (32, &[9, 0, 10, 0])]);
        check(Header::Close { code: CloseCode::Superseded, text: 0x0102 }, &[(0, &[3, 2, 1, 2])]);
        check(Header::Limited { limit: 0x0102_0304 }, &[(0, &[4, 0, 0, 0, 1, 2, 3, 4])]);
        check(Header::Ask { number: 0x0506, id: 7 }, &[(0, &[5, 0, 0, 7]), (22, &[5, 6])]);
        let control = Control { acked: 1, rejected: 1, slots: 2, ..Control::default() };
        let body = [&[0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3][..], &[4, 5, 0, 6, 7, 7]].concat();
        assert_eq!(body.len(), control.body() + 2);
        let decoded = ControlBody::new(&control, &body);
        assert!(
            decoded.acked().eq([0x0102]) && decoded.rejected().eq([3]) && decoded.slots().eq([0x0405, 6])
        );
        let decoded = ControlBody::new(&control, &body[..19]);
        assert_eq!(decoded.acked().chain(decoded.rejected()).count() + decoded.slots().count(), 0);
    }

    proptest! {
        #[test]
        fn a_header_survives_encoding(header in headers()) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn any_bytes_decode_to_a_header_within_limits_or_an_error(bytes in any::<[u8; HEADER]>(), kind in 0..6_u8) {
            let mut bytes = bytes;
            bytes[0] = kind;
            match Header::decode(&bytes) {
                Ok(Header::Data(data)) => {
                    prop_assert!(data.prefix() <= MAX_KEY + MAX_METADATA);
                    prop_assert!(data.sequence - data.floor < WINDOW);
                }
                Ok(Header::Control(control)) => prop_assert!(control.body() <= MAX_IDS * (8 + 8 + 2)),
                Ok(Header::Close { text, .. }) => prop_assert!(text <= MAX_TEXT),
                Ok(Header::Limited { .. }) => {}
                Ok(Header::Ask { id, .. }) => prop_assert!(id <= MAX_ID),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
