//! Reads a certificate chain and its private key from PEM (RFC 7468), with errors that say what to
//! do.
//!
//! rustls reads PEM too, but its errors tell little more than that a file is bad, and a key that
//! does not belong to the certificate fails only in handshakes. This crate finds both when the
//! files are read.
//!
//! ```text
//!  tls.crt ──> certificates ──┐
//!                             ├─> certified_key ──> rustls::sign::CertifiedKey
//!  tls.key ───────────────────┘
//! ```
//!
//! [`read`] reads such files, and those of other secrets. [`validity_problem`] tells whether a
//! chain is valid now. Callers decide when to read files again, and add the files' names to errors.

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

/// Problem with a file, and its remedy. Its text follows the file's name: `tls.key: is encrypted;
/// …`.
#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    /// The file cannot be opened or read, or is not text.
    #[error("cannot be read: {0}; give a file that exists and that this user may read")]
    Unreadable(#[source] io::Error),
    /// The file is a directory, a pipe or a device.
    #[error("is not a regular file; give one, or a link to one")]
    Special,
    /// The file is larger than this number of bytes.
    #[error("is larger than {} MiB; give a file that holds nothing else", .0 >> 20)]
    TooLarge(u64),
    /// The certificate expired this long ago.
    #[error("has a certificate that expired {} hours ago; have it issued again", .0.as_secs() / 3600)]
    Expired(Duration),
    /// The certificate becomes valid in this time.
    #[error("has a certificate that becomes valid in {} seconds; check the clocks, or wait", .0.as_secs())]
    TooEarly(Duration),
    /// A PEM section has no end, or is not base64.
    #[error("is not valid PEM: {0}; write the file again")]
    BadPem(#[source] pem::Error),
    /// The file has no section that is a certificate.
    #[error(
        "has no certificate in PEM; give the file that has BEGIN CERTIFICATE, the leaf certificate first"
    )]
    NoCertificate,
    /// The first certificate cannot be used.
    #[error("is not a valid X.509 certificate: {0}; have it issued again")]
    BadCertificate(#[source] rustls::Error),
    /// The file has no section that is a private key.
    #[error("has no private key in PEM; give the file that has BEGIN PRIVATE KEY")]
    NoKey,
    /// The private key is encrypted with a password.
    #[error("is encrypted; decrypt it first, for example by openssl pkey -in FILE -out PLAIN")]
    EncryptedKey,
    /// The cryptography provider does not support keys of this kind.
    #[error(
        "is a private key of an unsupported kind; use RSA of 2048 bits or more, ECDSA P-256 or P-384, or Ed25519"
    )]
    UnknownKey,
    /// The private key does not belong to the certificate in this file.
    #[error("is not the key of the certificate in {}; give the two that were issued together", .0.display())]
    OtherKey(PathBuf),
}

/// Error of [`certified_key`]: the file that cannot be used, and why.
#[derive(Debug)]
pub enum CertifiedKeyError {
    /// The file with the certificate chain.
    Certificate(FileProblem),
    /// The file with the private key.
    Key(FileProblem),
}

/// Returns all certificates of a PEM text, in its order. A text without any is no error.
///
/// # Errors
///
/// [`FileProblem::BadPem`].
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileProblem> {
    CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(FileProblem::BadPem)
}

/// Returns the certificate chain of `certificate` with the private key of `key`, checked to belong
/// together. `certificate` is the file's name, for errors, and its content: the leaf
/// certificate first.
///
/// # Errors
///
/// [`CertifiedKeyError`], if a file cannot be used or the two do not belong together.
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
            // The traditional form of encryption has headers, which the parser takes for bad
            // base64.
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
        // Unknown: this kind of key does not tell its public half. All kinds that ring loads do.
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
