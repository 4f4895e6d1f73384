//! TLS connections by hand, and TLS settings of the library, with certificates of tests.

use std::net::SocketAddr;
use std::sync::Arc;

use multinet_client::Tls;
pub(crate) use multinet_testing::pki::{Authority, Folder, Issued};
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// Connects as a client that trusts this authority and has this certificate.
pub(crate) async fn connect(
    authority: &Authority,
    address: SocketAddr,
    issued: &Issued,
) -> client::TlsStream<TcpStream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(authority.roots())
        .with_client_auth_cert(vec![issued.der()], issued.key_der())
        .unwrap();
    config.alpn_protocols = vec![b"multinet/1".to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(super::SERVICE).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// Accepts a connection by hand.
pub(crate) async fn accept(
    issued: &Issued,
    stream: TcpStream,
    trust: &Authority,
) -> server::TlsStream<TcpStream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(trust.roots()), Arc::clone(&provider));
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![issued.der()], issued.key_der())
        .unwrap();
    config.alpn_protocols = vec![b"multinet/1".to_vec()];
    TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap()
}

/// TLS settings of the library from a folder.
pub(crate) trait Mounted {
    fn tls(&self) -> Tls;
}

impl Mounted for Folder {
    fn tls(&self) -> Tls {
        let [certificate, key, trust] = self.paths();
        Tls::from_files(certificate, key, trust).unwrap()
    }
}
