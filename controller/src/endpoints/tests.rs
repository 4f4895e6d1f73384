use jiff::Timestamp;
use multinet_crds::{Device, NetworkKind};
use serde_json::json;

use super::*;
use crate::model::Unreadable;

fn network(name: &str) -> Network {
    Network {
        kind: NetworkKind::NetworkAttachmentDefinition,
        namespace: Some("vision".into()),
        name: name.into(),
    }
}

fn attachment(name: &str, interface: &str, addresses: &[&str]) -> Attachment {
    Attachment {
        networks: vec![network(name)],
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        device: Device { interface: Some(interface.into()), ..Device::default() },
    }
}

fn pod(name: &str) -> Pod {
    Pod {
        key: ObjectKey { namespace: "vision".into(), name: name.into() },
        uid: format!("uid-{name}"),
        labels: BTreeMap::new(),
        created: Some(Timestamp::UNIX_EPOCH),
        terminal: false,
        terminating: false,
        serving: true,
        serving_changed: None,
        hostname: None,
        node: Some("gpu-1".into()),
        host_network: false,
        reported: Ok(Vec::new()),
        rejected: Vec::new(),
        claims: Vec::new(),
    }
}

fn spec(networks: serde_json::Value) -> MultiNetworkServiceSpec {
    serde_json::from_value(json!({"networks": networks})).unwrap()
}

/// Collects, with a ledger that has seen the pods in this order.
fn collected(spec: &MultiNetworkServiceSpec, pods: &[(Pod, Vec<Attachment>)]) -> Collected {
    let mut ledger = Ledger::default();
    for (pod, attachments) in pods {
        let holder = Holder { pod: pod.key.clone(), uid: pod.uid.clone() };
        for attachment in attachments {
            for address in &attachment.addresses {
                ledger.claim(&attachment.networks[0], *address, &holder, pod.terminating);
            }
        }
    }
    let zones = HashMap::from([("gpu-1".to_owned(), "a".to_owned())]);
    let members = pods.iter().map(|(pod, attachments)| Member { pod, attachments });
    collect("vision", spec, members, Surroundings { ledger: &ledger, zones: &zones })
}

fn texts(group: &Group) -> Vec<&str> {
    group.endpoints.iter().map(|endpoint| endpoint.addresses[0].as_str()).collect()
}

#[test]
fn ready_is_as_core_has_it() {
    // publishNotReadyAddresses, serving, terminating: ready
    let cases = [
        (false, true, false, true),
        (false, true, true, false),
        (false, false, false, false),
        (false, false, true, false),
        (true, true, false, true),
        (true, true, true, true),
        (true, false, false, true),
        (true, false, true, true),
    ];
    for (publish_not_ready_addresses, serving, terminating, ready) in cases {
        let spec =
            MultiNetworkServiceSpec { publish_not_ready_addresses, ..spec(json!([{"name": "rdma-a"}])) };
        let pod = Pod { serving, terminating, ..pod("a") };
        let collected = collected(&spec, &[(pod, vec![attachment("rdma-a", "net1", &["10.0.0.1"])])]);
        let [endpoint] = collected.groups[0].endpoints.as_slice() else { panic!("{collected:?}") };
        let wanted =
            EndpointConditions { ready: Some(ready), serving: Some(serving), terminating: Some(terminating) };
        assert_eq!(endpoint.conditions, wanted);
        assert_eq!(collected.counts, EndpointCounts { ready: u32::from(ready), total: 1 });
        assert_eq!(collected.terminating, u32::from(terminating));
    }
}

#[test]
fn an_endpoint_says_all_that_is_known() {
    let pod = Pod { hostname: Some("infer-0".into()), ..pod("infer-0-x2v5k") };
    let collected = collected(
        &spec(json!([{"name": "rdma-a", "alias": "rail0"}])),
        &[(pod, vec![attachment("rdma-a", "net1", &["10.0.0.1"])])],
    );
    assert_eq!(
        json!(collected.groups[0].endpoints),
        json!([{
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "hostname": "infer-0", "nodeName": "gpu-1", "zone": "a",
            "targetRef": {"kind": "Pod", "namespace": "vision", "name": "infer-0-x2v5k", "uid": "uid-infer-0-x2v5k"},
            "device": {"interface": "net1"},
        }])
    );
    assert_eq!(
        json!(collected.groups[0].network),
        json!({"kind": "NetworkAttachmentDefinition", "namespace": "vision", "name": "rdma-a", "alias": "rail0"}),
        "nothing is left to defaults"
    );
}

#[test]
fn what_is_not_known_is_left_out() {
    let pod = Pod { node: Some("elsewhere".into()), ..pod("a") };
    let bare = Attachment { device: Device::default(), ..attachment("rdma-a", "net1", &["10.0.0.1"]) };
    let collected = collected(&spec(json!([{"name": "rdma-a"}])), &[(pod, vec![bare])]);
    let endpoint = &collected.groups[0].endpoints[0];
    assert_eq!((&endpoint.zone, &endpoint.device, &endpoint.hostname), (&None, &None, &None));
}

#[test]
fn there_is_a_group_for_every_network_and_family() {
    let networks = json!([
        {"name": "rdma-b"}, {"name": "rdma-a", "alias": "rail0"}, {"name": "rdma-a", "alias": "again"},
    ]);
    let pods = [(
        pod("a"),
        vec![
            attachment("rdma-a", "net1", &["10.0.0.1", "fd00::1"]),
            attachment("rdma-a", "net2", &["10.0.0.2", "10.0.0.1"]),
        ],
    )];
    let both = collected(&spec(networks.clone()), &pods);
    let groups: Vec<_> =
        both.groups.iter().map(|group| (group.network.alias(), group.family, texts(group))).collect();
    assert_eq!(
        groups,
        [
            ("rdma-b", IpFamily::Ipv4, vec![]),
            ("rdma-b", IpFamily::Ipv6, vec![]),
            ("rail0", IpFamily::Ipv4, vec!["10.0.0.1", "10.0.0.2"]),
            ("rail0", IpFamily::Ipv6, vec!["fd00::1"]),
            ("again", IpFamily::Ipv4, vec!["10.0.0.1", "10.0.0.2"]),
            ("again", IpFamily::Ipv6, vec!["fd00::1"]),
        ]
    );
    let interfaces: Vec<_> = both.groups[2]
        .endpoints
        .iter()
        .map(|endpoint| endpoint.device.clone().unwrap().interface.unwrap())
        .collect();
    assert_eq!(interfaces, ["net1", "net2"], "the first interface that has the address");
    assert_eq!(both.counts.total, 6);

    let one = MultiNetworkServiceSpec { ip_families: vec![IpFamily::Ipv6], ..spec(networks) };
    assert_eq!(collected(&one, &pods).counts.total, 2);
}

#[test]
fn pods_without_endpoints_are_told_of() {
    let rail = || vec![attachment("rdma-a", "net1", &["10.0.0.1"])];
    let unreadable = Err(Unreadable("no JSON".into()));
    let pods = [
        (Pod { terminal: true, ..pod("done") }, rail()),
        (Pod { host_network: true, ..pod("host") }, Vec::new()),
        (Pod { reported: unreadable.clone(), ..pod("garbled") }, Vec::new()),
        (Pod { reported: unreadable, ..pod("claimed") }, vec![attachment("rdma-a", "eth1", &["10.0.0.2"])]),
        (pod("late"), Vec::new()),
        (pod("elsewhere"), vec![attachment("rdma-b", "net1", &["10.0.0.3"])]),
        (pod("six"), vec![attachment("rdma-a", "net1", &["fd00::1"])]),
    ];
    let spec =
        MultiNetworkServiceSpec { ip_families: vec![IpFamily::Ipv4], ..spec(json!([{"name": "rdma-a"}])) };
    let collected = collected(&spec, &pods);
    assert_eq!(texts(&collected.groups[0]), ["10.0.0.2"]);
    assert_eq!(collected.pods, 6, "one has ended for good");
    let left_out: Vec<_> = collected.left_out.iter().map(|(pod, why)| (pod.as_str(), *why)).collect();
    assert_eq!(
        left_out,
        [
            ("host", LeftOut::HostNetwork),
            ("garbled", LeftOut::Unreadable),
            ("late", LeftOut::NoAddress),
            ("elsewhere", LeftOut::NoAddress),
            ("six", LeftOut::NoAddress),
        ]
    );
}

#[test]
fn an_address_is_one_pods() {
    let rail = || vec![attachment("rdma-a", "net1", &["10.0.0.1"])];
    let pods = [
        (pod("b"), rail()),
        (pod("a"), rail()),
        (pod("c"), vec![attachment("rdma-a", "net1", &["10.0.0.2"])]),
    ];
    let shared = collected(&spec(json!([{"name": "rdma-a"}])), &pods);
    let [first, second] = shared.groups[0].endpoints.as_slice() else { panic!("{shared:?}") };
    assert_eq!(first.target_ref.as_ref().unwrap().name.as_deref(), Some("b"));
    assert_eq!(second.addresses, ["10.0.0.2"]);
    let conflict = Conflict { kept: pods[0].0.key.clone(), left_out: vec![pods[1].0.key.clone()] };
    assert_eq!(
        shared.conflicts,
        BTreeMap::from([((network("rdma-a"), "10.0.0.1".parse().unwrap()), conflict)])
    );
    assert!(shared.left_out.is_empty(), "the conflict is told of by itself");

    let pods = [(Pod { terminating: true, ..pod("b") }, rail()), (pod("a"), rail())];
    let handed_over = collected(&spec(json!([{"name": "rdma-a"}])), &pods);
    assert_eq!(handed_over.groups[0].endpoints[0].target_ref.as_ref().unwrap().name.as_deref(), Some("a"));
    assert_eq!((handed_over.groups[0].endpoints.len(), handed_over.conflicts.len()), (1, 0));
}

#[test]
fn a_mirror_shows_ready_addresses_once() {
    let networks = json!([{"name": "rdma-a"}, {"name": "rdma-b"}]);
    let pods = [
        (
            pod("a"),
            vec![
                attachment("rdma-a", "net1", &["10.0.0.1", "fd00::1"]),
                attachment("rdma-b", "net2", &["10.0.0.1", "10.0.0.2"]),
            ],
        ),
        (Pod { serving: false, ..pod("b") }, vec![attachment("rdma-a", "net1", &["10.0.0.3"])]),
    ];
    let collected = collected(&spec(networks), &pods);
    let shown = |alias| {
        let mirrored = collected.mirrored(alias);
        mirrored
            .into_iter()
            .map(|(family, endpoint)| (family, endpoint.addresses[0].clone()))
            .collect::<Vec<_>>()
    };
    let [four, six] = IpFamily::ALL;
    let wanted = |list: &[(IpFamily, &str)]| {
        list.iter().map(|&(family, text)| (family, text.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(shown(None), wanted(&[(four, "10.0.0.1"), (six, "fd00::1"), (four, "10.0.0.2")]));
    assert_eq!(shown(Some("rdma-b")), wanted(&[(four, "10.0.0.1"), (four, "10.0.0.2")]));
    assert!(shown(Some("rdma-c")).is_empty());
}

#[test]
fn a_mirror_leaves_out_what_core_refuses() {
    let addresses = ["10.0.0.1", "169.254.7.1", "fd00::1", "169.254.7.2"];
    let pods = [(pod("a"), vec![attachment("rdma-a", "net1", &addresses)])];
    let collected = collected(&spec(json!([{"name": "rdma-a"}])), &pods);
    assert_eq!(collected.counts.ready, 4, "our own slices have them");
    let mirrored = collected.mirrored(None).into_iter().map(|(_, endpoint)| endpoint.addresses[0].clone());
    assert_eq!(mirrored.collect::<Vec<_>>(), ["10.0.0.1", "fd00::1"]);
    assert_eq!(collected.not_mirrored(None), ["169.254.7.1", "169.254.7.2"]);
    assert!(collected.not_mirrored(Some("rdma-b")).is_empty());
}
