//! What people are told of pods and services, and how often.

use multinet_crds::conditions::{ConditionType, find};

use super::*;
use crate::work::Notice;

fn reasons(notices: &[Notice]) -> Vec<(&str, &str)> {
    notices
        .iter()
        .map(|notice| (notice.regarding.name.as_deref().unwrap_or_default(), notice.reason))
        .collect()
}

#[test]
fn what_is_wrong_with_a_pod_is_said_once() {
    let world = world();
    world.apply(service("infer", 1, |_| {}));
    world.apply(service("both", 1, |service| service["spec"]["selector"] = json!({})));
    world.apply(pod("a", "infer", "", annotate("[{")));
    world.apply(pod("b", "infer", "10.0.0.999", |_| {}));
    world.apply(pod("c", "infer", "10.0.0.1", |_| {}));
    let outcome = write(&world, "infer", 1);
    assert_eq!(reasons(&outcome.notices), [("a", "NetworkStatusUnreadable"), ("b", "NetworkStatusRejected")]);
    assert_eq!(outcome.notices[0].regarding.uid.as_deref(), Some("uid-a"));
    assert!(reasons(&write(&world, "infer", 2).notices).is_empty());
    assert!(reasons(&write(&world, "both", 3).notices).is_empty(), "whichever service it is");

    world.apply(pod("a", "infer", "", annotate("{}")));
    assert_eq!(
        reasons(&write(&world, "infer", 4).notices),
        [("a", "NetworkStatusUnreadable")],
        "something else"
    );
    Index::<views::Pod>::delete(&world, &key("a"));
    world.apply(pod("a", "infer", "", annotate("{}")));
    assert_eq!(
        reasons(&write(&world, "infer", 5).notices),
        [("a", "NetworkStatusUnreadable")],
        "another pod"
    );
    Index::<views::Pod>::reset(&world, &HashSet::new());
    assert!(world.lock().told.is_empty(), "nothing is kept of pods that are gone");
}

/// What is wrong again was right in between, and its first event may have gone by then.
#[test]
fn what_is_wrong_with_a_pod_again_is_said_again() {
    let world = world();
    world.apply(service("infer", 1, |_| {}));
    for version in [1, 3] {
        world.apply(pod("a", "infer", "", annotate("[{")));
        assert_eq!(reasons(&write(&world, "infer", version).notices), [("a", "NetworkStatusUnreadable")]);
        world.apply(pod("a", "infer", "10.0.0.1", |_| {}));
        assert!(reasons(&write(&world, "infer", version + 1).notices).is_empty());
        assert!(world.lock().told.is_empty());
    }
    // Of those that have no second NIC, or none any more or yet, nothing is to be read.
    let has_ended = |pod: &mut Value| pod["status"]["phase"] = json!("Failed");
    world.apply(pod("a", "infer", "10.0.0.999", has_ended));
    world.apply(pod("b", "infer", "10.0.0.999", |pod| pod["spec"]["hostNetwork"] = json!(true)));
    world.apply(pod("c", "infer", "10.0.0.999", |pod| pod["status"]["podIPs"] = Value::Null));
    assert!(reasons(&write(&world, "infer", 5).notices).is_empty());
}

#[test]
fn what_is_wrong_with_a_pods_claim_is_said_of_the_pod() {
    let world = world();
    world.apply(service("infer", 1, |_| {}));
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
    world.apply(pod("a", "infer", "10.0.0.999", |pod| pod["spec"]["resourceClaims"] = claims));
    world.apply(claim(&["10.0.1.1/24", "::ffff:10.0.1.2/120"]));
    let notices = write(&world, "infer", 1).notices;
    assert_eq!(reasons(&notices), [("a", "NetworkStatusRejected"), ("a", "ResourceClaimRejected")]);
    let begin = r#"ResourceClaim a-nic: "::ffff:10.0.1.2/120" of status.devices[0] is left out"#;
    assert!(notices[1].note.starts_with(begin), "{:?}", notices[1]);
    let queued = || std::iter::from_fn(|| world.queue.next().now_or_never()).count();
    queued();
    // No endpoint changes, but what is said does.
    for (version, ips, expected) in [
        (2, &["10.0.1.1/24"][..], &[][..]),
        (3, &["10.0.1.1/24", "127.0.0.1/8"], &[("a", "ResourceClaimRejected")]),
        (4, &["10.0.1.1/24", "127.0.0.1/8"], &[]),
    ] {
        world.apply(claim(ips));
        commit(&world);
        assert_eq!(queued(), usize::from(version < 4), "{ips:?}");
        assert_eq!(reasons(&write(&world, "infer", version).notices), expected);
    }
    let unreadable =
        r#"{"metadata": {"name": "a-nic", "namespace": "vision"}, "spec": {}, "status": {"devices": "x"}}"#;
    world.apply(serde_json::from_str::<views::ResourceClaim<views::V1>>(unreadable).unwrap());
    commit(&world);
    queued();
    Index::<views::ResourceClaim<views::V1>>::reset(&world, &HashSet::new());
    commit(&world);
    assert_eq!(queued(), 1, "it had no device, only that");
}

#[test]
fn what_is_wrong_with_a_service_is_said_when_it_becomes_so() {
    let world = world();
    world.apply(service("infer", 1, |_| {}));
    Index::<views::NetworkAttachmentDefinition>::reset(&world, &HashSet::new());
    let outcome = write(&world, "infer", 1);
    assert_eq!(reasons(&outcome.notices), [("infer", "NetworkNotFound")]);
    assert!(outcome.notices[0].warning && outcome.notices[0].note.contains("vision/rdma-a"), "{outcome:?}");
    let status = outcome.status.unwrap();
    assert!(status.urgent);
    assert!(
        reasons(&write(&world, "infer", 2).notices).is_empty(),
        "although the status could not be written"
    );

    world.apply(with_status(&status));
    let again = write(&world, "infer", 3);
    assert_eq!((reasons(&again.notices), again.status), (vec![], None));

    let restarted = self::world();
    restarted.apply(with_status(&status));
    Index::<views::NetworkAttachmentDefinition>::reset(&restarted, &HashSet::new());
    assert!(reasons(&write(&restarted, "infer", 4).notices).is_empty(), "it stands in the status");

    world.apply(pod("a", "infer", "10.0.0.1", |_| {}));
    world.apply(pod("b", "infer", "10.0.0.1", |_| {}));
    assert_eq!(reasons(&write(&world, "infer", 5).notices), [("infer", "DuplicateAddress")]);
    world.apply(service("infer", 10, |service| service["spec"]["networks"] = json!([])));
    assert_eq!(reasons(&write(&world, "infer", 6).notices), [("infer", "Invalid")]);
}

/// Pods use templates of their own namespace only.
#[test]
fn a_template_of_another_namespace_is_of_no_use() {
    let world = world();
    for (version, namespace, expected) in
        [(1, Some("infra"), &["NetworkNotUsable"][..]), (2, Some("vision"), &[]), (3, None, &[])]
    {
        let network = json!({"kind": "ResourceClaimTemplate", "name": "nic", "namespace": namespace});
        world.apply(service("infer", version, |service| service["spec"]["networks"] = json!([network])));
        let outcome = write(&world, "infer", version);
        let said: Vec<&str> = outcome.notices.iter().map(|notice| notice.reason).collect();
        assert_eq!(said, expected, "whether it exists or not: nobody has looked");
        let is_resolved = |status: &MultiNetworkServiceStatus| {
            let condition = find(&status.conditions, ConditionType::ResolvedRefs);
            condition.map(|condition| condition.status == "True")
        };
        assert_eq!(is_resolved(&outcome.status.unwrap().status), Some(expected.is_empty()));
    }
}

/// Host-local addresses in a fleet of pods: one event, and numbers at the pace of numbers.
#[test]
fn conflicts_that_grow_are_said_once() {
    let stored = |world: &World, status: &StatusWrite, version: u64| {
        let mut service = with_status(status);
        service.metadata.resource_version = Some(version.to_string());
        world.apply(service);
    };
    let world = world();
    world.apply(service("infer", 1, |_| {}));
    world.apply(pod("a", "infer", "10.0.0.9", |_| {}));
    let mut status = write(&world, "infer", 1).status.unwrap();
    for (version, name) in (2..).zip(["b", "c", "d", "e", "f", "g"]) {
        stored(&world, &status, version);
        world.apply(pod(name, "infer", "10.0.0.9", |_| {}));
        let outcome = write(&world, "infer", version);
        status = outcome.status.unwrap();
        let is_first = name == "b";
        let said: &[_] = if is_first { &[("infer", "DuplicateAddress")] } else { &[] };
        assert_eq!((reasons(&outcome.notices), status.urgent), (said.to_vec(), is_first), "{name}");
        assert!(reasons(&write(&world, "infer", version).notices).is_empty(), "before it is written");
    }
    // Another address, before all others; by a process that knows only the status.
    let restarted = self::world();
    stored(&restarted, &status, 10);
    for (name, address) in [("a", "10.0.0.9"), ("b", "10.0.0.9"), ("x", "10.0.0.1"), ("y", "10.0.0.1")] {
        restarted.apply(pod(name, "infer", address, |_| {}));
    }
    let outcome = write(&restarted, "infer", 9);
    let status = outcome.status.unwrap();
    assert_eq!((reasons(&outcome.notices), status.urgent), (vec![], false));

    // It ends, and comes back.
    stored(&restarted, &status, 11);
    ["b", "y"].iter().for_each(|name| Index::<views::Pod>::delete(&restarted, &key(name)));
    let ended = write(&restarted, "infer", 10).status.unwrap();
    assert!(ended.urgent);
    stored(&restarted, &ended, 12);
    restarted.apply(pod("b", "infer", "10.0.0.9", |_| {}));
    let again = write(&restarted, "infer", 11);
    assert_eq!(reasons(&again.notices), [("infer", "DuplicateAddress")]);
    assert!(again.status.unwrap().urgent);
}
