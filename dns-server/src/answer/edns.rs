//! The OPT record (RFC 6891): what a query's says, and what the reply's will.

use crate::answer::cookie::Cookie;

/// The largest UDP payload to a client without EDNS (RFC 1035 §4.2.1).
pub(crate) const MIN_UDP: usize = 512;

/// The largest UDP payload that is sent (DNS flag day 2020) and announced, unless `--udp-payload-size` says
/// otherwise.
pub const MAX_UDP: usize = 1232;

/// Bytes of an OPT record without options (RFC 6891 §6.1.2).
const OPT: usize = 11;

/// Bytes of an option's code and length.
const OPTION: usize = 4;

/// Bytes of an Extended DNS Error without text (RFC 8914 §2).
const EXTENDED_ERROR: usize = OPTION + 2;

/// A padded reply has a multiple of so many bytes (RFC 8467 §4.1).
pub(crate) const BLOCK: usize = 468;

/// Extended DNS Errors that are sent (RFC 8914 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum ExtendedError {
    StaleAnswer = 3,
    NotReady = 14,
}

/// What a query's OPT record says, and what the reply's will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edns {
    /// The payload that the client takes over UDP.
    pub payload: u16,
    /// The payload that we send and announce.
    pub announced: u16,
    /// Whether the client wants DNSSEC records (RFC 3225); it is echoed.
    pub dnssec_ok: bool,
    /// Whether the message is padded, so that its length says little of what is in it (RFC 7830).
    pub padded: bool,
    /// Whether the client says something of how long its TCP connection may be idle (RFC 7828), which only QUIC minds.
    pub keepalive: bool,
    /// The cookie.
    pub cookie: Option<Cookie>,
}

impl Edns {
    /// From a payload and the first byte of the flags. Less than 512 means 512 (RFC 6891 §6.2.3).
    pub fn new(payload: u16, flags: u8) -> Self {
        let payload = payload.max(MIN_UDP as u16);
        let dnssec_ok = flags & 0x80 != 0;
        let (padded, keepalive) = (false, false);
        Self { payload, announced: MAX_UDP as u16, dnssec_ok, padded, keepalive, cookie: None }
    }

    /// Bytes of the reply's OPT record, with padding that has none itself.
    pub(crate) fn reply_len(&self, error: Option<ExtendedError>) -> usize {
        let padding = if self.padded { OPTION } else { 0 };
        let cookie = self.cookie.map_or(0, |cookie| cookie.reply_len());
        OPT + cookie + error.map_or(0, |_| EXTENDED_ERROR) + padding
    }

    /// Appends the OPT record of the reply that begins at `start`: our payload, the high part of the code, the DO bit
    /// of the query. Padding fills the block, as far as `most` bytes allow; what it follows it does not give away.
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
        let [high, low] = ((length - OPT + padding) as u16).to_be_bytes(); // some 50, and less than a block
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
            // Nothing else has changed but the length of all options.
            assert_eq!((&record[..9], &record[OPT..plain.len()]), (&plain[..9], &plain[OPT..]));
            assert_eq!(usize::from(u16::from_be_bytes([record[9], record[10]])), record.len() - OPT);
            let option = &record[plain.len()..];
            assert_eq!(option[..2], [0, 12]);
            assert_eq!(usize::from(u16::from_be_bytes([option[2], option[3]])), option.len() - OPTION);
            assert!(option[OPTION..].iter().all(|byte| *byte == 0));
        }
    }
}
