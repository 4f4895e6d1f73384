//! Failures of resolution, and the errors that report them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::rdata::{SRV, TXT};
use hickory_resolver::proto::rr::{Name, RData};
use multinet_client::ResolveError;
use tokio::net::UdpSocket;

use super::support::{FULL_NAME, Fault, IMPATIENT, SEARCH, SERVICE, Server, address, builder};

const RDMA: (&str, u16) = ("_rdma._tcp", 18515);
const SERVFAIL: Fault = Fault::Code(ResponseCode::ServFail);
const REFUSED: Fault = Fault::Code(ResponseCode::Refused);

async fn one_endpoint() -> Server {
    let server = Server::start().await;
    server.zone().add_endpoint(FULL_NAME, "h0", RDMA, &["10.0.0.1 uid=a"]);
    server
}

async fn error(server: &Server, port: &str) -> ResolveError {
    server.resolver().resolve(SERVICE, port).await.unwrap_err()
}

#[tokio::test]
async fn the_error_for_a_missing_name_lists_the_tried_names() {
    let server = Server::start().await;
    for port in ["rdma", "7"] {
        let ResolveError::NoSuchName { name, tried, .. } = error(&server, port).await else {
            panic!("{port}")
        };
        assert_eq!(name, SERVICE);
        let mut expected: Vec<String> = SEARCH.iter().map(|domain| format!("{SERVICE}.{domain}")).collect();
        expected.push(SERVICE.to_owned());
        assert_eq!(tried, expected);
    }
    let absolute = format!("{FULL_NAME}.");
    let error = server.resolver().resolve(&absolute, "rdma").await.unwrap_err();
    assert_eq!(
        error,
        ResolveError::NoSuchName {
            name: FULL_NAME.to_owned(),
            tried: vec![FULL_NAME.to_owned()],
            unanswered: Vec::new(),
            wildcard: None
        }
    );
}

#[tokio::test]
async fn the_error_for_a_missing_port_lists_the_ports() {
    let server = one_endpoint().await;
    let no_port = |ports: &[u16]| ResolveError::NoSuchPort {
        name: FULL_NAME.to_owned(),
        port: "grpc".to_owned(),
        ports: ports.to_vec(),
    };
    assert_eq!(error(&server, "grpc").await, no_port(&[]));
    // A service's own name has the SRV records of all its ports.
    let target = Name::from_ascii(format!("h0.{FULL_NAME}.")).unwrap();
    for port in [18515, 9000] {
        server.zone().add(FULL_NAME, RData::SRV(SRV::new(0, 1, port, target.clone())));
    }
    assert_eq!(error(&server, "grpc").await, no_port(&[9000, 18515]));
}

#[tokio::test]
async fn the_error_for_a_missing_network_lists_the_networks() {
    let server = Server::start().await;
    server.zone().add_endpoint(FULL_NAME, "h0", RDMA, &["10.0.0.1 net=rail0", "10.1.0.1 net=rail1"]);
    let resolver = server.resolver();
    let error = resolver.resolve(&format!("rail7._net.{SERVICE}"), "rdma").await.unwrap_err();
    let expected = ResolveError::NoSuchNetwork {
        name: FULL_NAME.to_owned(),
        network: "rail7".to_owned(),
        networks: vec!["rail0".to_owned(), "rail1".to_owned()],
    };
    assert_eq!(error, expected);
    // The networks of a service that does not exist are not known.
    let error = resolver.resolve("rail7._net.none.vision.svc.multinet", "rdma").await.unwrap_err();
    assert!(matches!(error, ResolveError::NoSuchName { .. }), "{error}");
}

/// The cluster's DNS forwards all other names to a server that does not answer.
#[tokio::test]
async fn a_name_missing_in_its_own_zone_is_looked_up_nowhere_else() {
    for fault in [SERVFAIL, Fault::Silence] {
        let server = Server::start().await;
        server.zone().soas = vec!["cluster.local", "multinet.cluster.local"];
        for owner in [SERVICE.to_owned(), format!("_rdma._tcp.{SERVICE}"), format!("{SERVICE}.corp.test")] {
            server.zone().faults.insert(owner, fault);
        }
        let resolver = builder(&[server.addr]).search(SEARCH.into_iter().chain(["corp.test"]));
        let resolver = resolver.timeout(IMPATIENT).build().unwrap();
        for port in ["rdma", "7", "*"] {
            let error = resolver.resolve(SERVICE, port).await.unwrap_err();
            let ResolveError::NoSuchName { tried, .. } = &error else { panic!("{port}: {error}") };
            assert_eq!(tried.last().map(String::as_str), Some(FULL_NAME), "{port}");
        }
        // An SOA record of the search path's zone proves nothing about names in another zone.
        server.zone().soas = vec!["cluster.local"];
        let error = resolver.resolve(SERVICE, "7").await.unwrap_err();
        assert!(!error.is_negative(), "{error}");
    }
}

#[tokio::test]
async fn a_wildcard_of_the_search_path_is_no_service() {
    let server = one_endpoint().await;
    let data: [RData; 3] = [
        address("203.0.113.80".parse().unwrap()),
        address("2001:db8::80".parse().unwrap()),
        RData::TXT(TXT::new(vec!["v=spf1".to_owned()])),
    ];
    let first = builder(&[server.addr]).search(["corp.test"].into_iter().chain(SEARCH)).build().unwrap();
    let none = "none.vision.svc.multinet";
    let wildcard = Some(format!("{none}.corp.test"));
    for data in data {
        server.zone().wildcards = vec![("corp.test", data.clone())];
        for port in ["rdma", "7"] {
            let error = first.resolve(none, port).await.unwrap_err();
            let ResolveError::NoSuchName { wildcard: found, .. } = &error else { panic!("{port}: {error}") };
            assert_eq!(*found, wildcard, "{port} {data:?}");
            assert!(error.to_string().contains("; only a wildcard record answers for none."), "{error}");
            let found = first.resolve(SERVICE, port).await.unwrap();
            assert_eq!(found.name, FULL_NAME, "{port} {data:?}");
        }
    }
    // For a fully qualified name, the answer of a wildcard counts.
    server.zone().wildcards = vec![("corp.test", address("203.0.113.80".parse().unwrap()))];
    assert!(first.resolve("files.corp.test.", "7").await.is_ok());
}

#[tokio::test]
async fn a_name_without_addresses_is_an_error() {
    let server = one_endpoint().await;
    let network = format!("rail0._net.{SERVICE}");
    server.zone().add(&format!("x.rail0._net.{FULL_NAME}"), address("10.0.0.1".parse().unwrap()));
    let error = server.resolver().resolve(&network, "7").await.unwrap_err();
    assert_eq!(error, ResolveError::NoAddress { name: format!("rail0._net.{FULL_NAME}") });

    // A cached SRV record may outlive its target.
    server.zone().clear();
    server.zone().add_endpoint(FULL_NAME, "gone", RDMA, &[]);
    let error = server.resolver().resolve(SERVICE, "rdma").await.unwrap_err();
    assert_eq!(error, ResolveError::NoAddress { name: FULL_NAME.to_owned() });
}

#[tokio::test]
async fn a_broken_domain_in_the_search_path_does_not_hide_the_service() {
    for fault in [SERVFAIL, REFUSED, Fault::Silence] {
        let server = one_endpoint().await;
        let broken = format!("{SERVICE}.{}", SEARCH[0]);
        server.zone().faults.insert(format!("_rdma._tcp.{broken}"), fault);
        let found = server.impatient().resolve(SERVICE, "rdma").await.unwrap();
        assert_eq!(found.name, FULL_NAME);
    }
}

#[tokio::test]
async fn servfail_never_becomes_a_name_that_does_not_exist() {
    let server = Server::start().await;
    let names = [&SEARCH[..], &[""]].concat();
    for domain in names {
        let owner = format!("{SERVICE}.{domain}");
        let owner = owner.trim_end_matches('.');
        for (asked, port) in
            [(format!("_rdma._tcp.{owner}"), "rdma"), (owner.to_owned(), "rdma"), (owner.to_owned(), "7")]
        {
            server.zone().faults.insert(asked.clone(), SERVFAIL);
            let ResolveError::Inconclusive { absent, failure, .. } = error(&server, port).await else {
                panic!("{asked}")
            };
            assert_eq!(absent.len(), SEARCH.len(), "{asked}: {absent:?}");
            assert!(
                matches!(&*failure, ResolveError::ServFail { name, server: by, .. } if *name == asked && *by == server.addr),
                "{asked}: {failure}"
            );
            server.zone().faults.clear();
        }
    }
}

#[tokio::test]
async fn a_refusal_counts_only_if_the_server_refuses_every_name() {
    let server = Server::start().await;
    server.zone().soas = vec!["multinet.cluster.local"];
    let refused =
        [format!("{SERVICE}.{}", SEARCH[0]), format!("{SERVICE}.{}", SEARCH[1]), SERVICE.to_owned()];
    for name in refused {
        server.zone().faults.insert(format!("_rdma._tcp.{name}"), REFUSED);
    }
    assert!(matches!(error(&server, "rdma").await, ResolveError::NoSuchName { .. }));
    server.zone().faults.insert(String::new(), REFUSED);
    assert!(matches!(error(&server, "rdma").await, ResolveError::Refused { .. }));
}

#[tokio::test]
async fn a_failed_query_for_one_endpoint_fails_the_resolution() {
    let server = one_endpoint().await;
    server.zone().add_endpoint(FULL_NAME, "h1", RDMA, &["10.0.0.2 uid=b"]);
    server.zone().faults.insert(format!("h1.{FULL_NAME}"), SERVFAIL);
    // The short name itself also exists. It must not be used instead.
    server.zone().add_endpoint(SERVICE, "other", RDMA, &["10.0.0.9"]);
    let error = error(&server, "rdma").await;
    assert!(matches!(&error, ResolveError::ServFail { name, .. } if name.starts_with("h1.")), "{error}");
}

#[tokio::test]
async fn the_next_server_is_queried_after_any_failure() {
    let good = one_endpoint().await;
    for fault in [SERVFAIL, REFUSED, Fault::Silence, Fault::Garbage, Fault::WrongQuestion] {
        let bad = Server::start().await;
        bad.zone().faults.insert(String::new(), fault);
        let resolver = builder(&[bad.addr, good.addr]).timeout(IMPATIENT).build().unwrap();
        let found = resolver.resolve(SERVICE, "rdma").await;
        assert!(found.is_ok(), "{fault:?}: {found:?}");
        let asked = bad.zone().asked();
        let distinct: BTreeSet<_> = asked.iter().map(|asked| &asked.name).collect();
        assert_eq!(distinct.len(), 1, "{fault:?}: one query shows that the server fails: {asked:?}");
    }
}

#[tokio::test]
async fn a_dead_server_is_passed_over() {
    let good = one_endpoint().await;
    let (dead, _socket) = closed_port().await;
    let resolver = builder(&[dead, good.addr]).timeout(IMPATIENT).build().unwrap();
    assert!(resolver.resolve(SERVICE, "rdma").await.is_ok());
}

#[tokio::test]
async fn no_other_server_is_queried_after_nxdomain() {
    let (first, second) = (Server::start().await, one_endpoint().await);
    let resolver = builder(&[first.addr, second.addr]).build().unwrap();
    assert!(matches!(resolver.resolve(SERVICE, "rdma").await, Err(ResolveError::NoSuchName { .. })));
    assert!(second.zone().asked().is_empty());
}

#[tokio::test]
async fn a_timeout_names_all_servers_and_comes_in_time() {
    let (silent, (dead, _socket)) = (Server::start().await, closed_port().await);
    silent.zone().faults.insert(String::new(), Fault::Silence);
    let servers = [silent.addr, dead];
    let resolver = builder(&servers).timeout(Duration::from_millis(300)).build().unwrap();
    let begin = Instant::now();
    let error = resolver.resolve(SERVICE, "rdma").await.unwrap_err();
    let ResolveError::Timeout { servers: named, .. } = &error else { panic!("{error}") };
    assert_eq!(*named, servers);
    // Two names, two attempts, two servers.
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_server_that_speaks_no_dns_is_named() {
    let server = Server::start().await;
    server.zone().faults.insert(String::new(), Fault::Garbage);
    let error = error(&server, "rdma").await;
    assert!(matches!(&error, ResolveError::Unreachable { server: by, .. } if *by == server.addr), "{error}");
}

#[tokio::test]
async fn answers_to_other_questions_are_ignored() {
    let server = Server::start().await;
    server.zone().faults.insert(String::new(), Fault::WrongQuestion);
    let error = server.impatient().resolve(SERVICE, "rdma").await.unwrap_err();
    assert!(matches!(error, ResolveError::Timeout { .. }), "{error}");
}

#[tokio::test]
async fn truncated_answers_are_queried_again_over_tcp() {
    let server = many_endpoints().await;
    let found = server.resolver().resolve(SERVICE, "rdma").await.unwrap();
    assert_eq!(found.endpoints.len(), 100);
}

#[tokio::test]
async fn an_answer_too_large_for_tcp_is_an_error() {
    let server = one_endpoint().await;
    server.zone().faults.insert(format!("_rdma._tcp.{FULL_NAME}"), Fault::Truncation);
    let expected = ResolveError::TooLarge { name: format!("_rdma._tcp.{FULL_NAME}"), server: server.addr };
    assert_eq!(error(&server, "rdma").await, expected);
}

#[tokio::test]
async fn a_service_that_would_fill_the_memory_is_refused() {
    let server = Server::start().await;
    for port in 1..=400 {
        server.zone().add_endpoint(FULL_NAME, "h0", (RDMA.0, port), &[]);
    }
    // The answers are small, but each port gets all addresses.
    for number in 0..=255 {
        server.zone().add(&format!("h0.{FULL_NAME}"), address(format!("10.0.0.{number}").parse().unwrap()));
    }
    assert_eq!(error(&server, "rdma").await, ResolveError::TooMany { name: FULL_NAME.to_owned() });
}

#[tokio::test]
async fn a_truncated_answer_without_tcp_is_an_error() {
    let server = many_endpoints().await;
    server.zone().has_tcp = false;
    let error = server.impatient().resolve(SERVICE, "rdma").await.unwrap_err();
    assert!(matches!(&error, ResolveError::NoTcp { server: by, .. } if *by == server.addr), "{error}");
    assert!(error.to_string().contains("let TCP port"), "{error}");
}

#[tokio::test]
async fn a_server_with_an_ipv6_address_is_queried() {
    let server = Server::start_on("::1").await;
    server.zone().add_endpoint(FULL_NAME, "h0", RDMA, &["10.0.0.1"]);
    assert!(server.resolver().resolve(SERVICE, "rdma").await.is_ok());
}

#[tokio::test]
async fn invalid_names_and_ports_are_refused_without_a_query() {
    let server = Server::start().await;
    let resolver = server.resolver();
    assert!(matches!(resolver.resolve("a..b", "rdma").await, Err(ResolveError::BadName { .. })));
    assert!(matches!(resolver.resolve("a", "").await, Err(ResolveError::BadPort { .. })));
    assert!(server.zone().asked().is_empty());
}

async fn many_endpoints() -> Server {
    let server = Server::start().await;
    for number in 0..100 {
        let ip = format!("10.0.0.{number}");
        server.zone().add_endpoint(FULL_NAME, &ip.replace('.', "-"), RDMA, &[&format!("{ip} uid=u{number}")]);
    }
    server
}

/// Returns an address without a listener. The socket keeps its port reserved, and accepts packets
/// only from the address to which it is connected.
async fn closed_port() -> (SocketAddr, UdpSocket) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect("127.0.0.1:9").await.unwrap();
    (socket.local_addr().unwrap(), socket)
}
