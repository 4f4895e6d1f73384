//! Two peers on loopback, what becomes of their handshake, and what each side is told.

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

/// The service that is asked for.
const SERVICE: &str = "infer.vision.svc.multinet.cluster.local";

/// An instance of it.
const INFER: &str = "spiffe://cluster.local/ns/vision/sa/infer";

/// Who asks.
const DETECT: &str = "spiffe://cluster.local/ns/vision/sa/detect";

type Connected = Result<client::TlsStream<TcpStream>, TlsError>;
type Accepted = Result<server::TlsStream<TcpStream>, TlsError>;

/// What both sides come to.
struct Outcome {
    connected: Connected,
    accepted: Accepted,
}

impl Outcome {
    /// The messages of a handshake that failed.
    fn messages(self) -> (String, String) {
        let (connected, accepted) = (self.connected.map(drop), self.accepted.map(drop));
        (connected.unwrap_err().to_string(), accepted.unwrap_err().to_string())
    }
}

/// The service's instance and who asks for it, with certificates of one authority.
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

/// A handshake of TLS and a byte each way, as the one of multinet would be.
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

/// Asserts that a message is one line that begins and goes on so.
#[track_caller]
fn says(message: &str, begins: &str, contains: &str) {
    assert!(
        message.starts_with(begins) && message.contains(contains) && !message.contains('\n'),
        "{message}"
    );
}

#[tokio::test]
async fn peers_meet() {
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
async fn every_handshake_verifies_anew() {
    let pair = Pair::new();
    let (connector, listener) = (pair.connector.tls(), pair.listener.tls());
    for _ in 0..2 {
        let connected = handshake(&connector, &listener, SERVICE).await.connected.unwrap();
        let kind = connected.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(rustls::HandshakeKind::Full));
    }
}

#[tokio::test]
async fn an_authority_may_stand_between() {
    let mut pair = Pair::new();
    let between = pair.authority.below("region").below("node");
    pair.listener = Folder::of(&between.issue(&[SERVICE]), &pair.authority.pem());
    pair.connector = Folder::of(&between.issue(&[DETECT]), &pair.authority.pem());
    let met = pair.handshake().await;
    assert!(met.connected.is_ok() && met.accepted.is_ok());
}

/// A pair whose connector, or listener, has a certificate of another authority, as both messages say.
async fn with_other_certificate(connects: bool, certificate: &Issued, trust: &Authority) -> (String, String) {
    let pair = Pair::new();
    let folder = if connects { &pair.connector } else { &pair.listener };
    // What it trusts, it trusts rightly: only the certificate that it shows is not as it should be.
    let own = std::fs::read_to_string(folder.path().join("ca.crt")).unwrap();
    folder.put(certificate, &own);
    let other = if connects { &pair.listener } else { &pair.connector };
    std::fs::write(other.path().join("ca.crt"), trust.pem()).unwrap();
    // The other one's certificate stays known to this one.
    let (connected, accepted) = pair.handshake().await.messages();
    if connects { (accepted, connected) } else { (connected, accepted) }
}

/// A certificate for the side that connects, or listens.
fn issue_as(authority: &Authority, connects: bool, change: impl FnOnce(&mut CertificateParams)) -> Issued {
    let names: &[&str] = if connects { &[DETECT] } else { &[INFER, SERVICE] };
    authority.issue_as(names, change)
}

#[tokio::test]
async fn a_certificate_that_is_not_right_is_refused_with_the_reason() {
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
        let (authority, made_anew) = (Authority::named("company"), Authority::named("company"));
        let another = Authority::named("another");
        // Who has issued it, and how; what is said of it, and what its owner is told.
        type Change<'a> = &'a dyn Fn(&mut CertificateParams);
        let cases: [(&Authority, Change<'_>, &[&str], [&str; 2]); 6] = [
            (
                &another,
                &|_| {},
                &["is from no authority in /", "/ca.crt: add its authority there"],
                ["our certificate is from no authority that it trusts", "UnknownCA"],
            ),
            (
                &made_anew,
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
async fn replaced_files_are_used_by_the_next_handshake() {
    let pair = Pair::new();
    let (connector, listener) = (pair.connector.tls(), pair.listener.tls());
    assert!(handshake(&connector, &listener, SERVICE).await.connected.is_ok());

    // The listener's trust moves on to another authority, and then the connector does.
    let next = Authority::new();
    let both = format!("{}{}", pair.authority.pem(), next.pem());
    pair.listener.put(&pair.authority.issue(&[SERVICE]), &next.pem());
    let (connected, accepted) = handshake(&connector, &listener, SERVICE).await.messages();
    says(&connected, "the peer refuses: ", "UnknownCA");
    says(&accepted, "the peer's certificate (for spiffe://", "is from no authority");
    pair.connector.put(&next.issue(&[DETECT]), &both);
    let met = handshake(&connector, &listener, SERVICE).await;
    assert!(met.connected.is_ok() && met.accepted.is_ok());

    // What is broken is not taken.
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
async fn a_connection_outlives_the_files_that_it_began_with() {
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
