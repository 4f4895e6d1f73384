//! The endpoints of a service, and the queries for them.

use std::time::Duration;

use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use multinet_client::{ConnectError, Connector, Endpoint, Identity, ResolveError};

use super::support::{Asked, FULL_NAME, SERVICE, Server, Transport, address};

const RDMA: (&str, u16) = ("_rdma._tcp", 18515);

fn summary(endpoints: &[Endpoint]) -> Vec<String> {
    let addresses = |endpoint: &Endpoint| {
        let texts: Vec<String> = endpoint.addresses.iter().map(|address| address.ip.to_string()).collect();
        texts.join(" ")
    };
    endpoints.iter().map(|endpoint| format!("{endpoint}: {}", addresses(endpoint))).collect()
}

fn questions(server: &Server) -> Vec<String> {
    let words = |asked: &Asked| format!("{} {}", asked.kind, asked.name);
    let mut questions: Vec<String> = server.zone().asked().iter().map(words).collect();
    questions.sort();
    questions
}

/// Starts a server with two endpoints on two networks, one of them also with IPv6.
async fn two_endpoints() -> Server {
    let server = Server::start().await;
    {
        let mut zone = server.zone();
        let texts =
            ["10.0.0.1 net=rail0 pod=vision/infer-0 uid=a", "10.1.0.1 net=rail1 pod=vision/infer-0 uid=a"];
        zone.add_endpoint(FULL_NAME, "h0", RDMA, &texts);
        let texts = ["10.0.0.2 net=rail0 node=n uid=b", "fd00::2 net=rail0 node=n uid=b"];
        zone.add_endpoint(FULL_NAME, "h1", RDMA, &texts);
    }
    server
}

#[tokio::test]
async fn a_short_name_is_resolved_with_the_fewest_queries() {
    let server = two_endpoints().await;
    let found = server.resolver().resolve(SERVICE, "rdma").await.unwrap();
    assert_eq!((found.name.as_str(), found.ttl), (FULL_NAME, Duration::from_secs(60)));
    assert_eq!(
        summary(&found.endpoints),
        ["h0:18515 (pod infer-0): 10.0.0.1 10.1.0.1", "h1:18515: 10.0.0.2 fd00::2"]
    );
    assert_eq!(found.endpoints[1].node.as_deref(), Some("n"));
    assert_eq!(found.endpoints[1].target, format!("h1.{FULL_NAME}"));
    assert_eq!(
        questions(&server),
        [
            "A infer.vision.svc.multinet.svc.cluster.local",
            "A infer.vision.svc.multinet.vision.svc.cluster.local",
            "SRV _rdma._tcp.infer.vision.svc.multinet.cluster.local",
            "SRV _rdma._tcp.infer.vision.svc.multinet.svc.cluster.local",
            "SRV _rdma._tcp.infer.vision.svc.multinet.vision.svc.cluster.local",
            "TXT h0.infer.vision.svc.multinet.cluster.local",
            "TXT h1.infer.vision.svc.multinet.cluster.local",
        ]
    );
}

#[tokio::test]
async fn missing_additional_records_are_queried() {
    let server = two_endpoints().await;
    let whole = server.resolver().resolve(SERVICE, "rdma").await.unwrap();
    // The reply has no additional records, then some of the first endpoint's, then all of the
    // first's and some of the second's.
    for glue in [0, 1, 3] {
        server.zone().glue = glue;
        let found = server.resolver().resolve(SERVICE, "rdma").await.unwrap();
        assert_eq!(found, whole, "{glue} additional records");
    }
}

#[tokio::test]
async fn addresses_without_txt_records_are_endpoints() {
    let server = Server::start().await;
    let ips = ["10.0.0.1", "fd00::1", "::ffff:10.0.0.9"];
    server.zone().add_endpoint(FULL_NAME, "h0", RDMA, &[]);
    for ip in ips {
        server.zone().add(&format!("h0.{FULL_NAME}"), address(ip.parse().unwrap()));
    }
    for glue in [0, 9] {
        server.zone().glue = glue;
        let found = server.resolver().resolve(SERVICE, "rdma").await.unwrap();
        assert_eq!(summary(&found.endpoints), ["h0:18515: 10.0.0.1 fd00::1"]);
        assert_eq!(found.endpoints[0].uid(), None);
    }
}

#[tokio::test]
async fn a_network_is_resolved_by_its_alias() {
    let server = two_endpoints().await;
    let network = format!("rail0._net.{FULL_NAME}");
    server.zone().add_endpoint(&network, "h0", RDMA, &["10.0.0.1 net=rail0 uid=a"]);
    let found = server.resolver().resolve(&format!("rail0._net.{SERVICE}"), "rdma").await.unwrap();
    assert_eq!(found.name, network);
    assert_eq!(summary(&found.endpoints), ["h0:18515: 10.0.0.1"]);
    assert_eq!(found.endpoints[0].host, "h0");
}

/// SRV records are the service's.
#[tokio::test]
async fn a_host_is_resolved_by_the_port_names_of_its_service() {
    let server = two_endpoints().await;
    let network = format!("rail0._net.{FULL_NAME}");
    server.zone().add_endpoint(&network, "h0", RDMA, &["10.0.0.1 net=rail0 uid=a"]);
    server.zone().add_endpoint(FULL_NAME, "h1", ("_metrics._udp", 9000), &[]);
    for (port, host) in [(18515, "h0"), (18515, "h1"), (9000, "h1")] {
        let target = Name::from_ascii(format!("{host}.{FULL_NAME}.")).unwrap();
        server.zone().add(FULL_NAME, RData::SRV(SRV::new(0, 1, port, target)));
    }
    let resolver = server.resolver();
    let cases = [
        ("h0", "rdma", "h0:18515 (pod infer-0): 10.0.0.1 10.1.0.1"),
        ("h1", "rdma", "h1:18515: 10.0.0.2 fd00::2"),
        ("h1", "metrics", "h1:9000: 10.0.0.2 fd00::2"),
        ("h0", "*", "h0:18515 (pod infer-0): 10.0.0.1 10.1.0.1"),
        ("h0.rail0._net", "rdma", "h0:18515: 10.0.0.1"),
    ];
    for (host, port, expected) in cases {
        let found = resolver.resolve(&format!("{host}.{SERVICE}"), port).await.unwrap();
        assert_eq!(found.name, format!("{host}.{FULL_NAME}"), "{port}");
        assert_eq!(summary(&found.endpoints), [expected], "{host} {port}");
    }
    let error = resolver.resolve(&format!("h0.{SERVICE}"), "metrics").await.unwrap_err();
    let name = format!("h0.{FULL_NAME}");
    assert_eq!(error, ResolveError::NoSuchPort { name, port: "metrics".to_owned(), ports: vec![18515] });
    let error = resolver.resolve(&format!("h2.{SERVICE}"), "rdma").await.unwrap_err();
    assert!(matches!(error, ResolveError::NoSuchName { .. }), "{error}");
}

/// Its targets are the hosts below the port's own name.
#[tokio::test]
async fn a_host_is_resolved_by_a_port_name_from_coredns_with_etcd() {
    let server = Server::start().await;
    let below_port = format!("h0._rdma._tcp.{FULL_NAME}");
    for name in [format!("h0.{FULL_NAME}"), below_port.clone()] {
        server.zone().add(&name, address("10.0.0.1".parse().unwrap()));
    }
    let target = Name::from_ascii(below_port).unwrap();
    server.zone().add(&format!("_rdma._tcp.{FULL_NAME}"), RData::SRV(SRV::new(10, 100, 18515, target)));
    let found = server.resolver().resolve(&format!("h0.{SERVICE}"), "rdma").await.unwrap();
    assert_eq!(summary(&found.endpoints), ["h0:18515: 10.0.0.1"]);
}

#[tokio::test]
async fn a_port_number_resolves_to_every_address() {
    let server = two_endpoints().await;
    let found = server.resolver().resolve(SERVICE, "7").await.unwrap();
    assert_eq!(
        summary(&found.endpoints),
        ["10-0-0-1:7: 10.0.0.1", "10-0-0-2:7: 10.0.0.2", "10-1-0-1:7: 10.1.0.1", "fd00--2:7: fd00::2"]
    );
    let questions = questions(&server);
    assert!(!questions.iter().any(|question| question.starts_with("TXT")), "{questions:?}");
}

#[tokio::test]
async fn the_number_of_a_named_port_resolves_as_its_name_does() {
    let server = two_endpoints().await;
    {
        let mut zone = server.zone();
        for (host, port) in [("h0", 18515), ("h0", 9000), ("h1", 18515)] {
            let target = Name::from_ascii(format!("{host}.{FULL_NAME}.")).unwrap();
            zone.add(FULL_NAME, RData::SRV(SRV::new(0, 1, port, target)));
        }
    }
    let by_name = server.resolver().resolve(SERVICE, "rdma").await.unwrap();
    let by_number = server.resolver().resolve(SERVICE, "18515").await.unwrap();
    assert_eq!(by_number.endpoints, by_name.endpoints);
}

#[tokio::test]
async fn an_address_is_resolved_without_a_query() {
    let server = Server::start().await;
    let found = server.resolver().resolve("fd00::7", "7").await.unwrap();
    assert_eq!(summary(&found.endpoints), ["fd00--7:7: fd00::7"]);
    assert_eq!(found.name, "fd00::7");
    assert!(matches!(server.resolver().resolve("0.0.0.0", "7").await, Err(ResolveError::NoAddress { .. })));
    assert!(questions(&server).is_empty());
}

#[tokio::test]
async fn ports_of_udp_are_found_after_those_of_tcp() {
    let server = Server::start().await;
    server.zone().add_endpoint(FULL_NAME, "h0", ("_roce._udp", 4791), &["10.0.0.1"]);
    let found = server.resolver().resolve(SERVICE, "roce").await.unwrap();
    assert_eq!(summary(&found.endpoints), ["h0:4791: 10.0.0.1"]);
    server.zone().add_endpoint(FULL_NAME, "h1", ("_roce._tcp", 1), &["10.0.0.2"]);
    let found = server.resolver().resolve(SERVICE, "roce").await.unwrap();
    assert_eq!(summary(&found.endpoints), ["h1:1: 10.0.0.2"]);
}

#[tokio::test]
async fn the_smallest_time_to_live_is_returned() {
    let server = two_endpoints().await;
    server.zone().ttl = 3;
    assert_eq!(server.resolver().resolve(SERVICE, "rdma").await.unwrap().ttl, Duration::from_secs(3));
    assert_eq!(server.resolver().resolve(SERVICE, "1").await.unwrap().ttl, Duration::from_secs(3));
}

#[tokio::test]
async fn answers_are_not_cached() {
    let server = two_endpoints().await;
    let resolver = server.resolver();
    resolver.resolve(SERVICE, "rdma").await.unwrap();
    server.zone().clear();
    assert!(matches!(resolver.resolve(SERVICE, "rdma").await, Err(ResolveError::NoSuchName { .. })));
    server.zone().add_endpoint(FULL_NAME, "h9", RDMA, &["10.0.0.9"]);
    let found = resolver.resolve(SERVICE, "rdma").await.unwrap();
    assert_eq!(summary(&found.endpoints), ["h9:18515: 10.0.0.9"]);
}

#[tokio::test]
async fn thousands_of_endpoints_are_queried_a_few_at_a_time() {
    // With names this short, this many endpoints fit into the 64 KiB of a DNS message.
    const ENDPOINTS: usize = 1400;
    let server = Server::start().await;
    {
        let mut zone = server.zone();
        for number in 0..ENDPOINTS {
            let text = format!("10.0.{}.{} net=rail0 uid=u{number}", number / 256, number % 256);
            zone.add_endpoint("s.n", &format!("h{number}"), RDMA, &[&text]);
        }
        zone.glue = 0;
        zone.delay = Duration::from_millis(1);
    }
    let found = server.resolver().resolve("s.n.", "rdma").await.unwrap();
    assert_eq!(found.endpoints.len(), ENDPOINTS);
    assert!(found.endpoints.is_sorted());
    assert!(found.endpoints.iter().all(|endpoint| endpoint.uid().is_some()));
    let mut zone = server.zone();
    assert!((2..=16).contains(&zone.most_in_flight), "{} concurrent queries", zone.most_in_flight);
    let asked = zone.asked();
    let over_tcp: Vec<_> = asked.iter().filter(|asked| asked.transport == Transport::Tcp).collect();
    assert!(
        over_tcp.iter().all(|asked| asked.kind == RecordType::SRV) && over_tcp.len() == 1,
        "{over_tcp:?}"
    );
}

#[tokio::test]
async fn a_star_resolves_to_every_named_port() {
    let server = two_endpoints().await;
    let error = server.resolver().resolve(SERVICE, "*").await.unwrap_err();
    assert!(matches!(error, ResolveError::NoSuchPort { .. }), "{error}");
    {
        let mut zone = server.zone();
        for (host, port) in [("h0", 18515), ("h0", 9000), ("h1", 18515)] {
            let target = Name::from_ascii(format!("{host}.{FULL_NAME}.")).unwrap();
            zone.add(FULL_NAME, RData::SRV(SRV::new(0, 1, port, target)));
        }
    }
    let found = server.resolver().resolve(SERVICE, "*").await.unwrap();
    assert_eq!(
        summary(&found.endpoints),
        [
            "h0:9000 (pod infer-0): 10.0.0.1 10.1.0.1",
            "h0:18515 (pod infer-0): 10.0.0.1 10.1.0.1",
            "h1:18515: 10.0.0.2 fd00::2",
        ]
    );
}

#[tokio::test]
async fn waiting_for_a_missing_port_fails_at_once() {
    let server = two_endpoints().await;
    let connector = Connector::builder().resolver(server.resolver()).wait(Duration::from_secs(3600));
    let connector = connector.build().unwrap();
    let connecting = connector.connect(SERVICE, "grpc");
    let error = tokio::time::timeout(Duration::from_secs(20), connecting).await.unwrap().unwrap_err();
    let is_it = matches!(&error, ConnectError::Resolve { source: ResolveError::NoSuchPort { .. }, .. });
    assert!(is_it, "{error}");
}

/// This happens to the first pod of a service whose pods connect to each other. The error must not
/// point at DNS.
#[tokio::test]
async fn a_pod_that_is_the_only_endpoint_gets_an_error_that_says_so() {
    let server = Server::start().await;
    server.zone().add_endpoint(FULL_NAME, "h0", RDMA, &["10.0.0.1 uid=me"]);
    let connector = Connector::builder().resolver(server.resolver()).identity(Identity::new("me").uid("me"));
    let connector = connector.wait(Duration::from_millis(300)).build().unwrap();
    let error = connector.connect(SERVICE, "rdma").await.unwrap_err();
    let expected =
        format!("{SERVICE} had no endpoint within 0 s: this pod itself is its only endpoint so far");
    assert_eq!(error.to_string(), expected);
}
