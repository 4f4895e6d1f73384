//! Peers without a certificate, without TLS, or of another protocol.

use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};

use super::*;

/// Returns the configuration of a client of another program, which trusts the pair's authority. It
/// has a certificate that the pair's listener trusts, or none.
fn client(
    pair: &Pair,
    version: &'static SupportedProtocolVersion,
    is_known: bool,
    alpn: &[&[u8]],
) -> ClientConfig {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(pair.authority.roots());
    let issued = pair.authority.issue(&[DETECT]);
    let mut config = match is_known {
        true => config.with_client_auth_cert(vec![issued.der()], issued.key_der()).unwrap(),
        false => config.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

/// Returns the configuration of a server of another program, with the service's certificate.
fn server(pair: &Pair, version: &'static SupportedProtocolVersion, alpn: &[&[u8]]) -> ServerConfig {
    let issued = pair.authority.issue(&[SERVICE]);
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![issued.der()], issued.key_der())
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

/// Connects such a client to the pair's listener. Returns the outcome on both sides.
async fn client_meets(pair: &Pair, config: ClientConfig) -> (io::Result<()>, String) {
    let (socket, address) = listen().await;
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from(SERVICE).unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await?;
        stream.read_u8().await.map(drop)
    };
    let listener = pair.listener.tls();
    let accepting = async {
        let (stream, _) = socket.accept().await.unwrap();
        listener.accept(stream).await.unwrap_err().to_string()
    };
    tokio::join!(connecting, accepting)
}

/// Connects the pair's connector to such a server. Returns the outcome on both sides.
async fn server_meets(pair: &Pair, config: ServerConfig) -> (String, io::Result<()>) {
    let (socket, address) = listen().await;
    let connector = pair.connector.tls();
    let connecting = async {
        let stream = TcpStream::connect(address).await.unwrap();
        connector.connect(stream, SERVICE).await.unwrap_err().to_string()
    };
    let accepting = async {
        let (stream, _) = socket.accept().await?;
        let mut stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
        stream.read_u8().await.map(drop)
    };
    tokio::join!(connecting, accepting)
}

#[tokio::test]
async fn a_connector_without_a_certificate_is_refused() {
    let pair = Pair::new();
    let (connected, accepted) = client_meets(&pair, client(&pair, &TLS13, false, &[ALPN])).await;
    says(&accepted, "the peer showed no certificate: give it one", "");
    let told = explain(&connected.unwrap_err()).unwrap().to_string();
    says(&told, "the peer refuses: it wants a certificate; give one to this side", "CertificateRequired");
}

#[tokio::test]
async fn a_web_client_is_refused() {
    let pair = Pair::new();
    let (connected, accepted) =
        client_meets(&pair, client(&pair, &TLS13, false, &[b"h2", b"http/1.1"])).await;
    says(&accepted, "the peer speaks TLS, but not multinet", "address and port");
    let told = explain(&connected.unwrap_err()).unwrap().to_string();
    says(&told, "the peer refuses: it does not speak multinet", "NoApplicationProtocol");
}

#[tokio::test]
async fn a_client_without_alpn_is_refused() {
    let pair = Pair::new();
    let (connected, accepted) = client_meets(&pair, client(&pair, &TLS13, true, &[])).await;
    says(&accepted, "the peer speaks TLS, but not multinet", "");
    assert!(connected.is_err());
    // With ALPN, the same client is accepted: it might be a peer.
    let (socket, address) = listen().await;
    let listener = pair.listener.tls();
    let connecting = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from(SERVICE).unwrap();
        let config = Arc::new(client(&pair, &TLS13, true, &[ALPN]));
        TlsConnector::from(config).connect(name, stream).await.unwrap()
    };
    let accepting = async { listener.accept(socket.accept().await.unwrap().0).await.unwrap() };
    let (_connected, accepted) = tokio::join!(connecting, accepting);
    assert_eq!(peer_names(accepted.get_ref().1.peer_certificates()), [DETECT]);
}

#[tokio::test]
async fn a_web_server_is_refused() {
    let pair = Pair::new();
    let (connected, _) = server_meets(&pair, server(&pair, &TLS13, &[b"h2"])).await;
    says(
        &connected,
        "the peer refuses: it does not speak multinet (ALPN multinet/1)",
        "NoApplicationProtocol",
    );
    // A server without ALPN accepts any protocol.
    let (connected, _) = server_meets(&pair, server(&pair, &TLS13, &[])).await;
    says(&connected, "the peer speaks TLS, but not multinet (ALPN multinet/1)", "address and port");
}

#[tokio::test]
async fn tls_1_2_is_refused_by_both_sides() {
    let pair = Pair::new();
    let (connected, accepted) = client_meets(&pair, client(&pair, &TLS12, false, &[ALPN])).await;
    says(&accepted, "the peer's TLS is incompatible (", "it has to speak TLS 1.3");
    assert!(connected.is_err());
    let (connected, accepted) = server_meets(&pair, server(&pair, &TLS12, &[ALPN])).await;
    says(&connected, "the peer refuses: it has no version or algorithms of TLS in common with us", "TLS 1.3");
    assert!(accepted.is_err());
}

/// Connects a client that sends these bytes. Returns the listener's error, and the bytes that the
/// client receives.
async fn begins(bytes: &[u8]) -> (String, Vec<u8>) {
    let pair = Pair::new();
    let (socket, address) = listen().await;
    let connecting = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let listener = pair.listener.tls();
    let accepting = async {
        let (stream, _) = socket.accept().await.unwrap();
        listener.accept(stream).await.unwrap_err().to_string()
    };
    let (answer, message) = tokio::join!(connecting, accepting);
    (message, answer)
}

#[tokio::test]
async fn a_plain_peer_of_a_tls_listener_is_answered_by_an_alert() {
    for bytes in [&b"MNET\x01\0\0\0and much more"[..], b"MNET", b"M"] {
        let (message, answer) = begins(bytes).await;
        says(&message, "the peer does not speak TLS: give it certificates, or listen without", "");
        assert!(looks_like_tls(&answer), "{answer:?}");
    }
    // It reads the answer however much it has sent.
    let (_, answer) = begins(&[b"MNET".repeat(10_000)].concat()).await;
    assert!(looks_like_tls(&answer), "{answer:?}");
}

#[tokio::test]
async fn another_program_that_connects_to_a_tls_listener_is_refused() {
    let (message, answer) = begins(b"GET / HTTP/1.1\r\nHost: infer\r\n\r\n").await;
    says(
        &message,
        "the peer speaks neither TLS nor multinet, and begins with \"GET / HTTP/1.1\\r\\n\": ",
        "port",
    );
    assert!(looks_like_tls(&answer), "{answer:?}");
    let (message, _) = begins(&[0xff, 0, b'"', b'\n']).await;
    says(&message, "the peer speaks neither", "begins with \"\\xff\\x00\\\"\\n\": ");
    let (message, _) = begins(&[HANDSHAKE, 9, 9]).await;
    says(&message, "the peer speaks neither", "");
    for bytes in [&b""[..], &[HANDSHAKE], &[HANDSHAKE, 3, 1, 0, 100, 1, 0]] {
        let (message, _) = begins(bytes).await;
        says(&message, "the peer closed the connection within the TLS handshake", "");
    }
    for bytes in [&[HANDSHAKE, 3, 1, 0, 4, 9, 9, 9, 9][..], &[ALERT, 3, 3, 0, 2, 2, 40]] {
        let (message, _) = begins(bytes).await;
        assert!(message.starts_with("TLS with the peer failed") || message.starts_with("the peer refuses"));
    }
}

/// Connects to a listener that answers with these bytes. Returns the connector's error, and the
/// first bytes that the listener received.
async fn answers(bytes: &[u8]) -> (String, Vec<u8>) {
    let pair = Pair::new();
    let (socket, address) = listen().await;
    let connector = pair.connector.tls();
    let connecting = async {
        let stream = TcpStream::connect(address).await.unwrap();
        connector.connect(stream, SERVICE).await.unwrap_err().to_string()
    };
    let accepting = async {
        let (mut stream, _) = socket.accept().await.unwrap();
        let mut greeting = vec![0; 4];
        stream.read_exact(&mut greeting).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        greeting
    };
    tokio::join!(connecting, accepting)
}

#[tokio::test]
async fn a_tls_peer_of_a_plain_listener_learns_that_it_has_no_tls() {
    for bytes in
        [&b"MNET\x01\0\0\0refused"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_10.0\r\n"]
    {
        let (message, greeting) = answers(bytes).await;
        says(&message, "the peer does not speak TLS: give it certificates, or connect without", "");
        assert!(looks_like_tls(&greeting), "{greeting:?}");
    }
    let (message, _) = answers(b"").await;
    says(&message, "the peer closed the connection within the TLS handshake", "one without TLS");
}

#[test]
fn tls_is_recognized_by_its_first_bytes() {
    for (bytes, is_tls) in [
        (&[0x16][..], true),
        (&[0x16, 3, 1, 2, 0], true),
        (&[0x15, 3, 3, 0, 2, 2, 10], true),
        (&[0x16, 4], false),
        (&[0x17, 3, 3], false),
        (b"MNET", false),
        (b"", false),
    ] {
        assert_eq!(looks_like_tls(bytes), is_tls, "{bytes:?}");
    }
}

#[tokio::test]
async fn a_refused_connector_that_writes_much_still_learns_why() {
    let pair = Pair::new();
    let listener = pair.listener.tls().expect("spiffe://cluster.local/ns/other/*").unwrap();
    let connector = pair.connector.tls();
    let (socket, address) = listen().await;
    let connecting = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = connector.connect(stream, SERVICE).await.unwrap();
        for _ in 0..10 {
            // The refusal may have arrived by now.
            let _ = stream.write_all(&[7; 10_000]).await;
            tokio::task::yield_now().await;
        }
        explained(stream.read_u8().await.unwrap_err()).to_string()
    };
    let accepting = async { listener.accept(socket.accept().await.unwrap().0).await.unwrap_err() };
    let (connected, _) = tokio::join!(connecting, accepting);
    says(&connected, "the peer refuses: our certificate is valid, but for another name", "AccessDenied");
}

#[tokio::test]
async fn a_silent_peer_is_waited_for_as_long_as_the_caller_waits() {
    let pair = Pair::new();
    let (socket, address) = listen().await;
    let _silent = TcpStream::connect(address).await.unwrap();
    let (stream, _) = socket.accept().await.unwrap();
    let listener = pair.listener.tls();
    assert!(tokio::time::timeout(Duration::from_millis(50), listener.accept(stream)).await.is_err());
}
