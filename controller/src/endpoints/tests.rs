use jiff::Timestamp;
use multinet_crds::{Device, EndpointCounts, NetworkKind};
use multinet_runtime::ObjectKey;
use serde_json::json;

use super::*;
use crate::caps::Caps;
use crate::conflicts::{Holder, HolderState};
use crate::model::{Addressless, ClaimedDevice, DeviceId, Interfaces, NoAddressReason, Report, Unreadable};

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
        claimed: None,
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
        has_sandbox: true,
        machine: None,
        report: Report::default(),
        claims: Vec::new(),
    }
}

fn spec(networks: serde_json::Value) -> MultiNetworkServiceSpec {
    serde_json::from_value(json!({"networks": networks})).unwrap()
}

/// Collects endpoints after the ledger has seen the pods in this order.
fn collected(spec: &MultiNetworkServiceSpec, pods: &[(Pod, Vec<Attachment>)]) -> Collected {
    let pods: Vec<(Pod, Interfaces)> = (pods.iter())
        .map(|(pod, attachments)| {
            (pod.clone(), Interfaces { attachments: attachments.clone(), addressless: Vec::new() })
        })
        .collect();
    collected_with(spec, &pods, &[])
}

fn collected_with(
    spec: &MultiNetworkServiceSpec,
    pods: &[(Pod, Interfaces)],
    slices: &[Arc<MultiNetworkEndpointSlice>],
) -> Collected {
    let room = Room { caps: Caps::default(), service: usize::MAX, namespace: usize::MAX };
    let mut ledger = AddressLedger::default();
    for (pod, interfaces) in pods {
        let holder = Arc::new(Holder { pod: pod.key.clone(), uid: pod.uid.clone() });
        for attachment in &interfaces.attachments {
            for address in &attachment.addresses {
                let network = &attachment.networks[0];
                ledger.update(network, *address, &holder, |holder| holder_state(pods, holder));
            }
        }
    }
    let zones = HashMap::from([("gpu-1".to_owned(), "a".to_owned())]);
    let members = pods.iter().map(|(pod, interfaces)| Member { pod, interfaces });
    collect("vision", spec, members, Inputs { ledger: &ledger, zones: &zones, slices, room })
}

fn holder_state(pods: &[(Pod, Interfaces)], holder: &Holder) -> HolderState {
    let (pod, interfaces) = pods.iter().find(|(pod, _)| pod.key == holder.pod).unwrap();
    let claimed = interfaces.attachments.first().and_then(|attachment| attachment.claimed.as_ref());
    HolderState {
        services: ["infer".to_owned()].into(),
        is_ready: pod.is_ready(),
        is_terminating: pod.terminating,
        claim: claimed.map(|device| device.claim.clone()),
        ..HolderState::default()
    }
}

/// Returns reason, network and pods of each entry of `missing`.
fn missing(collected: &Collected) -> Vec<(Missing, Option<&str>, String)> {
    let missing = collected.missing.iter();
    missing.map(|((reason, network), few)| (*reason, network.as_deref(), few.to_string())).collect()
}

fn texts(group: &Group) -> Vec<&str> {
    group.endpoints.iter().map(|endpoint| endpoint.addresses[0].as_str()).collect()
}

#[test]
fn ready_is_computed_as_in_kubernetes() {
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
        assert_eq!(collected.tally.endpoints, EndpointCounts { ready: u32::from(ready), total: 1 });
    }
}

#[test]
fn an_endpoint_contains_all_details() {
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
        "every field is set"
    );
}

#[test]
fn unknown_details_are_left_out() {
    let pod = Pod { node: Some("elsewhere".into()), ..pod("a") };
    let bare = Attachment { device: Device::default(), ..attachment("rdma-a", "net1", &["10.0.0.1"]) };
    let collected = collected(&spec(json!([{"name": "rdma-a"}])), &[(pod, vec![bare])]);
    let endpoint = &collected.groups[0].endpoints[0];
    assert_eq!((&endpoint.zone, &endpoint.device, &endpoint.hostname), (&None, &None, &None));
}

#[test]
fn every_network_and_family_has_a_group() {
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
    let counts: Vec<_> =
        both.tally.networks.iter().map(|counts| (counts.ready, counts.total, counts.missing)).collect();
    assert_eq!(counts, [(0, 0, 1), (1, 1, 0), (1, 1, 0)], "pods, not addresses");
    assert_eq!(both.tally.endpoints, EndpointCounts { ready: 1, total: 1 });

    let one = MultiNetworkServiceSpec { ip_families: vec![IpFamily::Ipv6], ..spec(networks) };
    let endpoints = collected(&one, &pods).groups.iter().map(|group| group.endpoints.len()).sum::<usize>();
    assert_eq!(endpoints, 2);
}

#[test]
fn a_pod_without_an_address_has_a_reason() {
    let rail = || vec![attachment("rdma-a", "net1", &["10.0.0.1"])];
    let garbled = Report { unreadable: vec![Unreadable("no JSON".into())], ..Report::default() };
    let asking = Report { requested: vec![network("rdma-a")], ..Report::default() };
    let pods = [
        (Pod { terminal: true, ..pod("done") }, rail()),
        (Pod { host_network: true, ..pod("host") }, Vec::new()),
        (Pod { has_sandbox: false, node: None, ..pod("queued") }, Vec::new()),
        (Pod { has_sandbox: false, ..pod("starting") }, Vec::new()),
        (Pod { report: garbled.clone(), ..pod("garbled") }, Vec::new()),
        (Pod { report: garbled, ..pod("claimed") }, vec![attachment("rdma-a", "eth1", &["10.0.0.2"])]),
        (pod("late"), Vec::new()),
        (Pod { report: asking, ..pod("asking") }, Vec::new()),
        (pod("elsewhere"), vec![attachment("rdma-b", "net1", &["10.0.0.3"])]),
        (pod("six"), vec![attachment("rdma-a", "net1", &["fd00::1"])]),
        (Pod { terminating: true, ..pod("leaving") }, Vec::new()),
    ];
    let spec =
        MultiNetworkServiceSpec { ip_families: vec![IpFamily::Ipv4], ..spec(json!([{"name": "rdma-a"}])) };
    let collected = collected(&spec, &pods);
    assert_eq!(texts(&collected.groups[0]), ["10.0.0.2"]);
    assert_eq!(collected.pods, 10, "one has ended for good");
    assert_eq!(
        missing(&collected),
        [
            (Missing::HostNetwork, None, "host".into()),
            (Missing::NotScheduled, None, "queued".into()),
            (Missing::NoSandbox, None, "starting".into()),
            (Missing::Unreadable, None, "garbled".into()),
            (Missing::NotRequested(NetworkKind::NetworkAttachmentDefinition), None, "late, elsewhere".into()),
            (Missing::NotAttached, None, "asking".into()),
            (Missing::OtherFamily, None, "six".into()),
        ]
    );
    assert_eq!(collected.tally.networks[0].missing, 6, "with a sandbox, and not being deleted");
}

#[test]
fn a_pod_that_lacks_one_network_names_it() {
    let pods = [
        (
            pod("a"),
            vec![attachment("rdma-a", "net1", &["10.0.0.1"]), attachment("rdma-b", "net2", &["10.1.0.1"])],
        ),
        (pod("b"), vec![attachment("rdma-a", "net1", &["10.0.0.2"])]),
        (Pod { serving: false, ..pod("c") }, vec![attachment("rdma-a", "net1", &["10.0.0.3"])]),
    ];
    let spec = spec(json!([{"name": "rdma-a", "alias": "rail0"}, {"name": "rdma-b", "alias": "rail1"}]));
    let collected = collected(&spec, &pods);
    let reason = Missing::NotRequested(NetworkKind::NetworkAttachmentDefinition);
    assert_eq!(missing(&collected), [(reason, Some("rail1"), "b, c".into())]);
    assert_eq!(
        json!(collected.tally.networks),
        json!([
            {"alias": "rail0", "ready": 2, "total": 3, "missing": 0},
            {"alias": "rail1", "ready": 1, "total": 1, "missing": 2},
        ])
    );
    assert_eq!(collected.tally.endpoints, EndpointCounts { ready: 2, total: 3 });
    assert_eq!(collected.tally.not_ready.to_string(), "c");
}

#[test]
fn a_pod_that_lacks_a_family_which_others_have_is_named() {
    let pods = [
        (pod("both"), vec![attachment("rdma-a", "net1", &["10.0.0.1", "fd00::1"])]),
        (pod("four"), vec![attachment("rdma-a", "net1", &["10.0.0.2"])]),
    ];
    let spec = spec(json!([{"name": "rdma-a"}]));
    let reason = Missing::Family(IpFamily::Ipv6);
    assert_eq!(missing(&collected(&spec, &pods)), [(reason, None, "four".into())]);
    assert_eq!(missing(&collected(&spec, &pods[1..])), [], "a network without IPv6");
}

fn claimed(device: &str, driver: &str) -> Option<ClaimedDevice> {
    let id = DeviceId { driver: driver.into(), pool: "n1".into(), device: device.into() };
    Some(ClaimedDevice { claim: "nics".into(), id })
}

fn addressless(device: &str, driver: &str, reason: NoAddressReason) -> Addressless {
    Addressless { networks: vec![network("rdma-a")], claimed: claimed(device, driver), reason }
}

#[test]
fn devices_without_an_address_are_named() {
    let spec = spec(json!([{"name": "rdma-a"}]));
    let lacks = |attachments: Vec<Attachment>, addressless: Vec<Addressless>| {
        let collected = collected_with(&spec, &[(pod("a"), Interfaces { attachments, addressless })], &[]);
        missing(&collected).into_iter().map(|(reason, _, pods)| (reason, pods)).collect::<Vec<_>>()
    };
    let failed = || NoAddressReason::NotReady("NetworkReady is False: no route".into());
    let detail = "a (device eth7 of claim nics: NetworkReady is False: no route)";
    assert_eq!(
        lacks(
            vec![],
            vec![
                addressless("eth1", "dra.net", NoAddressReason::NotReported),
                addressless("eth7", "dra.net", failed())
            ]
        ),
        [(Missing::DeviceNotReady, detail.to_owned())]
    );
    assert_eq!(
        lacks(
            vec![],
            vec![
                addressless("ib0", "dra.net", NoAddressReason::RdmaOnly),
                addressless("eth1", "dra.net", NoAddressReason::NotReported)
            ]
        ),
        [(Missing::NotReported, "a (device eth1 of claim nics)".to_owned())],
        "the endpoint that may still appear"
    );
    let attached =
        || Attachment { claimed: claimed("eth0", "dra.net"), ..attachment("rdma-a", "net1", &["10.0.0.1"]) };
    let many =
        (1..7).map(|number| addressless(&format!("eth{number}"), "dra.net", NoAddressReason::NotReported));
    assert_eq!(
        lacks(vec![attached()], many.collect()),
        [(Missing::Partly, "a (no address on eth1, eth2, eth3, eth4 and 2 more)".to_owned())]
    );
    let never = vec![
        addressless("gpu0", "gpu.nvidia.com", NoAddressReason::NotReported),
        addressless("ib0", "dra.net", NoAddressReason::RdmaOnly),
    ];
    assert_eq!(lacks(vec![attached()], never), [], "these never have one");
    assert_eq!(
        lacks(vec![], vec![Addressless { claimed: None, ..addressless("", "", NoAddressReason::LinkLocal) }]),
        [(Missing::LinkLocal, "a".to_owned())]
    );
}

#[test]
fn published_device_details_stay_when_the_driver_drops_them() {
    let spec = spec(json!([{"name": "rdma-a"}]));
    let published = Device {
        interface: Some("old".into()),
        rdma_device: Some("mlx5_4".into()),
        numa_node: Some(1),
        ..Device::default()
    };
    let slice = serde_json::from_value(json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkEndpointSlice", "metadata": {},
        "spec": {
            "addressType": "IPv4", "network": {"name": "rdma-a"},
            "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": {"uid": "uid-a"}, "device": published}],
        },
    }));
    let known = [Arc::new(slice.unwrap())];
    let shown = |claimed: Option<ClaimedDevice>, rdma: Option<&str>| {
        let device =
            Device { rdma_device: rdma.map(str::to_owned), ..attachment("rdma-a", "net1", &[]).device };
        let attachment = Attachment { claimed, device, ..attachment("rdma-a", "net1", &["10.0.0.1"]) };
        let interfaces = Interfaces { attachments: vec![attachment], addressless: Vec::new() };
        let device =
            collected_with(&spec, &[(pod("a"), interfaces)], &known).groups[0].endpoints[0].device.clone();
        let device = device.unwrap();
        (device.interface.unwrap(), device.rdma_device, device.numa_node)
    };
    let claimed = || claimed("eth0", "dra.net");
    assert_eq!(shown(claimed(), None), ("net1".into(), Some("mlx5_4".into()), Some(1)));
    assert_eq!(shown(claimed(), Some("mlx5_9")), ("net1".into(), Some("mlx5_9".into()), Some(1)));
    assert_eq!(shown(None, None), ("net1".into(), None, None), "Multus reports all details");
}

#[test]
fn an_address_is_published_for_one_pod() {
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
    let (holder, left_out) = (pods[0].0.key.clone(), [pods[1].0.key.to_string()].into_iter().collect());
    let conflict = Conflict { holder, is_answered: true, left_out, claim: None };
    assert_eq!(
        shared.conflicts,
        BTreeMap::from([((network("rdma-a"), "10.0.0.1".parse().unwrap()), conflict)])
    );
    assert_eq!(missing(&shared), [(Missing::Taken, None, "a".into())]);
    assert_eq!(shared.tally.networks[0].missing, 1);

    let pods = [(Pod { terminating: true, ..pod("b") }, rail()), (pod("a"), rail())];
    let handed_over = collected(&spec(json!([{"name": "rdma-a"}])), &pods);
    assert_eq!(handed_over.groups[0].endpoints[0].target_ref.as_ref().unwrap().name.as_deref(), Some("a"));
    assert_eq!((handed_over.groups[0].endpoints.len(), handed_over.conflicts.len()), (1, 0));
}

#[test]
fn pods_that_share_a_claim_are_reported() {
    let interfaces = || {
        let attachment = attachment("rdma-a", "net1", &["10.0.0.1"]);
        Interfaces {
            attachments: vec![Attachment { claimed: claimed("eth0", "dra.net"), ..attachment }],
            addressless: vec![],
        }
    };
    let pods = [(pod("a"), interfaces()), (pod("b"), interfaces())];
    let shared = collected_with(&spec(json!([{"name": "rdma-a"}])), &pods, &[]);
    assert_eq!(missing(&shared), [(Missing::SharedClaim, None, "b".into())]);
    assert_eq!(shared.conflicts.values().next().unwrap().claim.as_deref(), Some("nics"));
}

#[test]
fn an_address_that_another_namespace_reports_stays_published() {
    let rail = || vec![attachment("rdma-a", "net1", &["10.0.0.1"])];
    let stranger = ObjectKey { namespace: "infra".into(), name: "stranger".into() };
    let pods = [(Pod { key: stranger, ..pod("stranger") }, rail()), (pod("a"), rail())];
    let shared = collected(&spec(json!([{"name": "rdma-a"}])), &pods);
    assert_eq!(shared.elsewhere, [(network("rdma-a"), "10.0.0.1".parse().unwrap())].into());
    assert_eq!((shared.groups[0].endpoints.len(), shared.conflicts.len()), (2, 0));
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
    assert_eq!(
        collected.groups.iter().map(|group| group.endpoints.len()).sum::<usize>(),
        4,
        "our own slices have them"
    );
    let mirrored = collected.mirrored(None).into_iter().map(|(_, endpoint)| endpoint.addresses[0].clone());
    assert_eq!(mirrored.collect::<Vec<_>>(), ["10.0.0.1", "fd00::1"]);
    assert_eq!(collected.not_mirrored(None), ["169.254.7.1", "169.254.7.2"]);
    assert!(collected.not_mirrored(Some("rdma-b")).is_empty());
}
