//! NOTIFY messages (RFC 1996), and matching of the replies to them.

use std::sync::Arc;

use crate::secondary::tsig::{Signer, TsigKey};
use crate::store::rrset::{HEADER, rtype};
use crate::store::zone_copy::ZoneVersion;

/// Third byte of a reply's header without flags: QR, and the opcode NOTIFY.
const ANSWER: u8 = 0x80 | 4 << 3;

/// A NOTIFY message, with the data to recognize its reply.
#[derive(Debug)]
pub(super) struct Notify {
    /// The message's bytes, with the TSIG record if it is signed.
    pub(super) packet: Vec<u8>,
    question_end: usize,
    signer: Option<Signer>,
}

impl Notify {
    /// Makes a notification of a version of a zone. The answer section has its SOA record, which a
    /// secondary may use as a hint (§3.7).
    pub(super) fn new(id: u16, version: &ZoneVersion, key: Option<&Arc<TsigKey>>, now: u64) -> Self {
        let ZoneVersion { apex, soa, .. } = version;
        let mut packet = id.to_be_bytes().to_vec();
        // Opcode NOTIFY, AA; one question and one answer.
        packet.extend_from_slice(&[0x24, 0, 0, 1, 0, 1, 0, 0, 0, 0]);
        packet.extend_from_slice(apex.as_wire());
        packet.extend_from_slice(&rtype::SOA.to_be_bytes());
        packet.extend_from_slice(&rtype::CLASS_IN.to_be_bytes());
        let question_end = packet.len();
        packet.extend_from_slice(soa);
        let mut signer = key.map(|key| Signer::of_query(Arc::clone(key), id));
        if let Some(signer) = &mut signer {
            signer.sign(&mut packet, 0, now);
        }
        Self { packet, question_end, signer }
    }

    /// Returns the response code of `reply` if that is the answer to this notification: it has the
    /// same id and question, and a valid signature if this was signed.
    pub(super) fn answered_by(&self, reply: &[u8], now: u64) -> Option<u8> {
        let header = reply.first_chunk::<HEADER>()?;
        let is_ours = header[..2] == self.packet[..2] && header[2] & 0xf8 == ANSWER;
        let has_question = match header[4..6] {
            [0, 0] => true,
            [0, 1] => {
                let question = reply.get(HEADER..self.question_end)?;
                question.eq_ignore_ascii_case(&self.packet[HEADER..self.question_end])
            }
            _ => false,
        };
        let is_signed = self.signer.as_ref().is_none_or(|signer| signer.verifies(reply, now));
        (is_ours && has_question && is_signed).then_some(header[3] & 0xf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secondary::tsig::{self, Algorithm, Keyring};

    fn version() -> ZoneVersion {
        let apex: crate::store::name::Name = "z.test".parse().unwrap();
        let mut soa = apex.as_wire().to_vec();
        soa.extend_from_slice(&[0, 6, 0, 1, 0, 0, 0, 5, 0, 22, 0, 0, 0, 0, 0, 7]);
        soa.extend_from_slice(&[0; 16]);
        ZoneVersion { apex, serial: 7, soa }
    }

    fn key(secret: &[u8]) -> TsigKey {
        TsigKey::new("k".parse().unwrap(), Algorithm::HmacSha256, secret)
    }

    /// Makes the answer of a secondary.
    fn answer(notify: &Notify, code: u8) -> Vec<u8> {
        let mut reply = notify.packet[..notify.question_end].to_vec();
        reply[2..HEADER].copy_from_slice(&[0xa4, code, 0, 1, 0, 0, 0, 0, 0, 0]);
        reply
    }

    #[test]
    fn a_notification_has_the_soa_record_as_its_answer() {
        let notify = Notify::new(0x1234, &version(), None, 0);
        let message = hickory_proto::op::Message::from_vec(&notify.packet).unwrap();
        assert_eq!(message.metadata.op_code, hickory_proto::op::OpCode::Notify);
        assert_eq!((message.queries.len(), message.answers.len()), (1, 1));
        assert_eq!(message.queries[0].to_string(), "z.test. IN SOA");
        assert!(message.answers[0].to_string().contains("SOA . . 7"), "{}", message.answers[0]);
    }

    #[test]
    fn only_the_answer_to_the_same_notification_matches() {
        let notify = Notify::new(0x1234, &version(), None, 0);
        let good = answer(&notify, 0);
        assert_eq!(notify.answered_by(&good, 0), Some(0));
        assert_eq!(notify.answered_by(&answer(&notify, 5), 0), Some(5));
        // Some secondaries omit the question in errors.
        let mut short = answer(&notify, 1);
        short.truncate(HEADER);
        short[5] = 0;
        assert_eq!(notify.answered_by(&short, 0), Some(1));
        // Another id, a query, another opcode, two questions, another zone.
        for (at, byte) in [(1, 0), (2, 0x24), (2, 0x84), (5, 2), (HEADER + 1, b'y')] {
            let mut other = good.clone();
            other[at] = byte;
            assert_eq!(notify.answered_by(&other, 0), None, "byte {at} = {byte}");
        }
        for length in 0..good.len() {
            assert_eq!(notify.answered_by(&good[..length], 0), None, "{length} bytes");
        }
    }

    #[test]
    fn a_signed_notification_needs_a_signed_answer() {
        let notify = Notify::new(0x1234, &version(), Some(&Arc::new(key(&[1; 32]))), 1000);
        let keys: Keyring = [key(&[1; 32])].into_iter().collect();
        let mut opened = tsig::verify(&notify.packet, &keys, 1000).unwrap();
        let unsigned = answer(&notify, 0);
        assert_eq!(notify.answered_by(&unsigned, 1000), None);
        let mut signed = unsigned.clone();
        opened.signer.sign(&mut signed, 0, 1001);
        assert_eq!(notify.answered_by(&signed, 1002), Some(0));
        assert_eq!(notify.answered_by(&signed, 2000), None);
        signed[3] = 5;
        assert_eq!(notify.answered_by(&signed, 1002), None);
        // Signed with another key of the same name.
        let mut other = Signer::of_query(Arc::new(key(&[2; 32])), 0x1234);
        let mut forged = unsigned;
        other.sign(&mut forged, 0, 1001);
        assert_eq!(notify.answered_by(&forged, 1002), None);
    }
}
