//! Expected names of the other side.

use super::*;

/// Runs the handshake of a pair whose sides expect these names.
async fn expecting(connector: &[&str], listener: &[&str], service: &str) -> Outcome {
    let pair = Pair::new();
    let expecting = |tls: Tls, names: &[&str]| names.iter().fold(tls, |tls, name| tls.expect(name).unwrap());
    let connector = expecting(pair.connector.tls(), connector);
    let listener = expecting(pair.listener.tls(), listener);
    handshake(&connector, &listener, service).await
}

#[tokio::test]
async fn a_peer_with_the_name_of_the_service_or_an_expected_one_is_accepted() {
    for (connector, listener, service) in [
        (&[][..], &[][..], SERVICE),
        (&[], &[], "INFER.vision.svc.multinet.cluster.local."),
        (&[INFER], &[], SERVICE),
        (&[INFER], &[], "other.vision.svc.multinet.cluster.local"),
        (&[INFER], &[], "10.1.2.3"),
        (&[INFER], &[], "no name at all"),
        (&["other.test", SERVICE], &[], "10.1.2.3"),
        (&["spiffe://cluster.local/ns/vision/*"], &["spiffe://cluster.local/ns/vision/*"], SERVICE),
        (&[], &[DETECT], SERVICE),
        (&[], &["other.test", INFER, DETECT], SERVICE),
    ] {
        let met = expecting(connector, listener, service).await;
        assert_eq!(met.connected.map(drop), Ok(()), "{connector:?} {listener:?} {service}");
        assert_eq!(met.accepted.map(drop), Ok(()), "{connector:?} {listener:?} {service}");
    }
}

#[tokio::test]
async fn an_address_is_not_sent_as_a_server_name() {
    let met = expecting(&[INFER], &[], "10.1.2.3").await;
    assert_eq!(met.accepted.unwrap().get_ref().1.server_name(), None);
}

#[tokio::test]
async fn a_listener_with_another_name_is_refused() {
    let other = "other.vision.svc.multinet.cluster.local";
    for (connector, service, expected) in [
        (&[][..], other, other),
        // An expected name replaces the service's name.
        (&[DETECT], SERVICE, DETECT),
        (
            &["spiffe://cluster.local/ns/audio/*", other],
            SERVICE,
            "spiffe://cluster.local/ns/audio/* or other.",
        ),
        (&["spiffe://cluster.example/ns/vision/sa/infer"], SERVICE, "spiffe://cluster.example/"),
        (&["spiffe://cluster.local/ns/vision/sa/infer/*"], SERVICE, "spiffe://cluster.local/"),
    ] {
        let (connected, accepted) = expecting(connector, &[], service).await.messages();
        let begins = format!("the peer's certificate is for {INFER}, {SERVICE}, expected {expected}");
        says(&connected, &begins, ": have it issued for that name");
        says(&accepted, "the peer refuses: our certificate is valid, but for another name", "AccessDenied");
    }
}

#[tokio::test]
async fn a_connector_with_another_name_is_refused() {
    for listener in [INFER, "spiffe://cluster.local/ns/audio/*", "detect.test", SERVICE] {
        let (connected, accepted) = expecting(&[], &[listener], SERVICE).await.messages();
        let begins = format!("the peer's certificate is for {DETECT}, expected {listener}: ");
        says(&accepted, &begins, "have it issued for that name, or expect another by Tls::expect");
        says(&connected, "the peer refuses: our certificate is valid, but for another name", "AccessDenied");
    }
}

#[tokio::test]
async fn a_certificate_without_names_is_refused() {
    let pair = Pair::new();
    pair.listener.put(
        &pair.authority.issue_as(&[], |params| {
            params.distinguished_name.push(rcgen::DnType::CommonName, SERVICE);
            params.subject_alt_names.push(rcgen::SanType::IpAddress([127, 0, 0, 1].into()));
        }),
        &pair.authority.pem(),
    );
    let (connected, _) = pair.handshake().await.messages();
    says(&connected, "the peer's certificate is for no DNS or URI name, expected infer.", "common name");
}

#[tokio::test]
async fn a_wildcard_matches_exactly_one_label() {
    let pair = Pair::new();
    pair.listener.put(&pair.authority.issue(&["*.svc.multinet.cluster.local"]), &pair.authority.pem());
    let (connected, _) = pair.handshake().await.messages();
    says(&connected, "the peer's certificate is for *.svc.multinet.cluster.local, expected infer.", "");
    pair.listener.put(&pair.authority.issue(&["*.vision.svc.multinet.cluster.local"]), &pair.authority.pem());
    assert!(pair.handshake().await.connected.is_ok());
}

#[tokio::test]
async fn a_service_without_a_dns_name_needs_an_expected_name() {
    for service in ["10.1.2.3", "fd00::1", "", "a b"] {
        let pair = Pair::new();
        let (socket, address) = listen().await;
        let stream = TcpStream::connect(address).await.unwrap();
        let error = pair.connector.tls().connect(stream, service).await.unwrap_err().to_string();
        says(&error, &format!("no certificate can be for the service {service:?}: "), "Tls::expect");
        let (mut stream, _) = socket.accept().await.unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "no byte was sent");
    }
}

#[test]
fn a_name_that_no_peer_can_have_is_refused_before_connecting() {
    let pair = Pair::new();
    let error = pair.connector.tls().expect("10.1.2.3").unwrap_err().to_string();
    says(&error, "no peer can be expected as \"10.1.2.3\": the addresses of pods come and go", "");
}
