use serde_json::json;

use super::*;

fn service(spec: Value) -> Value {
    json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": "MultiNetworkService",
        "metadata": {"name": "infer", "namespace": "vision"},
        "spec": spec,
    })
}

fn admitted(document: Value) -> Manifest {
    admit(Kind::Service, document).unwrap()
}

/// Returns all violations of a document, a line each.
fn complaints(document: Value) -> Vec<String> {
    admit(Kind::Service, document).unwrap_err().iter().map(Violation::to_string).collect()
}

#[test]
fn defaults_are_filled_in() {
    let Object::Service(service) = admitted(service(json!({"networks": [{"name": "rdma-a"}]}))).object else {
        panic!("a MultiNetworkService");
    };
    let network = crate::NetworkReference { name: "rdma-a".to_owned(), ..Default::default() };
    let expected = crate::MultiNetworkServiceSpec {
        selector: None,
        networks: vec![network],
        ports: Vec::new(),
        ip_families: crate::IpFamily::ALL.to_vec(),
        publish_not_ready_addresses: false,
        ttl_seconds: None,
        mirror: None,
    };
    assert_eq!(service.spec, expected);
}

#[test]
fn every_mistyped_field_is_named() {
    let document = service(json!({
        "networks": [{"name": 5}, ["NetworkAttachmentDefinition", "rdma-a"]],
        "ports": [{"port": "18515"}, {"port": 70_000}, {"name": "a"}, {"port": 1, "protocol": "tcp"}],
        "ipFamilies": "IPv4",
        "ttlSeconds": 1.5,
        "publishNotReadyAddresses": "no",
        "selector": {"matchLabels": {"app": 1}},
    }));
    assert_eq!(
        complaints(document),
        [
            "spec.ipFamilies: must be a list, not a string",
            "spec.networks[0].name: must be a string, not the number 5",
            "spec.networks[1]: must be an object, not a list",
            "spec.ports[0].port: must be an integer, not a string",
            "spec.ports[1].port: must be 1 to 65535; 70000 is not",
            "spec.ports[2].port: must be set",
            "spec.ports[3].protocol: must be TCP or UDP or SCTP; \"tcp\" is not",
            "spec.publishNotReadyAddresses: must be a boolean, not a string",
            "spec.selector.matchLabels.app: must be a string, not the number 1",
            "spec.ttlSeconds: must be an integer, not the number 1.5",
        ]
    );
}

#[test]
fn mistyped_metadata_is_named() {
    let mut document = service(json!({"networks": [{"name": "rdma-a"}]}));
    document["metadata"]["labels"] = json!({"a": 5});
    assert_eq!(complaints(document), ["metadata.labels.a: invalid type: integer `5`, expected a string"]);
}

#[test]
fn nulls_count_as_absent_and_integral_floats_as_integers() {
    let manifest = admitted(service(json!({
        "networks": [{"name": "rdma-a", "alias": null, "kind": null}],
        "ports": null,
        "ipFamilies": null,
        "ttlSeconds": 5.0,
        "mirror": null,
    })));
    assert_eq!(manifest.ignored, Vec::<String>::new());
    assert!(matches!(manifest.object, Object::Service(service) if service.spec.ttl_seconds == Some(5)));
}

#[test]
fn unknown_fields_are_dropped_and_named() {
    let mut document = service(json!({
        "networks": [{"name": "rdma-a", "nickname": "a"}],
        "publishNotReadyAddreses": true,
    }));
    document["status"] = json!("whatever");
    document["extra"] = json!({});
    let ignored = admitted(document).ignored;
    assert_eq!(ignored, ["extra", "spec.networks[0].nickname", "spec.publishNotReadyAddreses"]);
}

#[test]
fn every_broken_rule_is_named_with_its_remedy() {
    let document = service(json!({"networks": [{"name": "a.b"}], "ipFamilies": []}));
    assert_eq!(
        complaints(document),
        [
            "spec.networks[0].alias: is required, because name (\"a.b\") is not a DNS label and cannot stand for it; set \
             alias to a DNS label such as rdma-a (a-z, 0-9 and -, first and last not -), at most 63 characters",
            "spec.ipFamilies: must have 1 to 2 items, not 0",
        ]
    );
}
