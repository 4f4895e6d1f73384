//! Mutual TLS between peers.
//!
//! TLS 1.3 only, and both sides show a certificate. Chains, times and usages are verified by rustls; who the
//! other side has to be is told by [`Tls::expect`], else it is the service that was asked for. A peer that is
//! refused is refused within the handshake, by an alert from which it can tell why:
//!
//! | this side, and what it refuses | the other side learns it |
//! |---|---|
//! | connects; a listener's certificate | in its handshake |
//! | accepts; a peer's certificate | at its first read ([`explain`]) |
//! | connects; a listener without TLS | from the first byte ([`looks_like_tls`]) |
//! | accepts; a peer without TLS | from the first byte of the answer, an alert ([`looks_like_tls`]) |
//!
//! The second is the way of TLS 1.3: who connects is done with the handshake before its certificate is seen.
//!
//! - `names`: what names are expected, and those in a certificate;
//! - `files`: certificate, key and trust anchors, read anew when they change;
//! - `verify`: the verification of one handshake's peer;
//! - `error`: what goes wrong, in words.

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

/// The protocol within TLS (RFC 7301): a web browser or server gets a clear refusal.
const ALPN: &[u8] = b"multinet/1";

/// Content types of TLS records that a side may begin with (RFC 8446 §5.1).
const ALERT: u8 = 0x15;
const HANDSHAKE: u8 = 0x16;

/// What the handshake of peers without TLS begins with.
const PREAMBLE: &[u8] = b"MNET";

/// A fatal alert in the clear, `unexpected_message`.
const UNEXPECTED_MESSAGE: [u8; 7] = [ALERT, 3, 3, 0, 2, 2, 10];

/// A fatal alert in the clear, `internal_error`: an address is not admitted.
pub(crate) const NOT_ADMITTED: [u8; 7] = [ALERT, 3, 3, 0, 2, 2, 80];

/// So long a refused peer is given to read why.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Mutual TLS between peers: who this side is, whom it trusts, and who the other side has to be.
///
/// A clone is cheap and shares the files. The files are looked at when a handshake begins, at most once a
/// second, and read anew when they have changed; connections keep what they began with. Files that have
/// become bad are logged once, and what they said before stays in use.
///
/// ```no_run
/// use multinet_client::Tls;
///
/// # fn main() -> Result<(), multinet_client::TlsError> {
/// let tls = Tls::from_files("/var/run/tls/tls.crt", "/var/run/tls/tls.key", "/var/run/tls/ca.crt")?
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
    /// Reads three PEM files: our certificate, followed by those that vouch for it; its private key; and the
    /// certificates of the authorities whose word is taken.
    ///
    /// Certificates have to be for both server and client authentication, as SPIFFE's are, where they limit
    /// their usage at all. Renewed ones are to have the same URI, as SPIFFE's have, or else the same DNS names: to listeners, a sender with
    /// others is another one, whose frames they have not had yet.
    ///
    /// ```no_run
    /// let tls = multinet_client::Tls::from_files("tls.crt", "tls.key", "ca.crt")?;
    /// # drop(tls);
    /// # Ok::<(), multinet_client::TlsError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a file cannot be read or used, or the key is not that of the certificate.
    pub fn from_files(
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
        trust: impl Into<PathBuf>,
    ) -> Result<Self, TlsError> {
        let files = Files { certificate: certificate.into(), key: key.into(), trust: trust.into() };
        Ok(Self { store: Arc::new(CredentialStore::open(files)?), expected: Arc::default() })
    }

    /// Lets in only peers with this name, or another one that was given so.
    ///
    /// - A SPIFFE ID, such as `spiffe://cluster.local/ns/vision/sa/infer`, has to be the one URI name of the
    ///   peer's certificate, to the letter. `/*` at its end stands for everything below:
    ///   `spiffe://cluster.local/ns/vision/*` is any peer of that namespace.
    /// - A DNS name has to be a DNS name of the peer's certificate, where a wildcard may stand for the first
    ///   label (RFC 9525). Common names and addresses do not count.
    ///
    /// Where no name is given, a side that connects expects the DNS name of the service that it asked for,
    /// and a side that accepts takes any peer that the trust anchors vouch for.
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
    /// If it is neither a SPIFFE ID nor a DNS name.
    pub fn expect(mut self, name: &str) -> Result<Self, TlsError> {
        let expected =
            ExpectedName::parse(name).map_err(|problem| TlsError::Name { name: name.to_owned(), problem })?;
        Arc::make_mut(&mut self.expected).push(expected);
        Ok(self)
    }

    /// The side of a connection that connected, to an instance of the service that was asked for by the DNS
    /// name `service`.
    ///
    /// How long it may take is the caller's to say.
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
            // Only for the library's sake: an address is neither sent nor compared.
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

    /// The side of a connection that accepted.
    ///
    /// How long it may take is the caller's to say.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Result<server::TlsStream<TcpStream>, TlsError> {
        if let Err(error) = check_first_bytes(&stream).await {
            if error != TlsError::Closed {
                // Best effort: what has sent this little takes so little.
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

/// The names in the certificate of a peer, such as `peer_certificates()` of its connection has, for logs.
pub(crate) fn peer_names(certificates: Option<&[CertificateDer<'_>]>) -> Vec<String> {
    certificates.and_then(<[_]>::first).map(names::presented_names).unwrap_or_default()
}

/// The names by which the holder of a peer's certificate is the same when that is renewed.
pub(crate) fn holder_names(certificates: Option<&[CertificateDer<'_>]>) -> Vec<String> {
    certificates.and_then(<[_]>::first).map(names::holder_names).unwrap_or_default()
}

/// Whether what a peer begins with, or answers a plain handshake with, is TLS.
pub(crate) fn looks_like_tls(first_bytes: &[u8]) -> bool {
    // The record's type and, as far as it is there, the first half of its version.
    matches!(first_bytes, [ALERT | HANDSHAKE] | [ALERT | HANDSHAKE, 3, ..])
}

/// Waits for the first bytes of a peer that connected, and says so if they are not TLS.
async fn check_first_bytes(stream: &TcpStream) -> Result<(), TlsError> {
    let mut first = [0; 16];
    let first = match stream.peek(&mut first).await {
        Ok(0) | Err(_) => return Err(TlsError::Closed),
        Ok(length) => &first[..length],
    };
    if looks_like_tls(first) {
        return Ok(());
    }
    // Few bytes may be all that has come of it yet.
    let length = first.len().min(PREAMBLE.len());
    if first[..length] == PREAMBLE[..length] {
        return Err(TlsError::PlainPeer);
    }
    Err(TlsError::Stranger { began: format!("\"{}\"", first.escape_ascii()) })
}

/// Ends a connection of TLS in good order.
pub(crate) async fn close<S>(mut stream: S)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, stream.shutdown()).await;
}

/// Ends a connection after an alert, or other last words, so that they arrive: a socket that is closed with bytes unread is reset,
/// and whoever is then writing never reads them.
pub(crate) async fn drain_and_close(mut stream: TcpStream) {
    /// More than a refused peer sends, unless it is out for trouble.
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
    // Whether it arrived cannot be known.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, drain).await;
}
