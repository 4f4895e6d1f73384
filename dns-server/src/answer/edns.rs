//! The OPT record (RFC 6891) of queries and replies.

use crate::answer::cookie::Cookie;
use crate::limits::flags;

/// Largest UDP reply, in bytes, to a client without EDNS (RFC 1035 §4.2.1).
pub(crate) const MIN_UDP: usize = 512;

/// Largest UDP payload, in bytes, that is sent and announced, unless `--udp-payload-size` sets it.
pub const MAX_UDP: usize = flags::UDP_PAYLOAD as usize;

/// Length in bytes of an OPT record without options (RFC 6891 §6.1.2).
const OPT: usize = 11;

/// Length in bytes of an EDNS option's code and length fields.
const OPTION: usize = 4;

/// Length in bytes of an Extended DNS Error option without text (RFC 8914 §2).
const EXTENDED_ERROR: usize = OPTION + 2;

/// Block size of padded replies, in bytes (RFC 8467 §4.1).
pub(crate) const BLOCK: usize = 468;

/// Extended DNS Errors that this server sends (RFC 8914 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum ExtendedError {
    StaleAnswer = 3,
    NotReady = 14,
}

/// Fields of a query's OPT record, and of the reply's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edns {
    /// Largest UDP payload, in bytes, that the client accepts.
    pub payload: u16,
    /// Largest UDP payload, in bytes, that this server sends and announces.
    pub announced: u16,
    /// `true` if the client wants DNSSEC records (RFC 3225). The reply repeats the bit.
    pub dnssec_ok: bool,
    /// `true` if the message is padded, so that its length reveals little (RFC 7830).
    pub padded: bool,
    /// `true` if the query has the option for TCP's idle timeout (RFC 7828), which is an error over
    /// QUIC.
    pub keepalive: bool,
    /// COOKIE option, if the query has one.
    pub cookie: Option<Cookie>,
}

impl Edns {
    /// Makes the fields from a payload and the first byte of the flags. A payload below 512 means
    /// 512 (RFC 6891 §6.2.3).
    pub fn new(payload: u16, flags: u8) -> Self {
        let payload = payload.max(MIN_UDP as u16);
        let dnssec_ok = flags & 0x80 != 0;
        let (padded, keepalive) = (false, false);
        Self { payload, announced: MAX_UDP as u16, dnssec_ok, padded, keepalive, cookie: None }
    }

    /// Returns the length of the reply's OPT record. Of the padding, only the option's header
    /// counts.
    pub(crate) fn reply_len(&self, error: Option<ExtendedError>) -> usize {
        let padding = if self.padded { OPTION } else { 0 };
        let cookie = self.cookie.map_or(0, |cookie| cookie.reply_len());
        OPT + cookie + error.map_or(0, |_| EXTENDED_ERROR) + padding
    }

    /// Appends the OPT record of the reply that begins at `start`: the announced payload, the upper
    /// bits of the response code, the DO bit of the query, and options. Padding comes last. It
    /// fills the block, but the reply gets no longer than `most` bytes.
    pub(crate) fn push(
        &self,
        out: &mut Vec<u8>,
        (start, most): (usize, usize),
        code: u16,
        error: Option<ExtendedError>,
    ) {
        let length = self.reply_len(error);
        let whole = out.len() - start + length;
        let padding =
            if self.padded { whole.next_multiple_of(BLOCK).min(most).saturating_sub(whole) } else { 0 };
        let [size_high, size_low] = self.announced.to_be_bytes();
        let flags = if self.dnssec_ok { 0x80 } else { 0 };
        let [high, low] = ((length - OPT + padding) as u16).to_be_bytes(); // about 50 bytes, plus padding of less than a block
        out.extend_from_slice(&[0, 0, 41, size_high, size_low, (code >> 4) as u8, 0, flags, 0, high, low]);
        if let Some(cookie) = self.cookie {
            cookie.push(out);
        }
        if let Some(error) = error {
            let [high, low] = (error as u16).to_be_bytes();
            out.extend_from_slice(&[0, 15, 0, 2, high, low]);
        }
        if self.padded {
            let [high, low] = (padding as u16).to_be_bytes();
            out.extend_from_slice(&[0, 12, high, low]);
            out.resize(out.len() + padding, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_the_last_option_and_fills_the_block() {
        let cookie = Some(Cookie { client: [1; 8], server: Some([2; 16]), is_returned: true });
        let edns = Edns { cookie, ..Edns::new(1232, 0x80) };
        let padded = Edns { padded: true, ..edns };
        let error = Some(ExtendedError::StaleAnswer);
        let record = |edns: Edns, before: usize, most| {
            let mut out = vec![7; 3 + before];
            edns.push(&mut out, (3, most), 16, error);
            out.split_off(3 + before)
        };
        for (before, most) in [
            (12, 65_535),
            (400, 65_535),
            (415, 65_535),
            (416, 65_535),
            (900, 65_535),
            (900, 980),
            (951, 1000),
        ] {
            let [plain, record] = [edns, padded].map(|edns| record(edns, before, most));
            assert_eq!(plain.len(), edns.reply_len(error));
            let whole = before + record.len();
            assert!(whole == most || whole.is_multiple_of(BLOCK), "{before} bytes and OPT are {whole}");
            assert!(
                (plain.len() + OPTION..plain.len() + OPTION + BLOCK).contains(&record.len()) && whole <= most
            );
            // Apart from the length of all options, the record without padding is the same.
            assert_eq!((&record[..9], &record[OPT..plain.len()]), (&plain[..9], &plain[OPT..]));
            assert_eq!(usize::from(u16::from_be_bytes([record[9], record[10]])), record.len() - OPT);
            let option = &record[plain.len()..];
            assert_eq!(option[..2], [0, 12]);
            assert_eq!(usize::from(u16::from_be_bytes([option[2], option[3]])), option.len() - OPTION);
            assert!(option[OPTION..].iter().all(|byte| *byte == 0));
        }
    }
}
