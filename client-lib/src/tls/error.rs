//! Errors of TLS between peers, in words.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, InvalidMessage};

/// Reason why TLS between two peers fails.
///
/// # Examples
///
/// ```
/// use multinet_client::{Tls, TlsError};
///
/// match Tls::from_files("/nonexistent/tls.crt", "/nonexistent/tls.key", "/nonexistent/ca.crt") {
///     // The agent that writes the certificates may be slower than this program.
///     Err(TlsError::File { file, .. }) => assert!(file.starts_with("/nonexistent")),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file with certificates or a key cannot be used.
    #[error("{}: {problem}", file.display())]
    File {
        /// Path of the file.
        file: PathBuf,
        /// Problem of the file, with what to do about it.
        problem: String,
    },
    /// The name given to [`Tls::expect`](super::Tls::expect) is not a name that a peer can have.
    #[error("no peer can be expected as {name:?}: {problem}")]
    Name {
        /// Name that the caller gave to [`Tls::expect`](super::Tls::expect).
        name: String,
        /// Problem of the name, with what to do about it.
        problem: &'static str,
    },
    /// The service was not asked for by a name that a certificate can have, and no other name is
    /// expected.
    #[error(
        "no certificate can be for the service {service:?}: ask for it by its DNS name, or name the peer by \
         Tls::expect"
    )]
    Service {
        /// Name of the service, as the caller wrote it.
        service: String,
    },
    /// The listener answers without TLS, which this side uses.
    #[error("the peer does not speak TLS: give it certificates, or connect without")]
    PlainListener,
    /// The peer that connects begins a multinet handshake without TLS, which this side requires.
    #[error("the peer does not speak TLS: give it certificates, or listen without")]
    PlainPeer,
    /// The peer that connects speaks neither TLS nor multinet.
    #[error(
        "the peer speaks neither TLS nor multinet, and begins with {began}: find the program that takes this \
         port for another"
    )]
    Stranger {
        /// First bytes that the peer sent, quoted and escaped.
        began: String,
    },
    /// The peer speaks TLS, but for another protocol than multinet (ALPN).
    #[error(
        "the peer speaks TLS, but not multinet (ALPN multinet/1): make sure that both ends are multinet and \
         that address and port are the ones meant"
    )]
    NotMultinet,
    /// The two sides have no TLS version or algorithm in common.
    #[error(
        "the peer's TLS is incompatible ({problem}): it has to speak TLS 1.3, with algorithms that rustls knows"
    )]
    Incompatible {
        /// Version or algorithm that is missing, as rustls names it.
        problem: String,
    },
    /// The peer showed no certificate, which mutual TLS requires.
    #[error("the peer showed no certificate: give it one, both sides have to identify themselves")]
    NoCertificate,
    /// No trust anchor vouches for the peer's certificate.
    #[error(
        "the peer's certificate (for {}) is from no authority in {}: add its authority there, or have it \
         issued by one that is there", list_names(presented), trust.display()
    )]
    UnknownIssuer {
        /// DNS and URI names that the peer's certificate claims.
        presented: Vec<String>,
        /// File of the trust anchors that this side uses.
        trust: PathBuf,
    },
    /// The peer's certificate names a trusted authority, but has the signature of another one.
    #[error(
        "the peer's certificate (for {}) names an authority in {} as its issuer, but was not signed by its \
         key: if the authority has a new key, renew that file and all certificates",
        list_names(presented), trust.display()
    )]
    OtherIssuer {
        /// DNS and URI names that the peer's certificate claims.
        presented: Vec<String>,
        /// File of the trust anchors that this side uses.
        trust: PathBuf,
    },
    /// The peer's certificate, or one that vouches for it, has expired.
    #[error(
        "the peer's certificate (for {}), or one that vouches for it, expired {} ago: renew it, unless this \
         clock is wrong", list_names(presented), round_duration(*by)
    )]
    Expired {
        /// DNS and URI names that the peer's certificate claims.
        presented: Vec<String>,
        /// Time since the certificate expired, by this machine's clock.
        by: Duration,
    },
    /// The peer's certificate, or one that vouches for it, is not valid yet.
    #[error(
        "the peer's certificate (for {}), or one that vouches for it, becomes valid only in {}: check this \
         clock and that of its authority", list_names(presented), round_duration(*by)
    )]
    NotYetValid {
        /// DNS and URI names that the peer's certificate claims.
        presented: Vec<String>,
        /// Time until the certificate becomes valid, by this machine's clock.
        by: Duration,
    },
    /// The extended key usages of the peer's certificate do not allow its role in the connection.
    #[error(
        "the peer's certificate (for {}) is not for {usage}: have it issued with both extended key usages, \
         serverAuth and clientAuth",
        list_names(presented)
    )]
    WrongUsage {
        /// DNS and URI names that the peer's certificate claims.
        presented: Vec<String>,
        /// Usage that the certificate has to allow: server or client authentication.
        usage: &'static str,
    },
    /// The peer's certificate is trusted, but is for none of the expected names.
    #[error(
        "the peer's certificate is for {}, expected {}: {}", list_names(presented), expected.join(" or "),
        name_remedy(presented)
    )]
    WrongName {
        /// DNS and URI names in the peer's certificate, for which the trust anchors vouch.
        presented: Vec<String>,
        /// Names that this side expects: any one would do.
        expected: Vec<String>,
    },
    /// The peer's certificate has a problem that no other variant describes.
    #[error(
        "the peer's certificate (for {}) cannot be used: {problem}; have it issued anew",
        list_names(presented)
    )]
    BadCertificate {
        /// DNS and URI names that the peer's certificate claims.
        presented: Vec<String>,
        /// Problem of the certificate, as rustls describes it.
        problem: String,
    },
    /// The peer refused the TLS handshake by an alert.
    #[error("the peer refuses: {reason} (alert {alert})")]
    Refused {
        /// Meaning of the alert, with what to do about it.
        reason: &'static str,
        /// Name of the TLS alert, such as `AccessDenied`.
        alert: String,
    },
    /// The peer closed the connection during the TLS handshake.
    #[error(
        "the peer closed the connection within the TLS handshake: its log says why; if it is a listener, it \
         may be one without TLS"
    )]
    Closed,
    /// The TLS handshake failed for a reason that no other variant describes.
    #[error(
        "TLS with the peer failed: {problem}; if this repeats, look for a device on the path that changes bytes"
    )]
    Broken {
        /// Error of rustls or of the kernel.
        problem: String,
    },
}

/// Facts about a failed TLS handshake that its error does not have, for a better message.
pub(super) struct HandshakeContext {
    /// Whether this side connected, as opposed to accepted.
    pub(super) is_client: bool,
    /// File of the trust anchors that this side uses.
    pub(super) trust: PathBuf,
    /// Names in the peer's certificate. Empty if it showed none.
    pub(super) presented: Vec<String>,
    /// Names that this side expects of the peer.
    pub(super) expected: Vec<String>,
}

impl HandshakeContext {
    /// Converts the error of a TLS handshake to one that says what to do.
    pub(super) fn into_error(self, error: &io::Error) -> TlsError {
        match rustls_error(error) {
            Some(rustls::Error::InvalidCertificate(error)) => self.certificate_error(error),
            // After the peer has shown a certificate, this would be a broken record.
            Some(rustls::Error::InvalidMessage(
                InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
            )) if self.is_client && self.presented.is_empty() => TlsError::PlainListener,
            Some(error) => TlsError::from_rustls(error),
            None if is_disconnect(error.kind()) => TlsError::Closed,
            None => TlsError::Broken { problem: error.to_string() },
        }
    }

    fn certificate_error(self, error: &CertificateError) -> TlsError {
        let Self { is_client, trust, presented, expected } = self;
        match error {
            CertificateError::ApplicationVerificationFailure => TlsError::WrongName { presented, expected },
            CertificateError::UnknownIssuer => TlsError::UnknownIssuer { presented, trust },
            CertificateError::BadSignature => TlsError::OtherIssuer { presented, trust },
            CertificateError::ExpiredContext { time, not_after } => {
                TlsError::Expired { presented, by: seconds_between(*not_after, *time) }
            }
            CertificateError::NotValidYetContext { time, not_before } => {
                TlsError::NotYetValid { presented, by: seconds_between(*time, *not_before) }
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                let usage = if is_client { "server authentication" } else { "client authentication" };
                TlsError::WrongUsage { presented, usage }
            }
            error => TlsError::BadCertificate { presented, problem: error.to_string() },
        }
    }
}

impl TlsError {
    /// Returns whether further TLS handshakes with this peer are expected to fail, too.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            Self::NotYetValid { .. } | Self::Closed | Self::Broken { .. } => false,
            Self::Refused { reason, .. } => *reason != explain_alert(NOT_ADMITTED),
            _ => true,
        }
    }

    /// Converts an error of rustls that needs no facts about the handshake.
    fn from_rustls(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::AlertReceived(alert) => {
                Self::Refused { reason: explain_alert(*alert), alert: format!("{alert:?}") }
            }
            rustls::Error::NoCertificatesPresented => Self::NoCertificate,
            rustls::Error::NoApplicationProtocol => Self::NotMultinet,
            rustls::Error::PeerIncompatible(problem) => {
                Self::Incompatible { problem: format!("{problem:?}") }
            }
            error => Self::Broken { problem: error.to_string() },
        }
    }
}

/// Returns the TLS error behind an error of reading, if that is the cause.
///
/// In TLS 1.3, the side that connects finishes its handshake before the other side sees its
/// certificate. A refusal then shows as an alert at the first read.
pub(crate) fn explain(error: &io::Error) -> Option<TlsError> {
    rustls_error(error).map(TlsError::from_rustls)
}

fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Returns whether the peer has ended the connection, as opposed to a local problem.
fn is_disconnect(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected
    )
}

/// Alert for an address that is not admitted, sent before any certificate was shown. RFC 8446
/// describes it as unrelated to the peer, and it may pass.
const NOT_ADMITTED: AlertDescription = AlertDescription::InternalError;

/// Returns the meaning of a peer's alert (RFC 8446 §6.2), with the remedy.
fn explain_alert(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::AccessDenied => {
            "our certificate is valid, but for another name than the peer expects; have it issued for that \
             name, or add our name to the peer's Tls::expect"
        }
        NOT_ADMITTED => "it admits none from our address, or not yet (its --from); its log says more",
        AlertDescription::UnknownCA => {
            "our certificate is from no authority that it trusts; add ours to its trust file, or have ours \
             issued by one that is there"
        }
        AlertDescription::DecryptError => {
            "our certificate was not signed by the key of the authority that it trusts under that name; if \
             the authority has a new key, renew both sides' certificates and trust files"
        }
        AlertDescription::CertificateExpired => {
            "our certificate, or one that vouches for it, has expired or is not valid yet; renew it, and \
             check both clocks"
        }
        AlertDescription::CertificateRevoked => "our certificate is revoked; have it issued anew",
        AlertDescription::UnsupportedCertificate => {
            "our certificate may not be used for this; have it issued with both extended key usages, \
             serverAuth and clientAuth"
        }
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            "it does not accept our certificate; its log says why"
        }
        AlertDescription::CertificateRequired => "it wants a certificate; give one to this side",
        AlertDescription::NoApplicationProtocol => {
            "it does not speak multinet (ALPN multinet/1); make sure that address and port are the ones meant"
        }
        AlertDescription::ProtocolVersion
        | AlertDescription::InsufficientSecurity
        | AlertDescription::HandshakeFailure => {
            "it has no version or algorithms of TLS in common with us; it has to speak TLS 1.3"
        }
        _ => "it could not go on with TLS; its log says why",
    }
}

/// Lists the names of a certificate for a message, at most four of them.
fn list_names(names: &[String]) -> String {
    /// Maximum number of names in the list.
    const MAX_LISTED: usize = 4;
    match names {
        [] => "no DNS or URI name".to_owned(),
        names if names.len() > MAX_LISTED => {
            format!("{} and {} more", names[..MAX_LISTED].join(", "), names.len() - MAX_LISTED)
        }
        names => names.join(", "),
    }
}

/// Returns what to do about a certificate that has none of the expected names.
fn name_remedy(names: &[String]) -> &'static str {
    let uris = names.iter().filter(|name| name.contains("://")).count();
    match uris {
        _ if names.is_empty() => {
            "have it issued with one as subject alternative name, a common name does not count"
        }
        0 | 1 => "have it issued for that name, or expect another by Tls::expect",
        _ => "with more than one URI name it is no SPIFFE identity, have it issued with one",
    }
}

fn seconds_between(from: UnixTime, to: UnixTime) -> Duration {
    Duration::from_secs(to.as_secs().saturating_sub(from.as_secs()))
}

/// Formats a duration in the largest unit of which there are at least two.
fn round_duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(86_400, "days"), (3_600, "hours"), (60, "minutes")];
    match units.into_iter().find(|(length, _)| seconds >= 2 * length) {
        Some((length, unit)) => format!("{} {unit}", seconds / length),
        None => format!("{seconds} seconds"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_shown_in_its_largest_unit() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (119, "119 seconds"),
            (120, "2 minutes"),
            (7_199, "119 minutes"),
            (7_200, "2 hours"),
            (172_800, "2 days"),
            (86_400 * 400, "400 days"),
        ] {
            assert_eq!(round_duration(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_wrong_name_is_an_error_with_its_remedy() {
        let message = |presented: &[&str]| {
            let presented = presented.iter().map(|&name| name.to_owned()).collect();
            let expected = vec!["spiffe://td/a".to_owned(), "a.test".to_owned()];
            TlsError::WrongName { presented, expected }.to_string()
        };
        let one = message(&["spiffe://td/b"]);
        assert!(
            one.starts_with(
                "the peer's certificate is for spiffe://td/b, expected spiffe://td/a or a.test: have it"
            ),
            "{one}"
        );
        assert!(message(&[]).contains("for no DNS or URI name") && message(&[]).contains("common name"));
        assert!(message(&["spiffe://td/a", "spiffe://td/b"]).contains("more than one URI name"));
        assert!(message(&["a", "b", "c", "d", "e", "f"]).contains("for a, b, c, d and 2 more,"));
    }

    #[test]
    fn only_errors_of_tls_are_explained() {
        assert_eq!(explain(&io::Error::from(io::ErrorKind::ConnectionReset)), None);
        assert_eq!(explain(&io::Error::other("multinet")), None);
        let alert = rustls::Error::AlertReceived(AlertDescription::AccessDenied);
        let text = explain(&io::Error::new(io::ErrorKind::InvalidData, alert)).unwrap().to_string();
        assert!(
            text.starts_with("the peer refuses: our certificate is valid, but for another name"),
            "{text}"
        );
        assert!(text.ends_with("(alert AccessDenied)"), "{text}");
    }
}
