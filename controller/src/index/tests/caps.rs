//! Tests of the address limits, from pods to conditions.

use multinet_crds::conditions::ConditionType::Capped;

use super::*;

const CAPS: Caps = Caps { pod: 2, service: 3, namespace: 4 };

/// Returns the published addresses of a service, and the reason of its condition Capped.
fn written(index: &ClusterIndex, service: &str, version: u64) -> (Vec<String>, Option<String>) {
    let outcome = write(index, service, version);
    let status = outcome.status.map(|write| write.status);
    let status = status.or_else(|| index.lock().services[&key(service)].status.clone()).unwrap();
    let slices = index.lock().slices.of(&key(service));
    let endpoints = slices.iter().flat_map(|slice| &slice.spec.endpoints);
    let mut addresses: Vec<String> = endpoints.map(|endpoint| endpoint.addresses[0].clone()).collect();
    addresses.sort();
    (addresses, find(&status.conditions, Capped).map(|condition| condition.reason.clone()))
}

fn queued(index: &ClusterIndex) -> Vec<String> {
    commit(index);
    std::iter::from_fn(|| index.queue.next().now_or_never()).map(|item| item.service().name.clone()).collect()
}

#[test]
fn published_addresses_of_a_pod_stay_when_it_reports_more() {
    let index = index_with(CAPS);
    let report = |ips: &'static str| {
        annotate(Box::leak(format!(r#"[{{"name": "vision/rdma-a", "ips": [{ips}]}}]"#).into_boxed_str()))
    };
    index.apply(service("infer", 1, |_| {}));
    index.apply(pod("a", "infer", "", report(r#""10.0.0.5", "10.0.0.6""#)));
    assert_eq!(written(&index, "infer", 1), (vec!["10.0.0.5".into(), "10.0.0.6".into()], None));
    index.apply(pod("a", "infer", "", report(r#""10.0.0.1", "10.0.0.6", "10.0.0.2", "10.0.0.5""#)));
    let (addresses, reason) = written(&index, "infer", 2);
    assert_eq!(addresses, ["10.0.0.5", "10.0.0.6"]);
    assert_eq!(reason.as_deref(), Some("AddressesPerPod"));
    index.apply(pod("a", "infer", "", report(r#""10.0.0.1", "10.0.0.6""#)));
    assert_eq!(written(&index, "infer", 3), (vec!["10.0.0.1".into(), "10.0.0.6".into()], None));
}

#[test]
fn a_service_keeps_its_published_addresses_then_those_of_older_pods() {
    let index = index_with(CAPS);
    let aged = |name: &'static str, second: i64| {
        let address = format!("10.0.0.{second}");
        pod(name, "infer", &address, |pod| pod["metadata"]["creationTimestamp"] = json!(time(second)))
    };
    index.apply(service("infer", 1, |_| {}));
    index.apply(aged("d", 9));
    assert_eq!(written(&index, "infer", 1).0, ["10.0.0.9"]);
    for (name, second) in [("a", 8), ("b", 2), ("c", 5)] {
        index.apply(aged(name, second));
    }
    let (addresses, reason) = written(&index, "infer", 2);
    assert_eq!(addresses, ["10.0.0.2", "10.0.0.5", "10.0.0.9"], "the youngest pod except the published one");
    assert_eq!(reason.as_deref(), Some("AddressesPerService"));
    let status = index.lock().services[&key("infer")].status.clone().unwrap();
    assert_eq!(status.networks[0].missing, 1);
    Index::<views::PodView>::delete(&index, &key("c"));
    assert_eq!(
        written(&index, "infer", 3),
        (["10.0.0.2", "10.0.0.8", "10.0.0.9"].map(String::from).into(), None)
    );
}

#[test]
fn a_service_that_waits_for_room_is_queued_when_room_appears() {
    let index = index_with(CAPS);
    for name in ["infer", "detect"] {
        index.apply(service(name, 1, |_| {}));
        for number in 0..3 {
            let (pod_name, address) = (format!("{name}-{number}"), format!("10.0.{}.{number}", name.len()));
            index.apply(pod(&pod_name, name, &address, |_| {}));
        }
    }
    queued(&index);
    assert_eq!(written(&index, "infer", 1).0.len(), 3);
    let (addresses, reason) = written(&index, "detect", 1);
    assert_eq!((addresses.len(), reason.as_deref()), (1, Some("AddressesPerNamespace")));
    assert!(queued(&index).is_empty());

    Index::<views::PodView>::delete(&index, &key("infer-0"));
    assert_eq!(queued(&index), ["infer"]);
    write(&index, "infer", 2);
    assert_eq!(queued(&index), ["detect"], "the slices are written");
    assert_eq!(written(&index, "detect", 2).0.len(), 2);

    let heir = index_with(CAPS);
    for name in ["infer", "detect"] {
        heir.apply(service(name, 1, |_| {}));
        index.lock().slices.of(&key(name)).iter().for_each(|slice| heir.apply((**slice).clone()));
    }
    for (name, number) in
        [("detect", 0), ("detect", 1), ("detect", 2), ("infer", 1), ("infer", 2), ("infer", 3)]
    {
        let address = format!("10.0.{}.{number}", name.len());
        heir.apply(pod(&format!("{name}-{number}"), name, &address, |_| {}));
    }
    heir.all_services();
    for name in ["detect", "infer"] {
        assert!(heir.work(&key(name), false).slices.is_empty(), "another leader has decided about {name}");
    }
    queued(&heir);
    Index::<MultiNetworkService>::delete(&heir, &key("infer"));
    assert_eq!(queued(&heir), ["infer"], "its slices are still there");
    let gone = heir.work(&key("infer"), false).slices.delete;
    gone.iter().for_each(|id| heir.record_deleted_slice(id));
    assert_eq!(queued(&heir), ["detect"]);
}

#[test]
fn slices_of_others_take_room() {
    let index = index_with(CAPS);
    let slice = json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkEndpointSlice",
        "metadata": {"name": "theirs", "namespace": "vision", "labels": {labels::SERVICE_NAME: "infer"}},
        "spec": {
            "addressType": "IPv4", "network": {"name": "rdma-a"},
            "endpoints": [{"addresses": ["192.0.2.1"]}, {"addresses": ["192.0.2.2"]}],
        },
    });
    index.apply(serde_json::from_value::<MultiNetworkEndpointSlice>(slice).unwrap());
    index.apply(service("infer", 1, |_| {}));
    for (name, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
        index.apply(pod(name, "infer", address, |_| {}));
    }
    queued(&index);
    let (addresses, reason) = written(&index, "infer", 1);
    assert_eq!((addresses, reason.as_deref()), (vec!["10.0.0.1".to_owned()], Some("AddressesPerService")));
    Index::<MultiNetworkEndpointSlice>::delete(&index, &key("theirs"));
    assert_eq!(queued(&index), ["infer"]);
    assert_eq!(written(&index, "infer", 2), (["10.0.0.1", "10.0.0.2"].map(String::from).into(), None));
}
