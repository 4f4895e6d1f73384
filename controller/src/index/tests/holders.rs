//! Tests of which pod an address is published for.

use super::*;

#[test]
fn a_process_with_lists_only_decides_by_age_and_slices() {
    let contested = |older: &'static str| {
        let index = index();
        index.apply(service("infer", 1, |_| {}));
        for name in ["a", "b", "c"] {
            let created = if name == older { 1 } else { 2 };
            index.apply(pod(name, "infer", "10.0.0.1", |pod| {
                pod["metadata"]["creationTimestamp"] = json!(time(created));
            }));
        }
        commit(&index);
        index
    };
    for name in ["a", "b", "c"] {
        let index = contested(name);
        assert_eq!(index.all_services(), [key("infer")]);
        write(&index, "infer", 1);
        assert_eq!(published(&index, "infer"), [name], "the oldest");

        let slices = index.lock().slices.of(&key("infer"));
        let heir = contested("a");
        heir.apply((*slices[0]).clone());
        heir.all_services();
        assert!(heir.work(&key("infer"), false).slices.is_empty(), "{name} is published already");
    }
}

#[test]
fn a_pod_may_hold_its_address_on_one_network_only() {
    let both = |pod: &mut Value| {
        let report = json!([
            {"name": "vision/rdma-a", "interface": "net1", "ips": ["10.0.0.1"]},
            {"name": "vision/rdma-b", "interface": "net2", "ips": ["10.0.0.1"]},
        ]);
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] = json!(report.to_string());
    };
    let other = |pod: &mut Value| {
        let report = json!([{"name": "vision/rdma-b", "interface": "net1", "ips": ["10.0.0.1"]}]);
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] = json!(report.to_string());
    };
    let networks =
        |service: &mut Value| service["spec"]["networks"] = json!([{"name": "rdma-a"}, {"name": "rdma-b"}]);
    let first = index();
    first.apply(service("infer", 1, networks));
    first.apply(pod("b", "infer", "", other));
    first.apply(pod("a", "infer", "", both));
    write(&first, "infer", 1);

    let heir = index();
    heir.apply(service("infer", 1, networks));
    heir.apply(pod("a", "infer", "", both));
    heir.apply(pod("b", "infer", "", other));
    for slice in first.lock().slices.of(&key("infer")) {
        heir.apply((*slice).clone());
    }
    heir.all_services();
    assert!(heir.work(&key("infer"), false).slices.is_empty());
}

#[test]
fn an_unselected_pod_displaces_no_other_pod() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    index.apply(pod("a", "nobody", "10.0.0.1", |_| {}));
    index.apply(pod("b", "infer", "10.0.0.1", |pod| pod["metadata"]["creationTimestamp"] = json!(time(5))));
    write(&index, "infer", 1);
    assert_eq!((published(&index, "infer"), index.totals().conflicts), (vec!["b".to_owned()], 1));

    index.apply(service("nobody", 1, |service| service["spec"]["networks"] = json!([{"name": "rdma-b"}])));
    assert_eq!(published(&index, "infer"), ["b"], "on another network");
    index.apply(service("nobody", 2, |_| {}));
    index.apply(pod("b", "infer", "10.0.0.1", |pod| pod["status"]["conditions"] = json!([])));
    write(&index, "infer", 2);
    write(&index, "nobody", 2);
    assert_eq!((published(&index, "infer"), published(&index, "nobody")), (vec![], vec!["a".to_owned()]));
}

#[test]
fn a_pod_of_another_namespace_displaces_no_pod_and_is_not_named() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    index.apply(pod("secret", "any", "10.0.0.1", |pod| {
        pod["metadata"]["namespace"] = json!("other");
        pod["status"]["podIPs"] = Value::Null;
    }));
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    let conflict = |version| {
        let outcome = write(&index, "infer", version);
        let status = outcome.status.map(|write| write.status).unwrap_or_default();
        let found = find(&status.conditions, ConditionType::AddressConflict).cloned();
        (published(&index, "infer"), found.map(|condition| (condition.reason, condition.message)))
    };
    let (names, found) = conflict(1);
    assert_eq!(
        (names, found.unwrap().0),
        (vec!["a".to_owned()], "NoConflict".to_owned()),
        "it has no sandbox"
    );
    index.apply(pod("secret", "any", "10.0.0.1", |pod| pod["metadata"]["namespace"] = json!("other")));
    let (names, found) = conflict(2);
    let (reason, message) = found.unwrap();
    assert_eq!((names, reason), (vec!["a".to_owned()], "OtherNamespace".to_owned()));
    assert!(
        message.contains("10.0.0.1") && !message.contains("secret") && !message.contains("other/"),
        "{message}"
    );
}

/// This state follows a restore from a backup: the pod is Pending, with the annotation of its
/// predecessor.
#[test]
fn a_pod_without_sandbox_has_no_address() {
    let index = index();
    let waits = |pod: &mut Value| pod["status"] = json!({"phase": "Pending"});
    index.apply(service("infer", 1, |service| service["spec"]["publishNotReadyAddresses"] = json!(true)));
    index.apply(pod("a", "infer", "10.0.0.1", waits));
    write(&index, "infer", 1);
    assert!(published(&index, "infer").is_empty());
    index.apply(pod("b", "infer", "10.0.0.1", |_| {}));
    write(&index, "infer", 2);
    assert_eq!(published(&index, "infer"), ["b"]);
    assert_eq!(index.totals().conflicts, 0);

    // The pod gets a sandbox, and comes after the others.
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    write(&index, "infer", 3);
    assert_eq!((published(&index, "infer"), index.totals().conflicts), (vec!["b".to_owned()], 1));
    Index::<views::PodView>::delete(&index, &key("b"));
    write(&index, "infer", 4);
    assert_eq!(published(&index, "infer"), ["a"]);
}

/// A claim that is reserved for no pod in particular may belong to any pod that uses it, except for
/// one without a sandbox.
#[test]
fn a_pod_without_sandbox_has_no_address_from_claims() {
    let index = index();
    let class = json!([{"kind": "DeviceClass", "name": "rdma"}]);
    index.apply(service("infer", 1, |service| service["spec"]["networks"] = class));
    let claim = json!({
        "metadata": {"name": "nic", "namespace": "vision"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "rdma"}}]}},
        "status": {
            "allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "n1", "device": "nic0"}]}},
            "devices": [{"driver": "d", "pool": "n1", "device": "nic0", "networkData": {"ips": ["10.0.1.1/24"]}}],
        },
    });
    index.apply(serde_json::from_str::<views::ResourceClaim<views::V1>>(&claim.to_string()).unwrap());
    for (ips, expected) in [(Value::Null, &[][..]), (json!([{"ip": "10.20.0.9"}]), &["a"][..])] {
        index.apply(pod("a", "infer", "", |pod| {
            pod["status"]["podIPs"] = ips;
            pod["spec"] =
                json!({"nodeName": "n1", "resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]});
        }));
        write(&index, "infer", 1);
        assert_eq!(published(&index, "infer"), expected);
    }
}

#[test]
fn the_decision_of_an_earlier_leader_is_kept() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    index.all_services();
    write(&index, "infer", 1);
    index.apply(pod("b", "infer", "10.0.0.1", |_| {}));
    write(&index, "infer", 2);
    assert_eq!(published(&index, "infer"), ["a"]);

    let theirs = (*index.lock().slices.of(&key("infer"))[0]).clone();
    let mut theirs = stored(vec![theirs], 3).remove(0);
    let target = theirs.spec.endpoints[0].target_ref.as_mut().unwrap();
    (target.name, target.uid) = (Some("b".into()), Some("uid-b".into()));
    index.apply(theirs);
    index.all_services();
    assert!(index.work(&key("infer"), false).slices.is_empty());
}

#[test]
fn a_virtual_machine_that_migrates_keeps_its_address_without_a_conflict() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    let launcher = |name: &str, node: &'static str, home: &'static str, ready: &'static str| {
        pod(name, "infer", "10.0.0.1", move |pod| {
            pod["metadata"]["labels"]["kubevirt.io/nodeName"] = json!(home);
            pod["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm", "uid": "uid-vm",
                "controller": true,
            }]);
            pod["spec"]["nodeName"] = json!(node);
            pod["status"]["conditions"][0]["status"] = json!(ready);
        })
    };
    let published = |version| {
        write(&index, "infer", version);
        (published(&index, "infer").join(" "), index.totals().conflicts)
    };
    index.apply(launcher("source", "n1", "n1", "True"));
    index.apply(launcher("target", "n2", "n1", "False"));
    assert_eq!(published(1), ("source".to_owned(), 0));
    index.apply(launcher("target", "n2", "n1", "True"));
    assert_eq!(published(2), ("source".to_owned(), 0), "both are ready, and the machine is still there");
    index.apply(launcher("source", "n1", "n2", "True"));
    index.apply(launcher("target", "n2", "n2", "True"));
    assert_eq!(published(3), ("target".to_owned(), 0));
    Index::<views::PodView>::delete(&index, &key("source"));
    assert_eq!(published(4), ("target".to_owned(), 0));
}
