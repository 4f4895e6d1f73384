//! Tests of notices about pods and services, and of how often they are published.

use multinet_crds::conditions::{ConditionType, find};

use super::*;
use crate::work::Notice;

fn reasons(notices: &[Notice]) -> Vec<(&str, &str)> {
    notices
        .iter()
        .map(|notice| (notice.regarding.name.as_deref().unwrap_or_default(), notice.reason.as_str()))
        .collect()
}

#[test]
fn a_problem_of_a_pod_is_reported_once() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    index.apply(service("both", 1, |service| service["spec"]["selector"] = json!({})));
    index.apply(pod("a", "infer", "", annotate("[{")));
    index.apply(pod("b", "infer", "10.0.0.999", |_| {}));
    index.apply(pod("c", "infer", "10.0.0.1", |_| {}));
    let outcome = write(&index, "infer", 1);
    assert_eq!(reasons(&outcome.notices), [("a", "NetworkStatusUnreadable"), ("b", "NetworkStatusRejected")]);
    assert_eq!(outcome.notices[0].regarding.uid.as_deref(), Some("uid-a"));
    assert!(reasons(&write(&index, "infer", 2).notices).is_empty());
    assert!(reasons(&write(&index, "both", 3).notices).is_empty(), "for any service");

    index.apply(pod("a", "infer", "", annotate("{}")));
    assert_eq!(
        reasons(&write(&index, "infer", 4).notices),
        [("a", "NetworkStatusUnreadable")],
        "something else"
    );
    Index::<views::PodView>::delete(&index, &key("a"));
    index.apply(pod("a", "infer", "", annotate("{}")));
    assert_eq!(
        reasons(&write(&index, "infer", 5).notices),
        [("a", "NetworkStatusUnreadable")],
        "another pod"
    );
    Index::<views::PodView>::reset(&index, &HashSet::new());
    assert!(index.lock().notified.is_empty(), "deleted pods leave no entry");
}

/// The problem was solved in between, and its first event may have expired.
#[test]
fn a_recurring_problem_of_a_pod_is_reported_again() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    for version in [1, 3] {
        index.apply(pod("a", "infer", "", annotate("[{")));
        assert_eq!(reasons(&write(&index, "infer", version).notices), [("a", "NetworkStatusUnreadable")]);
        index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
        assert!(reasons(&write(&index, "infer", version + 1).notices).is_empty());
        assert!(index.lock().notified.is_empty());
    }
    // The annotations of pods that have no secondary interfaces, or do not have them any more or
    // yet, are not read.
    let has_ended = |pod: &mut Value| pod["status"]["phase"] = json!("Failed");
    index.apply(pod("a", "infer", "10.0.0.999", has_ended));
    index.apply(pod("b", "infer", "10.0.0.999", |pod| pod["spec"]["hostNetwork"] = json!(true)));
    index.apply(pod("c", "infer", "10.0.0.999", |pod| pod["status"]["podIPs"] = Value::Null));
    assert!(reasons(&write(&index, "infer", 5).notices).is_empty());
}

#[test]
fn a_problem_of_a_claim_is_reported_for_its_pod() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    let claim = |ips: &[&str]| -> views::ResourceClaim<views::V1> {
        let device = json!({
            "driver": "dra.net", "pool": "n1", "device": "nic0",
            "networkData": {"interfaceName": "net1", "ips": ips},
        });
        let claim = json!({
            "metadata": {"name": "a-nic", "namespace": "vision"},
            "spec": {}, "status": {"devices": [device]},
        });
        serde_json::from_str(&claim.to_string()).unwrap()
    };
    let claims = json!([{"name": "nic", "resourceClaimName": "a-nic"}]);
    index.apply(pod("a", "infer", "10.0.0.999", |pod| pod["spec"]["resourceClaims"] = claims));
    index.apply(claim(&["10.0.1.1/24", "::ffff:10.0.1.2/120"]));
    let notices = write(&index, "infer", 1).notices;
    assert_eq!(reasons(&notices), [("a", "NetworkStatusRejected"), ("a", "ResourceClaimRejected")]);
    let begin = r#"ResourceClaim a-nic: "::ffff:10.0.1.2/120" of status.devices[0] is left out"#;
    assert!(notices[1].note.starts_with(begin), "{:?}", notices[1]);
    let queued = || std::iter::from_fn(|| index.queue.next().now_or_never()).count();
    queued();
    // No endpoint changes, but the notice does.
    for (version, ips, expected) in [
        (2, &["10.0.1.1/24"][..], &[][..]),
        (3, &["10.0.1.1/24", "127.0.0.1/8"], &[("a", "ResourceClaimRejected")]),
        (4, &["10.0.1.1/24", "127.0.0.1/8"], &[]),
    ] {
        index.apply(claim(ips));
        commit(&index);
        assert_eq!(queued(), usize::from(version < 4), "{ips:?}");
        assert_eq!(reasons(&write(&index, "infer", version).notices), expected);
    }
    let unreadable =
        r#"{"metadata": {"name": "a-nic", "namespace": "vision"}, "spec": {}, "status": {"devices": "x"}}"#;
    index.apply(serde_json::from_str::<views::ResourceClaim<views::V1>>(unreadable).unwrap());
    commit(&index);
    queued();
    Index::<views::ResourceClaim<views::V1>>::reset(&index, &HashSet::new());
    commit(&index);
    assert_eq!(queued(), 1, "it had no device, only that");
}

#[test]
fn a_problem_of_a_service_is_reported_when_it_begins() {
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    Index::<views::NetworkAttachmentDefinition>::reset(&index, &HashSet::new());
    let outcome = write(&index, "infer", 1);
    assert_eq!(reasons(&outcome.notices), [("infer", "NetworkNotFound")]);
    assert!(outcome.notices[0].note.contains("vision/rdma-a"), "{outcome:?}");
    let status = outcome.status.unwrap();
    assert!(status.urgent);
    assert!(
        reasons(&write(&index, "infer", 2).notices).is_empty(),
        "although the status could not be written"
    );

    index.apply(with_status(&status));
    let again = write(&index, "infer", 3);
    assert_eq!((reasons(&again.notices), again.status), (vec![], None));

    let restarted = self::index();
    restarted.apply(with_status(&status));
    Index::<views::NetworkAttachmentDefinition>::reset(&restarted, &HashSet::new());
    assert!(reasons(&write(&restarted, "infer", 4).notices).is_empty(), "the status has it already");

    index.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    index.apply(pod("b", "infer", "10.0.0.1", |_| {}));
    assert_eq!(reasons(&write(&index, "infer", 5).notices), [("infer", "DuplicateAddress")]);
    index.apply(service("infer", 10, |service| service["spec"]["networks"] = json!([])));
    assert_eq!(reasons(&write(&index, "infer", 6).notices), [("infer", "Invalid")]);
}

/// Pods can use templates of their own namespace only.
#[test]
fn a_template_of_another_namespace_is_unresolved() {
    let index = index();
    for (version, namespace, expected) in
        [(1, Some("infra"), &["NetworkNotUsable"][..]), (2, Some("vision"), &[]), (3, None, &[])]
    {
        let network = json!({"kind": "ResourceClaimTemplate", "name": "nic", "namespace": namespace});
        index.apply(service("infer", version, |service| service["spec"]["networks"] = json!([network])));
        let outcome = write(&index, "infer", version);
        let found: Vec<&str> = outcome.notices.iter().map(|notice| notice.reason.as_str()).collect();
        assert_eq!(found, expected, "its existence is unknown yet");
        let is_resolved = |status: &MultiNetworkServiceStatus| {
            let condition = find(&status.conditions, ConditionType::ResolvedRefs);
            condition.map(|condition| condition.status == "True")
        };
        assert_eq!(is_resolved(&outcome.status.unwrap().status), Some(expected.is_empty()));
    }
}

/// This happens with host-local addresses in a large set of pods: one event, and a status that is
/// updated at the rate of numbers.
#[test]
fn a_growing_conflict_is_reported_once() {
    let stored = |index: &ClusterIndex, status: &StatusWrite, version: u64| {
        let mut service = with_status(status);
        service.metadata.resource_version = Some(version.to_string());
        index.apply(service);
    };
    let index = index();
    index.apply(service("infer", 1, |_| {}));
    index.apply(pod("a", "infer", "10.0.0.9", |_| {}));
    let mut status = write(&index, "infer", 1).status.unwrap();
    for (version, name) in (2..).zip(["b", "c", "d", "e", "f", "g"]) {
        stored(&index, &status, version);
        index.apply(pod(name, "infer", "10.0.0.9", |_| {}));
        let outcome = write(&index, "infer", version);
        status = outcome.status.unwrap();
        let is_first = name == "b";
        let reported: &[_] = if is_first { &[("infer", "DuplicateAddress")] } else { &[] };
        assert_eq!((reasons(&outcome.notices), status.urgent), (reported.to_vec(), is_first), "{name}");
        assert!(reasons(&write(&index, "infer", version).notices).is_empty(), "before it is written");
    }
    // Another address is first in the order. This process has only the status.
    let restarted = self::index();
    stored(&restarted, &status, 10);
    for (name, address) in [("a", "10.0.0.9"), ("b", "10.0.0.9"), ("x", "10.0.0.1"), ("y", "10.0.0.1")] {
        restarted.apply(pod(name, "infer", address, |_| {}));
    }
    let outcome = write(&restarted, "infer", 9);
    let status = outcome.status.unwrap();
    assert_eq!((reasons(&outcome.notices), status.urgent), (vec![], false));

    // The conflict ends, and starts again.
    stored(&restarted, &status, 11);
    ["b", "y"].iter().for_each(|name| Index::<views::PodView>::delete(&restarted, &key(name)));
    let ended = write(&restarted, "infer", 10).status.unwrap();
    assert!(ended.urgent);
    stored(&restarted, &ended, 12);
    restarted.apply(pod("b", "infer", "10.0.0.9", |_| {}));
    let again = write(&restarted, "infer", 11);
    assert_eq!(reasons(&again.notices), [("infer", "DuplicateAddress")]);
    assert!(again.status.unwrap().urgent);
}
