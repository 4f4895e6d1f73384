//! Authorities, certificates, and the files that they are mounted as.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use multinet_client::Tls;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub(crate) struct Issued {
    certificate: String,
    key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate for these SPIFFE IDs and DNS names, valid and for both sides.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.issue_as(names, |_| {})
    }

    /// One that is special.
    pub(crate) fn issue_as(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = CertificateParams::default();
        let name = |&name: &&str| match name.contains("://") {
            true => SanType::URI(name.try_into().unwrap()),
            false => SanType::DnsName(name.try_into().unwrap()),
        };
        params.subject_alt_names = names.iter().map(name).collect();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap().pem();
        Issued { certificate, key: key.serialize_pem() }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.0.pem().as_bytes()).unwrap()).unwrap();
        roots
    }

    /// A connection of a client that trusts this authority and has no certificate.
    pub(crate) async fn anonymous(&self, address: SocketAddr) -> client::TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"multinet/1".to_vec()];
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from(super::SERVICE).unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }
}

impl Issued {
    /// The accepting side of a connection, by hand.
    pub(crate) async fn accept(&self, stream: TcpStream, trust: &Authority) -> server::TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(trust.roots()), Arc::clone(&provider));
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = vec![b"multinet/1".to_vec()];
        TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap()
    }
}

/// A mounted secret.
pub(crate) struct Folder(TempDir);

impl Folder {
    /// A certificate with its key, and the authority to trust.
    pub(crate) fn of(issued: &Issued, trust: &Authority) -> Self {
        let folder = Self(TempDir::new().unwrap());
        folder.put(issued, trust);
        folder
    }

    pub(crate) fn put(&self, issued: &Issued, trust: &Authority) {
        let trust = trust.0.pem();
        for (name, text) in [("tls.crt", &issued.certificate), ("tls.key", &issued.key), ("ca.crt", &trust)] {
            fs::write(self.0.path().join(name), text).unwrap();
        }
    }

    pub(crate) fn tls(&self) -> Tls {
        let [certificate, key, trust] = ["tls.crt", "tls.key", "ca.crt"].map(|name| self.0.path().join(name));
        Tls::from_files(certificate, key, trust).unwrap()
    }
}
