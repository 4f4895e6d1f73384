//! Signed messages (TSIG, RFC 8945). Pure except for [`now`].
//!
//! ```text
//!   signed query ── verify ──> query without its TSIG record, and a Signer for the reply
//!                      └─────> TsigRefusal: the error for the reply
//! ```
//!
//! This module does not use hickory's functions: on the server side, they sign single messages
//! only, and do not accept truncated MACs in order to answer them as the RFC requires. The feature
//! that has them also brings DNSSEC. HMAC is from ring, which compares MACs in constant time.
//!
//! The algorithms are those with SHA-2. HMAC-MD5 and HMAC-SHA1 are not supported, since RFC 8945 §6
//! discourages new uses. This server never truncates MACs, and answers a truncated one with
//! BADTRUNC.

pub mod keys;
mod record;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::hmac;
use strum::IntoStaticStr;

pub use keys::{Algorithm, Keyring, TsigKey};

use crate::answer::query::Rcode;
use crate::limits::transfers::FUDGE;
use crate::store::rrset::HEADER;
use record::{TsigPosition, TsigRecord};

/// Length in bytes of the shortest truncated MAC (RFC 8945 §5.2.2.1).
const MIN_MAC: usize = 10;

/// Returns the current time in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Errors of a TSIG signature (RFC 8945 §3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
#[expect(missing_docs, reason = "the IANA mnemonics say it")]
#[strum(serialize_all = "UPPERCASE")]
#[repr(u16)]
pub enum TsigError {
    BadSig = 16,
    BadKey = 17,
    BadTime = 18,
    BadTrunc = 22,
}

/// A query whose TSIG signature is valid.
#[derive(Debug)]
pub struct VerifiedQuery {
    /// The query without its TSIG record.
    pub packet: Vec<u8>,
    /// Signer for the reply to this query.
    pub signer: Signer,
}

/// An invalid TSIG signature, with the data that the reply needs.
#[derive(Debug)]
pub struct TsigRefusal(Box<RefusalReason>);

impl From<RefusalReason> for TsigRefusal {
    fn from(reason: RefusalReason) -> Self {
        Self(Box::new(reason))
    }
}

#[derive(Debug)]
enum RefusalReason {
    /// The TSIG record is malformed, or is not the last and only one of the query.
    Malformed,
    /// The key is unknown or the MAC is wrong, so the reply is not signed.
    Unsigned(TsigError, TsigRecord),
    /// The MAC is correct, but the time or the MAC's length is not, so the reply is signed.
    Signed(TsigError, Signer, TsigRecord),
}

impl TsigRefusal {
    /// Returns the response code of the reply to the query.
    pub fn rcode(&self) -> Rcode {
        if self.error().is_some() { Rcode::NotAuth } else { Rcode::FormErr }
    }

    /// Returns the error in the reply's TSIG record, if the reply has one.
    pub fn error(&self) -> Option<TsigError> {
        match *self.0 {
            RefusalReason::Malformed => None,
            RefusalReason::Unsigned(error, _) | RefusalReason::Signed(error, ..) => Some(error),
        }
    }

    /// Returns the length in bytes of the record that [`Self::append_tsig`] appends.
    pub fn tsig_len(&self) -> usize {
        match &*self.0 {
            RefusalReason::Malformed => 0,
            RefusalReason::Unsigned(_, asked) => asked.key.len() + asked.algorithm.len() + record::FIXED,
            RefusalReason::Signed(TsigError::BadTime, signer, _) => signer.tsig_len() + record::TIME,
            RefusalReason::Signed(_, signer, _) => signer.tsig_len(),
        }
    }

    /// Appends the TSIG record to the reply, which begins at `start` (RFC 8945 §5.3.2).
    pub fn append_tsig(self, out: &mut Vec<u8>, start: usize, now: u64) {
        match *self.0 {
            RefusalReason::Malformed => {}
            RefusalReason::Unsigned(error, asked) => {
                let answer = TsigRecord {
                    time: now,
                    mac: Vec::new(),
                    error: error as u16,
                    other: Vec::new(),
                    ..asked
                };
                answer.append(out, start);
            }
            RefusalReason::Signed(TsigError::BadTime, mut signer, asked) => {
                // The record repeats the client's time, and has the server's beside it (RFC 8945
                // §5.2.3).
                let other = record::time(now).to_vec();
                signer.append(out, start, asked.time, TsigError::BadTime as u16, other);
            }
            RefusalReason::Signed(error, mut signer, _) => {
                signer.append(out, start, now, error as u16, Vec::new());
            }
        }
    }
}

/// Verifies the signature of a query.
///
/// # Errors
///
/// Fails if the signature is invalid. The order of the checks is that of RFC 8945 §5.2.
pub fn verify(packet: &[u8], keys: &Keyring, now: u64) -> Result<VerifiedQuery, TsigRefusal> {
    let malformed = || TsigRefusal::from(RefusalReason::Malformed);
    let (at, tsig) = TsigRecord::find(packet).ok_or_else(malformed)?;
    let Some(key) = keys.find(&tsig.key).filter(|key| key.algorithm().name() == tsig.algorithm) else {
        return Err(RefusalReason::Unsigned(TsigError::BadKey, tsig).into());
    };
    let length = key.algorithm().length();
    if tsig.mac.len() > length || tsig.mac.len() < MIN_MAC.max(length / 2) {
        return Err(malformed());
    }
    let unsigned = at.unsigned(packet, tsig.id);
    let expected = compute_mac(&key, None, &unsigned, &tsig.variables());
    if !is_prefix(&key, &tsig.mac, expected.as_ref()) {
        return Err(RefusalReason::Unsigned(TsigError::BadSig, tsig).into());
    }
    let mut plain = unsigned;
    plain.splice(..2, packet.iter().take(2).copied());
    let id = u16::from_be_bytes([plain[0], plain[1]]);
    let signer = Signer { prior: Some(tsig.mac.clone()), is_first: true, id, key };
    if tsig.time.abs_diff(now) > u64::from(tsig.fudge) {
        return Err(RefusalReason::Signed(TsigError::BadTime, signer, tsig).into());
    }
    if tsig.mac.len() < length {
        return Err(RefusalReason::Signed(TsigError::BadTrunc, signer, tsig).into());
    }
    Ok(VerifiedQuery { packet: plain, signer })
}

/// Signs the messages of one side of an exchange. Each signature covers the one before.
#[derive(Debug)]
pub struct Signer {
    key: Arc<TsigKey>,
    id: u16,
    /// MAC of the message before, which the next MAC covers; `None` before the first message.
    prior: Option<Vec<u8>>,
    is_first: bool,
}

impl Signer {
    /// Makes the signer of a query with the message id `id`.
    pub fn of_query(key: Arc<TsigKey>, id: u16) -> Self {
        Self { key, id, prior: None, is_first: true }
    }

    /// Returns the key that messages are signed with.
    pub fn key(&self) -> &TsigKey {
        &self.key
    }

    /// Returns the length in bytes of the record that [`Self::sign`] appends.
    pub fn tsig_len(&self) -> usize {
        self.key.name().as_wire().len()
            + self.key.algorithm().name().len()
            + self.key.algorithm().length()
            + record::FIXED
    }

    /// Signs the message that begins at `start` in `out`, and appends the TSIG record.
    pub fn sign(&mut self, out: &mut Vec<u8>, start: usize, now: u64) {
        self.append(out, start, now, 0, Vec::new());
    }

    fn append(&mut self, out: &mut Vec<u8>, start: usize, time: u64, error: u16, other: Vec<u8>) {
        let mut tsig = TsigRecord {
            key: self.key.name().as_wire().to_vec(),
            algorithm: self.key.algorithm().name().to_vec(),
            time,
            fudge: FUDGE,
            mac: Vec::new(),
            id: self.id,
            error,
            other,
        };
        // The first of several messages is signed with all fields of the record, later ones with
        // the times only (§5.3.1).
        let is_first = std::mem::replace(&mut self.is_first, false);
        let variables = if is_first { tsig.variables() } else { tsig.timers() };
        let message = out.get(start..).unwrap_or_default();
        tsig.mac = compute_mac(&self.key, self.prior.as_deref(), message, &variables).as_ref().to_vec();
        self.prior = Some(tsig.mac.clone());
        tsig.append(out, start);
    }

    /// Tells whether `reply` has a valid signature, as the answer to the query that was signed
    /// last.
    pub fn verifies(&self, reply: &[u8], now: u64) -> bool {
        let Some((at, tsig)) = TsigRecord::find(reply) else { return false };
        let is_ours = tsig.key == self.key.name().as_wire() && tsig.algorithm == self.key.algorithm().name();
        let message = at.unsigned(reply, tsig.id);
        let expected = compute_mac(&self.key, self.prior.as_deref(), &message, &tsig.variables());
        is_ours
            && tsig.error == 0
            && tsig.mac.len() == self.key.algorithm().length()
            && is_prefix(&self.key, &tsig.mac, expected.as_ref())
            && tsig.time.abs_diff(now) <= u64::from(tsig.fudge)
    }
}

/// Computes the MAC of a message, behind that of the message before (RFC 8945 §4.3).
fn compute_mac(key: &TsigKey, prior: Option<&[u8]>, message: &[u8], variables: &[u8]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key.secret());
    if let Some(prior) = prior {
        context.update(&(prior.len() as u16).to_be_bytes()); // a MAC has at most 64 bytes
        context.update(prior);
    }
    context.update(message);
    context.update(variables);
    context.sign()
}

/// Tells whether `expected` begins with `given`, in a time that does not depend on where they
/// differ: it compares MACs of both.
fn is_prefix(key: &TsigKey, given: &[u8], expected: &[u8]) -> bool {
    let Some(expected) = expected.get(..given.len()) else { return false };
    hmac::verify(key.secret(), given, hmac::sign(key.secret(), expected).as_ref()).is_ok()
}

impl TsigPosition {
    /// Returns the message as it was signed: without the TSIG record, and with its original id.
    fn unsigned(&self, packet: &[u8], id: u16) -> Vec<u8> {
        let mut message = packet.get(..self.start).unwrap_or_default().to_vec();
        if let Some(header) = message.first_chunk_mut::<HEADER>() {
            header[..2].copy_from_slice(&id.to_be_bytes());
            header[10..].copy_from_slice(&self.additionals.to_be_bytes());
        }
        message
    }
}

#[cfg(test)]
mod tests;
