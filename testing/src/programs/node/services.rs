//! Cluster addresses of Services, implemented like kube-proxy's: the kernel translates each new
//! connection to one of the ready endpoints.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use tokio::task::JoinHandle;

use crate::process::run;

/// Pause between two reads of the objects.
const PAUSE: Duration = Duration::from_millis(200);

/// Name of our chain of rules, in two tables.
const CHAIN: &str = "MULTINET-SERVICES";

/// Task that keeps the kernel's rules up to date until it is dropped.
#[derive(Debug)]
pub(super) struct Services(JoinHandle<()>);

/// Port of a cluster address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    address: String,
    protocol: String,
    number: i32,
}

/// Endpoints of each port.
type EndpointsByPort = BTreeMap<Port, Vec<String>>;

impl Services {
    /// Starts to follow the cluster's Services.
    pub(super) fn serve(client: Client) -> Result<Self> {
        for (table, chain) in
            [("nat", "PREROUTING"), ("nat", "OUTPUT"), ("filter", "FORWARD"), ("filter", "OUTPUT")]
        {
            // Fails if the chain exists already.
            let _ = iptables(&["-t", table, "-N", CHAIN]);
            iptables(&["-t", table, "-A", chain, "-j", CHAIN])?;
        }
        // Without this, replies between pods on one bridge would bypass the translation.
        let translated = ["-m", "conntrack", "--ctstate", "DNAT", "-j", "MASQUERADE"];
        iptables(&[&["-t", "nat", "-A", "POSTROUTING"][..], &translated].concat())?;
        Ok(Self(tokio::spawn(async move {
            let mut served = EndpointsByPort::new();
            loop {
                match next(&client, &served).await {
                    Ok(by_port) => served = by_port,
                    Err(error) => eprintln!("cannot serve cluster addresses: {error:#}"),
                }
                tokio::time::sleep(PAUSE).await;
            }
        })))
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads the cluster's Services, and updates the kernel's rules if they differ from `served`.
async fn next(client: &Client, served: &EndpointsByPort) -> Result<EndpointsByPort> {
    let services = Api::<Service>::all(client.clone()).list(&Default::default()).await?;
    let slices = Api::<EndpointSlice>::all(client.clone()).list(&Default::default()).await?;
    let by_port = endpoints_by_port(&services.items, &slices.items);
    if by_port != *served {
        restore(&rules(&by_port)?)?;
        // Translated flows keep their endpoint, so that datagrams would reach pods that are gone.
        for port in
            by_port.keys().filter(|&port| by_port.get(port) != served.get(port) && port.protocol == "udp")
        {
            // Fails if no flow matches.
            let _ = Command::new("conntrack").args(["-D", "-p", "udp", "-d", &port.address]).output();
        }
    }
    Ok(by_port)
}

fn endpoints_by_port(services: &[Service], slices: &[EndpointSlice]) -> EndpointsByPort {
    let mut by_port = EndpointsByPort::new();
    for service in services {
        let spec = service.spec.clone().unwrap_or_default();
        // Skips Services without a selector, such as `kubernetes`, which the API server itself
        // serves.
        let address = spec.cluster_ip.unwrap_or_default();
        if spec.selector.is_none() || address.is_empty() || address == "None" {
            continue;
        }
        let of_service = slices.iter().filter(|slice| {
            let label = slice.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/service-name"));
            slice.metadata.namespace == service.metadata.namespace && label == service.metadata.name.as_ref()
        });
        let of_service: Vec<_> = of_service.collect();
        for port in spec.ports.unwrap_or_default() {
            let protocol = port.protocol.unwrap_or_else(|| "TCP".to_owned());
            let key = Port { address: address.clone(), protocol: protocol.to_lowercase(), number: port.port };
            by_port.insert(
                key,
                of_service.iter().flat_map(|slice| targets(slice, port.name.as_ref())).collect(),
            );
        }
    }
    by_port
}

/// Returns the ready endpoints of one port of a slice.
fn targets(slice: &EndpointSlice, port: Option<&String>) -> Vec<String> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let port =
        ports.iter().find(|found| found.name.as_deref().unwrap_or("") == port.map_or("", String::as_str));
    let Some(port) = port.and_then(|port| port.port) else {
        return Vec::new();
    };
    let ready = slice.endpoints.iter().filter(|endpoint| {
        endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
    });
    ready.flat_map(|endpoint| &endpoint.addresses).map(|address| format!("{address}:{port}")).collect()
}

/// Returns the rules in the format of iptables-restore.
fn rules(by_port: &EndpointsByPort) -> Result<String> {
    let (mut nat, mut filter) = (String::new(), String::new());
    for (Port { address, protocol, number }, targets) in by_port {
        let rule = format!("-A {CHAIN} -d {address}/32 -p {protocol} -m {protocol} --dport {number}");
        if targets.is_empty() {
            writeln!(filter, "{rule} -j REJECT")?;
        }
        for (index, target) in targets.iter().enumerate() {
            // Each remaining endpoint gets the same probability.
            let every = targets.len() - index;
            writeln!(
                nat,
                "{rule} -m statistic --mode nth --every {every} --packet 0 -j DNAT --to-destination {target}"
            )?;
        }
    }
    Ok(format!("*nat\n:{CHAIN} - [0:0]\n{nat}COMMIT\n*filter\n:{CHAIN} - [0:0]\n{filter}COMMIT\n"))
}

fn restore(rules: &str) -> Result<()> {
    let mut command = Command::new("iptables-restore");
    let mut child =
        command.args(["--wait", "--noflush"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("no pipe")?.write_all(rules.as_bytes())?;
    let output = child.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "iptables-restore: {}\n{rules}", stderr.trim());
    Ok(())
}

fn iptables(args: &[&str]) -> Result<()> {
    run(Command::new("iptables").arg("--wait").args(args)).map(drop)
}
