//! The hosts of a service, in an order that is the same on every pod.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::ValueEnum;
use futures::StreamExt as _;
use multinet_client::nic::local_interfaces;
use multinet_client::{Change, Endpoint, PodRef, ResolveError, Resolver, by_number};
use multinet_stderr::TerminalSafe;
use tokio::time::{Instant, sleep, sleep_until};

use crate::common::wait_with_note;

/// The library's notation for all named ports, whose records name the hosts of a service.
const ALL_PORTS: &str = "*";

/// How long commands wait for the hosts of `--count`, unless `--wait` says otherwise.
pub(crate) const WAIT: Duration = Duration::from_secs(300);

/// Interval at which DNS is asked while it names no host. Until then, the answer is one record.
const POLL: Duration = Duration::from_secs(1);

/// Most hosts that a message names.
const MAX_NAMED: usize = 16;

/// Notation of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AddressKind {
    /// Full name in DNS
    Name,
    /// IP address
    Ip,
}

/// Returns the pods of a service that DNS knows now, in the order of their hosts. With the name of
/// a port, they have that port, and otherwise any of theirs.
///
/// # Errors
///
/// If there are none, or DNS fails.
pub(crate) async fn pods(
    resolver: &Resolver,
    service: &str,
    port: Option<&str>,
) -> anyhow::Result<Vec<Endpoint>> {
    let resolved = match port {
        Some(port) => resolver.resolve(service, port).await?,
        None => resolver.resolve(service, ALL_PORTS).await.map_err(explain)?,
    };
    Ok(in_order(resolved.endpoints))
}

/// Waits until nothing is missing of a service's hosts, and returns their pods in their order.
/// `missing` returns what is missing of those that DNS knows; `note` says it before any are known.
///
/// # Errors
///
/// At the end of the wait, with what is missing; or an error that waiting does not cure.
pub(crate) async fn wait_for(
    resolver: &Resolver,
    service: &str,
    (wait, note): (Duration, &str),
    missing: impl Fn(&[Endpoint]) -> Option<String>,
) -> anyhow::Result<Vec<Endpoint>> {
    let coming = follow(resolver, service, wait, missing);
    wait_with_note(note, wait, coming).await
}

async fn follow(
    resolver: &Resolver,
    service: &str,
    wait: Duration,
    missing: impl Fn(&[Endpoint]) -> Option<String>,
) -> anyhow::Result<Vec<Endpoint>> {
    let deadline = Instant::now() + wait;
    let mut changes = resolver.watch(service, ALL_PORTS);
    let (mut lacks, mut failure) = (silent(service), None);
    // Without a wait, the first answer counts.
    let mut is_bounded = !wait.is_zero();
    loop {
        let change = tokio::select! {
            biased;
            change = changes.next() => change,
            () = sleep_until(deadline), if is_bounded => None,
            () = sleep(POLL), if failure.is_some() => {
                changes.ask_soon();
                continue;
            }
        };
        is_bounded = true;
        match change {
            Some(Change::Endpoints(now)) => {
                let hosts = in_order(now.endpoints);
                match missing(&hosts) {
                    Some(still) => (lacks, failure) = (still, None),
                    None => return Ok(hosts),
                }
            }
            Some(Change::Held { error, .. } | Change::Lost { error }) if is_lasting(&error) => {
                return Err(explain(error));
            }
            Some(Change::Lost { error }) => {
                if error.is_negative() {
                    lacks = missing(&[]).unwrap_or_default();
                }
                failure = Some(error);
            }
            Some(Change::Held { error, .. }) => failure = Some(error),
            Some(_) => failure = None,
            None => {
                let failure = failure.map(|error| format!("; {error}")).unwrap_or_default();
                bail!("{lacks} (waited {} s){failure}", wait.as_secs());
            }
        }
    }
}

/// Returns that DNS has said nothing about a service.
pub(crate) fn silent(service: &str) -> String {
    format!(
        "DNS has not answered about {service}: is it up, and reachable from here (network policies, firewalls)?"
    )
}

/// Returns that a service has too few hosts, or too many, with their names.
pub(crate) fn not_so_many(service: &str, hosts: &[Endpoint], count: usize) -> String {
    let names = if hosts.is_empty() { String::new() } else { format!(", {},", names(hosts)) };
    format!(
        "{service} has {} hosts{names} and not {count}: DNS has those that are ready, or all with publishNotReadyAddresses",
        hosts.len()
    )
}

fn is_lasting(error: &ResolveError) -> bool {
    error.is_permanent() || matches!(error, ResolveError::NoSuchPort { .. })
}

/// Returns the library's error, unless it is about the port `*`, which the command line does not
/// have.
pub(crate) fn explain(error: ResolveError) -> anyhow::Error {
    match error {
        ResolveError::NoSuchPort { name, .. } => anyhow!(
            "{name} has no named port, and only the records of ports name hosts in DNS: add a port to the service's \
             spec.ports"
        ),
        other => other.into(),
    }
}

/// Returns how a host is written. Of several addresses, it is the first.
pub(crate) fn written(host: &Endpoint, kind: AddressKind) -> String {
    match host.addresses.first().filter(|_| kind == AddressKind::Ip) {
        Some(address) => address.ip.to_string(),
        None => host.target.clone(),
    }
}

/// Returns the names of hosts for a message.
pub(crate) fn names(hosts: &[Endpoint]) -> String {
    let shown: Vec<&str> = hosts.iter().take(MAX_NAMED).map(|endpoint| endpoint.host.as_str()).collect();
    let more = hosts.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    TerminalSafe(&(shown.join(", ") + &more)).to_string()
}

/// Returns the hosts with different names. An old pod that ends and the one that replaces it have
/// one name: of such, it is the one with an address of this pod, or the first.
pub(crate) fn by_name(pods: &[Endpoint], own: &BTreeSet<IpAddr>) -> Vec<Endpoint> {
    let mut hosts: Vec<Endpoint> = Vec::new();
    for pod in pods {
        match hosts.last_mut().filter(|last| last.target == pod.target) {
            None => hosts.push(pod.clone()),
            Some(last) if is_own(pod, own) => last.clone_from(pod),
            Some(_) => {}
        }
    }
    hosts
}

/// Returns this pod's place among the hosts; `None` if it is none of them.
pub(crate) fn own_place(hosts: &[Endpoint], own: &BTreeSet<IpAddr>) -> Option<usize> {
    hosts.iter().position(|host| is_own(host, own))
}

fn is_own(host: &Endpoint, own: &BTreeSet<IpAddr>) -> bool {
    host.addresses.iter().any(|address| own.contains(&address.ip))
}

/// Returns the addresses of this pod, by which it finds itself among the hosts.
///
/// # Errors
///
/// The kernel's.
pub(crate) fn own_addresses() -> anyhow::Result<BTreeSet<IpAddr>> {
    let interfaces = local_interfaces().context("cannot read this pod's interfaces")?;
    let addresses = interfaces.iter().flat_map(|interface| &interface.addresses).map(|address| address.ip);
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    Ok(addresses.filter(|ip| !ip.is_loopback() && !is_link_local(ip)).collect())
}

/// Returns the pods, each once, in the order of their hosts' names: numbers in names compare as
/// numbers.
///
/// A pod is an endpoint once for each of its ports. One without a host name has a name for each of
/// its addresses; it is once there, too, with the first name.
fn in_order(mut endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    endpoints.sort();
    endpoints.sort_by_cached_key(|endpoint| by_number(&endpoint.host));
    let mut hosts: Vec<Endpoint> = Vec::new();
    let mut places: HashMap<(Option<PodRef>, Option<String>), usize> = HashMap::new();
    for endpoint in endpoints {
        let name = endpoint.pod.is_none().then(|| endpoint.target.clone());
        match places.entry((endpoint.pod.clone(), name)) {
            Entry::Occupied(place) => {
                let known = &mut hosts[*place.get()].addresses;
                let added = endpoint.addresses.into_iter().filter(|address| !known.contains(address));
                let added: Vec<_> = added.collect();
                known.extend(added);
                known.sort_by_cached_key(|address| (address.network.clone(), address.ip));
            }
            Entry::Vacant(place) => {
                place.insert(hosts.len());
                hosts.push(endpoint);
            }
        }
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: u16, ip: &str) -> Endpoint {
        let mut endpoint = Endpoint::at(std::net::SocketAddr::new(ip.parse().unwrap(), port));
        endpoint.host = name.to_owned();
        endpoint.target = format!("{name}.train.vision.svc.multinet.cluster.local");
        endpoint
    }

    #[test]
    fn hosts_are_in_the_order_of_their_numbers() {
        let hosts = ["w-10", "w-2", "w-0"].map(|name| host(name, 1, "10.0.0.1")).to_vec();
        assert_eq!(names(&in_order(hosts)), "w-0, w-2, w-10");
    }

    #[test]
    fn a_host_with_several_ports_counts_once() {
        let endpoints = vec![host("b", 1, "10.0.0.2"), host("a", 1, "10.0.0.1"), host("a", 2, "10.0.0.1")];
        let hosts = in_order(endpoints);
        assert_eq!(names(&hosts), "a, b");
        let own = |ip: &str| own_place(&hosts, &BTreeSet::from([ip.parse().unwrap()]));
        assert_eq!([own("10.0.0.2"), own("10.0.0.1"), own("10.0.0.3")], [Some(1), Some(0), None]);
    }

    #[test]
    fn a_pod_is_one_host_whatever_names_it_has() {
        let of_pod = |uid: &str, name: &str, port: u16, ip: &str| {
            let (mut pod, mut endpoint) = (PodRef::default(), host(name, port, ip));
            pod.uid = Some(uid.to_owned());
            endpoint.pod = Some(pod);
            endpoint
        };
        // A Deployment's pods without host names, on two networks.
        let hosts = in_order(vec![
            of_pod("b", "10-1-0-2", 1, "10.1.0.2"),
            of_pod("a", "10-1-0-1", 1, "10.1.0.1"),
            of_pod("a", "10-0-0-1", 1, "10.0.0.1"),
            of_pod("b", "10-0-0-2", 1, "10.0.0.2"),
        ]);
        assert_eq!(names(&hosts), "10-0-0-1, 10-0-0-2");
        assert_eq!(hosts[1].addresses.len(), 2);
        // Two pods with one host name, and two ports.
        let pods = [("a", "10.0.0.1"), ("b", "10.0.0.2")];
        let endpoints = [1, 2].iter().flat_map(|port| pods.map(|(uid, ip)| of_pod(uid, "w", *port, ip)));
        let pods = in_order(endpoints.collect());
        assert_eq!(names(&pods), "w, w");
        // One of them is this pod, which replaces the other one.
        for (own, expected) in [("10.0.0.1", "10.0.0.1"), ("10.0.0.2", "10.0.0.2"), ("10.0.0.9", "10.0.0.1")]
        {
            let hosts = by_name(&pods, &BTreeSet::from([own.parse().unwrap()]));
            assert_eq!(
                (names(&hosts).as_str(), written(&hosts[0], AddressKind::Ip).as_str()),
                ("w", expected)
            );
        }
    }

    /// The server takes queries, and answers none.
    #[tokio::test]
    async fn a_wait_ends_while_dns_does_not_answer() {
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let resolver = Resolver::builder().servers([silent.local_addr().unwrap()]).build().unwrap();
        let wait = (Duration::from_millis(10), "waiting");
        let outcome = wait_for(&resolver, "train.vision.svc.multinet.", wait, |_| Some(String::new())).await;
        let said = outcome.unwrap_err().to_string();
        let (begin, end) = ("DNS has not answered about train.vision.svc.multinet.: ", " (waited 0 s)");
        assert!(said.starts_with(begin) && said.ends_with(end), "{said}");
    }

    #[test]
    fn a_service_with_too_few_hosts_is_reported_with_their_names() {
        let hosts: Vec<Endpoint> =
            (0..18).map(|number| host(&format!("w-{number}"), 1, "10.0.0.1")).collect();
        let said = not_so_many("train", &hosts, 20);
        assert!(said.starts_with("train has 18 hosts, w-0, w-1, "), "{said}");
        assert!(said.contains(", w-15 and 2 more, and not 20: DNS has"), "{said}");
        let said = not_so_many("train", &[], 2);
        assert!(said.starts_with("train has 0 hosts and not 2: DNS has"), "{said}");
    }
}
