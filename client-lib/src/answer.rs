//! Answers to questions for payloads: the beginning of the metadata of the frame that answers.

/// Length of an answer, in bytes.
pub(crate) const ANSWER: usize = 17;

/// Answer to the question with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PayloadAnswer {
    pub(crate) number: u64,
    pub(crate) status: Status,
}

/// State of the payload in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The frame has it.
    Here,
    /// It is not on offer.
    Unknown,
    /// It has this many bytes, more than the fetcher takes.
    TooLarge(u64),
    /// A fetcher has acknowledged it before. Only for fetchers that know this answer.
    Taken,
}

impl PayloadAnswer {
    pub(crate) fn encode(&self) -> [u8; ANSWER] {
        let (kind, length) = match self.status {
            Status::Here => (0, 0),
            Status::Unknown => (1, 0),
            Status::TooLarge(length) => (2, length),
            Status::Taken => (3, 0),
        };
        let mut bytes = [0; ANSWER];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8] = kind;
        bytes[9..].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    /// Reads the answer at the beginning of a frame's metadata. `None` if there is none.
    pub(crate) fn decode(metadata: &[u8]) -> Option<Self> {
        let (number, rest) = metadata.split_first_chunk()?;
        let (kind, rest) = rest.split_first()?;
        let status = match kind {
            0 => Status::Here,
            1 => Status::Unknown,
            2 => Status::TooLarge(u64::from_be_bytes(*rest.first_chunk()?)),
            3 => Status::Taken,
            _ => return None,
        };
        Some(Self { number: u64::from_be_bytes(*number), status }).filter(|_| metadata.len() >= ANSWER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_survives_encoding_and_a_part_of_one_is_none() {
        for status in [Status::Here, Status::Unknown, Status::TooLarge(1 << 40), Status::Taken] {
            let answer = PayloadAnswer { number: 0x0102_0304_0506_0708, status };
            let bytes = answer.encode();
            assert_eq!(PayloadAnswer::decode(&[&bytes, &b"the program's"[..]].concat()), Some(answer));
            assert!((0..ANSWER).all(|length| PayloadAnswer::decode(&bytes[..length]).is_none()));
        }
        let mut bytes = PayloadAnswer { number: 1, status: Status::Here }.encode();
        bytes[8] = 4;
        assert_eq!(PayloadAnswer::decode(&bytes), None);
    }
}
