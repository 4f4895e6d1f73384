//! The flags by which torchrun finds the other nodes, and the wait until they are known.
//!
//! The rendezvous is static: the first host is the master, and a node's rank is its place in the
//! order, which is the same on every pod. torchrun's other rendezvous (c10d) has each node find out
//! whether it is the master. It compares the master's addresses with those of its own host name,
//! which are on the default network.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use multinet_client::{Endpoint, Resolver};

use crate::hosts::{self, AddressKind, by_name, names, not_so_many, own_addresses, own_place, written};
use crate::output::Usage;

/// Port of the master, as in torchrun itself.
const DEFAULT_PORT: u16 = 29500;

/// Nodes that a job is to have.
pub(crate) struct Rendezvous {
    pub(crate) service: String,
    /// Number of nodes.
    pub(crate) count: u32,
    pub(crate) wait: Duration,
}

/// Nodes of a job, once all are there.
pub(crate) struct Nodes {
    pub(crate) hosts: Vec<Endpoint>,
    /// This pod's place among them.
    pub(crate) rank: usize,
}

impl Rendezvous {
    /// Waits until the service has the wanted number of hosts, this pod among them.
    ///
    /// # Errors
    ///
    /// At the end of the wait, with what is missing; or if DNS fails.
    pub(crate) async fn nodes(&self, resolver: &Resolver) -> anyhow::Result<Nodes> {
        let own = own_addresses()?;
        let note = format!("{} does not have {} hosts yet, this pod among them", self.service, self.count);
        let missing = |pods: &[Endpoint]| self.missing(&by_name(pods, &own), &own);
        let pods = hosts::wait_for(resolver, &self.service, (self.wait, &note), missing).await?;
        let hosts = by_name(&pods, &own);
        let rank = own_place(&hosts, &own).context("this pod is no host of the service")?;
        Ok(Nodes { hosts, rank })
    }

    /// Returns what is missing before every node can have its rank.
    fn missing(&self, hosts: &[Endpoint], own: &BTreeSet<IpAddr>) -> Option<String> {
        let Self { service, count, .. } = self;
        let count = *count as usize;
        if hosts.len() != count {
            return Some(not_so_many(service, hosts, count));
        }
        if own_place(hosts, own).is_some() {
            return None;
        }
        let own: Vec<String> = own.iter().map(ToString::to_string).collect();
        Some(format!(
            "{service} has {count} hosts, {}, and none of them has an address of this pod ({}): this node would have no rank, and \
             the others would wait for one of theirs; run this in the pods of the service, attached to its networks",
            names(hosts),
            own.join(", ")
        ))
    }
}

impl Nodes {
    /// Returns the flags for torchrun on this pod. Older torch has them with underscores only.
    pub(crate) fn flags(&self, port: u16, kind: AddressKind) -> Vec<String> {
        let master = self.hosts.first().map(|host| written(host, kind)).unwrap_or_default();
        let master = if master.contains(':') { format!("[{master}]") } else { master };
        vec![
            format!("--nnodes={}", self.hosts.len()),
            format!("--node_rank={}", self.rank),
            "--rdzv_backend=static".to_owned(),
            format!("--master_addr={master}"),
            format!("--master_port={port}"),
        ]
    }
}

/// Parses the port of `SERVICE:PORT`, which is a number.
///
/// # Errors
///
/// [`Usage`], if it is none.
pub(crate) fn port(text: Option<String>) -> Result<u16, Usage> {
    let Some(text) = text else { return Ok(DEFAULT_PORT) };
    match text.parse() {
        Ok(port @ 1..) => Ok(port),
        _ => Err(Usage(format!(
            "{text:?} is not a port: give the number of a free one, on which the first host then listens"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(ips: &[&str]) -> Vec<Endpoint> {
        let host = |(number, ip): (usize, &&str)| {
            let mut host = Endpoint::at(std::net::SocketAddr::new(ip.parse().unwrap(), 18515));
            (host.host, host.target) = (format!("w-{number}"), format!("w-{number}.train.test"));
            host
        };
        ips.iter().enumerate().map(host).collect()
    }

    #[test]
    fn the_first_host_is_the_master_and_the_place_the_rank() {
        let v4 = Nodes { hosts: hosts(&["10.0.0.1", "10.0.0.2"]), rank: 1 };
        let expected = |master: &str| {
            ["--nnodes=2", "--node_rank=1", "--rdzv_backend=static", master, "--master_port=29500"]
                .map(str::to_owned)
        };
        let port = port(None).unwrap();
        assert_eq!(v4.flags(port, AddressKind::Name), expected("--master_addr=w-0.train.test"));
        assert_eq!(v4.flags(port, AddressKind::Ip), expected("--master_addr=10.0.0.1"));
        let v6 = Nodes { hosts: hosts(&["fd00::1", "fd00::2"]), rank: 1 };
        assert_eq!(v6.flags(port, AddressKind::Ip), expected("--master_addr=[fd00::1]"));
    }

    #[test]
    fn a_port_is_a_number() {
        assert_eq!(port(Some("1".to_owned())).unwrap(), 1);
        for wrong in ["0", "65536", "rdma", "", "-1"] {
            assert!(
                port(Some(wrong.to_owned())).unwrap_err().to_string().contains("is not a port"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_job_needs_as_many_hosts_as_it_has_nodes_and_this_pod() {
        let job = |count| Rendezvous { service: "train".to_owned(), count, wait: Duration::ZERO };
        let hosts = hosts(&["10.0.0.1", "10.0.0.2"]);
        let own = |ip: &str| BTreeSet::from([ip.parse::<IpAddr>().unwrap()]);
        assert_eq!(job(2).missing(&hosts, &own("10.0.0.2")), None);
        for count in [1, 3] {
            let said = job(count).missing(&hosts, &own("10.0.0.2")).unwrap();
            assert!(said.starts_with(&format!("train has 2 hosts, w-0, w-1, and not {count}: ")), "{said}");
        }
        let said = job(2).missing(&hosts, &own("10.0.0.3")).unwrap();
        let start = "train has 2 hosts, w-0, w-1, and none of them has an address of this pod (10.0.0.3): ";
        assert!(
            said.starts_with(start) && said.contains("would have no rank, and the others would wait"),
            "{said}"
        );
    }
}
