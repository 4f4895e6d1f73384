//! A certificate chain and its private key out of PEM (RFC 7468), with errors that say what to do.
//!
//! rustls reads PEM, but says of a bad file little more than that it is bad, and a key that does not belong to
//! the certificate shows only in handshakes. Here both are found when the files are read.
//!
//! ```text
//!  tls.crt ──> certificates ──┐
//!                             ├─> certified_key ──> rustls::sign::CertifiedKey
//!  tls.key ───────────────────┘
//! ```
//!
//! [`read`] is how such files are read, and those of other secrets; [`validity_problem`] says whether a chain is valid now. When
//! the files are read again is the callers' business, who know how their users name them.

#![forbid(unsafe_code)]

mod files;
mod time;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use files::{read, read_text};
pub use time::{replacement_problem, validity_problem};

use rustls::InconsistentKeys;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// What is wrong with a file, and what to do. Stands behind the file's name: `tls.key: is encrypted; …`.
#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    /// It cannot be read at all.
    #[error("cannot be read: {0}; give a file that exists and that this user may read")]
    Unreadable(#[source] io::Error),
    /// It is a folder, a pipe, a device.
    #[error("is not a regular file; give one, or a link to one")]
    Special,
    /// It has more octets than this.
    #[error("is larger than {} MiB; give a file that holds nothing else", .0 >> 20)]
    TooLarge(u64),
    /// A certificate was valid until so long ago.
    #[error("has a certificate that expired {} hours ago; have it issued anew", .0.as_secs() / 3600)]
    Expired(Duration),
    /// A certificate will be valid after so long.
    #[error("has a certificate that is valid in {} seconds only; look at the clocks, or wait", .0.as_secs())]
    TooEarly(Duration),
    /// A PEM section does not end, or is not base64.
    #[error("is not sound PEM: {0}; write the file anew")]
    BadPem(#[source] pem::Error),
    /// No section is a certificate.
    #[error("has no certificate in PEM; give the file that has BEGIN CERTIFICATE, the own one first")]
    NoCertificate,
    /// The first certificate cannot be used.
    #[error("is not a sound X.509 certificate: {0}; have it issued anew")]
    BadCertificate(#[source] rustls::Error),
    /// No section is a private key.
    #[error("has no private key in PEM; give the file that has BEGIN PRIVATE KEY")]
    NoKey,
    /// The key needs a password.
    #[error("is encrypted; decrypt it first, as by openssl pkey -in FILE -out PLAIN")]
    EncryptedKey,
    /// The provider cannot sign with it.
    #[error(
        "is a private key of no known kind; use RSA of 2048 bits or more, ECDSA P-256 or P-384, or Ed25519"
    )]
    UnknownKey,
    /// It belongs to another certificate than the one in this file.
    #[error("is not the key of the certificate in {}; give the two that were issued together", .0.display())]
    OtherKey(PathBuf),
}

/// Which of the two files cannot be used, and why.
#[derive(Debug)]
pub enum CertifiedKeyError {
    /// The one with the chain.
    Certificate(FileProblem),
    /// The one with the private key.
    Key(FileProblem),
}

/// All certificates of a text, in its order; none is no error here.
///
/// # Errors
///
/// [`FileProblem::BadPem`].
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileProblem> {
    CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(FileProblem::BadPem)
}

/// The chain of `certificate` (a file's name, for errors, and its content), the own one first, with the private key of `key`.
///
/// # Errors
///
/// [`CertifiedKeyError`], also if the two do not belong together.
pub fn certified_key(
    provider: &CryptoProvider,
    certificate: (&Path, &[u8]),
    key: &[u8],
) -> Result<CertifiedKey, CertifiedKeyError> {
    let chain = certificates(certificate.1).map_err(CertifiedKeyError::Certificate)?;
    if chain.is_empty() {
        return Err(CertifiedKeyError::Certificate(FileProblem::NoCertificate));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
        CertifiedKeyError::Key(match error {
            // Also the traditional form, whose headers are no base64.
            _ if is_encrypted(key) => FileProblem::EncryptedKey,
            pem::Error::NoItemsFound => FileProblem::NoKey,
            error => FileProblem::BadPem(error),
        })
    })?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|_| CertifiedKeyError::Key(FileProblem::UnknownKey))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        // Not every kind of key tells its public half; those that ring loads do.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(CertifiedKeyError::Key(FileProblem::OtherKey(certificate.0.to_owned())))
        }
        Err(error) => Err(CertifiedKeyError::Certificate(FileProblem::BadCertificate(error))),
    }
}

fn is_encrypted(key: &[u8]) -> bool {
    let mark = b"ENCRYPTED";
    key.windows(mark.len()).any(|window| window == mark)
}
