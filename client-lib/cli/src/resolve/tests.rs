//! Tests of tables and changes.

use multinet_client::EndpointAddress;
use serde_json::{Value, json};

use super::change::EndpointChange;
use super::*;

/// Returns an endpoint of which only the addresses are known.
async fn endpoint(host: &str, port: u16, ips: &[&str]) -> Endpoint {
    // Only a resolver makes endpoints. It does not look up addresses.
    let resolver = Resolver::builder().servers(["127.0.0.1:1".parse().unwrap()]).build().unwrap();
    let resolved = resolver.resolve("127.0.0.1", "1").await.unwrap();
    let mut endpoint = resolved.endpoints.into_iter().next().unwrap();
    endpoint.host = host.to_owned();
    endpoint.target = format!("{host}.infer.vision.svc.multinet.cluster.local");
    endpoint.port = port;
    endpoint.addresses = ips.iter().map(|ip| EndpointAddress::new(ip.parse().unwrap())).collect();
    endpoint
}

async fn rail0(host: &str, ip: &str) -> Endpoint {
    let mut endpoint = endpoint(host, 18515, &[ip]).await;
    let address = &mut endpoint.addresses[0];
    address.network = Some("rail0".to_owned());
    address.rdma_devices = vec!["mlx5_2".to_owned(), "mlx5_3".to_owned()];
    address.numa = Some(1);
    endpoint.node = Some("gpu-1".to_owned());
    endpoint
}

#[tokio::test]
async fn columns_are_aligned_and_what_is_unknown_is_a_dash() {
    let endpoints = [endpoint("a", 1, &["10.0.0.1", "fd00::1"]).await, rail0("long-host", "10.0.0.2").await];
    assert_eq!(
        Table::default().text(&endpoints),
        "\
HOST       ADDRESS   NETWORK  PORT   RDMA           NUMA  PCI  NODE   ZONE  POD
a          10.0.0.1  -        1      -              -     -    -      -     -
a          fd00::1   -        1      -              -     -    -      -     -
long-host  10.0.0.2  rail0    18515  mlx5_2,mlx5_3  1     -    gpu-1  -     -
"
    );
}

#[tokio::test]
async fn changes_are_marked_and_stand_below_one_another() {
    let (a, b) = (rail0("a", "10.0.0.1").await, rail0("b", "10.0.0.2").await);
    let mut moved = b.clone();
    moved.node = None;
    let mut table = Table::default();
    let first = [a.clone(), b];
    assert_eq!(
        table.changes(&differences(&[], &first)),
        "  HOST  ADDRESS   NETWORK  PORT   RDMA           NUMA  PCI  NODE   ZONE  POD\n\
         + a     10.0.0.1  rail0    18515  mlx5_2,mlx5_3  1     -    gpu-1  -     -\n\
         + b     10.0.0.2  rail0    18515  mlx5_2,mlx5_3  1     -    gpu-1  -     -\n"
    );
    let second = [moved];
    assert_eq!(
        table.changes(&differences(&first, &second)),
        "- a     10.0.0.1  rail0    18515  mlx5_2,mlx5_3  1     -    gpu-1  -     -\n\
         ~ b     10.0.0.2  rail0    18515  mlx5_2,mlx5_3  1     -    -      -     -\n"
    );
    assert_eq!(table.changes(&differences(&second, &second)), "");
}

#[tokio::test]
async fn an_empty_set_is_a_head_without_rows() {
    let head = "  HOST  ADDRESS  NETWORK  PORT  RDMA  NUMA  PCI  NODE  ZONE  POD\n";
    let mut table = Table::default();
    assert_eq!([table.empty(), table.empty()], [head.to_owned(), String::new()]);
    // The head is printed again in the width of the first rows.
    let changes = table.changes(&differences(&[], &[rail0("a", "10.0.0.1").await]));
    assert!(changes.starts_with("  HOST  ADDRESS   NETWORK") && changes.lines().count() == 2, "{changes}");
    assert_eq!(table.empty(), "");
}

#[tokio::test]
async fn another_port_is_an_endpoint_and_a_missing_address_a_change() {
    let before = [endpoint("a", 1, &["10.0.0.1", "10.1.0.1"]).await];
    let after = [endpoint("a", 1, &["10.0.0.1"]).await, endpoint("a", 2, &["10.0.0.1"]).await];
    let found: Vec<(EndpointChange, u16)> =
        differences(&before, &after).into_iter().map(|(kind, endpoint)| (kind, endpoint.port)).collect();
    assert_eq!(found, [(EndpointChange::Changed, 1), (EndpointChange::Added, 2)]);
}

#[tokio::test]
async fn json_has_every_field_and_a_line_per_change() {
    let endpoints = [rail0("a", "10.0.0.1").await];
    let text =
        view::changes(&differences(&endpoints, &[])).unwrap() + &view::state("lost", Some("why")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let address = json!({
        "ip": "10.0.0.1", "network": "rail0", "interface": null, "mac": null,
        "rdmaDevices": ["mlx5_2", "mlx5_3"], "pci": null, "numa": 1,
    });
    let endpoint = json!({
        "host": "a", "target": "a.infer.vision.svc.multinet.cluster.local", "port": 18515,
        "node": "gpu-1", "zone": null, "pod": null, "addresses": [address],
    });
    assert_eq!(
        lines,
        [json!({"change": "removed", "endpoint": endpoint}), json!({"change": "lost", "error": "why"})]
    );
}

#[test]
fn an_error_does_not_name_the_asterisk_that_stands_for_all_ports() {
    let no_port = |port: &str| ResolveError::NoSuchPort {
        name: "infer".to_owned(),
        port: port.to_owned(),
        ports: vec![],
    };
    let bad_port = |port: &str| ResolveError::BadPort { port: port.to_owned(), reason: "it has none" };
    let cases = [
        (no_port("*"), "*", "infer exists, but has no named ports: give a port's number"),
        (bad_port("*"), "*", "10.0.0.1: it has none"),
        (bad_port("rdma"), "rdma", "\"rdma\" is not a port: it has none"),
    ];
    for (error, port, expected) in cases {
        assert_eq!(explain(error, "10.0.0.1", port).to_string(), expected);
    }
}
