//! Derives findings from facts. Pure.

mod gpu;
mod machine;
#[cfg(feature = "devices")]
mod memory;
mod peer;
mod rdma;

use std::collections::BTreeSet;

use super::facts::{Dns, DnsServer, Facts, Service, ZoneAnswer};
use super::report::Level::{Note, Problem, Warning};
use super::report::{DNS, ENDPOINT, Finding, SERVICE};
use multinet_client::{Endpoint, ResolveError};

/// Returns all findings, in an order in which each thing needs those before it.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    // An address needs no DNS.
    let resolves =
        facts.service.as_ref().is_some_and(|service| matches!(service.records, Some(Ok(_)) | None));
    match &facts.dns {
        Ok(found) => dns(found, resolves, &mut findings),
        Err(error) => findings.push(DNS.problem(
            error.to_string(),
            "look at /etc/resolv.conf and the pod's dnsPolicy, or name a server with --server",
        )),
    }
    machine::network(&facts.machine, &mut findings);
    if let Some(of) = &facts.service {
        let dns_fails = facts.dns.as_ref().is_ok_and(|dns| {
            dns.servers
                .iter()
                .all(|server| matches!(server.says, ZoneAnswer::Fails(_) | ZoneAnswer::Silent(_)))
        });
        service(of, dns_fails, &mut findings);
        for peer in &of.peers {
            peer::peer(peer, facts.allows_default_network, &mut findings);
        }
    }
    rdma::rdma(&facts.machine, &mut findings);
    gpu::gpu(&facts.machine, &mut findings);
    #[cfg(feature = "devices")]
    memory::memory(&facts.machine, &mut findings);
    findings
}

fn dns(dns: &Dns, resolves: bool, findings: &mut Vec<Finding>) {
    let search = if dns.search.is_empty() { "none".to_owned() } else { dns.search.join(" ") };
    findings.push(DNS.good(format!("search path: {search}; ndots: {}", dns.ndots)));
    let all_silent = dns.servers.iter().all(|server| matches!(server.says, ZoneAnswer::Silent(_)));
    for (place, server) in dns.servers.iter().enumerate() {
        findings.push(server_finding(dns, server, place == 0, all_silent, resolves));
        if let Some(reason) = &server.no_tcp {
            let message = format!(
                "{} answers over UDP, but TCP does not get through ({reason}): the answers for services with many \
                 endpoints need it",
                server.address
            );
            findings.push(DNS.warning(
                message,
                "let TCP port 53 of the DNS server pass, as UDP does (NetworkPolicies, firewalls)",
            ));
        }
    }
}

/// Returns whether a search path is that of a pod: it has a domain such as
/// `vision.svc.cluster.local`.
fn is_pods(search: &[String]) -> bool {
    search.iter().any(|domain| domain.starts_with("svc.") || domain.contains(".svc."))
}

/// Judges an answer about the zone. Resolvers ask the other servers only if the first one fails.
fn server_finding(
    dns: &Dns,
    server: &DnsServer,
    is_first: bool,
    all_silent: bool,
    resolves: bool,
) -> Finding {
    let DnsServer { address, says, took, .. } = server;
    let time = milliseconds(*took);
    match says {
        ZoneAnswer::Zone(zone) => {
            let zone = zone.strip_prefix("svc.").unwrap_or(zone);
            DNS.good(format!("{address} answers in {time}, and knows the zone {zone}"))
        }
        ZoneAnswer::FullNameOnly(zone) => {
            let zone = zone.strip_prefix("svc.").unwrap_or(zone);
            DNS.finding(
                Note,
                format!("{address} answers in {time}, and knows the zone {zone}, to which the search path does not lead"),
                format!("end names with {zone}, or put its parent into the search path (dnsConfig.searches of the pod)"),
            )
        }
        ZoneAnswer::NoZone => {
            let level = match (resolves, is_first) {
                (true, _) => Note,
                (false, true) => Problem,
                (false, false) => Warning,
            };
            let message = format!("{address} answers in {time}, but knows no {}", dns.probe);
            let host_network = if is_pods(&dns.search) {
                ""
            } else {
                "ask the cluster's DNS: a pod with hostNetwork: true needs dnsPolicy: ClusterFirstWithHostNet for that, \
                 anything else --server; and "
            };
            DNS.finding(
                level,
                message,
                format!(
                    "{host_network}have the cluster's DNS forward the zone multinet.cluster.local to multinet-dns (docs/install.md); if your \
                     zone is another one, give the full name of a service"
                ),
            )
        }
        ZoneAnswer::Fails(error) => {
            let level = if is_first { Problem } else { Warning };
            DNS.finding(
                level,
                error.to_string(),
                format!("see the log of {address}; if it forwards to multinet-dns, see that one's /readyz"),
            )
        }
        ZoneAnswer::Silent(error) => {
            let level = if all_silent { Problem } else { Warning };
            DNS.finding(
                level,
                error.to_string(),
                "see whether the server runs, and whether a NetworkPolicy lets this pod reach it (UDP and TCP port 53)",
            )
        }
    }
}

fn service(service: &Service, dns_fails: bool, findings: &mut Vec<Finding>) {
    let Service { name, port, records, wanted, network, peers } = service;
    match records {
        None => {}
        // Other findings have the reason.
        Some(Err(error)) if dns_fails && !error.is_negative() => findings
            .push(SERVICE.problem(format!("{name} cannot be looked up"), "see the lines about dns above")),
        Some(Err(ResolveError::NoSuchPort { name, .. })) => findings.push(SERVICE.warning(
            format!("{name} has no SRV records: clients have to know the port's number"),
            "give the service a named port (spec.ports)",
        )),
        Some(Err(error)) => findings.push(unresolved(error)),
        Some(Ok(resolved)) => {
            findings.push(SERVICE.good(format!(
                "{} has {} (time to live {} s)",
                resolved.name,
                count(resolved.endpoints.len(), "endpoint"),
                resolved.ttl.as_secs()
            )));
            for endpoint in &resolved.endpoints {
                endpoint_findings(endpoint, findings);
            }
        }
    }
    if let (Some(port), Some(wanted)) = (port, wanted) {
        // A name that does not exist at all is reported once.
        let is_said = matches!((records, wanted), (Some(Err(a)), Err(b)) if same_kind(a, b));
        match wanted {
            Err(error) if !is_said => findings.push(unresolved(error)),
            _ if port.bytes().all(|b| b.is_ascii_digit()) => {
                let ports = records
                    .iter()
                    .flatten()
                    .flat_map(|resolved| &resolved.endpoints)
                    .map(|endpoint| endpoint.port);
                let ports: BTreeSet<String> = ports.map(|port| port.to_string()).collect();
                if !ports.is_empty() && !ports.contains(port) {
                    let ports: Vec<String> = ports.into_iter().collect();
                    findings.push(SERVICE.warning(
                        format!("{name} has no port {port}, only {}", ports.join(", ")),
                        "ask for a port that the service has, or add it to spec.ports",
                    ));
                }
            }
            _ => {}
        }
    }
    let resolves = [records, wanted].into_iter().flatten().any(Result::is_ok);
    if let (Some(network), true, true) = (network, peers.is_empty(), resolves) {
        let addresses = records.iter().flatten().flat_map(|resolved| &resolved.endpoints);
        let addresses = addresses.flat_map(|endpoint| &endpoint.addresses);
        let known: BTreeSet<&str> = addresses.filter_map(|address| address.network.as_deref()).collect();
        let known = Vec::from_iter(known).join(", ");
        let only = if known.is_empty() { String::new() } else { format!(", only on {known}") };
        findings.push(SERVICE.problem(
            format!("{name} has no address on network {network}{only}"),
            "leave out --network, or give an alias that spec.networks of the service has",
        ));
    }
}

fn same_kind(a: &ResolveError, b: &ResolveError) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

/// Returns the finding for a failed lookup. Some of the library's messages end with the fix, behind
/// a colon.
fn unresolved(error: &ResolveError) -> Finding {
    let text = error.to_string();
    if matches!(error, ResolveError::NoSuchName { .. } | ResolveError::NoTcp { .. })
        && let Some((what, fix)) = text.split_once("): ")
    {
        return SERVICE.problem(format!("{what})"), fix);
    }
    let fix = match error {
        ResolveError::NoSuchPort { .. } => {
            "`kubectl get mnsvc NAME -o yaml` shows the names of ports in spec.ports"
        }
        ResolveError::NoSuchNetwork { .. } => "give an alias that spec.networks of the service has",
        ResolveError::NoAddress { .. } => "`kubectl get mneps` shows the addresses of the service",
        ResolveError::Refused { .. } => "have this server forward the zone to multinet-dns (docs/install.md)",
        _ => "see the lines about dns above",
    };
    SERVICE.problem(text, fix)
}

/// Adds a finding for each fact that DNS does not tell of an endpoint.
fn endpoint_findings(endpoint: &Endpoint, findings: &mut Vec<Finding>) {
    let before = findings.len();
    let addresses = endpoint.addresses.iter();
    let unknown: Vec<String> =
        addresses.filter(|address| address.network.is_none()).map(|address| address.ip.to_string()).collect();
    if !unknown.is_empty() {
        findings.push(ENDPOINT.warning(
            format!(
                "{endpoint}: no TXT record names the network of {}: clients cannot choose by network, and do not know the RDMA device",
                unknown.join(", ")
            ),
            "ask multinet-dns, or a server that forwards to it; give the slice's network an alias",
        ));
    }
    // Without any TXT record, all of the following is missing, and the finding above says so.
    if unknown.len() < endpoint.addresses.len() {
        if endpoint.uid().is_none() {
            findings.push(ENDPOINT.warning(
                format!(
                    "{endpoint}: its pod's uid is not known: a pod that takes over the address looks the same"
                ),
                "the program that writes the slice has to fill in targetRef.uid; multinet-controller does",
            ));
        }
        if endpoint.node.is_none() {
            findings.push(ENDPOINT.finding(
                Note,
                format!("{endpoint}: its node is not known: the endpoint never counts as the nearest"),
                "the program that writes the slice has to fill in nodeName; multinet-controller does",
            ));
        } else if endpoint.zone.is_none() {
            findings.push(ENDPOINT.finding(
                Note,
                format!("{endpoint}: its zone is not known: from other nodes it is no nearer than any"),
                "if there are zones, give its node the label topology.kubernetes.io/zone; the program that writes the slice has to fill it \
                 in, as multinet-controller does",
            ));
        }
    }
    for address in &endpoint.addresses {
        if address.network.is_some() && address.rdma_devices.is_empty() {
            findings.push(ENDPOINT.finding(
                Note,
                format!("{endpoint}: {} has no RDMA device: TCP only", address.ip),
                "if it is to have one, attach its pod to a network on an RDMA device, whose plugin reports it (device-info, or the claim's \
                 status)",
            ));
        }
    }
    if findings[before..].iter().all(|finding| finding.level < Warning) {
        findings.insert(before, ENDPOINT.good(summary(endpoint)));
    }
}

fn summary(endpoint: &Endpoint) -> String {
    let addresses: Vec<String> = endpoint
        .addresses
        .iter()
        .map(|address| {
            let facts = address.network.iter().cloned().chain([address.rdma_devices.join(",")]);
            let facts: Vec<String> = facts.filter(|fact| !fact.is_empty()).collect();
            format!("{} ({})", address.ip, facts.join(" "))
        })
        .collect();
    let place = match (&endpoint.node, &endpoint.zone) {
        (Some(node), Some(zone)) => format!(", node {node} in zone {zone}"),
        (Some(node), None) => format!(", node {node}"),
        _ => String::new(),
    };
    format!("{endpoint}: {}{place}", addresses.join(", "))
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Formats a time in milliseconds, with three digits.
fn milliseconds(time: std::time::Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1e3;
    match milliseconds {
        0.0..10.0 => format!("{milliseconds:.2} ms"),
        10.0..100.0 => format!("{milliseconds:.1} ms"),
        _ => format!("{milliseconds:.0} ms"),
    }
}

#[cfg(test)]
mod tests;
