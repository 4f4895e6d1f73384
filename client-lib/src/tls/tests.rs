//! Handshakes of two peers on loopback: their outcome, and the message on each side.

pub(super) mod authority;
mod names;
mod strangers;

use std::net::SocketAddr;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, date_time_ymd};
use rustls::ProtocolVersion;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{client, server};

use self::authority::{Authority, Folder, Issued, Mounted as _};
use super::*;

/// Service that is asked for.
const SERVICE: &str = "infer.vision.svc.multinet.cluster.local";

/// SPIFFE ID of an instance of the service.
const INFER: &str = "spiffe://cluster.local/ns/vision/sa/infer";

/// SPIFFE ID of the peer that connects.
const DETECT: &str = "spiffe://cluster.local/ns/vision/sa/detect";

type Connected = Result<client::TlsStream<TcpStream>, TlsError>;
type Accepted = Result<server::TlsStream<TcpStream>, TlsError>;

/// Outcome of a handshake on both sides.
struct Outcome {
    connected: Connected,
    accepted: Accepted,
}

impl Outcome {
    /// Returns the error messages of a handshake that failed.
    fn messages(self) -> (String, String) {
        let (connected, accepted) = (self.connected.map(drop), self.accepted.map(drop));
        (connected.unwrap_err().to_string(), accepted.unwrap_err().to_string())
    }
}

/// The certificates of both peers, from one authority.
struct Pair {
    authority: Authority,
    listener: Folder,
    connector: Folder,
}

impl Pair {
    fn new() -> Self {
        let authority = Authority::new();
        let trust = authority.pem();
        let listener = Folder::of(&authority.issue(&[INFER, SERVICE]), &trust);
        let connector = Folder::of(&authority.issue(&[DETECT]), &trust);
        Self { authority, listener, connector }
    }

    async fn handshake(&self) -> Outcome {
        handshake(&self.connector.tls(), &self.listener.tls(), SERVICE).await
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Runs a TLS handshake, then sends a byte each way, as multinet's own handshake does.
async fn handshake(connector: &Tls, listener: &Tls, service: &str) -> Outcome {
    let (socket, address) = listen().await;
    let connecting = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = connector.connect(stream, service).await?;
        stream.write_all(b"M").await.map_err(explained)?;
        stream.read_u8().await.map_err(explained)?;
        Ok(stream)
    };
    let accepting = async {
        let (stream, _) = socket.accept().await.unwrap();
        let mut stream = listener.accept(stream).await?;
        stream.read_u8().await.map_err(explained)?;
        stream.write_all(b"m").await.map_err(explained)?;
        stream.flush().await.map_err(explained)?;
        Ok(stream)
    };
    let (connected, accepted) = tokio::join!(connecting, accepting);
    Outcome { connected, accepted }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn explained(error: io::Error) -> TlsError {
    explain(&error).unwrap_or_else(|| panic!("not explained: {error:?}"))
}

/// Asserts that a message is one line with this beginning and this part.
#[track_caller]
fn says(message: &str, begins: &str, contains: &str) {
    assert!(
        message.starts_with(begins) && message.contains(contains) && !message.contains('\n'),
        "{message}"
    );
}

#[tokio::test]
async fn peers_of_one_authority_connect() {
    let met = Pair::new().handshake().await;
    let (connected, accepted) = (met.connected.unwrap(), met.accepted.unwrap());
    let (connected, accepted) = (connected.get_ref().1, accepted.get_ref().1);
    assert_eq!(connected.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(connected.alpn_protocol(), Some(&b"multinet/1"[..]));
    assert_eq!(accepted.server_name(), Some(SERVICE));
    assert_eq!(peer_names(connected.peer_certificates()), [INFER, SERVICE]);
    assert_eq!(peer_names(accepted.peer_certificates()), [DETECT]);
    assert_eq!(peer_names(None), Vec::<String>::new());
}

#[tokio::test]
async fn a_second_handshake_verifies_the_peer_again() {
    let pair = Pair::new();
    let (connector, listener) = (pair.connector.tls(), pair.listener.tls());
    for _ in 0..2 {
        let connected = handshake(&connector, &listener, SERVICE).await.connected.unwrap();
        let kind = connected.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(rustls::HandshakeKind::Full));
    }
}

#[tokio::test]
async fn a_certificate_of_an_intermediate_authority_is_accepted() {
    let mut pair = Pair::new();
    let between = pair.authority.below("region").below("node");
    pair.listener = Folder::of(&between.issue(&[SERVICE]), &pair.authority.pem());
    pair.connector = Folder::of(&between.issue(&[DETECT]), &pair.authority.pem());
    let met = pair.handshake().await;
    assert!(met.connected.is_ok() && met.accepted.is_ok());
}

/// Replaces the certificate of one side. Returns the messages: first of the side that refuses it,
/// then of its owner.
async fn with_other_certificate(connects: bool, certificate: &Issued, trust: &Authority) -> (String, String) {
    let pair = Pair::new();
    let folder = if connects { &pair.connector } else { &pair.listener };
    // The owner's trust stays correct. Only the certificate that it shows is wrong.
    let own = std::fs::read_to_string(folder.path().join("ca.crt")).unwrap();
    folder.put(certificate, &own);
    let other = if connects { &pair.listener } else { &pair.connector };
    std::fs::write(other.path().join("ca.crt"), trust.pem()).unwrap();
    // The owner still trusts the other side's certificate.
    let (connected, accepted) = pair.handshake().await.messages();
    if connects { (accepted, connected) } else { (connected, accepted) }
}

/// Issues a certificate for the side that connects, or accepts.
fn issue_as(authority: &Authority, connects: bool, change: impl FnOnce(&mut CertificateParams)) -> Issued {
    let names: &[&str] = if connects { &[DETECT] } else { &[INFER, SERVICE] };
    authority.issue_as(names, change)
}

#[tokio::test]
async fn a_wrong_certificate_is_refused_and_both_sides_learn_the_reason() {
    let year = |params: &mut CertificateParams, year| {
        (params.not_before, params.not_after) = (date_time_ymd(year, 1, 1), date_time_ymd(year + 1, 1, 1));
    };
    for connects in [false, true] {
        let (name, usage, needed) = match connects {
            true => {
                (DETECT, ExtendedKeyUsagePurpose::ServerAuth, "is not for client authentication: have it")
            }
            false => {
                (INFER, ExtendedKeyUsagePurpose::ClientAuth, "is not for server authentication: have it")
            }
        };
        let (authority, same_name) = (Authority::named("company"), Authority::named("company"));
        let another = Authority::named("another");
        // The issuer, the change to the certificate, the parts of the refusal, and the parts of its
        // owner's message.
        type Change<'a> = &'a dyn Fn(&mut CertificateParams);
        let cases: [(&Authority, Change<'_>, &[&str], [&str; 2]); 6] = [
            (
                &another,
                &|_| {},
                &["is from no authority in /", "/ca.crt: add its authority there"],
                ["our certificate is from no authority that it trusts", "UnknownCA"],
            ),
            (
                &same_name,
                &|_| {},
                &["names an authority in /"],
                ["our certificate was not signed by the key", "DecryptError"],
            ),
            (
                &authority,
                &|params| year(params, 2001),
                &["expired ", " days ago: renew it"],
                ["our certificate, or one that vouches for it, has expired", "clocks"],
            ),
            (
                &authority,
                &|params| year(params, 2999),
                &["becomes valid only in "],
                ["our certificate", "not valid yet"],
            ),
            (
                &authority,
                &|params| params.extended_key_usages = vec![usage.clone()],
                &[needed],
                ["our certificate may not be used for this", "clientAuth"],
            ),
            (
                &authority,
                &|params| params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained),
                &["cannot be used: ", "CaUsedAsEndEntity"],
                ["it does not accept our certificate", "log"],
            ),
        ];
        for (issuer, change, refusing, [refused, why]) in cases {
            let certificate = issue_as(issuer, connects, change);
            let (said, told) = with_other_certificate(connects, &certificate, &authority).await;
            for words in refusing {
                says(&said, &format!("the peer's certificate (for {name}"), words);
            }
            says(&told, &format!("the peer refuses: {refused}"), why);
        }
    }
}

#[tokio::test]
async fn replaced_files_are_used_by_the_next_handshake_if_they_are_usable() {
    let pair = Pair::new();
    let (connector, listener) = (pair.connector.tls(), pair.listener.tls());
    assert!(handshake(&connector, &listener, SERVICE).await.connected.is_ok());

    // The listener's trust moves to another authority, and then the connector's.
    let next = Authority::new();
    let both = format!("{}{}", pair.authority.pem(), next.pem());
    pair.listener.put(&pair.authority.issue(&[SERVICE]), &next.pem());
    let (connected, accepted) = handshake(&connector, &listener, SERVICE).await.messages();
    says(&connected, "the peer refuses: ", "UnknownCA");
    says(&accepted, "the peer's certificate (for spiffe://", "is from no authority");
    pair.connector.put(&next.issue(&[DETECT]), &both);
    let met = handshake(&connector, &listener, SERVICE).await;
    assert!(met.connected.is_ok() && met.accepted.is_ok());

    // Unusable files are ignored.
    for file in ["tls.crt", "tls.key", "ca.crt"] {
        std::fs::write(pair.listener.path().join(file), "nonsense").unwrap();
        std::fs::remove_file(pair.connector.path().join(file)).unwrap();
        let met = handshake(&connector, &listener, SERVICE).await;
        assert!(met.connected.is_ok() && met.accepted.is_ok(), "{file}");
    }
    pair.listener.put(&next.issue(&["other.test"]), &next.pem());
    let (connected, _) = handshake(&connector, &listener, SERVICE).await.messages();
    says(&connected, "the peer's certificate is for other.test, expected infer.", "");
}

#[tokio::test]
async fn a_connection_outlives_a_replacement_of_its_files() {
    let pair = Pair::new();
    let (connector, listener) = (pair.connector.tls(), pair.listener.tls());
    let met = handshake(&connector, &listener, SERVICE).await;
    let (mut connected, mut accepted) = (met.connected.unwrap(), met.accepted.unwrap());
    let other = Authority::new();
    pair.listener.put(&other.issue(&[SERVICE]), &other.pem());
    assert!(handshake(&connector, &listener, SERVICE).await.accepted.is_err());
    connected.write_all(b"still").await.unwrap();
    connected.shutdown().await.unwrap();
    let mut text = String::new();
    accepted.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "still");
}
