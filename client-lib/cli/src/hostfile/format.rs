//! Formats of host files. Pure.

use clap::ValueEnum;
use multinet_client::{Endpoint, EndpointAddress, PodRef};
use serde::Serialize;

use crate::hosts::{AddressKind, written};
use crate::output::Usage;

/// Format of a host file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum HostFormat {
    /// Open MPI: NAME slots=8
    Mpi,
    /// MPICH and Intel MPI: NAME:8
    Mpich,
    /// deepspeed --hostfile: NAME slots=8
    Deepspeed,
    /// horovodrun --hostfile: NAME slots=8
    Horovod,
    /// Flags for torchrun on this pod, whose place in the order is its rank; SERVICE:PORT sets the
    /// master's port
    Torchrun,
    /// Provider of Ray's cluster launcher (ray up), as YAML: the first host is the head
    Ray,
    /// JSON, with all that DNS knows
    Json,
}

/// Host as JSON.
#[derive(Serialize)]
struct HostView<'a> {
    rank: usize,
    host: &'a str,
    name: &'a str,
    slots: u32,
    addresses: &'a [EndpointAddress],
    node: Option<&'a str>,
    zone: Option<&'a str>,
    pod: Option<&'a PodRef>,
}

/// Returns the hosts in a format. [`HostFormat::Torchrun`] has none: its flags depend on the pod.
///
/// # Errors
///
/// If the format cannot hold the addresses.
pub(super) fn text(
    format: HostFormat,
    hosts: &[Endpoint],
    slots: u32,
    kind: AddressKind,
) -> anyhow::Result<String> {
    let names: Vec<String> = hosts.iter().map(|host| written(host, kind)).collect();
    // A colon ends the name there, also in horovodrun, which writes NAME:SLOTS itself.
    if matches!(format, HostFormat::Mpich | HostFormat::Horovod)
        && let Some(ip) = names.iter().find(|name| name.contains(':'))
    {
        let said =
            format!("a host file of this format has no IPv6 addresses, such as {ip}: leave out --address ip");
        return Err(Usage(said).into());
    }
    Ok(match format {
        HostFormat::Mpi | HostFormat::Deepspeed | HostFormat::Horovod => {
            names.iter().map(|name| format!("{name} slots={slots}\n")).collect()
        }
        HostFormat::Mpich => names.iter().map(|name| format!("{name}:{slots}\n")).collect(),
        HostFormat::Torchrun => String::new(),
        HostFormat::Ray => ray(&names),
        HostFormat::Json => json(hosts, slots)?,
    })
}

/// Returns the provider of a cluster's YAML for `ray up`. Its names are quoted, as an address may
/// have colons.
fn ray(names: &[String]) -> String {
    let Some((head, workers)) = names.split_first() else { return String::new() };
    let workers: Vec<String> = workers.iter().map(|name| format!("{name:?}")).collect();
    format!("provider:\n  type: local\n  head_ip: {head:?}\n  worker_ips: [{}]\n", workers.join(", "))
}

fn json(hosts: &[Endpoint], slots: u32) -> serde_json::Result<String> {
    let view = |(rank, host): (usize, &'_ Endpoint)| -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(HostView {
            rank,
            host: &host.host,
            name: &host.target,
            slots,
            addresses: &host.addresses,
            node: host.node.as_deref(),
            zone: host.zone.as_deref(),
            pod: host.pod.as_ref(),
        })
    };
    let views = hosts.iter().enumerate().map(view).collect::<serde_json::Result<Vec<_>>>()?;
    Ok(serde_json::to_string_pretty(&views)? + "\n")
}

#[cfg(test)]
mod tests {
    use multinet_client::EndpointAddress;
    use serde_json::Value;

    use super::*;

    fn hosts() -> Vec<Endpoint> {
        let host = |name: &str, ips: [&str; 2]| {
            let mut host = Endpoint::at(std::net::SocketAddr::new(ips[0].parse().unwrap(), 18515));
            host.addresses.push(EndpointAddress::new(ips[1].parse().unwrap()));
            (host.host, host.target) = (name.to_owned(), format!("{name}.train.test"));
            host
        };
        vec![host("w-2", ["10.0.0.2", "10.1.0.2"]), host("w-10", ["fd00::10", "fd01::10"])]
    }

    #[test]
    fn each_format_has_a_line_for_each_host() {
        let cases = [
            (HostFormat::Mpi, AddressKind::Name, "w-2.train.test slots=4\nw-10.train.test slots=4\n"),
            (HostFormat::Mpi, AddressKind::Ip, "10.0.0.2 slots=4\nfd00::10 slots=4\n"),
            (HostFormat::Mpich, AddressKind::Name, "w-2.train.test:4\nw-10.train.test:4\n"),
            (HostFormat::Deepspeed, AddressKind::Name, "w-2.train.test slots=4\nw-10.train.test slots=4\n"),
            (HostFormat::Horovod, AddressKind::Name, "w-2.train.test slots=4\nw-10.train.test slots=4\n"),
            (
                HostFormat::Ray,
                AddressKind::Name,
                "provider:\n  type: local\n  head_ip: \"w-2.train.test\"\n  worker_ips: [\"w-10.train.test\"]\n",
            ),
            (
                HostFormat::Ray,
                AddressKind::Ip,
                "provider:\n  type: local\n  head_ip: \"10.0.0.2\"\n  worker_ips: [\"fd00::10\"]\n",
            ),
        ];
        for (format, kind, expected) in cases {
            assert_eq!(text(format, &hosts(), 4, kind).unwrap(), expected, "{format:?} {kind:?}");
        }
    }

    #[test]
    fn an_ipv6_address_is_refused_where_a_colon_ends_the_name() {
        for format in [HostFormat::Mpich, HostFormat::Horovod] {
            let said = text(format, &hosts(), 4, AddressKind::Ip).unwrap_err().to_string();
            assert!(said.contains("has no IPv6 addresses, such as fd00::10"), "{said}");
            assert!(text(format, &hosts()[..1], 4, AddressKind::Ip).is_ok());
        }
    }

    #[test]
    fn json_has_the_rank_and_all_that_dns_knows() {
        let hosts: Value =
            serde_json::from_str(&text(HostFormat::Json, &hosts(), 4, AddressKind::Name).unwrap()).unwrap();
        assert_eq!((&hosts[1]["rank"], &hosts[1]["slots"]), (&1.into(), &4.into()));
        assert_eq!((&hosts[1]["host"], &hosts[1]["name"]), (&"w-10".into(), &"w-10.train.test".into()));
        assert_eq!((&hosts[0]["addresses"][1]["ip"], &hosts[0]["node"]), (&"10.1.0.2".into(), &Value::Null));
    }
}
