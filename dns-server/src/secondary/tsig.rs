//! Signed messages (TSIG, RFC 8945): pure but for [`now`].
//!
//! ```text
//!   signed query ── open ──> query without its TSIG record, and a Signer for the reply
//!                    └─────> Refusal: what to say to it
//! ```
//!
//! hickory's functions are not used: its server side signs single messages only and accepts no truncated MACs
//! to answer them as the RFC says, and the feature that has them brings DNSSEC with it. HMAC is ring's, whose
//! comparison takes the same time wherever two MACs differ.
//!
//! Of the algorithms those with SHA-2 are known and HMAC-MD5 and HMAC-SHA1 are not (RFC 8945 §6 wants no new
//! uses). MACs are never shortened: who sends a shorter one is told so (BADTRUNC).

pub mod keys;
mod record;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::hmac;

pub use keys::{Algorithm, Key, Keyring};

use crate::answer::query::Rcode;
use crate::store::rrset::HEADER;
use record::{TsigPosition, TsigRecord};

/// How far clocks may be apart, in seconds (RFC 8945 §10).
const FUDGE: u16 = 300;

/// The fewest bytes that a shortened MAC may have (RFC 8945 §5.2.2.1).
const MIN_MAC: usize = 10;

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What is wrong with a signature (RFC 8945 §3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the IANA mnemonics say it")]
#[repr(u16)]
pub enum TsigError {
    BadSig = 16,
    BadKey = 17,
    BadTime = 18,
    BadTrunc = 22,
}

impl TsigError {
    /// The IANA mnemonic.
    pub fn name(self) -> &'static str {
        match self {
            Self::BadSig => "BADSIG",
            Self::BadKey => "BADKEY",
            Self::BadTime => "BADTIME",
            Self::BadTrunc => "BADTRUNC",
        }
    }
}

/// A query whose signature is good.
#[derive(Debug)]
pub struct VerifiedQuery {
    /// The query as it was before it was signed.
    pub packet: Vec<u8>,
    /// Signs the reply.
    pub signer: Signer,
}

/// A query whose signature is no good, and what its reply needs.
#[derive(Debug)]
pub struct Refusal(Box<RefusalReason>);

impl From<RefusalReason> for Refusal {
    fn from(reason: RefusalReason) -> Self {
        Self(Box::new(reason))
    }
}

#[derive(Debug)]
enum RefusalReason {
    /// There is no TSIG record, or none as it should be.
    Malformed,
    /// Nobody can sign the reply.
    Unsigned(TsigError, TsigRecord),
    /// The asker has the key.
    Signed(TsigError, Signer, TsigRecord),
}

impl Refusal {
    /// The code of the reply.
    pub fn rcode(&self) -> Rcode {
        if self.error().is_some() { Rcode::NotAuth } else { Rcode::FormErr }
    }

    /// The code in the reply's TSIG record, if it has one.
    pub fn error(&self) -> Option<TsigError> {
        match *self.0 {
            RefusalReason::Malformed => None,
            RefusalReason::Unsigned(error, _) | RefusalReason::Signed(error, ..) => Some(error),
        }
    }

    /// Bytes of the record that [`Self::append_tsig`] appends.
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
                // The asker's time, and ours beside it (RFC 8945 §5.2.3).
                let other = record::time(now).to_vec();
                signer.append(out, start, asked.time, TsigError::BadTime as u16, other);
            }
            RefusalReason::Signed(error, mut signer, _) => {
                signer.append(out, start, now, error as u16, Vec::new());
            }
        }
    }
}

/// Checks the signature of a query.
///
/// # Errors
///
/// If it is not good. Checks are made in the order of RFC 8945 §5.2.
pub fn verify(packet: &[u8], keys: &Keyring, now: u64) -> Result<VerifiedQuery, Refusal> {
    let malformed = || Refusal::from(RefusalReason::Malformed);
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

/// Signs the messages of one side of an exchange, each with what went before.
#[derive(Debug)]
pub struct Signer {
    key: Arc<Key>,
    id: u16,
    /// The MAC that the next one is computed with.
    prior: Option<Vec<u8>>,
    is_first: bool,
}

impl Signer {
    /// For a query with this id.
    pub fn of_query(key: Arc<Key>, id: u16) -> Self {
        Self { key, id, prior: None, is_first: true }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Bytes of the record that [`Self::sign`] appends.
    pub fn tsig_len(&self) -> usize {
        self.key.name().as_wire().len()
            + self.key.algorithm().name().len()
            + self.key.algorithm().length()
            + record::FIXED
    }

    /// Appends the TSIG record to the message that begins at `start`.
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
        // Of several messages the first is signed with everything, the others with the times alone (§5.3.1).
        let is_first = std::mem::replace(&mut self.is_first, false);
        let variables = if is_first { tsig.variables() } else { tsig.timers() };
        let message = out.get(start..).unwrap_or_default();
        tsig.mac = compute_mac(&self.key, self.prior.as_deref(), message, &variables).as_ref().to_vec();
        self.prior = Some(tsig.mac.clone());
        tsig.append(out, start);
    }

    /// Whether `reply` is signed as the answer to the query that was signed last.
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

/// The MAC of a message (RFC 8945 §4.3).
fn compute_mac(key: &Key, prior: Option<&[u8]>, message: &[u8], variables: &[u8]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key.secret());
    if let Some(prior) = prior {
        context.update(&(prior.len() as u16).to_be_bytes()); // a MAC, 64 bytes at most
        context.update(prior);
    }
    context.update(message);
    context.update(variables);
    context.sign()
}

/// Whether `expected` begins with `given`, in a time that does not depend on where they differ: a MAC of the one is
/// compared with the other.
fn is_prefix(key: &Key, given: &[u8], expected: &[u8]) -> bool {
    let Some(expected) = expected.get(..given.len()) else { return false };
    hmac::verify(key.secret(), given, hmac::sign(key.secret(), expected).as_ref()).is_ok()
}

impl TsigPosition {
    /// The message without its TSIG record, with its original id: what was signed.
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
