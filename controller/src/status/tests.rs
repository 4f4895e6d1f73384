use std::collections::BTreeMap;

use jiff::Timestamp;
use multinet_crds::Mirror;
use multinet_crds::conditions::{CappedReason, ConditionType, find};
use multinet_runtime::ObjectKey;
use serde_json::json;

use super::*;
use crate::caps::Capped;
use crate::conflicts::Conflict;
use crate::missing::Missing;

fn network(name: &str) -> Network {
    Network {
        kind: NetworkKind::NetworkAttachmentDefinition,
        namespace: Some("vision".into()),
        name: name.into(),
    }
}

fn service(status: serde_json::Value) -> MultiNetworkService {
    serde_json::from_value(json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkService",
        "metadata": {"name": "infer", "namespace": "vision", "generation": 7},
        "spec": {"networks": [{"name": "rdma-a"}]}, "status": status,
    }))
    .unwrap()
}

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

fn evaluated(evaluation: &Evaluation, written: Result<(), &str>) -> MultiNetworkServiceStatus {
    status(&service(json!(null)), evaluation, written, "z.test", &at(100))
}

/// Returns status, reason and message of a condition.
fn shown(status: &MultiNetworkServiceStatus, kind: ConditionType) -> (&str, &str, &str) {
    let condition = find(&status.conditions, kind).unwrap();
    assert_eq!(condition.observed_generation, Some(7));
    (&condition.status, &condition.reason, &condition.message)
}

fn collected(collected: Collected) -> Evaluation {
    Evaluation::Collected(Box::new(collected), Vec::new())
}

fn counted(ready: u32, total: u32) -> Tally {
    let networks = vec![NetworkCounts { alias: "rail0".into(), ready, total, missing: 0 }];
    let mut tally = Tally { endpoints: EndpointCounts { ready, total }, networks, ..Tally::default() };
    (ready..total).for_each(|number| tally.not_ready.add(format!("infer-{number}")));
    tally
}

use ConditionType::{Accepted, AddressConflict, EndpointsReady, Programmed, ResolvedRefs};

#[test]
fn a_correct_service_has_good_conditions() {
    let tally = counted(3, 4);
    let status =
        evaluated(&collected(Collected { tally: tally.clone(), pods: 4, ..Collected::default() }), Ok(()));
    assert_eq!(shown(&status, EndpointsReady), ("True", "EndpointsReady", ""));
    assert_eq!(status.networks, tally.networks);
    assert_eq!(shown(&status, Accepted), ("True", "Accepted", ""));
    assert_eq!(shown(&status, ResolvedRefs), ("True", "ResolvedRefs", ""));
    assert_eq!(shown(&status, Programmed), ("True", "Programmed", ""));
    assert_eq!(shown(&status, AddressConflict), ("False", "NoConflict", ""));
    assert_eq!(status.endpoints, Some(tally.endpoints));
    assert_eq!(status.hostname.as_deref(), Some("infer.vision.svc.z.test"));
}

#[test]
fn a_service_that_breaks_rules_lists_them() {
    let violation = |field: &str| Violation { field: field.into(), message: "must be something else".into() };
    let evaluation = Evaluation::Invalid(vec![violation("spec.networks"), violation("spec.selector")]);
    let before = json!({
        "endpoints": {"ready": 1, "total": 1},
        "conditions": [{
            "type": "AddressConflict", "status": "False", "reason": "NoConflict", "message": "",
            "observedGeneration": 6, "lastTransitionTime": "1970-01-01T00:00:07Z",
        }],
    });
    let status = status(&service(before), &evaluation, Ok(()), "z.test", &at(100));
    let message = "spec.networks: must be something else; spec.selector: must be something else";
    assert_eq!(shown(&status, Accepted), ("False", "Invalid", message));
    assert_eq!(shown(&status, Programmed).1, "Invalid");
    assert!(find(&status.conditions, ResolvedRefs).is_none(), "the references are not checked");
    let old = find(&status.conditions, AddressConflict).unwrap();
    assert_eq!(old.observed_generation, Some(6), "it was not checked again");
    assert_eq!(status.endpoints.map(|counts| counts.ready), Some(1), "its slices are still there");
}

#[test]
fn a_service_without_selector_counts_the_slices_of_others() {
    let unresolved = || vec![Unresolved::NoNetwork(network("rdma-a"))];
    let evaluation = Evaluation::NoSelector(counted(1, 2), unresolved());
    let mut service = service(json!(null));
    let status = |service: &MultiNetworkService| status(service, &evaluation, Ok(()), "z.test", &at(100));
    service.spec.mirror = Some(Mirror { service_name: "infer-fast".into(), network: None });
    let mirrored = status(&service);
    service.spec.mirror = None;
    let status = status(&service);
    for (status, is_mirrored) in [(&mirrored, true), (&status, false)] {
        let (_, reason, message) = shown(status, Programmed);
        assert_eq!((reason, message.contains("remove spec.mirror")), ("NoSelector", is_mirrored));
    }
    assert_eq!(shown(&status, ResolvedRefs).1, "NetworkNotFound");
    assert_eq!(status.endpoints, Some(EndpointCounts { ready: 1, total: 2 }));
    assert_eq!(shown(&status, EndpointsReady), ("True", "EndpointsReady", ""));
    let none = evaluated(&Evaluation::NoSelector(Tally::default(), Vec::new()), Ok(()));
    assert_eq!(shown(&none, EndpointsReady).1, "NoSlices");
    let failed = evaluated(&evaluation, Err("the API server does not allow it"));
    assert_eq!(shown(&failed, Programmed), ("False", "WriteFailed", "the API server does not allow it"));
}

#[test]
fn endpoints_ready_explains_a_missing_name() {
    let evaluated =
        |tally, pods| evaluated(&collected(Collected { tally, pods, ..Collected::default() }), Ok(()));
    let unready = evaluated(counted(0, 4), 5);
    assert_eq!(
        shown(&unready, EndpointsReady),
        (
            "False",
            "NoneReady",
            "none of the pods with an address is ready (infer-0, infer-1, infer-2 and 1 more), so the name does not exist: see why their \
             condition Ready is not True, or set spec.publishNotReadyAddresses"
        )
    );
    assert_eq!(shown(&evaluated(Tally::default(), 0), EndpointsReady).1, "NoPods");
    let none = evaluated(Tally::default(), 3);
    let (status, reason, message) = shown(&none, EndpointsReady);
    assert_eq!((status, reason), ("False", "NoAddresses"));
    assert!(message.starts_with("none of the 3 selected pods has an address"), "{message}");
}

/// The API server would reject every status with such a name.
#[test]
fn a_hostname_too_long_for_dns_is_left_out() {
    let hostname = |zone: &str| {
        let evaluation = collected(Collected::default());
        status(&service(json!(null)), &evaluation, Ok(()), zone, &at(100)).hostname
    };
    let room = 253 - "infer.vision.svc.".len();
    assert!(hostname(&"z".repeat(room)).is_some());
    assert_eq!(hostname(&"z".repeat(room + 1)), None);
}

#[test]
fn a_failed_write_keeps_the_counts() {
    let before = json!({"endpoints": {"ready": 1, "total": 1}});
    let evaluation = collected(Collected { tally: counted(3, 4), pods: 4, ..Collected::default() });
    let status = status(&service(before), &evaluation, Err("the API server has no room"), "z.test", &at(100));
    assert_eq!(shown(&status, Programmed), ("False", "WriteFailed", "the API server has no room"));
    assert_eq!(status.endpoints.map(|counts| counts.ready), Some(1));
}

#[test]
fn unresolved_references_are_named_with_advice() {
    let class = Network { kind: NetworkKind::DeviceClass, namespace: None, name: "rdma".into() };
    let template = Network { kind: NetworkKind::ResourceClaimTemplate, ..network("nic") };
    let cases = [
        (
            Unresolved::NotServed(network("rdma-a")),
            "NetworkKindNotServed",
            "of NetworkAttachmentDefinition vision/rdma-a; install Multus",
        ),
        (Unresolved::NotServed(class.clone()), "NetworkKindNotServed", "enable dynamic resource allocation"),
        (
            Unresolved::NoNetwork(class),
            "NetworkNotFound",
            "DeviceClass rdma does not exist; create it, or correct spec.networks",
        ),
        (
            Unresolved::ForeignTemplate(template),
            "NetworkNotUsable",
            "ResourceClaimTemplate vision/nic is in another namespace: pods use only those of their own; remove the namespace",
        ),
        (
            Unresolved::NoMirror("fast".into()),
            "MirrorNotFound",
            "Service fast to mirror to does not exist; create it",
        ),
        (
            Unresolved::UnusableMirror("fast".into(), "it has a cluster IP"),
            "MirrorNotUsable",
            "Service fast cannot be mirrored to: it has a cluster IP; use one with clusterIP: None",
        ),
    ];
    for (unresolved, reason, text) in cases {
        let evaluation =
            Evaluation::Collected(Box::default(), vec![unresolved, Unresolved::NoMirror("last".into())]);
        let status = evaluated(&evaluation, Ok(()));
        let (value, found, message) = shown(&status, ResolvedRefs);
        assert_eq!((value, found), ("False", reason), "the first one's");
        assert!(message.contains(text) && message.contains("Service last"), "{message}");
    }
}

#[test]
fn pods_without_endpoints_are_counted_and_the_first_named() {
    let none = evaluated(&collected(Collected::default()), Ok(()));
    assert_eq!(
        shown(&none, Programmed).2,
        "spec.selector matches no pod of namespace vision; correct it, or label the pods that it is meant for"
    );

    let not_requested = Missing::NotRequested(NetworkKind::NetworkAttachmentDefinition);
    let pods = |names: &[&str]| names.iter().copied().collect::<NameSummary>();
    let missing = BTreeMap::from([
        ((not_requested, None), pods(&["late-0", "late-1", "late-2", "late-3", "late-4"])),
        ((Missing::HostNetwork, None), pods(&["host"])),
        ((Missing::NotAttached, Some("rail1".to_owned())), pods(&["worker-1"])),
    ]);
    let some = evaluated(&collected(Collected { missing, pods: 9, ..Collected::default() }), Ok(()));
    assert_eq!(
        shown(&some, Programmed),
        (
            "True",
            "Programmed",
            "1 of 9 pods use their node's network (hostNetwork) (host): remove hostNetwork from the pod; \
             5 of 9 pods are not attached (late-0, late-1, late-2 and 2 more): name the network in annotation \
             k8s.v1.cni.cncf.io/networks of the pod; \
             rail1: 1 of 9 pods ask for the network and were not attached (worker-1): see the pod's events and the CNI's log; a new pod \
             is attached anew"
        )
    );
}

#[test]
fn addresses_that_core_refuses_are_named() {
    let missing = [((Missing::HostNetwork, None), ["host"].into_iter().collect())].into();
    let refused = ["169.254.7.1", "169.254.7.2"].into_iter().collect();
    let evaluation = collected(Collected { missing, refused, pods: 4, ..Collected::default() });
    assert_eq!(
        shown(&evaluated(&evaluation, Ok(())), Programmed).2,
        "1 of 4 pods use their node's network (hostNetwork) (host): remove hostNetwork from the pod; the mirror leaves out \
         169.254.7.1, 169.254.7.2, since Kubernetes' EndpointSlices accept no link-local addresses"
    );
}

#[test]
fn condition_capped_exists_only_if_addresses_are_left_out() {
    let capped = Capped { beyond: Some((CappedReason::AddressesPerService, 7)), ..Capped::default() };
    let evaluation = collected(Collected { capped, pods: 4, ..Collected::default() });
    let status = evaluated(&evaluation, Ok(()));
    let (value, reason, message) = shown(&status, ConditionType::Capped);
    assert_eq!((value, reason), ("True", "AddressesPerService"));
    assert!(message.contains("7 addresses are left out"), "{message}");
    let again = |evaluation: &Evaluation| {
        let service = service(serde_json::to_value(&status).unwrap());
        super::status(&service, evaluation, Ok(()), "z.test", &at(200))
    };
    let more = Capped { beyond: Some((CappedReason::AddressesPerService, 8)), ..Capped::default() };
    let more = again(&collected(Collected { capped: more, pods: 4, ..Collected::default() }));
    assert!(differ_in_counts_only(&status, &more));
    let none = again(&collected(Collected { pods: 4, ..Collected::default() }));
    assert!(find(&none.conditions, ConditionType::Capped).is_none());
    assert!(!differ_in_counts_only(&status, &none));
}

fn conflict(pods: &[&str]) -> Conflict {
    let key = |name: &&str| ObjectKey { namespace: "vision".into(), name: (*name).into() };
    Conflict {
        holder: key(&pods[0]),
        is_answered: true,
        left_out: pods[1..].iter().map(|name| key(name).to_string()).collect(),
        claim: None,
    }
}

#[test]
fn conflicts_name_the_holder_with_advice() {
    let address = |number: u8| (network("rdma-a"), IpAddr::from([10, 0, 0, number]));
    let one = BTreeMap::from([(address(1), conflict(&["a", "b", "c", "d", "e"]))]);
    let status = evaluated(&collected(Collected { conflicts: one, ..Collected::default() }), Ok(()));
    let (value, reason, message) = shown(&status, AddressConflict);
    assert_eq!((value, reason), ("True", "DuplicateAddress"));
    let wanted = "10.0.0.1 on NetworkAttachmentDefinition vision/rdma-a is published for pod vision/a, \
                  and not for vision/b, vision/c, vision/d and 1 more; give every pod of a network an address of its own";
    assert!(message.starts_with(wanted), "{message}");

    let others = BTreeMap::from([
        (address(1), Conflict { claim: Some("nic".into()), ..conflict(&["a", "b"]) }),
        (address(2), Conflict { is_answered: false, ..conflict(&["a", "b"]) }),
    ]);
    let elsewhere = [address(3)].into();
    let status =
        evaluated(&collected(Collected { conflicts: others, elsewhere, ..Collected::default() }), Ok(()));
    assert_eq!(
        shown(&status, AddressConflict).2,
        "10.0.0.1 on NetworkAttachmentDefinition vision/rdma-a is of ResourceClaim nic, which several pods share: it is published for \
         pod vision/a, and not for vision/b; 10.0.0.2 on NetworkAttachmentDefinition vision/rdma-a is also reported by vision/b, beside \
         pod vision/a, which is not ready or not selected; give every pod a claim of its own, by resourceClaimTemplateName in the place \
         of resourceClaimName; give every pod of a network an address of its own: one IPAM range for all nodes (whereabouts, nv-ipam), \
         not host-local per node; pods of other namespaces report 10.0.0.3 on NetworkAttachmentDefinition vision/rdma-a, too; it stays \
         published here: if those namespaces share the network, give every pod an address of its own"
    );
    let elsewhere = [address(3)].into();
    let status = evaluated(&collected(Collected { elsewhere, ..Collected::default() }), Ok(()));
    assert_eq!(
        (shown(&status, AddressConflict).0, shown(&status, AddressConflict).1),
        ("True", "OtherNamespace")
    );

    let many = (0..200).map(|number| (address(number), conflict(&["a", "b"]))).collect();
    let status = evaluated(&collected(Collected { conflicts: many, ..Collected::default() }), Ok(()));
    let (_, _, message) = shown(&status, AddressConflict);
    assert!(message.contains("197 more addresses are shared; ") && message.len() < 1000, "{message}");
}

#[test]
fn conditions_of_others_and_transition_times_are_kept() {
    let condition = |kind: &str, reason: &str| {
        json!({
            "type": kind, "status": "True", "reason": reason, "message": "", "observedGeneration": 7,
            "lastTransitionTime": "1970-01-01T00:00:07Z",
        })
    };
    let before = json!({"conditions": [condition("example.com/Audited", "Fine"), condition("Programmed", "NoSelector")]});
    let status = status(&service(before), &collected(Collected::default()), Ok(()), "z.test", &at(100));
    assert_eq!(status.conditions[0].type_, "example.com/Audited");
    assert_eq!(status.conditions[0].last_transition_time, at(7));
    assert_eq!(
        find(&status.conditions, Programmed).unwrap().last_transition_time,
        at(7),
        "True before and after"
    );
    assert_eq!(find(&status.conditions, Accepted).unwrap().last_transition_time, at(100));
    assert_eq!(status.conditions.len(), 6);
}

#[test]
fn changes_of_numbers_are_distinguished_from_others() {
    let base =
        evaluated(&collected(Collected { tally: counted(2, 2), pods: 2, ..Collected::default() }), Ok(()));
    let missing = [((Missing::HostNetwork, None), ["late"].into_iter().collect())].into();
    let numbers = evaluated(
        &collected(Collected { tally: counted(0, 2), missing, pods: 2, ..Collected::default() }),
        Ok(()),
    );
    assert_ne!(base, numbers);
    assert!(differ_in_counts_only(&base, &numbers));
    let failed = evaluated(
        &collected(Collected { tally: counted(2, 2), pods: 2, ..Collected::default() }),
        Err("no room"),
    );
    assert!(!differ_in_counts_only(&base, &failed));
    assert!(!differ_in_counts_only(&MultiNetworkServiceStatus::default(), &base), "the first one");
    let contested = |pods: &[&str]| {
        let conflicts = [((network("rdma-a"), IpAddr::from([10, 0, 0, 1])), conflict(pods))].into();
        let collected = Collected { conflicts, tally: counted(2, 2), pods: 2, ..Collected::default() };
        evaluated(&self::collected(collected), Ok(()))
    };
    let (two, three) = (contested(&["a", "b"]), contested(&["a", "b", "c"]));
    assert!(!differ_in_counts_only(&base, &two) && !differ_in_counts_only(&two, &base));
    assert_ne!(two, three);
    assert!(differ_in_counts_only(&two, &three));
}
