use multinet_crds::NetworkKind;

use super::*;

fn network() -> Network {
    Network {
        kind: NetworkKind::NetworkAttachmentDefinition,
        namespace: Some("vision".into()),
        name: "rdma-a".into(),
    }
}

/// Returns a pod by `name` in the namespace `vision`, or by `namespace/name`.
fn holder(name: &str) -> Holder {
    let (namespace, name) = name.split_once('/').unwrap_or(("vision", name));
    let pod = ObjectKey { namespace: namespace.into(), name: name.into() };
    Holder { pod, uid: format!("uid-{name}") }
}

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 111, 5));

/// Returns the state of a ready and selected pod that was created at the given second.
fn ready(created: i64) -> HolderState {
    let (services, created) = ([SERVICE.to_owned()].into(), Timestamp::from_second(created).ok());
    HolderState { services, is_ready: true, created, is_on_machine_node: true, ..HolderState::default() }
}

const SERVICE: &str = "infer";

/// Pods with the same address, and the ledger that they are in.
#[derive(Default)]
struct Contest {
    ledger: AddressLedger,
    pods: Vec<(&'static str, HolderState)>,
}

impl Contest {
    /// Adds or changes a pod. Returns whether any service must be planned again.
    fn set(&mut self, name: &'static str, state: HolderState) -> bool {
        self.pods.retain(|(known, _)| *known != name);
        self.pods.push((name, state));
        let known =
            |found: &Holder| self.pods.iter().find(|(name, _)| holder(name) == *found).unwrap().1.clone();
        !self.ledger.update(&network(), ADDRESS, &Arc::new(holder(name)), known).is_empty()
    }

    fn remove(&mut self, name: &str) -> bool {
        self.pods.retain(|(known, _)| *known != name);
        !self.ledger.release(&network(), ADDRESS, &holder(name)).is_empty()
    }

    fn role(&self, name: &str) -> Role {
        self.ledger.contest(&network(), ADDRESS, &holder(name).pod).map_or(Role::Holds, |claim| claim.role)
    }

    /// Returns the pods that hold the address in their namespaces.
    fn holders(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.pods.iter().map(|(name, _)| *name).collect();
        names.retain(|name| self.role(name) == Role::Holds);
        names.sort_unstable();
        names
    }
}

const LEFT_OUT: Role = Role::LeftOut { shares_claim: false };

#[test]
fn the_better_of_two_pods_holds_the_address_in_any_order() {
    let base = || ready(5);
    let cases = [
        ("selected", base(), HolderState { services: Arc::default(), created: None, ..base() }),
        ("ready", base(), HolderState { is_ready: false, created: None, ..base() }),
        (
            "staying",
            HolderState { is_ready: false, ..base() },
            HolderState { is_ready: false, is_terminating: true, created: None, ..base() },
        ),
        (
            "a ready pod that none selects",
            HolderState { is_ready: false, ..base() },
            HolderState { services: Arc::default(), created: None, ..base() },
        ),
    ];
    for (what, better, worse) in cases {
        for order in [["better", "worse"], ["worse", "better"]] {
            let mut contest = Contest::default();
            for name in order {
                contest.set(name, if name == "better" { better.clone() } else { worse.clone() });
            }
            assert_eq!(contest.holders(), ["better"], "{what}, {order:?}");
        }
    }
}

#[test]
fn the_published_pod_keeps_the_address_and_else_the_oldest_gets_it() {
    let mut contest = Contest::default();
    assert!(!contest.set("b", ready(2)), "alone");
    assert!(contest.set("a", ready(1)));
    assert_eq!(contest.holders(), ["b"], "it was there first");
    assert!(!contest.set("a", ready(1)), "nothing has changed");
    contest.set("b", HolderState { is_ready: false, ..ready(2) });
    assert_eq!(contest.holders(), ["a"]);
    contest.set("b", ready(2));
    assert_eq!(contest.holders(), ["a"], "it is published now");

    contest.set("c", ready(3));
    assert!(contest.remove("a"));
    assert_eq!(contest.holders(), ["b"], "the older of the two");
    contest.remove("b");
    assert!(!contest.remove("b"), "twice");
    assert_eq!((contest.holders(), contest.ledger.is_contested()), (vec!["c"], false));
    contest.remove("c");
    assert!(contest.ledger.addresses.is_empty());
}

#[test]
fn a_pod_that_is_being_deleted_hands_over_without_conflict() {
    let mut contest = Contest::default();
    let leaving = HolderState { is_ready: false, is_terminating: true, ..ready(1) };
    contest.set("old", leaving);
    assert_eq!(contest.holders(), ["old"], "no other pod has it");
    assert!(contest.set("new", ready(2)));
    assert_eq!((contest.holders(), contest.role("old")), (vec!["new"], Role::HandsOver));
    assert_eq!(contest.ledger.conflicts(), 0);
    contest.set("third", ready(3));
    assert_eq!((contest.role("third"), contest.ledger.conflicts()), (LEFT_OUT, 1));
}

#[test]
fn pods_of_a_virtual_machine_hand_over_to_the_one_on_its_node() {
    let source = HolderState { machine: Some("vm".into()), ..ready(1) };
    let target = HolderState { machine: Some("vm".into()), is_on_machine_node: false, ..ready(2) };
    let mut contest = Contest::default();
    contest.set("source", source.clone());
    contest.set("target", HolderState { is_ready: false, ..target.clone() });
    assert_eq!((contest.holders(), contest.role("target")), (vec!["source"], Role::HandsOver));
    contest.set("target", target.clone());
    assert_eq!(contest.holders(), ["source"], "both are ready, and the machine exists");
    contest.set("source", HolderState { is_on_machine_node: false, ..source });
    contest.set("target", HolderState { is_on_machine_node: true, ..target });
    assert_eq!((contest.holders(), contest.role("source")), (vec!["target"], Role::HandsOver));
    assert_eq!(contest.ledger.conflicts(), 0);

    contest.set("other", HolderState { machine: Some("another".into()), ..ready(3) });
    assert_eq!((contest.holders(), contest.role("other")), (vec!["target"], LEFT_OUT));
}

#[test]
fn namespaces_hold_addresses_independently() {
    let mut contest = Contest::default();
    contest.set("a/one", ready(1));
    assert!(contest.set("b/one", HolderState { services: Arc::default(), ..ready(0) }));
    contest.set("b/two", ready(3));
    assert_eq!(contest.holders(), ["a/one", "b/two"]);
    let elsewhere = |contest: &Contest, name: &str| {
        contest.ledger.contest(&network(), ADDRESS, &holder(name).pod).unwrap().is_elsewhere
    };
    assert!(elsewhere(&contest, "a/one") && elsewhere(&contest, "b/two"));
    contest.remove("b/one");
    contest.set("b/two", HolderState { is_terminating: true, is_ready: false, ..ready(3) });
    assert!(!elsewhere(&contest, "a/one"), "it is leaving");
    assert!(elsewhere(&contest, "b/two"));
}

#[test]
fn pods_that_share_a_claim_are_distinguished_from_others() {
    let with = |claim: &str| HolderState { claim: Some(claim.into()), ..ready(1) };
    let mut contest = Contest::default();
    contest.set("a", with("nic"));
    contest.set("b", with("nic"));
    contest.set("c", with("other"));
    contest.set("d", ready(1));
    assert_eq!(contest.role("b"), Role::LeftOut { shares_claim: true });
    assert_eq!((contest.role("c"), contest.role("d")), (LEFT_OUT, LEFT_OUT));
}

#[test]
fn a_pod_of_the_same_name_is_another_pod() {
    let (network, mut ledger) = (network(), AddressLedger::default());
    let again = Holder { uid: "another".into(), ..holder("a") };
    for holder in [holder("a"), again.clone()] {
        ledger.update(&network, ADDRESS, &Arc::new(holder), |_| ready(1));
    }
    ledger.release(&network, ADDRESS, &holder("a"));
    let Holders::One(only) = &ledger.addresses[&network][&ADDRESS] else { panic!("{ledger:?}") };
    assert_eq!(**only, again);
}

#[test]
fn networks_have_separate_addresses() {
    let mut ledger = AddressLedger::default();
    let other = Network { name: "rdma-b".into(), ..network() };
    ledger.update(&network(), ADDRESS, &Arc::new(holder("a")), |_| ready(1));
    ledger.update(&other, ADDRESS, &Arc::new(holder("b")), |_| ready(1));
    assert!(!ledger.is_contested());
}

#[test]
fn services_are_planned_again_when_their_namespace_changes() {
    let of = |namespace: &str, service: &str| {
        vec![ObjectKey { namespace: namespace.into(), name: service.into() }]
    };
    let (network, mut ledger) = (network(), AddressLedger::default());
    let mut set = |name: &str, state: HolderState| {
        let first = |found: &Holder| if found.pod.name == "one" { ready(1) } else { state.clone() };
        ledger.update(&network, ADDRESS, &Arc::new(holder(name)), first)
    };
    assert!(set("one", ready(1)).is_empty());
    assert_eq!(set("two", ready(2)), of("vision", SERVICE), "it is omitted");
    assert_eq!(set("b/other", ready(3)), [of("b", SERVICE), of("vision", SERVICE)].concat());
    assert!(set("two", HolderState { is_ready: false, ..ready(2) }).is_empty(), "it is still omitted");
    assert!(set("b/other", HolderState { is_ready: false, ..ready(3) }) == of("b", SERVICE), "not answered");
    assert_eq!(
        set("b/other", HolderState { is_terminating: true, ..ready(3) }),
        [of("b", SERVICE), of("vision", SERVICE)].concat()
    );
}

#[test]
fn the_best_of_many_pods_holds_the_address_and_three_are_named() {
    let (network, mut ledger) = (network(), AddressLedger::default());
    let names: Vec<String> = (0..500).map(|number| format!("pod-{number:03}")).collect();
    let best = |ledger: &mut AddressLedger, name: &str, state: HolderState| {
        ledger.update(&network, ADDRESS, &Arc::new(holder(name)), |_| state.clone());
        let claim = ledger.contest(&network, ADDRESS, &holder("pod-000").pod)?;
        let conflict = claim.conflict()?;
        Some((conflict.holder.name, conflict.left_out.count))
    };
    for name in &names {
        best(&mut ledger, name, HolderState { is_ready: false, ..ready(1) });
    }
    assert_eq!(best(&mut ledger, "pod-321", ready(9)), Some(("pod-321".into(), 499)));
    assert_eq!(best(&mut ledger, "pod-400", ready(0)), Some(("pod-321".into(), 499)), "it is published");
    assert_eq!(
        best(&mut ledger, "pod-321", HolderState { is_terminating: true, ..ready(9) }),
        Some(("pod-400".into(), 498))
    );
    let claim = ledger.contest(&network, ADDRESS, &holder("pod-000").pod).unwrap();
    assert_eq!(
        claim.conflict().unwrap().left_out.names,
        ["vision/pod-000", "vision/pod-001", "vision/pod-002"]
    );
    names.iter().for_each(|name| drop(ledger.release(&network, ADDRESS, &holder(name))));
    assert!(ledger.addresses.is_empty() && ledger.contested.is_empty());
}

#[test]
fn a_new_leader_prefers_published_pods() {
    let settle = |is_first: bool, published: Option<&'static str>| {
        let mut contest = Contest::default();
        for (name, created) in [("c", 2), ("a", 3), ("b", 1)] {
            contest.set(name, ready(created));
        }
        contest
            .ledger
            .adopt_published(is_first, |_, _, found| published.is_some_and(|name| holder(name) == *found));
        contest.holders().join(" ")
    };
    assert_eq!(settle(true, Some("a")), "a");
    assert_eq!(settle(false, Some("a")), "a");
    assert_eq!(settle(true, None), "b", "the oldest: lists have no order");
    assert_eq!(settle(false, None), "c", "it was there first");
}
