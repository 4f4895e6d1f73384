use multinet_crds::NetworkKind;

use super::*;

fn network() -> Network {
    Network {
        kind: NetworkKind::NetworkAttachmentDefinition,
        namespace: Some("vision".into()),
        name: "rdma-a".into(),
    }
}

/// A pod, by `name` in namespace `vision` or by `namespace/name`.
fn holder(name: &str) -> Holder {
    let (namespace, name) = name.split_once('/').unwrap_or(("vision", name));
    let pod = ObjectKey { namespace: namespace.into(), name: name.into() };
    Holder { pod, uid: format!("uid-{name}") }
}

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 111, 5));

/// A pod that is selected, ready and of the given age.
fn ready(created: i64) -> Standing<'static> {
    let created = Timestamp::from_second(created).ok();
    Standing { is_selected: true, is_ready: true, created, is_at_home: true, ..Standing::default() }
}

/// Pods with the same address, and what they are to it.
#[derive(Default)]
struct Contest {
    ledger: Ledger,
    pods: Vec<(&'static str, Standing<'static>)>,
}

impl Contest {
    /// A pod comes or changes. Returns whether that is news.
    fn set(&mut self, name: &'static str, standing: Standing<'static>) -> bool {
        self.pods.retain(|(known, _)| *known != name);
        self.pods.push((name, standing));
        self.ledger.claim(&network(), ADDRESS, &holder(name));
        self.decide()
    }

    fn remove(&mut self, name: &str) -> bool {
        self.pods.retain(|(known, _)| *known != name);
        self.ledger.release(&network(), ADDRESS, &holder(name));
        self.decide()
    }

    fn decide(&mut self) -> bool {
        let pods = self.pods.clone();
        self.ledger.decide(&network(), ADDRESS, |found| {
            pods.iter().find(|(name, _)| holder(name) == *found).map(|(_, standing)| *standing).unwrap()
        })
    }

    fn role(&self, name: &str) -> Role {
        self.ledger.contest(&network(), ADDRESS, &holder(name).pod).map_or(Role::Holds, |(own, _)| own.role)
    }

    /// The pods that hold the address, each in its namespace.
    fn holders(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.pods.iter().map(|(name, _)| *name).collect();
        names.retain(|name| self.role(name) == Role::Holds);
        names.sort_unstable();
        names
    }
}

const LEFT_OUT: Role = Role::LeftOut { shares_claim: false };

#[test]
fn of_two_pods_the_better_one_holds_the_address_whatever_came_first() {
    let base = ready(5);
    let cases = [
        ("selected", base, Standing { is_selected: false, created: None, ..base }),
        ("ready", base, Standing { is_ready: false, created: None, ..base }),
        (
            "staying",
            Standing { is_ready: false, ..base },
            Standing { is_ready: false, is_terminating: true, created: None, ..base },
        ),
        (
            "a ready pod that none selects",
            Standing { is_ready: false, ..base },
            Standing { is_selected: false, created: None, ..base },
        ),
    ];
    for (what, better, worse) in cases {
        for order in [["better", "worse"], ["worse", "better"]] {
            let mut contest = Contest::default();
            for name in order {
                contest.set(name, if name == "better" { better } else { worse });
            }
            assert_eq!(contest.holders(), ["better"], "{what}, {order:?}");
        }
    }
}

#[test]
fn the_published_pod_stays_so_and_without_one_the_older_comes_first() {
    let mut contest = Contest::default();
    assert!(!contest.set("b", ready(2)), "alone");
    assert!(contest.set("a", ready(1)));
    assert_eq!(contest.holders(), ["b"], "it was there first");
    assert!(!contest.set("a", ready(1)), "nothing has changed");
    contest.set("b", Standing { is_ready: false, ..ready(2) });
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
fn a_pod_that_is_deleted_hands_over_and_is_no_conflict() {
    let mut contest = Contest::default();
    let leaving = Standing { is_ready: false, is_terminating: true, ..ready(1) };
    contest.set("old", leaving);
    assert_eq!(contest.holders(), ["old"], "no other pod has it");
    assert!(contest.set("new", ready(2)));
    assert_eq!((contest.holders(), contest.role("old")), (vec!["new"], Role::HandsOver));
    assert_eq!(contest.ledger.conflicts(), 0);
    contest.set("third", ready(3));
    assert_eq!((contest.role("third"), contest.ledger.conflicts()), (LEFT_OUT, 1));
}

#[test]
fn the_pods_of_a_virtual_machine_hand_over_to_the_one_at_home() {
    let source = Standing { machine: Some("vm"), ..ready(1) };
    let target = Standing { machine: Some("vm"), is_at_home: false, ..ready(2) };
    let mut contest = Contest::default();
    contest.set("source", source);
    contest.set("target", Standing { is_ready: false, ..target });
    assert_eq!((contest.holders(), contest.role("target")), (vec!["source"], Role::HandsOver));
    contest.set("target", target);
    assert_eq!(contest.holders(), ["source"], "both are ready, and the machine is there");
    contest.set("source", Standing { is_at_home: false, ..source });
    contest.set("target", Standing { is_at_home: true, ..target });
    assert_eq!((contest.holders(), contest.role("source")), (vec!["target"], Role::HandsOver));
    assert_eq!(contest.ledger.conflicts(), 0);

    contest.set("other", Standing { machine: Some("another"), ..ready(3) });
    assert_eq!((contest.holders(), contest.role("other")), (vec!["target"], LEFT_OUT));
}

#[test]
fn namespaces_withhold_nothing_from_each_other() {
    let mut contest = Contest::default();
    contest.set("a/one", ready(1));
    assert!(contest.set("b/one", Standing { is_selected: false, ..ready(0) }));
    contest.set("b/two", ready(3));
    assert_eq!(contest.holders(), ["a/one", "b/two"]);
    let elsewhere = |contest: &Contest, name: &str| {
        let (own, _) = contest.ledger.contest(&network(), ADDRESS, &holder(name).pod).unwrap();
        own.is_elsewhere
    };
    assert!(elsewhere(&contest, "a/one") && elsewhere(&contest, "b/two"));
    contest.remove("b/one");
    contest.set("b/two", Standing { is_terminating: true, is_ready: false, ..ready(3) });
    assert!(!elsewhere(&contest, "a/one"), "it is leaving");
    assert!(elsewhere(&contest, "b/two"));
}

#[test]
fn pods_that_share_a_claim_are_told_apart_from_pods_that_share_an_address() {
    let with = |claim| Standing { claim: Some(claim), ..ready(1) };
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
    let (network, mut ledger) = (network(), Ledger::default());
    let again = Holder { uid: "another".into(), ..holder("a") };
    ledger.claim(&network, ADDRESS, &holder("a"));
    ledger.claim(&network, ADDRESS, &again);
    ledger.release(&network, ADDRESS, &holder("a"));
    assert!(ledger.decide(&network, ADDRESS, |_| ready(1)));
    assert_eq!(ledger.pods(&network, ADDRESS).collect::<Vec<_>>(), [&again.pod]);
}

#[test]
fn networks_are_apart() {
    let mut ledger = Ledger::default();
    ledger.claim(&network(), ADDRESS, &holder("a"));
    ledger.claim(&Network { name: "rdma-b".into(), ..network() }, ADDRESS, &holder("b"));
    assert!(!ledger.is_contested());
}

#[test]
fn a_new_leader_goes_by_what_is_published() {
    let settle = |is_first: bool, published: Option<&'static str>| {
        let mut contest = Contest::default();
        for (name, created) in [("c", 2), ("a", 3), ("b", 1)] {
            contest.set(name, ready(created));
        }
        let pods = contest.pods.clone();
        contest.ledger.settle(
            is_first,
            |_, _, found| published.is_some_and(|name| holder(name) == *found),
            |_, _, found| pods.iter().find(|(name, _)| holder(name) == *found).unwrap().1,
        );
        contest.holders().join(" ")
    };
    assert_eq!(settle(true, Some("a")), "a");
    assert_eq!(settle(false, Some("a")), "a");
    assert_eq!(settle(true, None), "b", "the oldest: lists have no order");
    assert_eq!(settle(false, None), "c", "it was there first");
}
