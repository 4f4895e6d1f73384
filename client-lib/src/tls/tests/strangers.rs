//! The other side has no certificate, no TLS, or means something else.

use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};

use super::*;

/// A client of somebody else, which trusts the pair's authority, with a certificate that the pair's listener trusts, or with none.
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

/// A server of somebody else, with the service's certificate.
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

/// What a client of somebody else, and the pair's listener, come to.
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

/// What the pair's connector, and a server of somebody else, come to.
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
async fn a_connector_without_a_certificate() {
    let pair = Pair::new();
    let (connected, accepted) = client_meets(&pair, client(&pair, &TLS13, false, &[ALPN])).await;
    says(&accepted, "the peer showed no certificate: give it one", "");
    let told = explain(&connected.unwrap_err()).unwrap().to_string();
    says(&told, "the peer refuses: it wants a certificate; give one to this side", "CertificateRequired");
}

#[tokio::test]
async fn a_web_client() {
    let pair = Pair::new();
    let (connected, accepted) =
        client_meets(&pair, client(&pair, &TLS13, false, &[b"h2", b"http/1.1"])).await;
    says(&accepted, "the peer speaks TLS, but not multinet", "address and port");
    let told = explain(&connected.unwrap_err()).unwrap().to_string();
    says(&told, "the peer refuses: it does not speak multinet", "NoApplicationProtocol");
}

#[tokio::test]
async fn a_client_that_names_no_protocol() {
    let pair = Pair::new();
    let (connected, accepted) = client_meets(&pair, client(&pair, &TLS13, true, &[])).await;
    says(&accepted, "the peer speaks TLS, but not multinet", "");
    assert!(connected.is_err());
    // With the protocol's name the same client is somebody who might be one of us.
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
async fn a_web_server() {
    let pair = Pair::new();
    let (connected, _) = server_meets(&pair, server(&pair, &TLS13, &[b"h2"])).await;
    says(
        &connected,
        "the peer refuses: it does not speak multinet (ALPN multinet/1)",
        "NoApplicationProtocol",
    );
    // One that does not care about protocols takes all.
    let (connected, _) = server_meets(&pair, server(&pair, &TLS13, &[])).await;
    says(&connected, "the peer speaks TLS, but not multinet (ALPN multinet/1)", "address and port");
}

#[tokio::test]
async fn an_older_tls() {
    let pair = Pair::new();
    let (connected, accepted) = client_meets(&pair, client(&pair, &TLS12, false, &[ALPN])).await;
    says(&accepted, "the peer's TLS does not fit (", "it has to speak TLS 1.3");
    assert!(connected.is_err());
    let (connected, accepted) = server_meets(&pair, server(&pair, &TLS12, &[ALPN])).await;
    says(&connected, "the peer refuses: it has no version or algorithms of TLS in common with us", "TLS 1.3");
    assert!(accepted.is_err());
}

/// What a listener says of a peer that begins so, and what that peer gets.
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
async fn a_plain_peer_connects_to_a_listener_with_tls() {
    for bytes in [&b"MNET\x01\0\0\0and much more"[..], b"MNET", b"M"] {
        let (message, answer) = begins(bytes).await;
        says(&message, "the peer does not speak TLS: give it certificates, or listen without", "");
        assert!(looks_like_tls(&answer), "{answer:?}");
    }
    // However much it has sent, it reads the answer.
    let (_, answer) = begins(&[b"MNET".repeat(10_000)].concat()).await;
    assert!(looks_like_tls(&answer), "{answer:?}");
}

#[tokio::test]
async fn something_else_connects_to_a_listener_with_tls() {
    let (message, answer) = begins(b"GET / HTTP/1.1\r\nHost: infer\r\n\r\n").await;
    says(
        &message,
        "what connects speaks neither TLS nor multinet, it begins with \"GET / HTTP/1.1\\r\\n\": ",
        "port",
    );
    assert!(looks_like_tls(&answer), "{answer:?}");
    let (message, _) = begins(&[0xff, 0, b'"', b'\n']).await;
    says(&message, "what connects", "begins with \"\\xff\\x00\\\"\\n\": ");
    let (message, _) = begins(&[HANDSHAKE, 9, 9]).await;
    says(&message, "what connects speaks neither", "");
    for bytes in [&b""[..], &[HANDSHAKE], &[HANDSHAKE, 3, 1, 0, 100, 1, 0]] {
        let (message, _) = begins(bytes).await;
        says(&message, "the peer closed the connection within the TLS handshake", "");
    }
    for bytes in [&[HANDSHAKE, 3, 1, 0, 4, 9, 9, 9, 9][..], &[ALERT, 3, 3, 0, 2, 2, 40]] {
        let (message, _) = begins(bytes).await;
        assert!(message.starts_with("TLS with the peer failed") || message.starts_with("the peer refuses"));
    }
}

/// What a connector says of a listener that answers so, and what that listener saw.
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
async fn a_peer_with_tls_connects_to_a_plain_listener() {
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
fn the_first_byte_tells() {
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
            // The refusal may have come by now.
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
async fn who_stays_silent_is_not_waited_for_longer_than_the_caller_does() {
    let pair = Pair::new();
    let (socket, address) = listen().await;
    let _silent = TcpStream::connect(address).await.unwrap();
    let (stream, _) = socket.accept().await.unwrap();
    let listener = pair.listener.tls();
    assert!(tokio::time::timeout(Duration::from_millis(50), listener.accept(stream)).await.is_err());
}
