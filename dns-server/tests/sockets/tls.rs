use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use multinet_dns::answer::proto::Proto;
use multinet_dns::net::connections::Connections;
use multinet_dns::net::listen::bind_tcp;
use multinet_dns::net::tcp::StreamListener;
use multinet_dns::ops::metrics::ConnectionMetrics;
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::support::{BIG, SMALL, certificates, client_config, engine, frames, messages, small_ids};

/// A DoT listener and the certificate that clients trust.
struct Server {
    addr: SocketAddr,
    trusted: RootCertStore,
    shutdown: CancellationToken,
}

impl Server {
    async fn start() -> Self {
        let (certificates, trusted) = certificates();
        let listener = bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr().unwrap();
        let connections = Connections::new(10, ConnectionMetrics::default());
        let listener =
            StreamListener::secured(listener, Proto::Tls, &certificates, engine(), connections).unwrap();
        let shutdown = CancellationToken::new();
        tokio::spawn(listener.run(shutdown.clone()));
        Self { addr, trusted, shutdown }
    }

    async fn connect(&self, alpn: &[&[u8]]) -> io::Result<TlsStream<TcpStream>> {
        let config = client_config(&self.trusted, alpn);
        let stream = TcpStream::connect(self.addr).await?;
        let name = ServerName::try_from("dns.test").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}

#[tokio::test]
async fn queries_are_answered_over_tls() {
    let server = Server::start().await;
    let mut stream = server.connect(&[]).await.unwrap();
    stream.write_all(&frames(100, SMALL)).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(small_ids(&messages(&mut stream).await).len(), 100);
}

#[tokio::test]
async fn replies_larger_than_the_session_buffer_are_delivered() {
    let server = Server::start().await;
    let stream = server.connect(&[]).await.unwrap();
    let (mut receiving, mut sending) = tokio::io::split(stream);
    let asking = tokio::spawn(async move {
        sending.write_all(&frames(50, BIG)).await.unwrap();
        sending
    });
    for _ in 0..50 {
        assert!(crate::support::next_message(&mut receiving).await.is_some());
    }
    asking.await.unwrap();
    server.shutdown.cancel();
    assert_eq!(receiving.read(&mut [0]).await.unwrap(), 0, "closed with a close_notify");
}

#[tokio::test]
async fn a_client_without_alpn_is_accepted() {
    let server = Server::start().await;
    let stream = server.connect(&[b"dot"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"dot"[..]));
    let stream = server.connect(&[]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), None);
    assert!(server.connect(&[b"h2"]).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_silent_handshake_times_out() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
}
