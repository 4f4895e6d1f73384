//! Findings about DNS servers that answer wrongly, or not at all.

use super::*;

fn with(change: impl FnOnce(&mut Dns)) -> Facts {
    let mut dns = asked(vec![ZoneAnswer::NoZone]);
    change(&mut dns);
    Facts { dns: Ok(dns), ..good() }
}

#[test]
fn the_servers_of_a_node_are_told_from_those_of_the_cluster() {
    let fix = |search: &[&str]| {
        let found = bad(&with(|dns| dns.search = search.iter().map(|&domain| domain.to_owned()).collect()));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, "problem dns 10.96.0.10:53 answers in 0.42 ms, but knows no svc.multinet");
        found[0].1.clone()
    };
    for pod in ["vision.svc.cluster.local", "svc.k8s.example"] {
        let forward = "have the cluster's DNS forward the zone multinet.cluster.local";
        assert!(fix(&[pod, "corp.example.com"]).starts_with(forward));
    }
    for node in [&[][..], &["corp.example.com"]] {
        assert!(fix(node).contains("hostNetwork: true needs dnsPolicy: ClusterFirstWithHostNet"));
    }
}

#[test]
fn a_server_without_tcp_is_found_before_an_answer_needs_it() {
    let found = bad(&with(|dns| {
        dns.servers[0].says = zone();
        dns.servers[0].no_tcp = Some("nothing comes back".to_owned());
    }));
    assert_eq!(found.len(), 1, "{found:?}");
    let (message, fix) = &found[0];
    let start =
        "warning dns 10.96.0.10:53 answers over UDP, but TCP does not get through (nothing comes back)";
    assert!(
        message.starts_with(start) && fix.starts_with("let TCP port 53 of the DNS server pass"),
        "{found:?}"
    );
}

#[test]
fn a_dns_failure_is_reported_once() {
    let mut facts = named(Err(timeout()), Some("rdma"));
    facts.dns = Ok(asked(vec![ZoneAnswer::Silent(timeout())]));
    facts.service.as_mut().unwrap().wanted = Some(Err(timeout()));
    let found: Vec<String> = bad(&facts).into_iter().map(|(message, _)| message).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[1], "problem service infer.vision.svc.multinet cannot be looked up");
}

#[test]
fn each_answer_of_a_server_has_its_finding_and_fix() {
    let with_dns = |says: Vec<ZoneAnswer>| Facts { dns: Ok(asked(says)), ..good() };
    let refused = || ResolveError::Refused { name: "svc.multinet".to_owned(), server: server() };
    check([
        (
            Facts { dns: Err(ResolveError::NoServers { path: "/etc/resolv.conf".into() }), ..good() },
            "problem dns /etc/resolv.conf names no DNS server",
            "look at /etc/resolv.conf",
        ),
        (
            with_dns(vec![ZoneAnswer::NoZone]),
            "problem dns 10.96.0.10:53 answers in 0.42 ms, but knows no svc.multinet",
            "have the cluster's DNS forward the zone",
        ),
        (
            with_dns(vec![zone(), ZoneAnswer::NoZone]),
            "warning dns 10.96.0.10:53 answers",
            "have the cluster's DNS",
        ),
        (
            with_dns(vec![ZoneAnswer::Fails(refused())]),
            "problem dns 10.96.0.10:53 refuses",
            "see the log of 10.96.0.10:53",
        ),
        (
            with_dns(vec![ZoneAnswer::Silent(timeout())]),
            "problem dns no answer for svc.multinet",
            "see whether the server runs",
        ),
        (
            with_dns(vec![ZoneAnswer::Silent(timeout()), zone()]),
            "warning dns no answer",
            "see whether the server runs",
        ),
        (
            with_dns(vec![ZoneAnswer::FullNameOnly("svc.multinet.cluster.local".to_owned())]),
            "note dns 10.96.0.10:53 answers in 0.42 ms, and knows the zone multinet.cluster.local, to which the search",
            "end names with multinet.cluster.local",
        ),
    ]);
}
