//! Mutual TLS between peers.
//!
//! Only TLS 1.3 is spoken, and both sides show a certificate. rustls verifies chains, times and key
//! usages. The other side's name has to be one given to [`Tls::expect`], or by default the service
//! that was asked for.
//!
//! A refused peer learns the reason within the handshake, from an alert:
//!
//! | this side | refuses | the other side learns it |
//! |---|---|---|
//! | connects | a listener's certificate | in its handshake |
//! | accepts | a peer's certificate | at its first read ([`explain`]) |
//! | connects | a listener without TLS | from the first byte ([`looks_like_tls`]) |
//! | accepts | a peer without TLS | from the first byte of the answer, an alert |
//!
//! In the second case, the side that connects has finished its handshake before the listener sees
//! its certificate, as TLS 1.3 prescribes.
//!
//! - `names`: expected names, and those in a certificate;
//! - `files`: certificate, key and trust anchors, reloaded when they change;
//! - `verify`: verification of one handshake's peer;
//! - `error`: errors in words.

mod error;
mod files;
mod names;
#[cfg(test)]
mod tests;
mod verify;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

pub use error::TlsError;
pub(crate) use error::explain;

use error::HandshakeContext;
use files::{CredentialStore, Files};
use names::ExpectedName;
use verify::Verifier;

/// Protocol within TLS (RFC 7301), so that web browsers and servers are refused clearly.
const ALPN: &[u8] = b"multinet/1";

/// Content types of TLS records that a side may begin with (RFC 8446 §5.1).
const ALERT: u8 = 0x15;
const HANDSHAKE: u8 = 0x16;

/// First bytes of a multinet handshake without TLS.
const PREAMBLE: &[u8] = b"MNET";

/// Fatal TLS alert `unexpected_message`, unencrypted, for a peer that does not speak TLS.
const UNEXPECTED_MESSAGE: [u8; 7] = [ALERT, 3, 3, 0, 2, 2, 10];

/// Fatal alert in the clear, `internal_error`, for an address that is not admitted.
pub(crate) const NOT_ADMITTED: [u8; 7] = [ALERT, 3, 3, 0, 2, 2, 80];

/// Time limit for ending a connection, in which a refused peer can read the reason.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Mutual TLS between peers: the identity of this side, its trust anchors, and the expected names
/// of the other side.
///
/// A clone is cheap and shares the files. At the beginning of a handshake, but at most once a
/// second, the files are checked and reloaded if they have changed. Existing connections keep their
/// certificates. If the new files are unusable, that is logged once, and the old content stays in
/// use.
///
/// ```no_run
/// use multinet_client::Tls;
///
/// # fn main() -> Result<(), multinet_client::TlsError> {
/// let folder = std::path::Path::new("/var/run/tls");
/// let file = |name| folder.join(name);
/// let tls = Tls::from_files(file("tls.crt"), file("tls.key"), file("ca.crt"))?
///     .expect("spiffe://cluster.local/ns/vision/sa/infer")?
///     .expect("infer.vision.svc.multinet.cluster.local")?;
/// # drop(tls);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Tls {
    store: Arc<CredentialStore>,
    expected: Arc<Vec<ExpectedName>>,
}

impl Tls {
    /// Reads three PEM files: this side's certificate, followed by its intermediates; the private
    /// key; and the certificates of the trusted authorities.
    ///
    /// If a certificate limits its key usage, it has to allow both server and client
    /// authentication, as SPIFFE's do. A renewed certificate should have the same URI, as SPIFFE's
    /// have, or else the same DNS names. Listeners take a sender with other names for another
    /// sender, whose frames they have not had yet.
    ///
    /// ```no_run
    /// let tls = multinet_client::Tls::from_files("tls.crt", "tls.key", "ca.crt")?;
    /// # drop(tls);
    /// # Ok::<(), multinet_client::TlsError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a file cannot be read or used, or the key does not belong to the certificate.
    pub fn from_files(
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
        trust: impl Into<PathBuf>,
    ) -> Result<Self, TlsError> {
        let files = Files { certificate: certificate.into(), key: key.into(), trust: trust.into() };
        Ok(Self { store: Arc::new(CredentialStore::open(files)?), expected: Arc::default() })
    }

    /// Accepts peers with this name, or with any other name given to this method.
    ///
    /// - A SPIFFE ID, such as `spiffe://cluster.local/ns/vision/sa/infer`, has to equal the only
    ///   URI name of the peer's certificate. A final `/*` stands for everything below:
    ///   `spiffe://cluster.local/ns/vision/*` is any peer of that namespace.
    /// - A DNS name has to be among the DNS names of the peer's certificate. There, a wildcard may
    ///   stand for the first label (RFC 9525). Common names and addresses do not count.
    ///
    /// Without any name, a side that connects expects the DNS name of the service that it asked
    /// for, and a side that accepts takes any peer that the trust anchors vouch for.
    ///
    /// ```no_run
    /// # let tls = multinet_client::Tls::from_files("tls.crt", "tls.key", "ca.crt")?;
    /// let tls = tls.expect("spiffe://cluster.local/ns/vision/*")?.expect("ingest.example.com")?;
    /// # drop(tls);
    /// # Ok::<(), multinet_client::TlsError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the name is neither a SPIFFE ID nor a DNS name.
    pub fn expect(mut self, name: &str) -> Result<Self, TlsError> {
        let expected =
            ExpectedName::parse(name).map_err(|problem| TlsError::Name { name: name.to_owned(), problem })?;
        Arc::make_mut(&mut self.expected).push(expected);
        Ok(self)
    }

    /// Runs the handshake of the side that connected to an instance of `service`, which is the DNS
    /// name that was asked for.
    ///
    /// The caller limits the time.
    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
        service: &str,
    ) -> Result<client::TlsStream<TcpStream>, TlsError> {
        let service_name = names::dns_name(service);
        let expected = match &service_name {
            _ if !self.expected.is_empty() => Arc::clone(&self.expected),
            Some(name) => Arc::new(vec![ExpectedName::Dns(name.clone())]),
            None => return Err(TlsError::Service { service: service.to_owned() }),
        };
        let server_name = match service_name {
            Some(name) => ServerName::DnsName(name),
            // rustls demands a name. An address is neither sent nor compared.
            None => stream.peer_addr().map_err(|_| TlsError::Closed)?.ip().into(),
        };
        let verifier = Verifier::new(self.store.current().await, Arc::clone(&expected));
        let connector = TlsConnector::from(Arc::new(verifier.client_config()));
        match connector.connect(server_name, stream).into_fallible().await {
            Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(ALPN) => Ok(stream),
            Ok(stream) => {
                close(stream).await;
                Err(TlsError::NotMultinet)
            }
            Err((error, stream)) => {
                drain_and_close(stream).await;
                Err(self.handshake_error(true, &error, &verifier, &expected))
            }
        }
    }

    /// Runs the handshake of the side that accepted.
    ///
    /// The caller limits the time.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Result<server::TlsStream<TcpStream>, TlsError> {
        if let Err(error) = check_first_bytes(&stream).await {
            if error != TlsError::Closed {
                // Best effort: a socket that has sent nothing yet takes these few bytes.
                let _ = stream.try_write(&UNEXPECTED_MESSAGE);
                drain_and_close(stream).await;
            }
            return Err(error);
        }
        let verifier = Verifier::new(self.store.current().await, Arc::clone(&self.expected));
        let acceptor = TlsAcceptor::from(Arc::new(verifier.server_config()));
        match acceptor.accept(stream).into_fallible().await {
            Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(ALPN) => Ok(stream),
            Ok(stream) => {
                close(stream).await;
                Err(TlsError::NotMultinet)
            }
            Err((error, stream)) => {
                drain_and_close(stream).await;
                Err(self.handshake_error(false, &error, &verifier, &self.expected))
            }
        }
    }

    fn handshake_error(
        &self,
        is_client: bool,
        error: &io::Error,
        verifier: &Verifier,
        expected: &[ExpectedName],
    ) -> TlsError {
        let context = HandshakeContext {
            is_client,
            trust: self.store.trust().to_owned(),
            presented: verifier.presented(),
            expected: expected.iter().map(ToString::to_string).collect(),
        };
        context.into_error(error)
    }
}

/// Returns the names in a peer's certificate, for logs. The argument is the connection's
/// `peer_certificates()`.
pub(crate) fn peer_names(certificates: Option<&[CertificateDer<'_>]>) -> Vec<String> {
    certificates.and_then(<[_]>::first).map(names::presented_names).unwrap_or_default()
}

/// Returns the names that identify the holder of a peer's certificate across renewals.
pub(crate) fn holder_names(certificates: Option<&[CertificateDer<'_>]>) -> Vec<String> {
    certificates.and_then(<[_]>::first).map(names::holder_names).unwrap_or_default()
}

/// Returns whether the first bytes that a peer sent are those of a TLS record.
pub(crate) fn looks_like_tls(first_bytes: &[u8]) -> bool {
    // The record's type and, if present, the first half of its version.
    matches!(first_bytes, [ALERT | HANDSHAKE] | [ALERT | HANDSHAKE, 3, ..])
}

/// Waits for the first bytes of a peer that connected. Returns an error if they are not TLS.
async fn check_first_bytes(stream: &TcpStream) -> Result<(), TlsError> {
    let mut first = [0; 16];
    let first = match stream.peek(&mut first).await {
        Ok(0) | Err(_) => return Err(TlsError::Closed),
        Ok(length) => &first[..length],
    };
    if looks_like_tls(first) {
        return Ok(());
    }
    // Maybe only a few bytes have arrived yet.
    let length = first.len().min(PREAMBLE.len());
    if first[..length] == PREAMBLE[..length] {
        return Err(TlsError::PlainPeer);
    }
    Err(TlsError::Stranger { began: format!("\"{}\"", first.escape_ascii()) })
}

/// Ends a TLS connection by `close_notify`, and waits until it is sent, within a time limit.
pub(crate) async fn close<S>(mut stream: S)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, stream.shutdown()).await;
}

/// Ends a connection after a final message, so that the peer can read it. If a socket is closed
/// with unread bytes, the kernel resets the connection, and a peer that is writing never reads the
/// message.
pub(crate) async fn drain_and_close(mut stream: TcpStream) {
    /// Maximum number of reads while draining: more than any honest refused peer needs.
    const MAX_READS: usize = 64;
    let drain = async {
        stream.shutdown().await?;
        let mut sink = [0; 4096];
        for _ in 0..MAX_READS {
            if stream.read(&mut sink).await? == 0 {
                break;
            }
        }
        Ok::<(), io::Error>(())
    };
    // Whether the message has arrived cannot be known.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, drain).await;
}
