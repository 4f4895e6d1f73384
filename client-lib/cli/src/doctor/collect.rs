//! Collects the facts from DNS, the kernel and the network.

#[cfg(feature = "devices")]
mod libraries;
#[cfg(not(feature = "devices"))]
#[path = "collect/no_libraries.rs"]
mod libraries;
mod network;
mod pci;
mod rdma;

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Instant;

use futures::StreamExt as _;
use multinet_client::{Endpoint, EndpointAddress, ResolveError, Resolver};
#[cfg(feature = "devices")]
use nix::sys::resource::{Resource, getrlimit};

#[cfg(feature = "devices")]
use super::facts::Process;
use super::facts::{Dns, DnsServer, Facts, Machine, Namespaces, Service, ZoneAnswer};
use super::{DoctorArgs, probe};
use crate::common::address_resolver;

/// Name that every zone of multinet has, to be completed by the search path.
const SERVICES: &str = "svc.multinet";
/// [`SERVICES`] in full, in the default zone.
const SERVICES_IN_FULL: &str = "svc.multinet.cluster.local.";
/// Most addresses of peers that are tried at a time.
const AT_ONCE: usize = 32;
/// Folder that has `sys`, `proc` and `dev` of this machine.
const ROOT: &str = "/";

/// Collects all facts. This takes as long as the slowest RDMA device, then the slowest DNS server,
/// then the slowest peer.
pub(super) async fn facts(args: &DoctorArgs) -> Facts {
    let machine = machine().await;
    let allows_default_network = args.network.allow_default_network;
    let resolver = match args.dns.resolver() {
        Ok(resolver) => resolver,
        Err(error) => {
            // An address needs no DNS.
            let service = match (&args.name, address_resolver()) {
                (Some(name), Ok(resolver)) if name.parse::<IpAddr>().is_ok() => {
                    Some(service(args, &resolver, name).await)
                }
                _ => None,
            };
            return Facts { dns: Err(error), service, machine, allows_default_network };
        }
    };
    let service = async {
        match &args.name {
            Some(name) => Some(service(args, &resolver, name).await),
            None => None,
        }
    };
    let (dns, service) = tokio::join!(dns(args, &resolver), service);
    Facts { dns: Ok(dns), service, machine, allows_default_network }
}

async fn dns(args: &DoctorArgs, resolver: &Resolver) -> Dns {
    let probe = zone_of(args.name.as_deref());
    let asked = resolver.servers().iter().map(|server| ask(args, *server, probe.clone()));
    let servers = futures::future::join_all(asked).await;
    Dns { search: resolver.search().to_vec(), ndots: resolver.ndots(), probe, servers }
}

/// Returns `svc.<zone>`, from the service's name if it has that: the search path then has to
/// complete the same part of both names.
fn zone_of(name: Option<&str>) -> String {
    let place = |name: &str| name.find(".svc.").map(|dot| name[dot + 1..].to_owned());
    name.and_then(place).unwrap_or_else(|| SERVICES.to_owned())
}

/// Asks one DNS server whether it knows the zone of multinet, and tries it over TCP, too.
async fn ask(args: &DoctorArgs, address: SocketAddr, name: String) -> DnsServer {
    let start = Instant::now();
    let says = match args.dns.resolver_of(address) {
        Ok(resolver) => zone_at(&resolver, &name).await,
        Err(error) => ZoneAnswer::Fails(error),
    };
    let took = start.elapsed();
    let no_tcp = match says {
        ZoneAnswer::Silent(_) => None,
        _ => probe::tcp(address).await.err().map(|error| error.to_string()),
    };
    DnsServer { address, says, took, no_tcp }
}

async fn zone_at(resolver: &Resolver, name: &str) -> ZoneAnswer {
    let error = match find(resolver, name).await {
        Ok(zone) => return ZoneAnswer::Zone(zone),
        Err(error) => error,
    };
    // multinet-dns, if it is asked directly, refuses names outside of its zone. And a cluster's
    // server may forward all other names to a server that is down.
    if name == SERVICES {
        match find(resolver, SERVICES_IN_FULL).await {
            Ok(zone) => return ZoneAnswer::FullNameOnly(zone),
            Err(error) if error.is_negative() => return ZoneAnswer::NoZone,
            Err(_) => {}
        }
    }
    match error {
        error if error.is_negative() => ZoneAnswer::NoZone,
        error @ (ResolveError::Timeout { .. } | ResolveError::Unreachable { .. }) => {
            ZoneAnswer::Silent(error)
        }
        error => ZoneAnswer::Fails(error),
    }
}

/// Looks up a name that is expected to exist without address records, and returns it in full.
async fn find(resolver: &Resolver, name: &str) -> Result<String, ResolveError> {
    // Any port will do: "no address" is the expected answer.
    match resolver.resolve(name, "1").await {
        Ok(found) => Err(ResolveError::NoSuchName {
            name: name.to_owned(),
            tried: vec![found.name.clone()],
            unanswered: Vec::new(),
            wildcard: Some(found.name),
        }),
        Err(ResolveError::NoAddress { name }) => Ok(name),
        Err(error) => Err(error),
    }
}

async fn service(args: &DoctorArgs, resolver: &Resolver, name: &str) -> Service {
    let records = async {
        match name.parse::<IpAddr>() {
            Ok(_) => None,
            Err(_) => Some(resolver.resolve(name, "*").await),
        }
    };
    let wanted = async {
        match &args.port {
            Some(port) => Some(resolver.resolve(name, port).await),
            None => None,
        }
    };
    let (records, wanted) = tokio::join!(records, wanted);
    let network = args.network.network.clone();
    let endpoints: &[Endpoint] = match (&wanted, &records) {
        (Some(Ok(resolved)), _) | (None, Some(Ok(resolved))) => &resolved.endpoints,
        _ => &[],
    };
    // By a port's number, only addresses are found. The records have the other facts.
    let known = |ip: IpAddr| {
        let all = records.iter().flatten().flat_map(|resolved| &resolved.endpoints);
        all.flat_map(|endpoint| endpoint.addresses.iter().map(move |address| (endpoint, address)))
            .find(|(_, address)| address.ip == ip)
    };
    let mut targets: Vec<(&str, u16, &EndpointAddress)> = Vec::new();
    for endpoint in endpoints {
        for address in &endpoint.addresses {
            let (host, address) = match known(address.ip) {
                Some((endpoint, address)) => (&endpoint.host, address),
                None => (&endpoint.host, address),
            };
            let target = (host.as_str(), endpoint.port, address);
            let is_wanted = network.is_none() || address.network == network;
            if is_wanted && !targets.contains(&target) {
                targets.push(target);
            }
        }
    }
    let tried = targets.into_iter().map(|(host, port, address)| {
        network::peer(name, host.to_owned(), port, address, args.network.allow_default_network)
    });
    let peers = futures::stream::iter(tried).buffered(AT_ONCE).collect().await;
    Service { name: name.to_owned(), port: args.port.clone(), records, wanted, network, peers }
}

async fn machine() -> Machine {
    let interfaces = network::nics().map_err(|error| error.to_string());
    let rdma_files = names_in("/dev/infiniband");
    let rdma_devices = names_in("/sys/class/infiniband");
    let verbs = libraries::verbs();
    let can_try = matches!(verbs, Some(Ok(()))) && Machine::has_uverbs(&rdma_files);
    let gids = rdma::gids(interfaces.as_deref().unwrap_or_default(), can_try).await;
    let has_rdma = !rdma_devices.is_empty() || Path::new("/sys/module/ib_core").exists();
    let used = rdma::devices(&gids, |_| true).into_iter();
    let gpus = pci::gpus(ROOT.as_ref());
    Machine {
        cuda: if gpus.of_pod.is_empty() { None } else { libraries::cuda().await },
        dma_bufs: rdma::dma_bufs(&gids).await,
        functions: used
            .filter_map(|device| Some((device.clone(), pci::nic(ROOT.as_ref(), &device)?)))
            .collect(),
        gids,
        shared: network::shared().unwrap_or_default(),
        interfaces,
        #[cfg(feature = "devices")]
        memlock: getrlimit(Resource::RLIMIT_MEMLOCK).ok(),
        #[cfg(feature = "devices")]
        process: Process::read(),
        namespaces: has_rdma.then(|| namespaces().map_err(|error| error.to_string())),
        peermem: libraries::peermem(),
        gpus,
        rdma_devices,
        rdma_files,
        verbs,
    }
}

/// Reads the mode in which network namespaces share RDMA devices, which `rdma system` shows, too.
fn namespaces() -> io::Result<Namespaces> {
    let is_shared = fs::read_to_string("/sys/module/ib_core/parameters/netns_mode")?;
    Ok(if is_shared.trim_end() == "Y" { Namespaces::Shared } else { Namespaces::Exclusive })
}

/// Returns the names in a folder, sorted; none if the folder does not exist.
fn names_in(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zone_is_what_follows_svc() {
        let cases = [
            (None, "svc.multinet"),
            (Some("infer.vision.svc.multinet"), "svc.multinet"),
            (Some("rail0._net.infer.vision.svc.rdma.example."), "svc.rdma.example."),
            (Some("10.0.0.1"), "svc.multinet"),
        ];
        for (name, zone) in cases {
            assert_eq!(zone_of(name), zone, "{name:?}");
        }
    }
}
