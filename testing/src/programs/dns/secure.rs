//! Client for DNS over TLS (RFC 7858), HTTPS (RFC 8484) and QUIC (RFC 9250).

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{PATIENCE, Tcp};
use crate::wait::block_on;

/// Media type of DNS messages over HTTPS.
const MEDIA_TYPE: &str = "application/dns-message";

/// Client that trusts one authority, and queries servers on loopback.
#[derive(Debug, Clone)]
pub struct Client {
    roots: Arc<RootCertStore>,
}

/// HTTP method of a query (RFC 8484 §4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// GET, with the message in the path.
    Get,
    /// POST, with the message as the body.
    Post,
}

/// Reply over HTTPS.
#[derive(Debug, Clone)]
pub struct HttpReply {
    /// DNS message.
    pub message: Vec<u8>,
    /// Version of HTTP, such as `HTTP/2.0`.
    pub version: String,
    /// Header Cache-Control, if present (RFC 8484 §5.1).
    pub cache_control: Option<String>,
}

impl Client {
    /// Creates a client that trusts the authority whose certificate is in the PEM file `ca`.
    pub fn trusting(ca: &Path) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(
            CertificateDer::from_pem_file(ca).with_context(|| format!("cannot read {}", ca.display()))?,
        )?;
        Ok(Self { roots: Arc::new(roots) })
    }

    fn config(&self, alpn: &[u8]) -> Result<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&self.roots))
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok(config)
    }

    /// Opens a stream of messages over TLS, and completes its handshake.
    pub fn tls(&self, server: SocketAddr) -> Result<TlsStream> {
        let name = ServerName::from(server.ip());
        let mut connection = ClientConnection::new(Arc::new(self.config(b"dot")?), name)?;
        let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).context("no TLS handshake")?;
        }
        let certificate = connection.peer_certificates().and_then(<[_]>::first).map(|der| der.to_vec());
        Ok(TlsStream {
            messages: Tcp::over(StreamOwned::new(connection, stream)),
            certificate: certificate.context("the server showed no certificate")?,
        })
    }

    /// Sends a message over HTTPS. Returns the reply.
    pub fn https(&self, server: SocketAddr, method: Method, packet: &[u8]) -> Result<HttpReply> {
        let client = reqwest::Client::builder()
            .use_preconfigured_tls(self.config(b"h2")?)
            .http2_prior_knowledge()
            .timeout(PATIENCE)
            .build()?;
        let url = format!("https://{server}/dns-query");
        let request = match method {
            Method::Get => client.get(format!("{url}?dns={}", URL_SAFE_NO_PAD.encode(packet))),
            Method::Post => client.post(url).header("content-type", MEDIA_TYPE).body(packet.to_vec()),
        };
        in_time(async {
            let response =
                request.header("accept", MEDIA_TYPE).send().await.context("no reply over HTTPS")?;
            let header = |name| {
                let value = response.headers().get(name)?;
                Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
            };
            let status = response.status();
            ensure!(status.is_success(), "the HTTP status is {status}");
            ensure!(
                header("content-type").as_deref() == Some(MEDIA_TYPE),
                "the media type is not {MEDIA_TYPE}"
            );
            let version = format!("{:?}", response.version());
            let cache_control = header("cache-control");
            Ok(HttpReply { message: response.bytes().await?.to_vec(), version, cache_control })
        })
    }

    /// Sends a message over QUIC, on a stream of its own (RFC 9250 §4.2). Returns the reply.
    pub fn quic(&self, server: SocketAddr, packet: &[u8]) -> Result<Vec<u8>> {
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(self.config(b"doq")?)?;
        let config = quinn::ClientConfig::new(Arc::new(crypto));
        let framed = [&u16::try_from(packet.len())?.to_be_bytes(), packet].concat();
        in_time(async {
            let endpoint = quinn::Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())?;
            let connection = endpoint.connect_with(config, server, &server.ip().to_string())?;
            let connection = connection.await.context("no QUIC handshake")?;
            let (mut to, mut from) = connection.open_bi().await?;
            to.write_all(&framed).await?;
            to.finish()?;
            let reply = from.read_to_end(1 << 17).await.context("no reply over QUIC")?;
            connection.close(0u32.into(), b"");
            let (length, message) = reply.split_first_chunk::<2>().context("no reply over QUIC")?;
            ensure!(usize::from(u16::from_be_bytes(*length)) == message.len(), "several messages over QUIC");
            Ok(message.to_vec())
        })
    }
}

/// Stream of messages over TLS.
#[derive(Debug)]
pub struct TlsStream {
    /// Stream of messages.
    pub messages: Tcp<StreamOwned<ClientConnection, TcpStream>>,
    /// Certificate of the server, in DER.
    pub certificate: Vec<u8>,
}

/// Runs a future to its end, within the time limit of tests.
fn in_time<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    block_on(async { tokio::time::timeout(PATIENCE, future).await.context("no reply in time")? })
}
