//! Verification of the other side's certificate in a handshake.
//!
//! webpki verifies chain, times and extended key usage, and rustls the signatures of the handshake.
//! This module adds only the check of the certificate's names. It keeps them for the message that
//! says why a peer was refused.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
};
use webpki::EndEntityCert;

use super::ALPN;
use super::files::Credentials;
use super::names::{ExpectedName, presented_names};

/// Verifier of the peer's certificate in one TLS handshake.
#[derive(Debug)]
pub(super) struct Verifier {
    credentials: Arc<Credentials>,
    /// Names that the peer may have. If empty, any name will do.
    expected: Arc<Vec<ExpectedName>>,
    /// Names that the peer's certificate claims, once it has shown one.
    presented: OnceLock<Vec<String>>,
}

impl Verifier {
    pub(super) fn new(credentials: Arc<Credentials>, expected: Arc<Vec<ExpectedName>>) -> Arc<Self> {
        Arc::new(Self { credentials, expected, presented: OnceLock::new() })
    }

    /// Returns the names that the peer's certificate claims, if it has shown one.
    pub(super) fn presented(&self) -> Vec<String> {
        self.presented.get().cloned().unwrap_or_default()
    }

    /// Returns the TLS configuration for the side that connects, with this verifier.
    pub(super) fn client_config(self: &Arc<Self>) -> ClientConfig {
        #[expect(clippy::expect_used, reason = "fails only if a provider has no suite for a version")]
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.credentials.provider))
            .with_protocol_versions(&[&TLS13])
            .expect("ring has suites for TLS 1.3");
        let mut config = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(self) as _)
            .with_client_cert_resolver(Arc::clone(&self.credentials.identity) as _);
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Every handshake verifies the peer again.
        config.resumption = Resumption::disabled();
        config
    }

    /// Returns the TLS configuration for the side that accepts, with this verifier.
    pub(super) fn server_config(self: &Arc<Self>) -> ServerConfig {
        #[expect(clippy::expect_used, reason = "fails only if a provider has no suite for a version")]
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.credentials.provider))
            .with_protocol_versions(&[&TLS13])
            .expect("ring has suites for TLS 1.3");
        let mut config = builder
            .with_client_cert_verifier(Arc::clone(self) as _)
            .with_cert_resolver(Arc::clone(&self.credentials.identity) as _);
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config
    }

    fn record_names(&self, certificate: &CertificateDer<'_>) {
        // A handshake shows one certificate, so this is set once.
        let _ = self.presented.set(presented_names(certificate));
    }

    fn verify_name(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let certificate = EndEntityCert::try_from(certificate).map_err(|_| CertificateError::BadEncoding)?;
        if self.expected.is_empty() || self.expected.iter().any(|name| name.matches(&certificate)) {
            return Ok(());
        }
        // Only this error causes the alert access_denied, so the peer can tell what is wrong.
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn algorithms(&self) -> &WebPkiSupportedAlgorithms {
        &self.credentials.provider.signature_verification_algorithms
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        // The caller puts the service's name among the expected names instead.
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.record_names(end_entity);
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &self.credentials.roots,
            intermediates,
            now,
            self.algorithms().all,
        )?;
        self.verify_name(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, self.algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, self.algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms().supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.credentials.client_verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.record_names(end_entity);
        let verified = self.credentials.client_verifier.verify_client_cert(end_entity, intermediates, now)?;
        self.verify_name(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.credentials.client_verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.credentials.client_verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.credentials.client_verifier.supported_verify_schemes()
    }
}
