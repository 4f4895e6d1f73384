//! Tests of findings about the records of a service.

use super::*;

/// Endpoints come from a resolver only, which knows those of an address without asking.
async fn resolved(change: impl FnOnce(&mut Endpoint)) -> Resolved {
    let resolver = Resolver::builder().servers([server()]).build().unwrap();
    let mut resolved = resolver.resolve("192.168.111.5", "18515").await.unwrap();
    let endpoint = &mut resolved.endpoints[0];
    endpoint.host = "infer-0".to_owned();
    endpoint.node = Some("gpu-1".to_owned());
    endpoint.zone = Some("a".to_owned());
    let address = &mut endpoint.addresses[0];
    address.network = Some("rail0".to_owned());
    address.rdma_devices = vec!["mlx5_2".to_owned()];
    change(endpoint);
    resolved.name = "infer.vision.svc.multinet.cluster.local".to_owned();
    resolved.ttl = Duration::from_secs(5);
    resolved
}

#[tokio::test]
async fn each_fact_that_records_lack_has_its_finding() {
    let whole = named(Ok(resolved(|_| ()).await), None);
    assert_eq!(
        bad(&whole).iter().map(|(message, _)| message.as_str()).collect::<Vec<_>>(),
        [
            "warning endpoint infer-0:18515: its pod's uid is not known: a pod that takes over the address looks the same"
        ]
    );
    let facts = named(
        Ok(resolved(|endpoint| {
            endpoint.addresses = vec![EndpointAddress::new("192.168.111.5".parse().unwrap())];
            endpoint.node = None;
        })
        .await),
        None,
    );
    assert_eq!(
        bad(&facts).iter().map(|(message, _)| message.as_str()).collect::<Vec<_>>(),
        [
            "warning endpoint infer-0:18515: no TXT record names the network of 192.168.111.5: clients cannot choose by \
             network, and do not know the RDMA device"
        ]
    );
    let facts = named(Ok(resolved(|endpoint| endpoint.addresses[0].rdma_devices.clear()).await), None);
    let said = |facts: &Facts, what: &str, fix: &str| {
        let found = bad(facts);
        let is_it = |(message, how): &(String, String)| message == what && how.starts_with(fix);
        assert!(found.iter().any(is_it), "{found:?}\nhas no\n{what}");
    };
    let no_device = "note endpoint infer-0:18515: 192.168.111.5 has no RDMA device: TCP only";
    said(&facts, no_device, "if it is to have one, attach its pod to a network on an RDMA device");
    let facts = named(Ok(resolved(|endpoint| endpoint.zone = None).await), None);
    let no_zone =
        "note endpoint infer-0:18515: its zone is not known: from other nodes it is no nearer than any";
    said(&facts, no_zone, "if there are zones, give its node the label topology.kubernetes.io/zone");
    // Where not even the node is known, that is enough.
    let facts = named(Ok(resolved(|endpoint| (endpoint.node, endpoint.zone) = (None, None)).await), None);
    assert!(!bad(&facts).iter().any(|(message, _)| message.contains("its zone is not known")));
}

#[tokio::test]
async fn a_name_or_port_that_does_not_exist_is_reported() {
    let name = || "infer.vision.svc.multinet.cluster.local".to_owned();
    let nowhere = || ResolveError::NoSuchName {
        name: name(),
        tried: vec![name()],
        unanswered: Vec::new(),
        wildcard: None,
    };
    let mut facts = named(Err(nowhere()), Some("rdma"));
    facts.service.as_mut().unwrap().wanted = Some(Err(nowhere()));
    let found = bad(&facts);
    assert_eq!(found.len(), 1, "said once: {found:?}");
    assert!(found[0].1.contains("`kubectl get mnsvc -n vision`"), "{found:?}");

    let no_port =
        |port: &str| ResolveError::NoSuchPort { name: name(), port: port.to_owned(), ports: vec![18515] };
    let found = bad(&named(Err(no_port("*")), None));
    assert_eq!(
        found[0].0,
        "warning service infer.vision.svc.multinet.cluster.local has no SRV records: clients have to know the port's number"
    );

    let mut facts = named(Ok(resolved(|_| ()).await), Some("metrics"));
    facts.service.as_mut().unwrap().wanted = Some(Err(no_port("metrics")));
    assert!(
        bad(&facts)
            .iter()
            .any(|(message, fix)| message.contains("has no port metrics") && fix.contains("spec.ports"))
    );

    let mut facts = named(Ok(resolved(|_| ()).await), Some("9"));
    facts.service.as_mut().unwrap().wanted = Some(Ok(resolved(|_| ()).await));
    assert!(
        bad(&facts).iter().any(|(message, _)| message.ends_with("has no port 9, only 18515")),
        "{:?}",
        bad(&facts)
    );

    let mut facts = named(Ok(resolved(|_| ()).await), None);
    facts.service.as_mut().unwrap().network = Some("rail7".to_owned());
    assert!(
        bad(&facts)
            .iter()
            .any(|(message, _)| message.ends_with("has no address on network rail7, only on rail0"))
    );
}
