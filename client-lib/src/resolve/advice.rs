//! Advice on a name or a port that does not exist. Pure: it needs the name and the search path
//! only.

use super::list::List;

/// Labels of multinet names between a service's namespace and the cluster's domain.
const SERVICES: &str = "svc.multinet";
/// Usual DNS domain of a cluster.
const CLUSTER: &str = "cluster.local";

/// Returns advice on a name that does not exist. `tried` has the full names for which it was looked
/// up.
pub(super) fn of_name(name: &str, tried: &[String]) -> String {
    let labels: Vec<&str> = name.split('.').collect();
    let domains: Vec<&str> =
        tried.iter().filter_map(|full| full.strip_prefix(name)?.strip_prefix('.')).collect();
    let namespace = domains.iter().find_map(|domain| Some(domain.split_once(".svc.")?.0));
    let namespace = namespace.filter(|namespace| !namespace.contains('.'));
    // Without a search path, only the full name leads to the service.
    let end = if domains.is_empty() { format!("{SERVICES}.{CLUSTER}") } else { SERVICES.to_owned() };
    let Some(place) = labels.iter().position(|label| *label == "svc") else {
        // This search path completes short names, so a longer name would not help.
        if domains.iter().any(|domain| domain.contains(SERVICES)) {
            return CHECK.to_owned();
        }
        let (service, namespace) = match labels[..] {
            [service] => (service, namespace.unwrap_or("NAMESPACE")),
            [service, namespace] | [service, namespace, "multinet", ..] => (service, namespace),
            _ => return CHECK.to_owned(),
        };
        return format!(
            "the full name of a service is SERVICE.NAMESPACE.{end}, such as {service}.{namespace}.{end} (that of one of \
             its pods has HOST. before it)"
        );
    };
    let (before, after) = (&labels[..place], &labels[place + 1..]);
    if before.len() < 2 {
        return format!("give the service and its namespace before svc: SERVICE.NAMESPACE.{end}");
    }
    let service = before.join(".");
    match after {
        ["multinet"] if domains.is_empty() => {
            format!("without a search path, as outside of a pod, give the full name, {service}.{end}")
        }
        ["multinet"] if !domains.iter().any(|domain| domain.starts_with("svc.") || domain.contains(".svc.")) => {
            "this search path is no pod's: a pod with hostNetwork: true needs dnsPolicy: ClusterFirstWithHostNet to ask \
             the cluster's DNS; elsewhere give the full name, and the cluster's DNS server"
                .to_owned()
        }
        ["multinet", ..] => match before.last() {
            Some(namespace) => format!("{CHECK}; `kubectl get mnsvc -n {namespace}` lists the services with their ready endpoints"),
            None => CHECK.to_owned(),
        },
        _ => format!("{CHECK}; {}", not_multinet(&service)),
    }
}

const CHECK: &str = "check name and namespace, and that its pods are ready and attached to the network";

/// Returns advice on a port that a name does not have. `ports` has the numbers of its ports.
pub(super) fn of_port(name: &str, port: &str, ports: &[u16]) -> String {
    if let Some((service, zone)) = name.split_once(".svc.")
        && zone == CLUSTER
    {
        return format!("{name} exists, but has no port {port}: {}", not_multinet(service));
    }
    match ports {
        [] => format!("{name} exists, but has no named ports: give a port's number"),
        ports => format!(
            "{name} exists, but has no port {port}, only {}: use a name from the service's spec.ports, or a port's \
             number",
            List(ports)
        ),
    }
}

/// Returns advice on a name in the zone of core Services, or in an unknown one.
fn not_multinet(service: &str) -> String {
    format!("this is no name of multinet's, unless its zone is another one: give {service}.{SERVICES}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: [&str; 3] = ["vision.svc.cluster.local", "svc.cluster.local", "cluster.local"];

    fn tried(name: &str, domains: &[&str]) -> Vec<String> {
        domains.iter().map(|domain| format!("{name}.{domain}")).chain([name.to_owned()]).collect()
    }

    #[test]
    fn a_name_that_does_not_exist_gets_the_advice_that_fits_it() {
        let node = ["corp.example.com"];
        let core = "unless its zone is another one: give infer.vision.svc.multinet";
        let ours = ["vision.svc.multinet.cluster.local"];
        let cases: [(&str, &[&str], &str); 15] = [
            ("infer", &POD, "SERVICE.NAMESPACE.svc.multinet, such as infer.vision.svc.multinet"),
            ("infer", &ours, CHECK),
            ("infer", &node, "such as infer.NAMESPACE.svc.multinet"),
            ("infer", &[], "such as infer.NAMESPACE.svc.multinet.cluster.local"),
            ("infer.vision", &POD, "such as infer.vision.svc.multinet"),
            ("infer.vision", &[], "such as infer.vision.svc.multinet.cluster.local"),
            ("infer.vision.multinet", &POD, "such as infer.vision.svc.multinet"),
            ("svc.multinet", &POD, "give the service and its namespace before svc"),
            ("infer.vision.svc", &POD, core),
            ("infer.vision.svc.cluster.local", &POD, core),
            ("infer.vision.svc.multinet", &[], "give the full name, infer.vision.svc.multinet.cluster.local"),
            ("infer.vision.svc.multinet", &node, "dnsPolicy: ClusterFirstWithHostNet"),
            ("infer.vision.svc.multinet", &POD, "`kubectl get mnsvc -n vision`"),
            ("infer.vision.svc.multinet.cluster.local", &node, "`kubectl get mnsvc -n vision`"),
            ("a.b.c.example.com", &POD, CHECK),
        ];
        for (name, domains, advice) in cases {
            let given = of_name(name, &tried(name, domains));
            assert!(given.contains(advice), "{name} {domains:?}: {given}");
        }
    }

    #[test]
    fn a_missing_port_is_reported_with_the_existing_ones() {
        let name = "infer.vision.svc.multinet.cluster.local";
        let cases: [(&str, &str, &[u16], &str); 4] = [
            (name, "grpc", &[9000, 18515], "exists, but has no port grpc, only 9000, 18515: use a name from"),
            (name, "*", &[], "exists, but has no named ports: give a port's number"),
            (
                "h0.infer.vision.svc.multinet.cluster.local",
                "rdma",
                &[],
                "has no named ports: give a port's number",
            ),
            (
                "infer.vision.svc.cluster.local",
                "rdma",
                &[],
                "no port rdma: this is no name of multinet's, unless its zone is another one: give \
                 infer.vision.svc.multinet",
            ),
        ];
        for (name, port, ports, needle) in cases {
            let said = of_port(name, port, ports);
            assert!(said.starts_with(name) && said.contains(needle), "{said}");
        }
    }
}
