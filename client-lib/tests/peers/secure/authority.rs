//! Sides of TLS by hand, and by the library, with certificates of tests.

#[path = "../../support/pki.rs"]
mod pki;

use std::net::SocketAddr;
use std::sync::Arc;

use multinet_client::Tls;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

pub(crate) use self::pki::{Authority, Folder, Issued};

impl Authority {
    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem().as_bytes()).unwrap()).unwrap();
        roots
    }

    /// A connection of a client that trusts this authority, with this certificate.
    pub(crate) async fn connect(&self, address: SocketAddr, issued: &Issued) -> client::TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(self.roots())
            .with_client_auth_cert(issued.certificates(), issued.key())
            .unwrap();
        config.alpn_protocols = vec![b"multinet/1".to_vec()];
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from(super::SERVICE).unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }
}

impl Issued {
    fn certificates(&self) -> Vec<CertificateDer<'static>> {
        vec![CertificateDer::from_pem_slice(self.chain.as_bytes()).unwrap()]
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }

    /// The accepting side of a connection, by hand.
    pub(crate) async fn accept(&self, stream: TcpStream, trust: &Authority) -> server::TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(trust.roots()), Arc::clone(&provider));
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(self.certificates(), self.key())
            .unwrap();
        config.alpn_protocols = vec![b"multinet/1".to_vec()];
        TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap()
    }
}

impl Folder {
    pub(crate) fn tls(&self) -> Tls {
        let [certificate, key, trust] = self.paths();
        Tls::from_files(certificate, key, trust).unwrap()
    }
}
